"""AddPartitionsToTxn, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Int64, Versions


class AddPartitionsToTxnTopic(msgspec.Struct, frozen=True, gc=False):
    """A part of AddPartitionsToTxnRequest."""

    name: str = ""
    partitions: tuple[Int32, ...] = ()


class AddPartitionsToTxnTransaction(msgspec.Struct, frozen=True, gc=False):
    """A part of AddPartitionsToTxnRequest."""

    transactional_id: Annotated[str, Field(since=4)] = ""
    producer_id: Annotated[Int64, Field(since=4)] = 0
    producer_epoch: Annotated[Int16, Field(since=4)] = 0
    verify_only: Annotated[bool, Field(since=4)] = False
    topics: Annotated[tuple[AddPartitionsToTxnTopic, ...], Field(since=4)] = ()


class AddPartitionsToTxnRequest(msgspec.Struct, frozen=True, gc=False):
    """API 24."""

    VERSIONS: ClassVar = Versions(0, 5, flexible=3)

    transactions: Annotated[tuple[AddPartitionsToTxnTransaction, ...], Field(since=4)] = ()
    v3_and_below_transactional_id: Annotated[str, Field(until=3)] = ""
    v3_and_below_producer_id: Annotated[Int64, Field(until=3)] = 0
    v3_and_below_producer_epoch: Annotated[Int16, Field(until=3)] = 0
    v3_and_below_topics: Annotated[tuple[AddPartitionsToTxnTopic, ...], Field(until=3)] = ()


class AddPartitionsToTxnTopicResult(msgspec.Struct, frozen=True, gc=False):
    """A part of AddPartitionsToTxnResponse."""

    name: str = ""
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...] = ()


class AddPartitionsToTxnPartitionResult(msgspec.Struct, frozen=True, gc=False):
    """A part of AddPartitionsToTxnResponse."""

    partition_index: Int32 = 0
    partition_error_code: Int16 = 0


class AddPartitionsToTxnResult(msgspec.Struct, frozen=True, gc=False):
    """A part of AddPartitionsToTxnResponse."""

    transactional_id: Annotated[str, Field(since=4)] = ""
    topic_results: Annotated[tuple[AddPartitionsToTxnTopicResult, ...], Field(since=4)] = ()


class AddPartitionsToTxnResponse(msgspec.Struct, frozen=True, gc=False):
    """API 24."""

    VERSIONS: ClassVar = Versions(0, 5, flexible=3)

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Field(since=4, is_ignorable=True)] = 0
    results_by_transaction: Annotated[tuple[AddPartitionsToTxnResult, ...], Field(since=4)] = ()
    results_by_topic_v3_and_below: Annotated[
        tuple[AddPartitionsToTxnTopicResult, ...], Field(until=3)
    ] = ()
