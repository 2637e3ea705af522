"""InitProducerId, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Int64, Versions


class InitProducerIdRequest(msgspec.Struct, frozen=True, gc=False):
    """API 22."""

    VERSIONS: ClassVar = Versions(0, 6, flexible=2)

    transactional_id: str | None = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, Field(since=3)] = -1
    producer_epoch: Annotated[Int16, Field(since=3)] = -1
    enable2_pc: Annotated[bool, Field(since=6)] = False
    keep_prepared_txn: Annotated[bool, Field(since=6)] = False


class InitProducerIdResponse(msgspec.Struct, frozen=True, gc=False):
    """API 22."""

    VERSIONS: ClassVar = Versions(0, 6, flexible=2)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Annotated[Int64, Field(since=6)] = -1
    ongoing_txn_producer_epoch: Annotated[Int16, Field(since=6)] = -1
