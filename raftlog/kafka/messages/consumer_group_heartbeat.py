"""ConsumerGroupHeartbeat, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, OptionalUuid, Versions


class RequestTopicPartitions(msgspec.Struct, frozen=True, gc=False):
    """A part of ConsumerGroupHeartbeatRequest."""

    topic_id: OptionalUuid = None
    partitions: tuple[Int32, ...] = ()


class ConsumerGroupHeartbeatRequest(msgspec.Struct, frozen=True, gc=False):
    """API 68."""

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
    """A part of ConsumerGroupHeartbeatResponse."""

    topic_id: OptionalUuid = None
    partitions: tuple[Int32, ...] = ()


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """A part of ConsumerGroupHeartbeatResponse."""

    topic_partitions: tuple[ResponseTopicPartitions, ...] = ()


class ConsumerGroupHeartbeatResponse(msgspec.Struct, frozen=True, gc=False):
    """API 68."""

    VERSIONS: ClassVar = Versions(0, 1, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None
