"""AlterPartitionReassignments, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Versions


class ReassignablePartition(msgspec.Struct, frozen=True, gc=False):
    """A part of AlterPartitionReassignmentsRequest."""

    partition_index: Int32 = 0
    replicas: tuple[Int32, ...] | None = None


class ReassignableTopic(msgspec.Struct, frozen=True, gc=False):
    """A part of AlterPartitionReassignmentsRequest."""

    name: str = ""
    partitions: tuple[ReassignablePartition, ...] = ()


class AlterPartitionReassignmentsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 45."""

    VERSIONS: ClassVar = Versions(0, 1, flexible=0)

    timeout_ms: Int32 = 60_000
    allow_replication_factor_change: Annotated[bool, Field(since=1)] = True
    topics: tuple[ReassignableTopic, ...] = ()


class ReassignablePartitionResponse(msgspec.Struct, frozen=True, gc=False):
    """A part of AlterPartitionReassignmentsResponse."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


class ReassignableTopicResponse(msgspec.Struct, frozen=True, gc=False):
    """A part of AlterPartitionReassignmentsResponse."""

    name: str = ""
    partitions: tuple[ReassignablePartitionResponse, ...] = ()


class AlterPartitionReassignmentsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 45."""

    VERSIONS: ClassVar = Versions(0, 1, flexible=0)

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[bool, Field(since=1, is_ignorable=True)] = True
    error_code: Int16 = 0
    error_message: str | None = ""
    responses: tuple[ReassignableTopicResponse, ...] = ()
