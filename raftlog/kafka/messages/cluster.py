"""Messages of DescribeLogDirs, ElectLeaders, AlterPartitionReassignments,
ListPartitionReassignments, DescribeQuorum, DescribeCluster.

scripts/generate_kafka_messages.py wrote this module. Do not edit it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, Int64, OptionalUuid, Uint16, Versions


class DescribableLogDirTopic(msgspec.Struct, frozen=True, gc=False):
    topic: str = ""
    partitions: tuple[Int32, ...] = ()


class DescribeLogDirsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(1, 5, flexible=2)
    topics: tuple[DescribableLogDirTopic, ...] | None = ()


class DescribeLogDirsPartition(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: bool = False


class DescribeLogDirsTopic(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partitions: tuple[DescribeLogDirsPartition, ...] = ()


class DescribeLogDirsResult(msgspec.Struct, frozen=True, gc=False):
    error_code: Int16 = 0
    log_dir: str = ""
    topics: tuple[DescribeLogDirsTopic, ...] = ()
    total_bytes: Annotated[Int64, Field(since=4, is_ignorable=True)] = -1
    usable_bytes: Annotated[Int64, Field(since=4, is_ignorable=True)] = -1
    is_cordoned: Annotated[bool, Field(since=5, is_ignorable=True)] = False


class DescribeLogDirsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(1, 5, flexible=2)
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Field(since=3, is_ignorable=True)] = 0
    results: tuple[DescribeLogDirsResult, ...] = ()


class TopicPartitions(msgspec.Struct, frozen=True, gc=False):
    topic: str = ""
    partitions: tuple[Int32, ...] = ()


class ElectLeadersRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 2, flexible=2)
    election_type: Annotated[Int8, Field(since=1)] = 0
    topic_partitions: tuple[TopicPartitions, ...] | None = ()
    timeout_ms: Int32 = 60_000


class PartitionResult(msgspec.Struct, frozen=True, gc=False):
    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


class ReplicaElectionResult(msgspec.Struct, frozen=True, gc=False):
    topic: str = ""
    partition_result: tuple[PartitionResult, ...] = ()


class ElectLeadersResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 2, flexible=2)
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Field(since=1)] = 0
    replica_election_results: tuple[ReplicaElectionResult, ...] = ()


class ReassignablePartition(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    replicas: tuple[Int32, ...] | None = None


class ReassignableTopic(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partitions: tuple[ReassignablePartition, ...] = ()


class AlterPartitionReassignmentsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 1, flexible=0)
    timeout_ms: Int32 = 60_000
    allow_replication_factor_change: Annotated[bool, Field(since=1)] = True
    topics: tuple[ReassignableTopic, ...] = ()


class ReassignablePartitionResponse(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


class ReassignableTopicResponse(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partitions: tuple[ReassignablePartitionResponse, ...] = ()


class AlterPartitionReassignmentsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 1, flexible=0)
    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[bool, Field(since=1, is_ignorable=True)] = True
    error_code: Int16 = 0
    error_message: str | None = ""
    responses: tuple[ReassignableTopicResponse, ...] = ()


class ListPartitionReassignmentsTopics(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partition_indexes: tuple[Int32, ...] = ()


class ListPartitionReassignmentsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 0, flexible=0)
    timeout_ms: Int32 = 60_000
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None = None


class OngoingPartitionReassignment(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    replicas: tuple[Int32, ...] = ()
    adding_replicas: tuple[Int32, ...] = ()
    removing_replicas: tuple[Int32, ...] = ()


class OngoingTopicReassignment(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partitions: tuple[OngoingPartitionReassignment, ...] = ()


class ListPartitionReassignmentsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 0, flexible=0)
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    topics: tuple[OngoingTopicReassignment, ...] = ()


class RequestPartitionData(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0


class RequestTopicData(msgspec.Struct, frozen=True, gc=False):
    topic_name: str = ""
    partitions: tuple[RequestPartitionData, ...] = ()


class DescribeQuorumRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 2, flexible=0)
    topics: tuple[RequestTopicData, ...] = ()


class ReplicaState(msgspec.Struct, frozen=True, gc=False):
    replica_id: Int32 = 0
    replica_directory_id: Annotated[OptionalUuid, Field(since=2)] = None
    log_end_offset: Int64 = 0
    last_fetch_timestamp: Annotated[Int64, Field(since=1, is_ignorable=True)] = -1
    last_caught_up_timestamp: Annotated[Int64, Field(since=1, is_ignorable=True)] = -1


class ResponsePartitionData(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[str | None, Field(since=2, is_ignorable=True)] = ""
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: tuple[ReplicaState, ...] = ()
    observers: tuple[ReplicaState, ...] = ()


class ResponseTopicData(msgspec.Struct, frozen=True, gc=False):
    topic_name: str = ""
    partitions: tuple[ResponsePartitionData, ...] = ()


class Listener(msgspec.Struct, frozen=True, gc=False):
    name: Annotated[str, Field(since=2)] = ""
    host: Annotated[str, Field(since=2)] = ""
    port: Annotated[Uint16, Field(since=2)] = 0


class Node(msgspec.Struct, frozen=True, gc=False):
    node_id: Annotated[Int32, Field(since=2)] = 0
    listeners: Annotated[tuple[Listener, ...], Field(since=2)] = ()


class DescribeQuorumResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 2, flexible=0)
    error_code: Int16 = 0
    error_message: Annotated[str | None, Field(since=2, is_ignorable=True)] = ""
    topics: tuple[ResponseTopicData, ...] = ()
    nodes: Annotated[tuple[Node, ...], Field(since=2)] = ()


class DescribeClusterRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 2, flexible=0)
    include_cluster_authorized_operations: bool = False
    endpoint_type: Annotated[Int8, Field(since=1)] = 1
    include_fenced_brokers: Annotated[bool, Field(since=2)] = False


class DescribeClusterBroker(msgspec.Struct, frozen=True, gc=False):
    broker_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None
    is_fenced: Annotated[bool, Field(since=2)] = False


class DescribeClusterResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 2, flexible=0)
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    endpoint_type: Annotated[Int8, Field(since=1)] = 1
    cluster_id: str = ""
    controller_id: Int32 = -1
    brokers: tuple[DescribeClusterBroker, ...] = ()
    cluster_authorized_operations: Int32 = -2_147_483_648
