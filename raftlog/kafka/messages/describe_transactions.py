"""DescribeTransactions, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from raftlog.schema.fields import Int16, Int32, Int64, Versions


class DescribeTransactionsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 65."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    transactional_ids: tuple[str, ...] = ()


class TopicData(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeTransactionsResponse."""

    topic: str = ""
    partitions: tuple[Int32, ...] = ()


class TransactionState(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeTransactionsResponse."""

    error_code: Int16 = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: tuple[TopicData, ...] = ()


class DescribeTransactionsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 65."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    transaction_states: tuple[TransactionState, ...] = ()
