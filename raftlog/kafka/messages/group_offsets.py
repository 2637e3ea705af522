"""Messages of OffsetCommit, OffsetFetch, OffsetDelete.

scripts/generate_kafka_messages.py wrote this module. Do not edit it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Int64, OptionalUuid, Versions


class OffsetCommitRequestPartition(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Field(since=6, is_ignorable=True)] = -1
    committed_metadata: str | None = ""


class OffsetCommitRequestTopic(msgspec.Struct, frozen=True, gc=False):
    name: Annotated[str, Field(until=9, is_ignorable=True)] = ""
    topic_id: Annotated[OptionalUuid, Field(since=10, is_ignorable=True)] = None
    partitions: tuple[OffsetCommitRequestPartition, ...] = ()


class OffsetCommitRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(2, 10, flexible=8)
    group_id: str = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: str = ""
    group_instance_id: Annotated[str | None, Field(since=7)] = None
    retention_time_ms: Annotated[Int64, Field(until=4, is_ignorable=True)] = -1
    topics: tuple[OffsetCommitRequestTopic, ...] = ()


class OffsetCommitResponsePartition(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetCommitResponseTopic(msgspec.Struct, frozen=True, gc=False):
    name: Annotated[str, Field(until=9, is_ignorable=True)] = ""
    topic_id: Annotated[OptionalUuid, Field(since=10, is_ignorable=True)] = None
    partitions: tuple[OffsetCommitResponsePartition, ...] = ()


class OffsetCommitResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(2, 10, flexible=8)
    throttle_time_ms: Annotated[Int32, Field(since=3, is_ignorable=True)] = 0
    topics: tuple[OffsetCommitResponseTopic, ...] = ()


class OffsetFetchRequestTopic(msgspec.Struct, frozen=True, gc=False):
    name: Annotated[str, Field(until=7)] = ""
    partition_indexes: Annotated[tuple[Int32, ...], Field(until=7)] = ()


class OffsetFetchRequestTopics(msgspec.Struct, frozen=True, gc=False):
    name: Annotated[str, Field(since=8, until=9, is_ignorable=True)] = ""
    topic_id: Annotated[OptionalUuid, Field(since=10, is_ignorable=True)] = None
    partition_indexes: Annotated[tuple[Int32, ...], Field(since=8)] = ()


class OffsetFetchRequestGroup(msgspec.Struct, frozen=True, gc=False):
    group_id: Annotated[str, Field(since=8)] = ""
    member_id: Annotated[str | None, Field(since=9, is_ignorable=True)] = None
    member_epoch: Annotated[Int32, Field(since=9, is_ignorable=True)] = -1
    topics: Annotated[tuple[OffsetFetchRequestTopics, ...] | None, Field(since=8)] = ()


class OffsetFetchRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(1, 10, flexible=6)
    group_id: Annotated[str, Field(until=7)] = ""
    topics: Annotated[
        tuple[OffsetFetchRequestTopic, ...] | None, Field(until=7, nullable_since=2)
    ] = ()
    groups: Annotated[tuple[OffsetFetchRequestGroup, ...], Field(since=8)] = ()
    require_stable: Annotated[bool, Field(since=7)] = False


class OffsetFetchResponsePartition(msgspec.Struct, frozen=True, gc=False):
    partition_index: Annotated[Int32, Field(until=7)] = 0
    committed_offset: Annotated[Int64, Field(until=7)] = 0
    committed_leader_epoch: Annotated[Int32, Field(since=5, until=7, is_ignorable=True)] = -1
    metadata: Annotated[str | None, Field(until=7)] = ""
    error_code: Annotated[Int16, Field(until=7)] = 0


class OffsetFetchResponseTopic(msgspec.Struct, frozen=True, gc=False):
    name: Annotated[str, Field(until=7)] = ""
    partitions: Annotated[tuple[OffsetFetchResponsePartition, ...], Field(until=7)] = ()


class OffsetFetchResponsePartitions(msgspec.Struct, frozen=True, gc=False):
    partition_index: Annotated[Int32, Field(since=8)] = 0
    committed_offset: Annotated[Int64, Field(since=8)] = 0
    committed_leader_epoch: Annotated[Int32, Field(since=8, is_ignorable=True)] = -1
    metadata: Annotated[str | None, Field(since=8)] = ""
    error_code: Annotated[Int16, Field(since=8)] = 0


class OffsetFetchResponseTopics(msgspec.Struct, frozen=True, gc=False):
    name: Annotated[str, Field(since=8, until=9, is_ignorable=True)] = ""
    topic_id: Annotated[OptionalUuid, Field(since=10, is_ignorable=True)] = None
    partitions: Annotated[tuple[OffsetFetchResponsePartitions, ...], Field(since=8)] = ()


class OffsetFetchResponseGroup(msgspec.Struct, frozen=True, gc=False):
    group_id: Annotated[str, Field(since=8)] = ""
    topics: Annotated[tuple[OffsetFetchResponseTopics, ...], Field(since=8)] = ()
    error_code: Annotated[Int16, Field(since=8)] = 0


class OffsetFetchResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(1, 10, flexible=6)
    throttle_time_ms: Annotated[Int32, Field(since=3, is_ignorable=True)] = 0
    topics: Annotated[tuple[OffsetFetchResponseTopic, ...], Field(until=7)] = ()
    error_code: Annotated[Int16, Field(since=2, until=7, is_ignorable=True)] = 0
    groups: Annotated[tuple[OffsetFetchResponseGroup, ...], Field(since=8)] = ()


class OffsetDeleteRequestPartition(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0


class OffsetDeleteRequestTopic(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partitions: tuple[OffsetDeleteRequestPartition, ...] = ()


class OffsetDeleteRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 0)
    group_id: str = ""
    topics: tuple[OffsetDeleteRequestTopic, ...] = ()


class OffsetDeleteResponsePartition(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partitions: tuple[OffsetDeleteResponsePartition, ...] = ()


class OffsetDeleteResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 0)
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetDeleteResponseTopic, ...] = ()
