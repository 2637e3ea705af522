"""Transactions (KIP-98, 447, 664, 890) of both versions.

Clients of version 1 name each partition before they write to it (24, 25), keep their epoch over
transactions, and end them by EndTxn up to version 4. Those of version 2 add partitions by their
first batch (Produce from version 12 on, TxnOffsetCommit from 5 on), and EndTxn 5 brings the epoch
of the next transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Final

import re2

from raftlog.broker.groups import Committer, OffsetToCommit, OpenTransaction
from raftlog.broker.transactions import (
    VERSION_1,
    VERSION_2,
    Marker,
    Producer,
    TopicPartition,
    TransactionDescription,
)
from raftlog.kafka.call import Call
from raftlog.kafka.handlers.names import (
    CLUSTER_AUTHORIZATION_FAILED,
    NONE,
    ROWS_PER_TURN,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    cluster_code,
    code,
    code_of,
    coordinator_code,
    each,
    in_turns,
    numbers_by_topic,
    partition_code,
)
from raftlog.kafka.messages import transactions as messages
from raftlog.record.errors import PRODUCER_FENCED, LogError
from raftlog.record.types import ProducerEpoch, ProducerId

INVALID_PRODUCER_EPOCH: Final = 47
"""Error code of a fenced producer, for versions older than its own code (90)."""
INVALID_REGULAR_EXPRESSION: Final = 128
STATES: Final = {
    "empty": "Empty",
    "ongoing": "Ongoing",
    "prepared": "Ongoing",
    "prepare-commit": "PrepareCommit",
    "prepare-abort": "PrepareAbort",
    "complete-commit": "CompleteCommit",
    "complete-abort": "CompleteAbort",
}
"""Transaction states of raftlog by Kafka's. A prepared transaction is open, and Kafka's tools know
no other name for it."""
PATTERN_CHARACTERS_MAX: Final = 1_000


def _code(
    error: LogError,
    call: Call,
    *,
    since: int,
    forbidden: int = TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
) -> int:
    """The error's code. Versions before `since` do not know a fenced producer's code."""
    if error.entry is PRODUCER_FENCED and call.version < since:
        return INVALID_PRODUCER_EPOCH
    return coordinator_code(error, forbidden=forbidden)


def _producer(producer_id: int, epoch: int) -> Producer:
    return Producer(ProducerId(producer_id), ProducerEpoch(epoch))


async def init_producer_id(
    call: Call, request: messages.InitProducerIdRequest
) -> messages.InitProducerIdResponse:
    """22. Returns a producer id. A transactional id gets it from its coordinator.

    The coordinator fences the older producer.
    """
    broker = call.broker
    forbidden = TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    try:
        if request.transactional_id is None:
            forbidden = CLUSTER_AUTHORIZATION_FAILED
            producer_id, epoch = await broker.produce.allocate_producer_id(call.principal)
        else:
            initialized = await broker.transactions.init(
                call.principal,
                request.transactional_id,
                timeout_ms=max(request.transaction_timeout_ms, 0),
                known=_producer(request.producer_id, request.producer_epoch),
                keep_prepared=False,
            )
            producer_id, epoch = initialized.producer
    except LogError as error:
        error_code = _code(error, call, since=4, forbidden=forbidden)
        return messages.InitProducerIdResponse(error_code=error_code)
    return messages.InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)


async def add_partitions(
    call: Call, request: messages.AddPartitionsToTxnRequest
) -> messages.AddPartitionsToTxnResponse:
    """24. Adds partitions to a transaction of version 1, all of them or none."""
    topics = request.v3_and_below_topics
    error_code = NONE
    try:
        await call.broker.transactions.add_partitions(
            call.principal,
            request.v3_and_below_transactional_id,
            _producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions],
        )
    except LogError as error:
        error_code = _code(error, call, since=2)
    return messages.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=tuple(
            messages.AddPartitionsToTxnTopicResult(
                topic.name,
                tuple(
                    messages.AddPartitionsToTxnPartitionResult(number, error_code)
                    for number in topic.partitions
                ),
            )
            for topic in topics
        )
    )


async def add_offsets(
    call: Call, request: messages.AddOffsetsToTxnRequest
) -> messages.AddOffsetsToTxnResponse:
    """25. Adds a group's offsets to a transaction of version 1."""
    try:
        await call.broker.transactions.add_group(
            call.principal,
            request.transactional_id,
            _producer(request.producer_id, request.producer_epoch),
            request.group_id,
        )
    except LogError as error:
        return messages.AddOffsetsToTxnResponse(error_code=_code(error, call, since=2))
    return messages.AddOffsetsToTxnResponse()


async def end(call: Call, request: messages.EndTxnRequest) -> messages.EndTxnResponse:
    """26. Commits or aborts. The decision is committed before the response leaves."""
    is_new = call.version >= 5
    try:
        producer = await call.broker.transactions.end(
            call.principal,
            request.transactional_id,
            _producer(request.producer_id, request.producer_epoch),
            is_commit=request.committed,
            version=VERSION_2 if is_new else VERSION_1,
        )
    except LogError as error:
        return messages.EndTxnResponse(error_code=_code(error, call, since=2))
    if not is_new:
        return messages.EndTxnResponse()
    return messages.EndTxnResponse(
        producer_id=producer.producer_id, producer_epoch=producer.producer_epoch
    )


async def commit_offsets(
    call: Call, request: messages.TxnOffsetCommitRequest
) -> messages.TxnOffsetCommitResponse:
    """28. Adds a group's offsets, to be committed with the transaction."""
    offsets = [
        OffsetToCommit(
            topic=topic.name,
            partition=partition.partition_index,
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.committed_metadata or "",
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    transaction = OpenTransaction(
        request.transactional_id,
        _producer(request.producer_id, request.producer_epoch),
        adds_group=call.version >= 5,
    )
    committer = Committer(request.member_id, request.generation_id, request.group_instance_id)
    codes: Iterable[int]
    try:
        outcomes = await call.broker.groups.commit(
            call.principal, request.group_id, offsets, committer, transaction
        )
    except LogError as error:
        codes = [_code(error, call, since=3)] * len(offsets)
    else:
        codes = [code_of(outcome.error_code) for outcome in outcomes]
    following = iter(codes)
    return messages.TxnOffsetCommitResponse(
        topics=tuple(
            messages.TxnOffsetCommitResponseTopic(
                topic.name,
                tuple(
                    messages.TxnOffsetCommitResponsePartition(
                        partition.partition_index, next(following)
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


async def describe_producers(
    call: Call, request: messages.DescribeProducersRequest
) -> messages.DescribeProducersResponse:
    """61. Returns the producers of partitions led here.

    `kafka-transactions` finds hanging producers by it.
    """
    topics = []
    wanted = numbers_by_topic((topic.name, topic.partition_indexes) for topic in request.topics)
    async for name, numbers in in_turns(call, wanted.items()):
        rows = await each(call, partial(_producers, call, name), numbers)
        topics.append(messages.TopicResponse(name, tuple(rows)))
    return messages.DescribeProducersResponse(topics=tuple(topics))


async def _producers(call: Call, topic: str, number: int) -> messages.PartitionResponse:
    try:
        await call.budget.reserve(1)
        found = await call.broker.transactions.producers(
            call.principal, topic, number, any_node=call.any_node
        )
        await call.budget.reserve(len(found))
    except LogError as error:
        return messages.PartitionResponse(number, partition_code(error), error.message)
    now_ms = call.broker.clock.time_ms()
    return messages.PartitionResponse(
        number,
        NONE,
        None,
        tuple(
            messages.ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=now_ms - producer.idle_ms,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=-1
                if producer.transaction_start is None
                else producer.transaction_start,
            )
            for producer in found
        ),
    )


async def write_markers(
    call: Call, request: messages.WriteTxnMarkersRequest
) -> messages.WriteTxnMarkersResponse:
    """27. Executes an operator's abort of a transaction in single partitions (KIP-664)."""
    return messages.WriteTxnMarkersResponse(
        tuple(await each(call, partial(_marked, call), request.markers))
    )


async def _marked(
    call: Call, wanted: messages.WritableTxnMarker
) -> messages.WritableTxnMarkerResult:
    producer = _producer(wanted.producer_id, wanted.producer_epoch)
    marker = Marker(wanted.transaction_result, wanted.coordinator_epoch)
    rows: dict[str, list[messages.WritableTxnMarkerPartitionResult]] = {
        topic.name: [] for topic in wanted.topics
    }
    places = [(topic.name, number) for topic in wanted.topics for number in topic.partition_indexes]
    async for name, number in in_turns(call, dict.fromkeys(places)):
        error_code = NONE
        try:
            await call.broker.transactions.write_marker(
                call.principal, name, number, producer, marker, any_node=call.any_node
            )
        except LogError as error:
            error_code = cluster_code(error)
        row = messages.WritableTxnMarkerPartitionResult(number, error_code)
        rows[name].append(row)
    return messages.WritableTxnMarkerResult(
        wanted.producer_id,
        tuple(
            messages.WritableTxnMarkerTopicResult(name, tuple(some)) for name, some in rows.items()
        ),
    )


async def describe(
    call: Call, request: messages.DescribeTransactionsRequest
) -> messages.DescribeTransactionsResponse:
    """65. Returns transactional ids with their transactions."""
    return messages.DescribeTransactionsResponse(
        transaction_states=tuple(
            await each(call, partial(_described, call), request.transactional_ids)
        )
    )


async def _described(
    call: Call, transactional_id: str
) -> messages.DescribeTransactionsTransactionState:
    try:
        await call.budget.reserve(1)
        found, _ = await call.broker.transactions.describe(call.principal, transactional_id)
        await call.budget.reserve(len(found.partitions))
    except LogError as error:
        forbidden = TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return messages.DescribeTransactionsTransactionState(
            coordinator_code(error, forbidden=forbidden), transactional_id
        )
    summary = found.summary
    return messages.DescribeTransactionsTransactionState(
        error_code=NONE,
        transactional_id=transactional_id,
        transaction_state=STATES[summary.state],
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=summary.producer.producer_id,
        producer_epoch=summary.producer.producer_epoch,
        topics=_topics(found),
    )


def _topics(found: TransactionDescription) -> tuple[messages.TopicData, ...]:
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in found.partitions:
        numbers[topic].append(number)
    return tuple(messages.TopicData(topic, tuple(some)) for topic, some in sorted(numbers.items()))


async def list_(
    call: Call, request: messages.ListTransactionsRequest
) -> messages.ListTransactionsResponse:
    """66. Returns this node's transactional ids. A gateway returns those of all nodes.

    Clients query each coordinator.
    """
    broker = call.broker
    known = set(STATES.values())
    states = set(request.state_filters)
    pattern = None
    try:
        if request.transactional_id_pattern:
            pattern = re2.compile(request.transactional_id_pattern[:PATTERN_CHARACTERS_MAX])
    except re2.error:
        return messages.ListTransactionsResponse(error_code=INVALID_REGULAR_EXPRESSION)
    try:
        found = await broker.transactions.list(call.principal)
        await call.budget.reserve(len(found.transactions))
    except LogError as error:
        return messages.ListTransactionsResponse(error_code=code(error))
    ids = set(request.producer_id_filters)
    rows = [
        messages.ListTransactionsTransactionState(
            transaction.summary.transactional_id,
            transaction.summary.producer.producer_id,
            STATES[transaction.summary.state],
        )
        async for transaction in in_turns(call, found.transactions, ROWS_PER_TURN)
        if (call.any_node or transaction.coordinator == broker.node_id)
        and (not states or STATES[transaction.summary.state] in states)
        and (not ids or transaction.summary.producer.producer_id in ids)
        and transaction.summary.open_ms >= request.duration_filter
        and (pattern is None or pattern.fullmatch(transaction.summary.transactional_id))
    ]
    return messages.ListTransactionsResponse(
        unknown_state_filters=tuple(sorted(states - known)), transaction_states=tuple(rows)
    )
