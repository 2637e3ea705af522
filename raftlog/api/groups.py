"""Shapes of consumer groups in `/v1`, for membership, committed offsets and descriptions.

A group's member keeps one heartbeat open. The node responds at once when the member has work to do,
otherwise after `max_wait_ms` (KIP-848's protocol, held open).
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from raftlog.api.common import INT32_MAX, INT64_MAX, OffsetNumber, PartitionNumber

GROUP_ID_PATTERN: Final = r"^[^\x00-\x1f\x7f]{1,255}$"
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_STATIC_EPOCH: Final = -2
"""Member epoch of a static member that leaves and will rejoin before its session ends."""
NO_MEMBER_EPOCH: Final = -1
"""Member epoch of commits without a member, while the group is empty."""
ANY_OFFSET: Final = -2
"""Expected offset of a commit that accepts any present offset."""

_TopicName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
_Id = Annotated[str, Meta(max_length=255)]
_TopicId = Annotated[str, Meta(min_length=1, max_length=64)]
_Epoch = Annotated[int, Meta(ge=-2, le=INT32_MAX)]
_Timeout = Annotated[int, Meta(ge=1, le=INT32_MAX)]


class MemberPartitions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Partitions of one topic that a member reports as owned."""

    topic_id: _TopicId
    partitions: list[PartitionNumber]


class AssignedPartitions(msgspec.Struct, frozen=True):
    """Partitions of one topic that a member is assigned."""

    topic: str
    topic_id: str
    partitions: list[int]


class MemberReport(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The state of a member's service. The coordinator keeps only the newest report, in memory."""

    position: Annotated[int, Meta(ge=0, le=INT64_MAX)]
    """Log entries that the member has applied. The most advanced member is the next primary."""
    primaries: Annotated[int, Meta(ge=0, le=INT32_MAX)] = 0
    """Number of other groups for which the member's process is the primary."""
    endpoint: _Id | None = None
    """`host:port` of the service."""
    disconnect_timeout_ms: _Timeout | None = None
    """Milliseconds of silence until removal once the member's connection has ended. Counts from the
    end of the connection of its newest heartbeat, if the node held it. Defaults to the session
    timeout, as for a member that keeps its connection."""


class HeartbeatRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A member's state. An absent field is unchanged. A join (epoch 0) has all that apply."""

    member_id: _Id = ""
    """A uuid drawn by the member, kept for its life. The node draws it for a join without an id."""
    member_epoch: _Epoch = JOIN_EPOCH
    """0 joins, -1 leaves, -2 leaves as a static member. Else the epoch of the last response."""
    instance_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    rack: _Id | None = None
    client_id: _Id | None = None
    topics: list[_TopicName] | None = None
    """Subscribed topics."""
    pattern: Annotated[str, Meta(max_length=1_000)] | None = None
    """RE2 pattern of subscribed topics, matched as a whole. An empty pattern removes it."""
    assignor: _Id | None = None
    """`uniform`, `range` or `primary` (one member has all). Defaults to the group's assignor."""
    session_timeout_ms: _Timeout | None = None
    rebalance_timeout_ms: _Timeout | None = None
    owned: list[MemberPartitions] | None = None
    """Partitions that the member has taken and not given up yet. Sent in a join, after a change,
    after a lost response, and to acknowledge an assignment that removes partitions which the member
    had not taken yet. Without `owned`, the member owns the same partitions as before."""
    max_wait_ms: Annotated[int, Meta(ge=0, le=INT32_MAX)] = 0
    """Milliseconds for which the node may hold the response while nothing changes. Another
    heartbeat of the member, or the end of the connection, ends the wait. The member then repeats
    all its state, with the epoch of the last response that it received."""
    sequence: Annotated[int, Meta(ge=0, le=INT64_MAX)] = 0
    """Number of the heartbeat. It rises with each heartbeat in which the member joins, leaves or
    sends `topics`, `pattern` or `owned`, also if that heartbeat is repeated. The coordinator
    rejects a smaller number, so a late copy never undoes a later report. 0 is unnumbered and never
    rejected for that."""
    report: MemberReport | None = None
    """Report of the member's service, sent in each heartbeat for the assignor `primary`."""
    hand_over_to: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """Instance id of the live member that takes over this member's partitions. For the assignor
    `primary`, with a `sequence`. Error 40903 if there is no such member or this member has no
    partitions."""


class HeartbeatResponse(msgspec.Struct, frozen=True):
    """The member's instructions."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    """Most milliseconds until the next heartbeat, counted from this response."""
    session_timeout_ms: int
    assignment: list[AssignedPartitions] | None = None
    """All partitions to read from now on, or None if unchanged."""


class OffsetCommit(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The next offset to read of one partition."""

    topic: _TopicName
    partition: PartitionNumber
    offset: OffsetNumber
    topic_id: _TopicId | None = None
    """Id of the topic. Error 40404 if the topic of that name has another id."""
    leader_epoch: Annotated[int, Meta(ge=-1, le=INT32_MAX)] = -1
    metadata: Annotated[str, Meta(max_length=4_096)] = ""
    expected: Annotated[int, Meta(ge=ANY_OFFSET, le=INT64_MAX)] = ANY_OFFSET
    """The committed offset as the client knows it, or -1 for none. Error 40935 if another offset is
    committed, so a late copy of a request never moves the offset back. -2 accepts any present
    offset."""


class CommitRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Offsets to commit by a member, or without a member while the group is empty."""

    offsets: list[OffsetCommit]
    member_id: _Id = ""
    member_epoch: _Epoch = NO_MEMBER_EPOCH


class CommittedPartition(msgspec.Struct, frozen=True):
    """Outcome of one commit."""

    topic: str
    partition: int
    error_code: int | None = None
    message: str | None = None


class CommitResponse(msgspec.Struct, frozen=True):
    """One outcome for each offset, in the request's order."""

    results: list[CommittedPartition]


class CommittedRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Selects the committed offsets to return."""

    topics: dict[str, list[PartitionNumber]] | None = None
    """Partitions by topic, or None for all partitions that the group has committed."""
    require_stable: bool = True
    """Whether an offset that an open transaction may change gets UNSTABLE_OFFSET_COMMIT. A reader
    that resumes from the offset must wait for the end of the transaction."""


class CommittedOffset(msgspec.Struct, frozen=True):
    """A committed offset. `offset` is -1 without a commit or with an error."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: str | None = None
    error_code: int | None = None
    message: str | None = None


class CommittedResponse(msgspec.Struct, frozen=True):
    """Committed offsets."""

    offsets: list[CommittedOffset]


class GroupListing(msgspec.Struct, frozen=True):
    """Summary of one group."""

    group: str
    kind: str
    """`consumer`, `classic`, or `offsets` for committed offsets without members ever."""
    state: str
    """`empty`, `reconciling` or `stable`. Classic groups also have `preparing-rebalance` and
    `completing-rebalance`."""
    members: int
    coordinator: int
    """The node with the group's state."""


class GroupList(msgspec.Struct, frozen=True):
    """All groups."""

    groups: list[GroupListing]
    incomplete: list[str] = []
    """Reasons for missing groups of unreachable coordinators."""


class GroupMember(msgspec.Struct, frozen=True):
    """A member of a group."""

    member_id: str
    member_epoch: int
    instance_id: str | None
    client_id: str
    host: str
    state: str
    topics: list[str]
    pattern: str | None
    assignment: list[AssignedPartitions]
    target: list[AssignedPartitions]
    position: int | None = None
    """Position in the member's last report, if it reports."""
    endpoint: str | None = None


class GroupOffset(msgspec.Struct, frozen=True):
    """Committed offset, end, lag and owner of a partition of a group."""

    topic: str
    partition: int
    offset: int
    """Committed offset, or -1 without a commit."""
    end_offset: int
    """End offset, or -1 while unknown."""
    lag: int
    """Records behind the end, or -1 while unknown."""
    member_id: str | None = None
    metadata: str = ""


class GroupDescription(msgspec.Struct, frozen=True):
    """A group with its members and lags. Only the members of a classic group know their
    subscriptions and partitions. Their epoch is the group's generation.
    """

    group: str
    kind: str
    state: str
    epoch: int
    assignor: str
    coordinator: int
    members: list[GroupMember]
    offsets: list[GroupOffset]


class ResetRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sets committed offsets of an empty group. Exactly one target is set."""

    topics: dict[str, list[PartitionNumber] | None] | None = None
    """Partitions by topic, or None for all that the group has committed. Null selects all
    partitions of the topic."""
    to: Annotated[str, Meta(max_length=20)] | None = None
    """`earliest` or `latest`."""
    to_offset: OffsetNumber | None = None
    to_timestamp_ms: Annotated[int, Meta(ge=0, le=INT64_MAX)] | None = None
    by_duration_ms: Annotated[int, Meta(ge=0, le=INT64_MAX)] | None = None
    """Milliseconds before now. The target is the first record since then."""
    shift_by: Annotated[int, Meta(ge=-INT64_MAX, le=INT64_MAX)] | None = None
    like_group: Annotated[str, Meta(pattern=GROUP_ID_PATTERN)] | None = None
    """Group whose committed offsets are the target."""
    validate_only: bool = False
    """Whether to return the rows without changing offsets."""


class ResetPartition(msgspec.Struct, frozen=True):
    """One row of a reset."""

    topic: str
    partition: int
    before: int
    """Committed offset before the reset, or -1."""
    offset: int
    error_code: int | None = None
    message: str | None = None


class ResetResponse(msgspec.Struct, frozen=True):
    """All rows, applied or only planned."""

    is_done: bool
    partitions: list[ResetPartition]


class DeleteOffsetsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Committed offsets to delete. No member may subscribe to their topics."""

    topics: dict[str, list[PartitionNumber] | None]
    """Partitions by topic, or null for all partitions of the topic."""
