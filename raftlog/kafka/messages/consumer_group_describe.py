"""ConsumerGroupDescribe, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, OptionalUuid, Versions


class ConsumerGroupDescribeRequest(msgspec.Struct, frozen=True, gc=False):
    """API 69."""

    VERSIONS: ClassVar = Versions(0, 1, flexible=0)

    group_ids: tuple[str, ...] = ()
    include_authorized_operations: bool = False


class TopicPartitions(msgspec.Struct, frozen=True, gc=False):
    """A part of ConsumerGroupDescribeResponse."""

    topic_id: OptionalUuid = None
    topic_name: str = ""
    partitions: tuple[Int32, ...] = ()


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """A part of ConsumerGroupDescribeResponse."""

    topic_partitions: tuple[TopicPartitions, ...] = ()


class Member(msgspec.Struct, frozen=True, gc=False):
    """A part of ConsumerGroupDescribeResponse."""

    member_id: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: Int32 = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    assignment: Assignment = Assignment()
    target_assignment: Assignment = Assignment()
    member_type: Annotated[Int8, Field(since=1, is_ignorable=True)] = -1


class DescribedGroup(msgspec.Struct, frozen=True, gc=False):
    """A part of ConsumerGroupDescribeResponse."""

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
    """API 69."""

    VERSIONS: ClassVar = Versions(0, 1, flexible=0)

    throttle_time_ms: Int32 = 0
    groups: tuple[DescribedGroup, ...] = ()
