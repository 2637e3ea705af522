"""DescribeLogDirs, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Int64, Versions


class DescribableLogDirTopic(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeLogDirsRequest."""

    topic: str = ""
    partitions: tuple[Int32, ...] = ()


class DescribeLogDirsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 35."""

    VERSIONS: ClassVar = Versions(1, 5, flexible=2)

    topics: tuple[DescribableLogDirTopic, ...] | None = ()


class DescribeLogDirsPartition(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeLogDirsResponse."""

    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: bool = False


class DescribeLogDirsTopic(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeLogDirsResponse."""

    name: str = ""
    partitions: tuple[DescribeLogDirsPartition, ...] = ()


class DescribeLogDirsResult(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeLogDirsResponse."""

    error_code: Int16 = 0
    log_dir: str = ""
    topics: tuple[DescribeLogDirsTopic, ...] = ()
    total_bytes: Annotated[Int64, Field(since=4, is_ignorable=True)] = -1
    usable_bytes: Annotated[Int64, Field(since=4, is_ignorable=True)] = -1
    is_cordoned: Annotated[bool, Field(since=5, is_ignorable=True)] = False


class DescribeLogDirsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 35."""

    VERSIONS: ClassVar = Versions(1, 5, flexible=2)

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Field(since=3, is_ignorable=True)] = 0
    results: tuple[DescribeLogDirsResult, ...] = ()
