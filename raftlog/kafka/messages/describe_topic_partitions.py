"""DescribeTopicPartitions, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from raftlog.schema.fields import Int16, Int32, OptionalUuid, Versions


class TopicRequest(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeTopicPartitionsRequest."""

    name: str = ""


class RequestCursor(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeTopicPartitionsRequest."""

    topic_name: str = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 75."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    topics: tuple[TopicRequest, ...] = ()
    response_partition_limit: Int32 = 2_000
    cursor: RequestCursor | None = None


class DescribeTopicPartitionsResponsePartition(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeTopicPartitionsResponse."""

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
    """A part of DescribeTopicPartitionsResponse."""

    error_code: Int16 = 0
    name: str | None = ""
    topic_id: OptionalUuid = None
    is_internal: bool = False
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...] = ()
    topic_authorized_operations: Int32 = -2_147_483_648


class ResponseCursor(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeTopicPartitionsResponse."""

    topic_name: str = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 75."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...] = ()
    next_cursor: ResponseCursor | None = None
