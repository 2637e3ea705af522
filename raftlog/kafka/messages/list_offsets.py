"""ListOffsets, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, Int64, Versions


class ListOffsetsPartition(msgspec.Struct, frozen=True, gc=False):
    """A part of ListOffsetsRequest."""

    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, Field(since=4, is_ignorable=True)] = -1
    timestamp: Int64 = 0


class ListOffsetsTopic(msgspec.Struct, frozen=True, gc=False):
    """A part of ListOffsetsRequest."""

    name: str = ""
    partitions: tuple[ListOffsetsPartition, ...] = ()


class ListOffsetsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 2."""

    VERSIONS: ClassVar = Versions(1, 11, flexible=6)

    replica_id: Int32 = 0
    isolation_level: Annotated[Int8, Field(since=2)] = 0
    topics: tuple[ListOffsetsTopic, ...] = ()
    timeout_ms: Annotated[Int32, Field(since=10, is_ignorable=True)] = 0


class ListOffsetsPartitionResponse(msgspec.Struct, frozen=True, gc=False):
    """A part of ListOffsetsResponse."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Field(since=4)] = -1


class ListOffsetsTopicResponse(msgspec.Struct, frozen=True, gc=False):
    """A part of ListOffsetsResponse."""

    name: str = ""
    partitions: tuple[ListOffsetsPartitionResponse, ...] = ()


class ListOffsetsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 2."""

    VERSIONS: ClassVar = Versions(1, 11, flexible=6)

    throttle_time_ms: Annotated[Int32, Field(since=2, is_ignorable=True)] = 0
    topics: tuple[ListOffsetsTopicResponse, ...] = ()
