"""Requests about REST consumer instances and their responses, free of any protocol.

Each is one MessagePack array between nodes.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from raftlog.coordinator.groups.offset_messages import OFFSETS_MAX, OffsetToCommit
from raftlog.coordinator.shard.records import TopicPartitions
from raftlog.record.types import TopicId

UNKNOWN_OFFSET: Final = -1
"""No position yet, so that `auto.offset.reset` decides."""

_Partition: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Offset: TypeAlias = Annotated[int, Meta(ge=-1, le=2**63 - 1)]


class _Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Fields in the order of the wire."""


class _Body(msgspec.Struct, frozen=True, array_like=True):
    """Fields in the order of the wire, after a tag. Other modules have the tags below 60."""


class CreateInstance(_Body, frozen=True, tag=60):
    """Create an instance."""

    group: str
    instance: str
    member_id: str
    format: str
    auto_offset_reset: str
    auto_commit_interval_ms: int
    """0: the client commits."""
    fetch_min_bytes: int
    request_timeout_ms: int


class DeleteInstance(_Body, frozen=True, tag=61):
    """End an instance, and commit its reads if auto commit is on."""

    group: str
    instance: str


class SubscribeInstance(_Body, frozen=True, tag=62):
    """Subscribe to names or to a pattern.

    Without names and pattern it ends the subscription, or the assignment.
    """

    group: str
    instance: str
    names: tuple[str, ...] = ()
    pattern: str | None = None
    client_host: str = ""


class AssignInstance(_Body, frozen=True, tag=63):
    """Read these partitions, without membership. An empty list ends the assignment."""

    group: str
    instance: str
    partitions: tuple[TopicPartitions, ...]


class PartitionOffset(_Part, frozen=True):
    """A partition and an offset."""

    topic_id: TopicId
    partition: _Partition
    offset: _Offset


class SeekInstance(_Body, frozen=True, tag=64):
    """Continue at these offsets. Each partition must be assigned."""

    group: str
    instance: str
    offsets: tuple[PartitionOffset, ...]


class DescribeInstance(_Body, frozen=True, tag=65):
    """Describe an instance, which keeps it alive."""

    group: str
    instance: str


class BeginRead(_Body, frozen=True, tag=66):
    """Start or continue a read."""

    group: str
    instance: str
    formats: tuple[str, ...]
    """Those that the client accepts."""
    is_first: bool = True
    """False if the same read continues. Earlier responses may not have been used yet."""
    max_wait_ms: int = 0
    """How long to wait for a first partition."""


class PartitionMove(_Part, frozen=True):
    """How far a read came in one partition."""

    topic_id: TopicId
    partition: _Partition
    planned: _Offset
    """The position that `BeginRead` answered."""
    next: _Offset
    """The next offset to read."""
    reset_to: _Offset = UNKNOWN_OFFSET
    """Offset where `auto.offset.reset` started, or UNKNOWN_OFFSET if it was not needed."""


class EndRead(_Body, frozen=True, tag=67):
    """Move positions on. Each moves only from where it was planned."""

    group: str
    instance: str
    moves: tuple[PartitionMove, ...]
    last: tuple[TopicPartitions, ...] = ()
    """Partitions that had their turn, which are the last in the next read."""


class CommitInstance(_Body, frozen=True, tag=68):
    """Commit offsets as the instance."""

    group: str
    instance: str
    offsets: Annotated[tuple[OffsetToCommit, ...], Meta(max_length=OFFSETS_MAX)] | None = None
    """None: all positions."""


class InstanceDone(_Body, frozen=True, tag=60):
    """Done."""


class InstanceDescription(_Body, frozen=True, tag=65):
    """An instance as it is now."""

    format: str
    names: tuple[str, ...]
    """Topics subscribed to, or those that match the pattern."""
    pattern: str | None
    partitions: tuple[TopicPartitions, ...]
    """Assigned by the client, or by the group."""


class ReadPlan(_Body, frozen=True, tag=66):
    """The partitions of a read in their order of turns."""

    format: str
    auto_offset_reset: str
    fetch_min_bytes: int
    request_timeout_ms: int
    partitions: tuple[PartitionOffset, ...]
    """UNKNOWN_OFFSET: `auto_offset_reset` decides."""


class ReadOutcome(_Body, frozen=True, tag=67):
    """The partitions that did not move. Their records must not be returned."""

    lost: tuple[TopicPartitions, ...]


InstanceRequest: TypeAlias = (
    CreateInstance
    | DeleteInstance
    | SubscribeInstance
    | AssignInstance
    | SeekInstance
    | DescribeInstance
    | BeginRead
    | EndRead
    | CommitInstance
)
InstanceResponse: TypeAlias = InstanceDone | InstanceDescription | ReadPlan | ReadOutcome
