"""EndTxn, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Int64, Versions


class EndTxnRequest(msgspec.Struct, frozen=True, gc=False):
    """API 26."""

    VERSIONS: ClassVar = Versions(0, 5, flexible=3)

    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: bool = False


class EndTxnResponse(msgspec.Struct, frozen=True, gc=False):
    """API 26."""

    VERSIONS: ClassVar = Versions(0, 5, flexible=3)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Annotated[Int64, Field(since=5, is_ignorable=True)] = -1
    producer_epoch: Annotated[Int16, Field(since=5, is_ignorable=True)] = -1
