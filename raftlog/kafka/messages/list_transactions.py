"""ListTransactions, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Int64, Versions


class ListTransactionsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 66."""

    VERSIONS: ClassVar = Versions(0, 2, flexible=0)

    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[Int64, ...] = ()
    duration_filter: Annotated[Int64, Field(since=1)] = -1
    transactional_id_pattern: Annotated[str | None, Field(since=2)] = None


class TransactionState(msgspec.Struct, frozen=True, gc=False):
    """A part of ListTransactionsResponse."""

    transactional_id: str = ""
    producer_id: Int64 = 0
    transaction_state: str = ""


class ListTransactionsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 66."""

    VERSIONS: ClassVar = Versions(0, 2, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: tuple[str, ...] = ()
    transaction_states: tuple[TransactionState, ...] = ()
