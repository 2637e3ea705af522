"""ListPartitionReassignments, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from raftlog.schema.fields import Int16, Int32, Versions


class ListPartitionReassignmentsTopics(msgspec.Struct, frozen=True, gc=False):
    """A part of ListPartitionReassignmentsRequest."""

    name: str = ""
    partition_indexes: tuple[Int32, ...] = ()


class ListPartitionReassignmentsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 46."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    timeout_ms: Int32 = 60_000
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None = None


class OngoingPartitionReassignment(msgspec.Struct, frozen=True, gc=False):
    """A part of ListPartitionReassignmentsResponse."""

    partition_index: Int32 = 0
    replicas: tuple[Int32, ...] = ()
    adding_replicas: tuple[Int32, ...] = ()
    removing_replicas: tuple[Int32, ...] = ()


class OngoingTopicReassignment(msgspec.Struct, frozen=True, gc=False):
    """A part of ListPartitionReassignmentsResponse."""

    name: str = ""
    partitions: tuple[OngoingPartitionReassignment, ...] = ()


class ListPartitionReassignmentsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 46."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    topics: tuple[OngoingTopicReassignment, ...] = ()
