"""DeleteRecords, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from raftlog.schema.fields import Int16, Int32, Int64, Versions


class DeleteRecordsPartition(msgspec.Struct, frozen=True, gc=False):
    """A part of DeleteRecordsRequest."""

    partition_index: Int32 = 0
    offset: Int64 = 0


class DeleteRecordsTopic(msgspec.Struct, frozen=True, gc=False):
    """A part of DeleteRecordsRequest."""

    name: str = ""
    partitions: tuple[DeleteRecordsPartition, ...] = ()


class DeleteRecordsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 21."""

    VERSIONS: ClassVar = Versions(0, 2, flexible=2)

    topics: tuple[DeleteRecordsTopic, ...] = ()
    timeout_ms: Int32 = 0


class DeleteRecordsPartitionResult(msgspec.Struct, frozen=True, gc=False):
    """A part of DeleteRecordsResponse."""

    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


class DeleteRecordsTopicResult(msgspec.Struct, frozen=True, gc=False):
    """A part of DeleteRecordsResponse."""

    name: str = ""
    partitions: tuple[DeleteRecordsPartitionResult, ...] = ()


class DeleteRecordsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 21."""

    VERSIONS: ClassVar = Versions(0, 2, flexible=2)

    throttle_time_ms: Int32 = 0
    topics: tuple[DeleteRecordsTopicResult, ...] = ()
