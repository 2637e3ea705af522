"""Shapes of the data plane, from produce and fetch to the deletion of records."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from raftlog.api.common import INT32_MAX, INT64_MAX, OffsetNumber, OffsetOrEnd, PartitionNumber
from raftlog.record.types import Offset

PARTITION_BYTES_DEFAULT: Final = 1024 * 1024
"""Bytes of one partition in a fetch response, unless the request sets another limit."""
MAX_WAIT_MS_DEFAULT: Final = 500
NO_OFFSET: Final = Offset(-1)
"""Offset in a response with an error."""
NO_TIMESTAMP: Final = -1

Isolation: TypeAlias = Literal["read_uncommitted", "read_committed"]
"""`read_committed` reads up to the last stable offset and returns the aborted transactions."""


class LeaderAddress(msgspec.Struct, frozen=True):
    """A leader and its address."""

    node_id: int
    host: str
    port: int


class ProduceResult(msgspec.Struct, frozen=True):
    """Outcome of one frame of a produce request."""

    topic: str
    partition: int
    base_offset: int = NO_OFFSET
    """Offset of the frame's first record, or of its first copy for a repeated batch."""
    last_offset: int = NO_OFFSET
    log_append_time: int = NO_TIMESTAMP
    """Milliseconds since the Unix epoch, or -1 if the records keep their producer's timestamps."""
    log_start_offset: int = NO_OFFSET
    error_code: int | None = None
    message: str | None = None
    leader: LeaderAddress | msgspec.UnsetType = msgspec.UNSET
    """The partition's leader as this node knows it, with error 50301."""
    leader_epoch: int | msgspec.UnsetType = msgspec.UNSET
    """Newest leader epoch known to this node, with error 50301."""


class ProduceResults(msgspec.Struct, frozen=True):
    """One result for each frame, in the request's order."""

    results: list[ProduceResult]


class FetchPartition(
    msgspec.Struct, frozen=True, omit_defaults=True, gc=False, forbid_unknown_fields=True
):
    """The position to read in one partition."""

    topic: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
    partition: PartitionNumber
    offset: OffsetNumber
    max_bytes: Annotated[int, Meta(ge=1, le=INT32_MAX)] = PARTITION_BYTES_DEFAULT
    end_offset: OffsetNumber | None = None
    """Exclusive end. Batches with a base offset at or above it are not sent. A batch with records
    on both sides is sent."""
    topic_id: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    """Id of the topic. Error 40404 if the topic of that name has another id."""


class FetchRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Selects the batches to send, their number, and the wait for the first."""

    partitions: list[FetchPartition]
    max_bytes: Annotated[int, Meta(ge=1, le=INT64_MAX)] | None = None
    min_bytes: Annotated[int, Meta(ge=0, le=INT64_MAX)] = 1
    max_wait_ms: Annotated[int, Meta(ge=0, le=INT64_MAX)] = MAX_WAIT_MS_DEFAULT
    any_replica: bool = False
    """Whether this node may respond from a follower replica, up to its high watermark."""
    isolation: Isolation = "read_uncommitted"


class TailError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Replaces a record that the format of a tail cannot express."""

    error_code: int
    message: str
    partition: int | None = None
    offset: int | None = None


class ProducerIdentity(msgspec.Struct, frozen=True):
    """A producer id, unique in the cluster, and its first epoch."""

    producer_id: int
    producer_epoch: int


class OffsetsRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Requests the offsets of all partitions of a topic or of some."""

    topics: list[str] | dict[str, list[PartitionNumber]]
    any_node: bool = False
    """Whether this node forwards to the leaders of other partitions. Each partition may then have a
    separate error instead of one error for the request."""


class ReadableOffsets(msgspec.Struct, frozen=True):
    """Readable offsets of a partition. All are -1 with an error."""

    beginning_offset: Offset
    end_offset: Offset
    """Offset after the last readable record."""
    high_watermark: Offset
    """First offset not committed yet. Readers stop there."""
    last_stable_offset: Offset
    """First offset possibly in an open transaction, where readers of committed transactions stop.
    At most the high watermark."""
    error_code: int | msgspec.UnsetType = msgspec.UNSET
    message: str | msgspec.UnsetType = msgspec.UNSET


class TopicOffsets(msgspec.Struct, frozen=True):
    """One topic's partitions, by number."""

    topic_id: str
    partitions: dict[str, ReadableOffsets]


class OffsetsResponse(msgspec.Struct, frozen=True):
    """Offsets by topic."""

    topics: dict[str, TopicOffsets]


class TimesRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A timestamp (ms) for each partition, by topic and partition number."""

    timestamps: dict[str, dict[str, Annotated[int, Meta(ge=0, le=INT64_MAX)]]]
    any_node: bool = False
    """Whether this node forwards to the leaders of other partitions. Each partition may then have a
    separate error instead of one error for the request."""


class FoundOffset(msgspec.Struct, frozen=True):
    """The first record at or after the request's timestamp. Both are -1 with an error."""

    offset: Offset
    timestamp: int
    """Timestamp of the record in milliseconds since the Unix epoch."""
    error_code: int | msgspec.UnsetType = msgspec.UNSET
    message: str | msgspec.UnsetType = msgspec.UNSET


class TimesResponse(msgspec.Struct, frozen=True):
    """Offsets by topic and partition number, or null if no record is that young."""

    offsets: dict[str, dict[str, FoundOffset | None]]
    topic_ids: dict[str, str]
    """Id of the topic that has these offsets, by topic name."""


class DeleteRecords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exclusive end of the deleted records by topic and partition, or -1 for all records."""

    offsets: dict[str, dict[PartitionNumber, OffsetOrEnd]]


class DeletedPartition(msgspec.Struct, frozen=True):
    """Outcome of the deletion in one partition."""

    topic: str
    partition: int
    log_start_offset: int
    """First remaining offset of the partition, or -1 with an error."""
    error_code: int | None = None
    message: str | None = None


class DeletedRecords(msgspec.Struct, frozen=True):
    """Outcome of each deletion, in the order of the request."""

    results: list[DeletedPartition]
