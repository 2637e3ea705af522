"""Shapes of consumer groups in /v1: membership, committed offsets, descriptions.

A group's member keeps one heartbeat open: the node answers at once when the member has something to
do, otherwise after `max_wait_ms` (KIP-848's protocol, held open).
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
"""Leaves, and comes back under its `instance_id` before the session ends."""
NO_MEMBER_EPOCH: Final = -1
"""Of commits without a member, while the group is empty."""
ANY_OFFSET: Final = -2
"""Commit, whatever offset is there."""

_TopicName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
_Id = Annotated[str, Meta(max_length=255)]
_TopicId = Annotated[str, Meta(min_length=1, max_length=64)]
_Epoch = Annotated[int, Meta(ge=-2, le=INT32_MAX)]
_Timeout = Annotated[int, Meta(ge=1, le=INT32_MAX)]


class MemberPartitions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Partitions of one topic, as a member reports those that it owns."""

    topic_id: _TopicId
    partitions: list[PartitionNumber]


class AssignedPartitions(msgspec.Struct, frozen=True):
    """Partitions of one topic, as a member gets them."""

    topic: str
    topic_id: str
    partitions: list[int]


class MemberReport(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The state of a member's service: the coordinator keeps the newest one, in memory only."""

    position: Annotated[int, Meta(ge=0, le=INT64_MAX)]
    """Entries of its log that the member has applied: the furthest member is the next primary."""
    primaries: Annotated[int, Meta(ge=0, le=INT32_MAX)] = 0
    """Of how many other groups the member's process is the primary."""
    endpoint: _Id | None = None
    """HOST:PORT of the service."""
    disconnect_timeout_ms: _Timeout | None = None
    """Silence after which the member is removed once the connection of its newest heartbeat, a held
    one, has ended; without: the session timeout, as for a member that keeps its connection."""


class HeartbeatRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A member's state. Fields left out are unchanged; a join (epoch 0) has all that apply."""

    member_id: _Id = ""
    """Made by the member (a uuid), kept for its life; empty in a join: the node makes one."""
    member_epoch: _Epoch = JOIN_EPOCH
    """0 joins, -1 leaves, -2 leaves as a static member; else the epoch of the last answer."""
    instance_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    rack: _Id | None = None
    client_id: _Id | None = None
    topics: list[_TopicName] | None = None
    """Subscribed topics."""
    pattern: Annotated[str, Meta(max_length=1_000)] | None = None
    """Subscribed topics by an RE2 pattern, matched as a whole. The empty pattern ends one."""
    assignor: _Id | None = None
    """`uniform`, `range` or `primary` (one member has all); without: the group's."""
    session_timeout_ms: _Timeout | None = None
    rebalance_timeout_ms: _Timeout | None = None
    owned: list[MemberPartitions] | None = None
    """Partitions that the member has taken and not given up yet. Sent in a join, when they have
    changed, after a lost answer, and to acknowledge an assignment that takes away partitions which
    the member had not taken yet. Without `owned` the member owns as before."""
    max_wait_ms: Annotated[int, Meta(ge=0, le=INT32_MAX)] = 0
    """How long the node may hold the answer back while there is no news. Another heartbeat of the
    member, or the end of the connection, ends the wait: the member then repeats all its state,
    with the epoch of the last answer that it got."""
    sequence: Annotated[int, Meta(ge=0, le=INT64_MAX)] = 0
    """Larger in each heartbeat of the member that reports something (it joins or leaves, or has
    `topics`, `pattern` or `owned`), also in a repeated one. The coordinator refuses a smaller one:
    a late copy never undoes a later report. 0: not numbered, and never refused for that."""
    report: MemberReport | None = None
    """For the assignor `primary`, in each heartbeat."""
    hand_over_to: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """For the assignor `primary`: the instance id of the live member that is to have this member's
    partitions. 40903 if there is none, or this member has no partitions. With a `sequence`."""


class HeartbeatResponse(msgspec.Struct, frozen=True):
    """What the member is to do."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    """The longest time until the next heartbeat, counted from this answer."""
    session_timeout_ms: int
    assignment: list[AssignedPartitions] | None = None
    """Partitions to read from now on, all of them; None: unchanged."""


class OffsetCommit(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The next offset to read of one partition."""

    topic: _TopicName
    partition: PartitionNumber
    offset: OffsetNumber
    topic_id: _TopicId | None = None
    """40404 if the topic of that name has another id."""
    leader_epoch: Annotated[int, Meta(ge=-1, le=INT32_MAX)] = -1
    metadata: Annotated[str, Meta(max_length=4_096)] = ""
    expected: Annotated[int, Meta(ge=ANY_OFFSET, le=INT64_MAX)] = ANY_OFFSET
    """The committed offset as the client knows it, -1 for none: 40935 if another one is there, so
    that a late copy of a request never takes the offset back. -2: commit whatever is there."""


class CommitRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Offsets to commit, by a member, or by no member while the group is empty."""

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
    """Which committed offsets to return."""

    topics: dict[str, list[PartitionNumber]] | None = None
    """Partitions by topic; None: all that the group has committed."""
    require_stable: bool = True
    """UNSTABLE_OFFSET_COMMIT for an offset that an open transaction may change: a reader that is
    to go on from there must wait for its end."""


class CommittedOffset(msgspec.Struct, frozen=True):
    """A committed offset. `offset` is -1 without a commit, and beside an error."""

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
    """One group, in short."""

    group: str
    kind: str
    """`consumer`, `classic`, or `offsets`: committed offsets without members ever."""
    state: str
    """`empty`, `reconciling`, `stable`; of classic groups `preparing-rebalance` and
    `completing-rebalance`, too."""
    members: int
    coordinator: int
    """The node with the group's state."""


class GroupList(msgspec.Struct, frozen=True):
    """All groups."""

    groups: list[GroupListing]
    incomplete: list[str] = []
    """Why groups of some coordinators are missing, if any."""


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
    """As the member has reported it, if it does."""
    endpoint: str | None = None


class GroupOffset(msgspec.Struct, frozen=True):
    """A partition of a group: committed offset, end, lag and owner."""

    topic: str
    partition: int
    offset: int
    """-1: no commit."""
    end_offset: int
    """-1: unknown at the moment."""
    lag: int
    """-1: unknown."""
    member_id: str | None = None
    metadata: str = ""


class GroupDescription(msgspec.Struct, frozen=True):
    """A group with its members and lags. What members of a classic group subscribe to, and own, is
    known to themselves alone; their epoch is the group's generation."""

    group: str
    kind: str
    state: str
    epoch: int
    assignor: str
    coordinator: int
    members: list[GroupMember]
    offsets: list[GroupOffset]


class ResetRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Set committed offsets of an empty group. Exactly one of the targets."""

    topics: dict[str, list[PartitionNumber] | None] | None = None
    """Partitions by topic (null: all of the topic); None: all that the group has committed."""
    to: Annotated[str, Meta(max_length=20)] | None = None
    """`earliest` or `latest`."""
    to_offset: OffsetNumber | None = None
    to_timestamp_ms: Annotated[int, Meta(ge=0, le=INT64_MAX)] | None = None
    by_duration_ms: Annotated[int, Meta(ge=0, le=INT64_MAX)] | None = None
    """To the first record of the last so many milliseconds."""
    shift_by: Annotated[int, Meta(ge=-INT64_MAX, le=INT64_MAX)] | None = None
    like_group: Annotated[str, Meta(pattern=GROUP_ID_PATTERN)] | None = None
    """To the committed offsets of another group."""
    validate_only: bool = False
    """Return the table without a change."""


class ResetPartition(msgspec.Struct, frozen=True):
    """One row of a reset."""

    topic: str
    partition: int
    before: int
    """-1: there was no commit."""
    offset: int
    error_code: int | None = None
    message: str | None = None


class ResetResponse(msgspec.Struct, frozen=True):
    """All rows, done or only planned."""

    is_done: bool
    partitions: list[ResetPartition]


class DeleteOffsetsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Committed offsets to forget: of topics that no member subscribes to."""

    topics: dict[str, list[PartitionNumber] | None]
    """Partitions by topic; null: all of the topic."""
