"""raftlog_replicated makes any stateful service fault-tolerant by a log.

Purpose: a service gives a deterministic state machine. Replicas apply the commands of one log, in
its order (Schneider, 1990). A replica, the primary, takes commands. All replicas serve reads.

Rules: decisions are without I/O. A replica applies an entry exactly once, in the order of the log.
An unknown entry stops a replica. Each queue and table has a bound.

Must not know: nodes, partitions' leaders, how a log is kept, or more of raftlog than the public
client.
"""

from raftlog_replicated.codec import StructCodec
from raftlog_replicated.errors import (
    ApplyError,
    BehindError,
    DivergedError,
    LayoutError,
    NotPrimaryError,
    OutcomeUnknownError,
    OverloadedError,
    ReplicaEndedError,
    ReplicatedError,
    SnapshotError,
    TooManyRequestsError,
    UnknownEntryError,
)
from raftlog_replicated.reads import Policy, Router
from raftlog_replicated.replicated import Replicated
from raftlog_replicated.types import (
    EVENTUAL,
    LEASE,
    LINEARIZABLE,
    Applied,
    At,
    Codec,
    Digesting,
    Host,
    Member,
    Position,
    Read,
    Role,
    RoleChange,
    StateMachine,
    Term,
    Token,
    session,
    within,
)

__all__ = [
    "EVENTUAL",
    "LEASE",
    "LINEARIZABLE",
    "Applied",
    "ApplyError",
    "At",
    "BehindError",
    "Codec",
    "Digesting",
    "DivergedError",
    "Host",
    "LayoutError",
    "Member",
    "NotPrimaryError",
    "OutcomeUnknownError",
    "OverloadedError",
    "Policy",
    "Position",
    "Read",
    "ReplicaEndedError",
    "Replicated",
    "ReplicatedError",
    "Role",
    "RoleChange",
    "Router",
    "SnapshotError",
    "StateMachine",
    "StructCodec",
    "Term",
    "Token",
    "TooManyRequestsError",
    "UnknownEntryError",
    "session",
    "within",
]
