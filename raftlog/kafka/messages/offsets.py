"""Messages of ListOffsets, DeleteRecords, OffsetForLeaderEpoch.

scripts/generate_kafka_messages.py wrote this module. Do not edit it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, Int64, Versions


class ListOffsetsPartition(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, Field(since=4, is_ignorable=True)] = -1
    timestamp: Int64 = 0


class ListOffsetsTopic(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partitions: tuple[ListOffsetsPartition, ...] = ()


class ListOffsetsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(1, 11, flexible=6)
    replica_id: Int32 = 0
    isolation_level: Annotated[Int8, Field(since=2)] = 0
    topics: tuple[ListOffsetsTopic, ...] = ()
    timeout_ms: Annotated[Int32, Field(since=10, is_ignorable=True)] = 0


class ListOffsetsPartitionResponse(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Field(since=4)] = -1


class ListOffsetsTopicResponse(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partitions: tuple[ListOffsetsPartitionResponse, ...] = ()


class ListOffsetsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(1, 11, flexible=6)
    throttle_time_ms: Annotated[Int32, Field(since=2, is_ignorable=True)] = 0
    topics: tuple[ListOffsetsTopicResponse, ...] = ()


class DeleteRecordsPartition(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    offset: Int64 = 0


class DeleteRecordsTopic(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partitions: tuple[DeleteRecordsPartition, ...] = ()


class DeleteRecordsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 2, flexible=2)
    topics: tuple[DeleteRecordsTopic, ...] = ()
    timeout_ms: Int32 = 0


class DeleteRecordsPartitionResult(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


class DeleteRecordsTopicResult(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partitions: tuple[DeleteRecordsPartitionResult, ...] = ()


class DeleteRecordsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 2, flexible=2)
    throttle_time_ms: Int32 = 0
    topics: tuple[DeleteRecordsTopicResult, ...] = ()


class OffsetForLeaderPartition(msgspec.Struct, frozen=True, gc=False):
    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(msgspec.Struct, frozen=True, gc=False):
    topic: str = ""
    partitions: tuple[OffsetForLeaderPartition, ...] = ()


class OffsetForLeaderEpochRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(2, 4, flexible=4)
    replica_id: Annotated[Int32, Field(since=3, is_ignorable=True)] = -2
    topics: tuple[OffsetForLeaderTopic, ...] = ()


class EpochEndOffset(msgspec.Struct, frozen=True, gc=False):
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(msgspec.Struct, frozen=True, gc=False):
    topic: str = ""
    partitions: tuple[EpochEndOffset, ...] = ()


class OffsetForLeaderEpochResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(2, 4, flexible=4)
    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetForLeaderTopicResult, ...] = ()
