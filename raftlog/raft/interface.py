"""Types of the quorum's interface, such as outcomes, status, state machine and settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from raftlog.raft.messages import CHUNK_BYTES_MAX, COMMAND_BYTES_MAX
from raftlog.raft.rules import Timing
from raftlog.record.errors import ErrorEntry

JOURNAL_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of the journal, if snapshots fail for lack of room. Above it, proposals are refused."""
DISK_RESERVE_BYTES: Final = 1024 * 1024
"""Free bytes below which a leader refuses proposals, since every entry must find room."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Applied(Generic[R]):
    """The command is durable and was applied at `index`. `result` is the result of `apply`."""

    index: int
    result: R


@dataclass(frozen=True, slots=True)
class Refused:
    """The command was not written and will never be applied. Proposing it again is safe."""

    entry: ErrorEntry
    message: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The command may have been applied, or be applied later. Only a harmless repeat is safe."""

    message: str


Outcome: TypeAlias = Applied[R] | Refused | Unknown


class Role(StrEnum):
    """A member's present role. An observer has no vote."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    OBSERVER = "observer"


@dataclass(frozen=True, slots=True)
class SyncTimes:
    """Durations of the journal's syncs since the member was opened."""

    count: int = 0
    seconds_sum: float = 0.0
    seconds_max: float = 0.0


@dataclass(frozen=True, slots=True)
class QuorumStatus:
    """A member's view of the quorum. `failure` is None unless the member has stopped for good."""

    role: Role
    leader_id: int | None
    """The leader of its term, or None while unknown."""
    is_active: bool
    """Whether its node acts as the controller, see `RaftMember.is_active`."""
    term: int
    last_index: int
    commit_index: int
    """Newest index known here to be committed. Never below `applied_index`."""
    applied_index: int
    snapshot_index: int
    journal_bytes: int
    elections: int
    """Elections started by this member since it was opened."""
    syncs: SyncTimes
    failure: str | None


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Another member, connected to this one."""

    node_id: int
    address: str
    """Its listener, `host:port`, by its own hello."""
    is_voter: bool
    match_index: int | None
    """Newest index known to be durable there. Only a leader knows it of its peers."""
    last_heard_s: float
    """Seconds since its last message arrived, whenever the message was sent."""
    confirmed_age_s: float
    """Upper bound in seconds on how long the peer may have followed another leader. It counts from
    when the newest append left that got a response. inf without a response."""


class ConnectionEvent(Enum):
    """A change of the connection to another member."""

    UP = auto()
    DOWN = auto()
    """Ended for a cause that is not known (yet)."""
    REFUSED = auto()
    """Ended, and the address refuses connections, so the process is dead. May follow DOWN."""


class StateMachine(Protocol[R_co]):
    """Applies the commands. Called from the event loop, never concurrently, unless noted."""

    def apply(self, index: int, command: bytes) -> R_co:
        """Apply a committed command. Must be deterministic, since an exception ends the quorum."""
        ...

    def snapshot(self) -> Callable[[], Iterator[bytes]]:
        """Capture the present state, in a few milliseconds. Later commands must not change it.

        The returned function encodes the state in pieces of up to 1 MiB, on any thread, and must
        not keep the interpreter from other threads for more than about 2 ms at a time.
        """
        ...

    def restore(self, index: int, pieces: Iterable[bytes]) -> Callable[[], None]:
        """Decode the state of a snapshot of all commands up to `index`.

        The method is called on any thread, while nothing is applied. The returned function is
        called on the event loop and is quick. It adopts the new state and notifies listeners.
        """
        ...


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """A member's identity towards its peers."""

    node_id: int
    directory_id: str
    """Identity of the data directory. Another directory under the same node id is another node."""
    software_version: str
    bootstrap_id: str | None = None
    """Digest of the configured voters of a new cluster, or None without such a list."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Bounds and times of a quorum member. The defaults are right for all but tests."""

    timing: Timing = field(default_factory=Timing)
    command_bytes_max: int = COMMAND_BYTES_MAX
    uncommitted_entries_max: int = 10_000
    """Entries in a leader's log beyond the commit index. More are refused."""
    proposal_s: float = 10.0
    """Time limit of a proposal."""
    snapshot_entries: int = 10_000
    """Entries after which a snapshot is taken."""
    snapshot_bytes: int = 16 * 1024 * 1024
    """Growth of the journal after which a snapshot is taken."""
    entries_kept: int = 1_000
    """Entries kept behind a snapshot, for members that lag a little."""
    chunk_bytes: int = CHUNK_BYTES_MAX
    """Chunk of a snapshot sent to another member."""
