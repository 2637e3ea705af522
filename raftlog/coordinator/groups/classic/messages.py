"""Requests of classic groups, their responses, and tickets of held requests, free of any protocol.

Between nodes each request and response is a MessagePack array. Protocol metadata and assignments
are bytes of the clients, opaque here. An `error_code` is a code of the error table, or 0 for
success.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from raftlog.record.errors import LogError

PROTOCOLS_MAX: Final = 16
"""Most protocols (assignors) of a member. Clients name one to four."""


class _Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Fields in the order of the wire."""


class _Body(msgspec.Struct, frozen=True, array_like=True):
    """Fields after a tag. `messages` and `offset_messages` have the tags below 30."""


class Protocol(_Part, frozen=True):
    """An assignor that a member supports, and the member's metadata for it."""

    name: str
    metadata: bytes


class JoinGroup(_Body, frozen=True, tag=30):
    """Join, or join again in a rebalance."""

    group_id: str
    protocol_type: str
    protocols: tuple[Protocol, ...]
    """Protocols in the order of preference."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """Time a rebalance waits for this member, or -1 for the session timeout."""
    member_id: str = ""
    """Id of the member, empty for a new member or a restarted static member."""
    instance_id: str | None = None
    """Instance id of a static member (KIP-345)."""
    client_id: str = ""
    client_host: str = ""
    requires_member_id: bool = True
    """Whether the client joins in two steps (KIP-394)."""
    can_skip_assignment: bool = True
    """Whether the client knows `Joined.skip_assignment` (KIP-814)."""
    new_member_id: str = ""
    """Id that the listener makes for a request without a member id."""


class JoinedMember(_Part, frozen=True):
    """A member, as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(_Body, frozen=True, tag=30):
    """The member is in this generation and sends SyncGroup next."""

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[JoinedMember, ...] = ()
    """All members, for the leader only."""
    skip_assignment: bool = False
    """Whether the leader restarted in a stable generation and must not assign."""


class MemberIdRequired(_Body, frozen=True, tag=34):
    """The client must join again with this id (MEMBER_ID_REQUIRED)."""

    member_id: str


class MemberAssignment(_Part, frozen=True):
    """A member's part, as the leader assigned it."""

    member_id: str
    assignment: bytes


class SyncGroup(_Body, frozen=True, tag=31):
    """Get the member's assignment. The leader brings all assignments."""

    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    """Protocol type, or None for no check (old clients)."""
    protocol: str | None = None
    assignments: tuple[MemberAssignment, ...] = ()


class Synced(_Body, frozen=True, tag=31):
    """The member's assignment."""

    protocol_type: str
    protocol: str
    assignment: bytes


class ClassicHeartbeat(_Body, frozen=True, tag=32):
    """Keep the session, and notice a rebalance."""

    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None


class LeavingMember(_Part, frozen=True):
    """A member by its id, or a static member by its instance id only."""

    member_id: str
    instance_id: str | None = None


class LeaveGroup(_Body, frozen=True, tag=33):
    """End memberships."""

    group_id: str
    members: tuple[LeavingMember, ...]


class LeaveOutcome(_Part, frozen=True):
    """Success or error of a leaving member."""

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
    """The request waits for the group. A decision of this group releases the ticket."""

    ticket: int


class Released(NamedTuple):
    """The response of a held request."""

    ticket: int
    response: Joined | Synced | LogError


R = TypeVar("R")


class Step(NamedTuple, Generic[R]):
    """The response of a decision of a group, and held requests that it releases.

    The shell keeps a Held request by group and ticket, then responds to all released requests. A
    decision may hold and release a ticket. These responses also leave once the decision's records
    are committed.
    """

    response: R
    released: tuple[Released, ...] = ()


JoinResponse: TypeAlias = Joined | MemberIdRequired | Held
SyncResponse: TypeAlias = Synced | Held
ClassicRequest: TypeAlias = JoinGroup | SyncGroup | ClassicHeartbeat | LeaveGroup
ClassicResponse: TypeAlias = Joined | MemberIdRequired | Synced | Left
"""Responses to all requests but heartbeats, whose response is empty."""
