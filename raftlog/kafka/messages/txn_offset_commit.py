"""TxnOffsetCommit, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Int64, Versions


class TxnOffsetCommitRequestPartition(msgspec.Struct, frozen=True, gc=False):
    """A part of TxnOffsetCommitRequest."""

    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Field(since=2, is_ignorable=True)] = -1
    committed_metadata: str | None = ""


class TxnOffsetCommitRequestTopic(msgspec.Struct, frozen=True, gc=False):
    """A part of TxnOffsetCommitRequest."""

    name: str = ""
    partitions: tuple[TxnOffsetCommitRequestPartition, ...] = ()


class TxnOffsetCommitRequest(msgspec.Struct, frozen=True, gc=False):
    """API 28."""

    VERSIONS: ClassVar = Versions(0, 5, flexible=3)

    transactional_id: str = ""
    group_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id: Annotated[Int32, Field(since=3)] = -1
    member_id: Annotated[str, Field(since=3)] = ""
    group_instance_id: Annotated[str | None, Field(since=3)] = None
    topics: tuple[TxnOffsetCommitRequestTopic, ...] = ()


class TxnOffsetCommitResponsePartition(msgspec.Struct, frozen=True, gc=False):
    """A part of TxnOffsetCommitResponse."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(msgspec.Struct, frozen=True, gc=False):
    """A part of TxnOffsetCommitResponse."""

    name: str = ""
    partitions: tuple[TxnOffsetCommitResponsePartition, ...] = ()


class TxnOffsetCommitResponse(msgspec.Struct, frozen=True, gc=False):
    """API 28."""

    VERSIONS: ClassVar = Versions(0, 5, flexible=3)

    throttle_time_ms: Int32 = 0
    topics: tuple[TxnOffsetCommitResponseTopic, ...] = ()
