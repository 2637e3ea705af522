"""Messages of FindCoordinator, DescribeGroups, ListGroups, DeleteGroups, ConsumerGroupHeartbeat,
ConsumerGroupDescribe.

scripts/generate_kafka_messages.py wrote this module. Do not edit it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, OptionalUuid, Versions


class FindCoordinatorRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 6, flexible=3)
    key: Annotated[str, Field(until=3)] = ""
    key_type: Annotated[Int8, Field(since=1)] = 0
    coordinator_keys: Annotated[tuple[str, ...], Field(since=4)] = ()


class Coordinator(msgspec.Struct, frozen=True, gc=False):
    key: Annotated[str, Field(since=4)] = ""
    node_id: Annotated[Int32, Field(since=4)] = 0
    host: Annotated[str, Field(since=4)] = ""
    port: Annotated[Int32, Field(since=4)] = 0
    error_code: Annotated[Int16, Field(since=4)] = 0
    error_message: Annotated[str | None, Field(since=4, is_ignorable=True)] = ""


class FindCoordinatorResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 6, flexible=3)
    throttle_time_ms: Annotated[Int32, Field(since=1, is_ignorable=True)] = 0
    error_code: Annotated[Int16, Field(until=3)] = 0
    error_message: Annotated[str | None, Field(since=1, until=3, is_ignorable=True)] = ""
    node_id: Annotated[Int32, Field(until=3)] = 0
    host: Annotated[str, Field(until=3)] = ""
    port: Annotated[Int32, Field(until=3)] = 0
    coordinators: Annotated[tuple[Coordinator, ...], Field(since=4)] = ()


class DescribeGroupsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 6, flexible=5)
    groups: tuple[str, ...] = ()
    include_authorized_operations: Annotated[bool, Field(since=3)] = False


class DescribedGroupMember(msgspec.Struct, frozen=True, gc=False):
    member_id: str = ""
    group_instance_id: Annotated[str | None, Field(since=4, is_ignorable=True)] = None
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""


class DescribeGroupsDescribedGroup(msgspec.Struct, frozen=True, gc=False):
    error_code: Int16 = 0
    error_message: Annotated[str | None, Field(since=6)] = None
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedGroupMember, ...] = ()
    authorized_operations: Annotated[Int32, Field(since=3)] = -2_147_483_648


class DescribeGroupsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 6, flexible=5)
    throttle_time_ms: Annotated[Int32, Field(since=1, is_ignorable=True)] = 0
    groups: tuple[DescribeGroupsDescribedGroup, ...] = ()


class ListGroupsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 5, flexible=3)
    states_filter: Annotated[tuple[str, ...], Field(since=4)] = ()
    types_filter: Annotated[tuple[str, ...], Field(since=5)] = ()


class ListedGroup(msgspec.Struct, frozen=True, gc=False):
    group_id: str = ""
    protocol_type: str = ""
    group_state: Annotated[str, Field(since=4, is_ignorable=True)] = ""
    group_type: Annotated[str, Field(since=5, is_ignorable=True)] = ""


class ListGroupsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 5, flexible=3)
    throttle_time_ms: Annotated[Int32, Field(since=1, is_ignorable=True)] = 0
    error_code: Int16 = 0
    groups: tuple[ListedGroup, ...] = ()


class DeleteGroupsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 2, flexible=2)
    groups_names: tuple[str, ...] = ()


class DeletableGroupResult(msgspec.Struct, frozen=True, gc=False):
    group_id: str = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 2, flexible=2)
    throttle_time_ms: Int32 = 0
    results: tuple[DeletableGroupResult, ...] = ()


class RequestTopicPartitions(msgspec.Struct, frozen=True, gc=False):
    topic_id: OptionalUuid = None
    partitions: tuple[Int32, ...] = ()


class ConsumerGroupHeartbeatRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 1, flexible=0)
    group_id: str = ""
    member_id: str = ""
    member_epoch: Int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: Annotated[str | None, Field(since=1)] = None
    server_assignor: str | None = None
    topic_partitions: tuple[RequestTopicPartitions, ...] | None = None


class ResponseTopicPartitions(msgspec.Struct, frozen=True, gc=False):
    topic_id: OptionalUuid = None
    partitions: tuple[Int32, ...] = ()


class ConsumerGroupHeartbeatAssignment(msgspec.Struct, frozen=True, gc=False):
    topic_partitions: tuple[ResponseTopicPartitions, ...] = ()


class ConsumerGroupHeartbeatResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 1, flexible=0)
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: ConsumerGroupHeartbeatAssignment | None = None


class ConsumerGroupDescribeRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 1, flexible=0)
    group_ids: tuple[str, ...] = ()
    include_authorized_operations: bool = False


class TopicPartitions(msgspec.Struct, frozen=True, gc=False):
    topic_id: OptionalUuid = None
    topic_name: str = ""
    partitions: tuple[Int32, ...] = ()


class ConsumerGroupDescribeAssignment(msgspec.Struct, frozen=True, gc=False):
    topic_partitions: tuple[TopicPartitions, ...] = ()


class Member(msgspec.Struct, frozen=True, gc=False):
    member_id: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: Int32 = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    assignment: ConsumerGroupDescribeAssignment = ConsumerGroupDescribeAssignment()
    target_assignment: ConsumerGroupDescribeAssignment = ConsumerGroupDescribeAssignment()
    member_type: Annotated[Int8, Field(since=1, is_ignorable=True)] = -1


class ConsumerGroupDescribeDescribedGroup(msgspec.Struct, frozen=True, gc=False):
    error_code: Int16 = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: str = ""
    members: tuple[Member, ...] = ()
    authorized_operations: Int32 = -2_147_483_648


class ConsumerGroupDescribeResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 1, flexible=0)
    throttle_time_ms: Int32 = 0
    groups: tuple[ConsumerGroupDescribeDescribedGroup, ...] = ()
