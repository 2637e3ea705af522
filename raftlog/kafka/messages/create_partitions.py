"""CreatePartitions, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from raftlog.schema.fields import Int16, Int32, Versions


class CreatePartitionsAssignment(msgspec.Struct, frozen=True, gc=False):
    """A part of CreatePartitionsRequest."""

    broker_ids: tuple[Int32, ...] = ()


class CreatePartitionsTopic(msgspec.Struct, frozen=True, gc=False):
    """A part of CreatePartitionsRequest."""

    name: str = ""
    count: Int32 = 0
    assignments: tuple[CreatePartitionsAssignment, ...] | None = ()


class CreatePartitionsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 37."""

    VERSIONS: ClassVar = Versions(0, 3, flexible=2)

    topics: tuple[CreatePartitionsTopic, ...] = ()
    timeout_ms: Int32 = 0
    validate_only: bool = False


class CreatePartitionsTopicResult(msgspec.Struct, frozen=True, gc=False):
    """A part of CreatePartitionsResponse."""

    name: str = ""
    error_code: Int16 = 0
    error_message: str | None = None


class CreatePartitionsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 37."""

    VERSIONS: ClassVar = Versions(0, 3, flexible=2)

    throttle_time_ms: Int32 = 0
    results: tuple[CreatePartitionsTopicResult, ...] = ()
