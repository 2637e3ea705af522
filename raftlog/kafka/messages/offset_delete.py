"""OffsetDelete, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from raftlog.schema.fields import Int16, Int32, Versions


class OffsetDeleteRequestPartition(msgspec.Struct, frozen=True, gc=False):
    """A part of OffsetDeleteRequest."""

    partition_index: Int32 = 0


class OffsetDeleteRequestTopic(msgspec.Struct, frozen=True, gc=False):
    """A part of OffsetDeleteRequest."""

    name: str = ""
    partitions: tuple[OffsetDeleteRequestPartition, ...] = ()


class OffsetDeleteRequest(msgspec.Struct, frozen=True, gc=False):
    """API 47."""

    VERSIONS: ClassVar = Versions(0, 0)

    group_id: str = ""
    topics: tuple[OffsetDeleteRequestTopic, ...] = ()


class OffsetDeleteResponsePartition(msgspec.Struct, frozen=True, gc=False):
    """A part of OffsetDeleteResponse."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(msgspec.Struct, frozen=True, gc=False):
    """A part of OffsetDeleteResponse."""

    name: str = ""
    partitions: tuple[OffsetDeleteResponsePartition, ...] = ()


class OffsetDeleteResponse(msgspec.Struct, frozen=True, gc=False):
    """API 47."""

    VERSIONS: ClassVar = Versions(0, 0)

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetDeleteResponseTopic, ...] = ()
