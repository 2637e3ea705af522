"""Shapes of the data plane: produce, fetch, producer ids, offsets, deletion of records."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from raftlog.api.common import (
    INT32_MAX,
    INT64_MAX,
    OffsetNumber,
    OffsetOrEnd,
    PartitionNumber,
)
from raftlog.record.types import Offset

PARTITION_BYTES_DEFAULT: Final = 1024 * 1024
"""Bytes of one partition in a fetch answer, unless the request says otherwise."""
MAX_WAIT_MS_DEFAULT: Final = 500
NO_OFFSET: Final = Offset(-1)
"""Stands beside an error."""
NO_TIMESTAMP: Final = -1

Isolation: TypeAlias = Literal["read_uncommitted", "read_committed"]
"""`read_committed`: up to the last stable offset, with the list of aborted transactions."""


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
    """Offset of the frame's first record; of a repeated batch: of its first copy."""
    last_offset: int = NO_OFFSET
    log_append_time: int = NO_TIMESTAMP
    """Milliseconds since the Unix epoch; -1: the records keep their producer's timestamps."""
    log_start_offset: int = NO_OFFSET
    error_code: int | None = None
    message: str | None = None
    leader: LeaderAddress | msgspec.UnsetType = msgspec.UNSET
    """With error 50301: the partition's leader, as far as this node knows."""
    leader_epoch: int | msgspec.UnsetType = msgspec.UNSET
    """With error 50301: the newest leader epoch known to this node."""


class ProduceResults(msgspec.Struct, frozen=True):
    """One result for each frame, in the request's order."""

    results: list[ProduceResult]


class FetchPartition(
    msgspec.Struct, frozen=True, omit_defaults=True, gc=False, forbid_unknown_fields=True
):
    """Where to read one partition from."""

    topic: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
    partition: PartitionNumber
    offset: OffsetNumber
    max_bytes: Annotated[int, Meta(ge=1, le=INT32_MAX)] = PARTITION_BYTES_DEFAULT
    end_offset: OffsetNumber | None = None
    """No batch with a base offset from here on is sent. A batch with records on both sides is."""
    topic_id: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    """Which topic of that name is meant: 40404 for another one."""


class FetchRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which batches to send, how many, and how long to wait for the first."""

    partitions: list[FetchPartition]
    max_bytes: Annotated[int, Meta(ge=1, le=INT64_MAX)] | None = None
    min_bytes: Annotated[int, Meta(ge=0, le=INT64_MAX)] = 1
    max_wait_ms: Annotated[int, Meta(ge=0, le=INT64_MAX)] = MAX_WAIT_MS_DEFAULT
    any_replica: bool = False
    """Whether this node may answer from a follower replica, up to its high watermark."""
    isolation: Isolation = "read_uncommitted"


class TailError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Replaces a record in a tail that the format cannot express."""

    error_code: int
    message: str
    partition: int | None = None
    offset: int | None = None


class ProducerIdentity(msgspec.Struct, frozen=True):
    """A producer id, unique in the cluster, and its first epoch."""

    producer_id: int
    producer_epoch: int


class OffsetsRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A request for the offsets of partitions: all of each topic, or some of each."""

    topics: list[str] | dict[str, list[PartitionNumber]]
    any_node: bool = False
    """Whether this node forwards to the leaders of other partitions. Then each partition may have
    an error of its own, instead of one for all."""


class ReadableOffsets(msgspec.Struct, frozen=True):
    """Readable offsets of a partition. All are -1 beside an error."""

    beginning_offset: Offset
    end_offset: Offset
    """Offset after the last readable record."""
    high_watermark: Offset
    """First offset not committed yet; readers go no further."""
    last_stable_offset: Offset
    """First offset possibly in an open transaction: the end for readers of committed
    transactions. At most the high watermark."""
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
    """Whether this node forwards to the leaders of other partitions. Then each partition may have
    an error of its own, instead of one for all."""


class FoundOffset(msgspec.Struct, frozen=True):
    """The first record at or after the request's timestamp. Both are -1 beside an error."""

    offset: Offset
    timestamp: int
    """The record's own, in milliseconds since the Unix epoch."""
    error_code: int | msgspec.UnsetType = msgspec.UNSET
    message: str | msgspec.UnsetType = msgspec.UNSET


class TimesResponse(msgspec.Struct, frozen=True):
    """Offsets by topic and partition number; null: no record is that young."""

    offsets: dict[str, dict[str, FoundOffset | None]]
    topic_ids: dict[str, str]
    """Of each topic: the id of the topic with these offsets."""


class DeleteRecords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By topic and partition: the offset below which records are deleted; -1 for all of them."""

    offsets: dict[str, dict[PartitionNumber, OffsetOrEnd]]


class DeletedPartition(msgspec.Struct, frozen=True):
    """Outcome of the deletion in one partition."""

    topic: str
    partition: int
    log_start_offset: int
    """Where the partition begins now; -1 beside an error."""
    error_code: int | None = None
    message: str | None = None


class DeletedRecords(msgspec.Struct, frozen=True):
    """Outcome of each deletion, in the order of the request."""

    results: list[DeletedPartition]
