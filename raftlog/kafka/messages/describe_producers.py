"""DescribeProducers, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from raftlog.schema.fields import Int16, Int32, Int64, Versions


class TopicRequest(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeProducersRequest."""

    name: str = ""
    partition_indexes: tuple[Int32, ...] = ()


class DescribeProducersRequest(msgspec.Struct, frozen=True, gc=False):
    """API 61."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    topics: tuple[TopicRequest, ...] = ()


class ProducerState(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeProducersResponse."""

    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


class PartitionResponse(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeProducersResponse."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    active_producers: tuple[ProducerState, ...] = ()


class TopicResponse(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeProducersResponse."""

    name: str = ""
    partitions: tuple[PartitionResponse, ...] = ()


class DescribeProducersResponse(msgspec.Struct, frozen=True, gc=False):
    """API 61."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    topics: tuple[TopicResponse, ...] = ()
