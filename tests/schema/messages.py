"""Messages of the tests: one with every type of the wire, and a real one."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import (
    Field,
    Int8,
    Int16,
    Int32,
    Int64,
    OptionalUuid,
    Records,
    Uint16,
    Uint32,
    Uuid,
    Versions,
)


class Inner(msgspec.Struct, frozen=True):
    name: str
    numbers: tuple[Int32, ...]
    note: Annotated[str | None, Field(tag=0, default=None)]


class Point(msgspec.Struct, frozen=True):
    x: Int32 = 0
    y: Int32 = 0


class Everything(msgspec.Struct, frozen=True):
    """Every type; version 2 is the first flexible one."""

    VERSIONS: ClassVar = Versions(0, 3, flexible=2)

    flag: bool
    small: Int8
    short: Int16
    port: Uint16
    number: Int32
    unsigned: Uint32
    large: Annotated[Int64, Field(since=1, default=-1)]
    ratio: float
    topic_id: Uuid
    text: str
    optional_text: str | None
    data: bytes
    optional_data: bytes | None
    added_text: Annotated[str | None, Field(since=1, nullable_since=2, default="")]
    names: tuple[str, ...]
    ids: tuple[Uuid, ...]
    numbers: tuple[Int64, ...] | None
    inner: Inner
    optional_inner: Inner | None
    inners: tuple[Inner, ...]
    optional_inners: tuple[Inner, ...] | None
    records: Records | None
    removed: Annotated[Int16, Field(until=0)] = 7
    dropped: Annotated[Int16, Field(since=3, is_ignorable=True)] = 0
    tagged_id: Annotated[OptionalUuid, Field(tag=3)] = None
    tagged_number: Annotated[Int64, Field(tag=1)] = -1
    tagged_point: Annotated[Point | None, Field(tag=0)] = None
    tagged_points: Annotated[tuple[Point, ...], Field(tag=200, since=3)] = ()


class LeaderIdAndEpoch(msgspec.Struct, frozen=True):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class EpochEndOffset(msgspec.Struct, frozen=True):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class AbortedTransaction(msgspec.Struct, frozen=True):
    producer_id: Int64
    first_offset: Int64


class FetchedPartition(msgspec.Struct, frozen=True):
    partition_index: Int32
    error_code: Int16
    high_watermark: Int64
    last_stable_offset: Int64
    log_start_offset: Annotated[Int64, Field(since=5, default=-1)]
    aborted_transactions: tuple[AbortedTransaction, ...] | None
    preferred_read_replica: Annotated[Int32, Field(since=11, default=-1)]
    records: Records | None
    diverging_epoch: Annotated[EpochEndOffset, Field(tag=0)] = EpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, Field(tag=1)] = LeaderIdAndEpoch()


class FetchedTopic(msgspec.Struct, frozen=True):
    topic: Annotated[str, Field(until=12)] = ""
    topic_id: Annotated[OptionalUuid, Field(since=13)] = None
    partitions: tuple[FetchedPartition, ...] = ()


class FetchAnswer(msgspec.Struct, frozen=True):
    """Kafka's answer to a Fetch request."""

    VERSIONS: ClassVar = Versions(4, 13, flexible=12)

    throttle_time_ms: Int32
    error_code: Annotated[Int16, Field(since=7, default=0)]
    session_id: Annotated[Int32, Field(since=7, default=0)]
    topics: tuple[FetchedTopic, ...]
