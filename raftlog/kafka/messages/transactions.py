"""Messages of InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, WriteTxnMarkers,
TxnOffsetCommit, DescribeProducers, DescribeTransactions, ListTransactions.

scripts/generate_kafka_messages.py wrote this module. Do not edit it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, Int64, Versions


class InitProducerIdRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 6, flexible=2)
    transactional_id: str | None = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, Field(since=3)] = -1
    producer_epoch: Annotated[Int16, Field(since=3)] = -1
    enable2_pc: Annotated[bool, Field(since=6)] = False
    keep_prepared_txn: Annotated[bool, Field(since=6)] = False


class InitProducerIdResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 6, flexible=2)
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Annotated[Int64, Field(since=6)] = -1
    ongoing_txn_producer_epoch: Annotated[Int16, Field(since=6)] = -1


class AddPartitionsToTxnTopic(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partitions: tuple[Int32, ...] = ()


class AddPartitionsToTxnRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 3, flexible=3)
    v3_and_below_transactional_id: str = ""
    v3_and_below_producer_id: Int64 = 0
    v3_and_below_producer_epoch: Int16 = 0
    v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...] = ()


class AddPartitionsToTxnTopicResult(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...] = ()


class AddPartitionsToTxnPartitionResult(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    partition_error_code: Int16 = 0


class AddPartitionsToTxnResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 3, flexible=3)
    throttle_time_ms: Int32 = 0
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = ()


class AddOffsetsToTxnRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 4, flexible=3)
    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: str = ""


class AddOffsetsToTxnResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 4, flexible=3)
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0


class EndTxnRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 5, flexible=3)
    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: bool = False


class EndTxnResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 5, flexible=3)
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Annotated[Int64, Field(since=5, is_ignorable=True)] = -1
    producer_epoch: Annotated[Int16, Field(since=5, is_ignorable=True)] = -1


class WritableTxnMarkerTopic(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partition_indexes: tuple[Int32, ...] = ()


class WritableTxnMarker(msgspec.Struct, frozen=True, gc=False):
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: bool = False
    topics: tuple[WritableTxnMarkerTopic, ...] = ()
    coordinator_epoch: Int32 = 0
    transaction_version: Annotated[Int8, Field(since=2, is_ignorable=True)] = 0


class WriteTxnMarkersRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(1, 2, flexible=1)
    markers: tuple[WritableTxnMarker, ...] = ()


class WritableTxnMarkerPartitionResult(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partitions: tuple[WritableTxnMarkerPartitionResult, ...] = ()


class WritableTxnMarkerResult(msgspec.Struct, frozen=True, gc=False):
    producer_id: Int64 = 0
    topics: tuple[WritableTxnMarkerTopicResult, ...] = ()


class WriteTxnMarkersResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(1, 2, flexible=1)
    markers: tuple[WritableTxnMarkerResult, ...] = ()


class TxnOffsetCommitRequestPartition(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Field(since=2, is_ignorable=True)] = -1
    committed_metadata: str | None = ""


class TxnOffsetCommitRequestTopic(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partitions: tuple[TxnOffsetCommitRequestPartition, ...] = ()


class TxnOffsetCommitRequest(msgspec.Struct, frozen=True, gc=False):
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
    partition_index: Int32 = 0
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partitions: tuple[TxnOffsetCommitResponsePartition, ...] = ()


class TxnOffsetCommitResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 5, flexible=3)
    throttle_time_ms: Int32 = 0
    topics: tuple[TxnOffsetCommitResponseTopic, ...] = ()


class TopicRequest(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partition_indexes: tuple[Int32, ...] = ()


class DescribeProducersRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 0, flexible=0)
    topics: tuple[TopicRequest, ...] = ()


class ProducerState(msgspec.Struct, frozen=True, gc=False):
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


class PartitionResponse(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    active_producers: tuple[ProducerState, ...] = ()


class TopicResponse(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    partitions: tuple[PartitionResponse, ...] = ()


class DescribeProducersResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 0, flexible=0)
    throttle_time_ms: Int32 = 0
    topics: tuple[TopicResponse, ...] = ()


class DescribeTransactionsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 0, flexible=0)
    transactional_ids: tuple[str, ...] = ()


class TopicData(msgspec.Struct, frozen=True, gc=False):
    topic: str = ""
    partitions: tuple[Int32, ...] = ()


class DescribeTransactionsTransactionState(msgspec.Struct, frozen=True, gc=False):
    error_code: Int16 = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: tuple[TopicData, ...] = ()


class DescribeTransactionsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 0, flexible=0)
    throttle_time_ms: Int32 = 0
    transaction_states: tuple[DescribeTransactionsTransactionState, ...] = ()


class ListTransactionsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 2, flexible=0)
    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[Int64, ...] = ()
    duration_filter: Annotated[Int64, Field(since=1)] = -1
    transactional_id_pattern: Annotated[str | None, Field(since=2)] = None


class ListTransactionsTransactionState(msgspec.Struct, frozen=True, gc=False):
    transactional_id: str = ""
    producer_id: Int64 = 0
    transaction_state: str = ""


class ListTransactionsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 2, flexible=0)
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: tuple[str, ...] = ()
    transaction_states: tuple[ListTransactionsTransactionState, ...] = ()
