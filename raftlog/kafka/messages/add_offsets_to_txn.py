"""AddOffsetsToTxn, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from raftlog.schema.fields import Int16, Int32, Int64, Versions


class AddOffsetsToTxnRequest(msgspec.Struct, frozen=True, gc=False):
    """API 25."""

    VERSIONS: ClassVar = Versions(0, 4, flexible=3)

    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: str = ""


class AddOffsetsToTxnResponse(msgspec.Struct, frozen=True, gc=False):
    """API 25."""

    VERSIONS: ClassVar = Versions(0, 4, flexible=3)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
