"""DescribeQuorum, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Int64, OptionalUuid, Uint16, Versions


class RequestPartitionData(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeQuorumRequest."""

    partition_index: Int32 = 0


class RequestTopicData(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeQuorumRequest."""

    topic_name: str = ""
    partitions: tuple[RequestPartitionData, ...] = ()


class DescribeQuorumRequest(msgspec.Struct, frozen=True, gc=False):
    """API 55."""

    VERSIONS: ClassVar = Versions(0, 2, flexible=0)

    topics: tuple[RequestTopicData, ...] = ()


class ReplicaState(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeQuorumResponse."""

    replica_id: Int32 = 0
    replica_directory_id: Annotated[OptionalUuid, Field(since=2)] = None
    log_end_offset: Int64 = 0
    last_fetch_timestamp: Annotated[Int64, Field(since=1, is_ignorable=True)] = -1
    last_caught_up_timestamp: Annotated[Int64, Field(since=1, is_ignorable=True)] = -1


class ResponsePartitionData(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeQuorumResponse."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[str | None, Field(since=2, is_ignorable=True)] = ""
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: tuple[ReplicaState, ...] = ()
    observers: tuple[ReplicaState, ...] = ()


class ResponseTopicData(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeQuorumResponse."""

    topic_name: str = ""
    partitions: tuple[ResponsePartitionData, ...] = ()


class Listener(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeQuorumResponse."""

    name: Annotated[str, Field(since=2)] = ""
    host: Annotated[str, Field(since=2)] = ""
    port: Annotated[Uint16, Field(since=2)] = 0


class Node(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeQuorumResponse."""

    node_id: Annotated[Int32, Field(since=2)] = 0
    listeners: Annotated[tuple[Listener, ...], Field(since=2)] = ()


class DescribeQuorumResponse(msgspec.Struct, frozen=True, gc=False):
    """API 55."""

    VERSIONS: ClassVar = Versions(0, 2, flexible=0)

    error_code: Int16 = 0
    error_message: Annotated[str | None, Field(since=2, is_ignorable=True)] = ""
    topics: tuple[ResponseTopicData, ...] = ()
    nodes: Annotated[tuple[Node, ...], Field(since=2)] = ()
