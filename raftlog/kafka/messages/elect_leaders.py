"""ElectLeaders, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, Versions


class TopicPartitions(msgspec.Struct, frozen=True, gc=False):
    """A part of ElectLeadersRequest."""

    topic: str = ""
    partitions: tuple[Int32, ...] = ()


class ElectLeadersRequest(msgspec.Struct, frozen=True, gc=False):
    """API 43."""

    VERSIONS: ClassVar = Versions(0, 2, flexible=2)

    election_type: Annotated[Int8, Field(since=1)] = 0
    topic_partitions: tuple[TopicPartitions, ...] | None = ()
    timeout_ms: Int32 = 60_000


class PartitionResult(msgspec.Struct, frozen=True, gc=False):
    """A part of ElectLeadersResponse."""

    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


class ReplicaElectionResult(msgspec.Struct, frozen=True, gc=False):
    """A part of ElectLeadersResponse."""

    topic: str = ""
    partition_result: tuple[PartitionResult, ...] = ()


class ElectLeadersResponse(msgspec.Struct, frozen=True, gc=False):
    """API 43."""

    VERSIONS: ClassVar = Versions(0, 2, flexible=2)

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Field(since=1)] = 0
    replica_election_results: tuple[ReplicaElectionResult, ...] = ()
