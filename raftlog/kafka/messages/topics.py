"""Messages of CreateTopics, DeleteTopics, CreatePartitions, DescribeTopicPartitions.

scripts/generate_kafka_messages.py wrote this module. Do not edit it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, OptionalUuid, Versions


class CreatableReplicaAssignment(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    broker_ids: tuple[Int32, ...] = ()


class CreatableTopicConfig(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    value: str | None = ""


class CreatableTopic(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: tuple[CreatableReplicaAssignment, ...] = ()
    configs: tuple[CreatableTopicConfig, ...] = ()


class CreateTopicsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(2, 7, flexible=5)
    topics: tuple[CreatableTopic, ...] = ()
    timeout_ms: Int32 = 60_000
    validate_only: bool = False


class CreatableTopicConfigs(msgspec.Struct, frozen=True, gc=False):
    name: Annotated[str, Field(since=5)] = ""
    value: Annotated[str | None, Field(since=5)] = ""
    read_only: Annotated[bool, Field(since=5)] = False
    config_source: Annotated[Int8, Field(since=5, is_ignorable=True)] = -1
    is_sensitive: Annotated[bool, Field(since=5)] = False


class CreatableTopicResult(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    topic_id: Annotated[OptionalUuid, Field(since=7, is_ignorable=True)] = None
    error_code: Int16 = 0
    error_message: str | None = ""
    topic_config_error_code: Annotated[Int16, Field(since=5, tag=0, is_ignorable=True)] = 0
    num_partitions: Annotated[Int32, Field(since=5, is_ignorable=True)] = -1
    replication_factor: Annotated[Int16, Field(since=5, is_ignorable=True)] = -1
    configs: Annotated[
        tuple[CreatableTopicConfigs, ...] | None, Field(since=5, is_ignorable=True)
    ] = ()


class CreateTopicsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(2, 7, flexible=5)
    throttle_time_ms: Int32 = 0
    topics: tuple[CreatableTopicResult, ...] = ()


class DeleteTopicState(msgspec.Struct, frozen=True, gc=False):
    name: Annotated[str | None, Field(since=6)] = None
    topic_id: Annotated[OptionalUuid, Field(since=6)] = None


class DeleteTopicsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(1, 6, flexible=4)
    topics: Annotated[tuple[DeleteTopicState, ...], Field(since=6)] = ()
    topic_names: Annotated[tuple[str, ...], Field(until=5, is_ignorable=True)] = ()
    timeout_ms: Int32 = 0


class DeletableTopicResult(msgspec.Struct, frozen=True, gc=False):
    name: Annotated[str | None, Field(nullable_since=6)] = ""
    topic_id: Annotated[OptionalUuid, Field(since=6, is_ignorable=True)] = None
    error_code: Int16 = 0
    error_message: Annotated[str | None, Field(since=5, is_ignorable=True)] = None


class DeleteTopicsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(1, 6, flexible=4)
    throttle_time_ms: Int32 = 0
    responses: tuple[DeletableTopicResult, ...] = ()


class CreatePartitionsAssignment(msgspec.Struct, frozen=True, gc=False):
    broker_ids: tuple[Int32, ...] = ()


class CreatePartitionsTopic(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    count: Int32 = 0
    assignments: tuple[CreatePartitionsAssignment, ...] | None = ()


class CreatePartitionsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 3, flexible=2)
    topics: tuple[CreatePartitionsTopic, ...] = ()
    timeout_ms: Int32 = 0
    validate_only: bool = False


class CreatePartitionsTopicResult(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    error_code: Int16 = 0
    error_message: str | None = None


class CreatePartitionsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 3, flexible=2)
    throttle_time_ms: Int32 = 0
    results: tuple[CreatePartitionsTopicResult, ...] = ()


class TopicRequest(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class RequestCursor(msgspec.Struct, frozen=True, gc=False):
    topic_name: str = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 0, flexible=0)
    topics: tuple[TopicRequest, ...] = ()
    response_partition_limit: Int32 = 2_000
    cursor: RequestCursor | None = None


class DescribeTopicPartitionsResponsePartition(msgspec.Struct, frozen=True, gc=False):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: tuple[Int32, ...] = ()
    isr_nodes: tuple[Int32, ...] = ()
    eligible_leader_replicas: tuple[Int32, ...] | None = None
    last_known_elr: tuple[Int32, ...] | None = None
    offline_replicas: tuple[Int32, ...] = ()


class DescribeTopicPartitionsResponseTopic(msgspec.Struct, frozen=True, gc=False):
    error_code: Int16 = 0
    name: str | None = ""
    topic_id: OptionalUuid = None
    is_internal: bool = False
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...] = ()
    topic_authorized_operations: Int32 = -2_147_483_648


class ResponseCursor(msgspec.Struct, frozen=True, gc=False):
    topic_name: str = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 0, flexible=0)
    throttle_time_ms: Int32 = 0
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...] = ()
    next_cursor: ResponseCursor | None = None
