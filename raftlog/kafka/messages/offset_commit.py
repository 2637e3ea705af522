"""OffsetCommit, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Int64, OptionalUuid, Versions


class OffsetCommitRequestPartition(msgspec.Struct, frozen=True, gc=False):
    """A part of OffsetCommitRequest."""

    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Field(since=6, is_ignorable=True)] = -1
    committed_metadata: str | None = ""


class OffsetCommitRequestTopic(msgspec.Struct, frozen=True, gc=False):
    """A part of OffsetCommitRequest."""

    name: Annotated[str, Field(until=9, is_ignorable=True)] = ""
    topic_id: Annotated[OptionalUuid, Field(since=10, is_ignorable=True)] = None
    partitions: tuple[OffsetCommitRequestPartition, ...] = ()


class OffsetCommitRequest(msgspec.Struct, frozen=True, gc=False):
    """API 8."""

    VERSIONS: ClassVar = Versions(2, 10, flexible=8)

    group_id: str = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: str = ""
    group_instance_id: Annotated[str | None, Field(since=7)] = None
    retention_time_ms: Annotated[Int64, Field(until=4, is_ignorable=True)] = -1
    topics: tuple[OffsetCommitRequestTopic, ...] = ()


class OffsetCommitResponsePartition(msgspec.Struct, frozen=True, gc=False):
    """A part of OffsetCommitResponse."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetCommitResponseTopic(msgspec.Struct, frozen=True, gc=False):
    """A part of OffsetCommitResponse."""

    name: Annotated[str, Field(until=9, is_ignorable=True)] = ""
    topic_id: Annotated[OptionalUuid, Field(since=10, is_ignorable=True)] = None
    partitions: tuple[OffsetCommitResponsePartition, ...] = ()


class OffsetCommitResponse(msgspec.Struct, frozen=True, gc=False):
    """API 8."""

    VERSIONS: ClassVar = Versions(2, 10, flexible=8)

    throttle_time_ms: Annotated[Int32, Field(since=3, is_ignorable=True)] = 0
    topics: tuple[OffsetCommitResponseTopic, ...] = ()
