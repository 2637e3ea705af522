"""Requests about committed offsets and their responses, free of any protocol.

Each is one MessagePack array between nodes. An `error_code` is a code of the error table, or 0 for
success.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from raftlog.coordinator.shard.decision import Producer
from raftlog.record.types import TopicId

OFFSETS_MAX: Final = 10_000
"""Most partitions of one request, as many elements as a listener decodes."""
NO_OFFSET: Final = -1
ANY_OFFSET: Final = -2

_Partition: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class _Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Fields in the order of the wire."""


class _Body(msgspec.Struct, frozen=True, array_like=True):
    """Fields in the order of the wire, after a tag. `messages` has the tags below 20."""


class TopicPartition(_Part, frozen=True):
    """A partition, by the name of its topic."""

    topic: str
    partition: _Partition
    topic_id: TopicId | None = None
    """Id of the topic, or None for any topic of this name."""


class CommittedOffset(_Part, frozen=True):
    """A group's offset of one partition, in a commit or in a fetch's response.

    Each of the two adds a last field on the wire.
    """

    topic: str
    partition: _Partition
    offset: int
    """Next offset to read, or NO_OFFSET if the group has committed none."""
    leader_epoch: int = -1
    """Leader epoch of the last record read, or -1 if unknown."""
    metadata: str = ""
    topic_id: TopicId | None = None
    """Id of the topic, or None if the committer gave only the name."""


class OffsetToCommit(CommittedOffset, frozen=True):
    """An offset to commit, under a condition."""

    expected: int = ANY_OFFSET
    """Committed offset as the author knows it. The commit replaces only this offset, or repeats
    itself, so a late copy of an earlier commit never moves the offset back. NO_OFFSET expects no
    offset. ANY_OFFSET replaces any offset."""


class Committer(_Part, frozen=True):
    """The author of a commit. The defaults are an author that is no member ("simple")."""

    member_id: str = ""
    epoch: int = -1
    """Member epoch (consumer kind) or generation (classic kind)."""
    instance_id: str | None = None


class CommitOffsets(_Body, frozen=True, tag=20):
    """Commit offsets, at once or with a transaction."""

    group_id: str
    offsets: Annotated[tuple[OffsetToCommit, ...], Meta(max_length=OFFSETS_MAX)]
    committer: Committer = Committer()
    producer: Producer | None = None
    """Producer of the transaction, or None to commit at once."""
    retention_ms: int = -1
    """Milliseconds to keep these offsets, whatever the group does. Only old clients give them. -1
    is the group's retention. They exclude leader epochs and topic ids, which are not stored."""
    transactional_id: str = ""
    """Transactional id of `producer`. Its coordinator confirms the transaction."""
    adds: bool = True
    """Whether this commit adds the group's partition to the transaction. Otherwise the partition
    must have been added before (clients of version 1)."""


class PartitionOutcome(_Part, frozen=True):
    """Success or error of one partition."""

    topic: str
    partition: _Partition
    error_code: int = 0


class FetchOffsets(_Body, frozen=True, tag=21):
    """Read committed offsets."""

    group_id: str
    partitions: Annotated[tuple[TopicPartition, ...], Meta(max_length=OFFSETS_MAX)] | None
    """Partitions to read, or None for all with a committed or pending offset."""
    require_stable: bool = False
    reader: Committer = Committer()


class FetchedOffset(CommittedOffset, frozen=True):
    """A committed offset, or the error of its partition."""

    error_code: int = 0


class DeleteOffsets(_Body, frozen=True, tag=22):
    """Delete committed and pending offsets of some partitions."""

    group_id: str
    partitions: Annotated[tuple[TopicPartition, ...], Meta(max_length=OFFSETS_MAX)]


class ToEarliest(_Body, frozen=True, tag=1):
    """Reset to the log start offset."""


class ToLatest(_Body, frozen=True, tag=2):
    """Reset to the end offset."""


class ToOffset(_Body, frozen=True, tag=3):
    """Reset to an offset."""

    offset: int


class ToTimestamp(_Body, frozen=True, tag=4):
    """Reset to the first record at or after a time."""

    timestamp_ms: int


class ByDuration(_Body, frozen=True, tag=5):
    """Reset to the first record of the last `duration_ms`."""

    duration_ms: int


class ShiftBy(_Body, frozen=True, tag=6):
    """Move the committed offset forward, or back if `count` is negative."""

    count: int


class ToOffsetsOf(_Body, frozen=True, tag=7):
    """Reset to the committed offsets of another group."""

    group_id: str


ResetTarget: TypeAlias = (
    ToEarliest | ToLatest | ToOffset | ToTimestamp | ByDuration | ShiftBy | ToOffsetsOf
)


class PartitionBounds(_Part, frozen=True):
    """The readable offsets of one partition."""

    topic: str
    partition: _Partition
    topic_id: TopicId
    start_offset: int
    end_offset: int
    """High watermark, or last stable offset."""
    offset_at_time: int | None = None
    """First offset at or after the target's time, or None if all records are older."""


class ResetRow(_Part, frozen=True):
    """The offset that a reset would set in one partition."""

    topic: str
    partition: _Partition
    topic_id: TopicId
    old_offset: int | None
    new_offset: int | None
    """New offset, or None if the target gives none and the offset stays."""
    is_clamped: bool = False
    """Whether the target was outside the readable offsets."""
