"""Requests of classic groups and their answers, free of any protocol; tickets of held requests.

Requests and answers are one MessagePack array each between nodes, as `group_messages` frames them.
Protocol metadata and assignments are bytes of the clients, opaque here. An `error_code` is a code
of the error table; 0: none.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from raftlog.record.errors import LogError

PROTOCOLS_MAX: Final = 16
"""Protocols (assignors) of one member; clients name one to four."""


class _Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Fields in the order of the wire."""


class _Body(msgspec.Struct, frozen=True, array_like=True):
    """The same, with a tag first; `group_messages` and `offset_messages` have those below 30."""


class Protocol(_Part, frozen=True):
    """An assignor that a member supports, and the member's metadata for it."""

    name: str
    metadata: bytes


class JoinGroup(_Body, frozen=True, tag=30):
    """Join, or join again in a rebalance."""

    group_id: str
    protocol_type: str
    protocols: tuple[Protocol, ...]
    """In the order of preference."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """How long the group waits for this member in a rebalance; -1: the session timeout."""
    member_id: str = ""
    """Empty: a new member, or a static member that has started again."""
    instance_id: str | None = None
    """Of a static member (KIP-345)."""
    client_id: str = ""
    client_host: str = ""
    requires_member_id: bool = True
    """The client joins in two steps (KIP-394)."""
    can_skip_assignment: bool = True
    """The client knows `Joined.skip_assignment` (KIP-814)."""
    new_member_id: str = ""
    """Made by the listener, for a request without a member id."""


class JoinedMember(_Part, frozen=True):
    """A member, as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(_Body, frozen=True, tag=30):
    """The member is in this generation; it sends SyncGroup next."""

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[JoinedMember, ...] = ()
    """All members, for the leader only."""
    skip_assignment: bool = False
    """The leader started again in a stable generation: it must not assign."""


class MemberIdRequired(_Body, frozen=True, tag=34):
    """MEMBER_ID_REQUIRED: the client joins again with this id."""

    member_id: str


class MemberAssignment(_Part, frozen=True):
    """A member's part, as the leader assigned it."""

    member_id: str
    assignment: bytes


class SyncGroup(_Body, frozen=True, tag=31):
    """Get the own assignment; the leader brings all."""

    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    """None: not checked (old clients)."""
    protocol: str | None = None
    assignments: tuple[MemberAssignment, ...] = ()


class Synced(_Body, frozen=True, tag=31):
    """The member's assignment."""

    protocol_type: str
    protocol: str
    assignment: bytes


class ClassicHeartbeat(_Body, frozen=True, tag=32):
    """Keep the session, and hear of a rebalance."""

    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None


class LeavingMember(_Part, frozen=True):
    """A member by its id, or a static one by its instance id alone."""

    member_id: str
    instance_id: str | None = None


class LeaveGroup(_Body, frozen=True, tag=33):
    """End memberships."""

    group_id: str
    members: tuple[LeavingMember, ...]


class LeaveOutcome(_Part, frozen=True):
    """Success or error of one leaving member."""

    member_id: str
    instance_id: str | None
    error_code: int = 0


class Left(_Body, frozen=True, tag=33):
    """The outcome for each member, in the order of the request."""

    outcomes: tuple[LeaveOutcome, ...]


class ClassicState(StrEnum):
    """States of a classic group, in Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class DescribedMember(_Part, frozen=True):
    """A member, for operators."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(_Body, frozen=True, tag=35):
    """A group, for operators. Metadata and assignments are empty unless it is stable."""

    group: str
    state: ClassicState
    generation: int
    protocol_type: str
    protocol: str | None
    members: tuple[DescribedMember, ...]


class Held(NamedTuple):
    """The request waits for the group; a decision of this group releases the ticket."""

    ticket: int


class Released(NamedTuple):
    """The response of a held request."""

    ticket: int
    response: Joined | Synced | LogError


R = TypeVar("R")


class Step(NamedTuple, Generic[R]):
    """The response of a decision of a group, and held requests that it releases.

    The shell keeps a Held request by group and ticket, then answers all released ones: a ticket may
    be held and released in one decision. These responses too leave once the decision's records are
    committed.
    """

    response: R
    released: tuple[Released, ...] = ()


JoinResponse: TypeAlias = Joined | MemberIdRequired | Held
SyncResponse: TypeAlias = Synced | Held
ClassicRequest: TypeAlias = JoinGroup | SyncGroup | ClassicHeartbeat | LeaveGroup
ClassicResponse: TypeAlias = Joined | MemberIdRequired | Synced | Left
"""Of all but heartbeats, which have nothing to say."""
