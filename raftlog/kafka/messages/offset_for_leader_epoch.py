"""OffsetForLeaderEpoch, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Int64, Versions


class OffsetForLeaderPartition(msgspec.Struct, frozen=True, gc=False):
    """A part of OffsetForLeaderEpochRequest."""

    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(msgspec.Struct, frozen=True, gc=False):
    """A part of OffsetForLeaderEpochRequest."""

    topic: str = ""
    partitions: tuple[OffsetForLeaderPartition, ...] = ()


class OffsetForLeaderEpochRequest(msgspec.Struct, frozen=True, gc=False):
    """API 23."""

    VERSIONS: ClassVar = Versions(2, 4, flexible=4)

    replica_id: Annotated[Int32, Field(since=3, is_ignorable=True)] = -2
    topics: tuple[OffsetForLeaderTopic, ...] = ()


class EpochEndOffset(msgspec.Struct, frozen=True, gc=False):
    """A part of OffsetForLeaderEpochResponse."""

    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(msgspec.Struct, frozen=True, gc=False):
    """A part of OffsetForLeaderEpochResponse."""

    topic: str = ""
    partitions: tuple[EpochEndOffset, ...] = ()


class OffsetForLeaderEpochResponse(msgspec.Struct, frozen=True, gc=False):
    """API 23."""

    VERSIONS: ClassVar = Versions(2, 4, flexible=4)

    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetForLeaderTopicResult, ...] = ()
