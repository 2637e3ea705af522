"""Produce appends batches as clients built them to partitions led here.

A gateway forwards the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Final

from raftlog.broker.produce import Acks, BatchesAppended, ProduceOptions
from raftlog.kafka.call import Call
from raftlog.kafka.handlers.brokers import current_leader
from raftlog.kafka.handlers.names import (
    NONE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    partition_code,
    topic_name,
)
from raftlog.kafka.messages import produce as messages
from raftlog.record.errors import (
    BAD_REQUEST,
    FORBIDDEN,
    INVALID_BODY,
    NO_LEADER,
    PRODUCER_FENCED,
    UNKNOWN_PRODUCER_ID,
    LogError,
)
from raftlog.record.frames import ProduceFrame
from raftlog.record.types import PartitionId

ACKS: Final = {int(acks): acks for acks in Acks}
TIMEOUT_MS_MAX: Final = 300_000
ADDS_BY_PRODUCE: Final = 12
"""The version from which on the first batch of a transaction adds its partition (KIP-890)."""
UNKNOWN_OFFSET: Final = -1
INVALID_PRODUCER_EPOCH: Final = 47
"""Error code of a fenced producer in Produce. Clients end there at PRODUCER_FENCED (90)."""


async def produce(call: Call, request: messages.ProduceRequest) -> messages.ProduceResponse | None:
    """0. Appends batches. With acks=0 there is no response."""
    outcomes: list[list[BatchesAppended | LogError]]
    forbidden = FORBIDDEN.kafka_code
    try:
        outcomes = await _append(call, request)
    except LogError as error:
        failed = error.as_outcome()
        # Topics are rejected one by one, the whole request for its transactional id.
        forbidden = TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        outcomes = [[failed] * len(topic.partition_data) for topic in request.topic_data]
    if request.acks == Acks.NONE:
        errors = [outcome for row in outcomes for outcome in row if isinstance(outcome, LogError)]
        if errors:
            # As in Kafka, the connection ends, which reports the error to the client.
            raise errors[0]
        return None
    nodes: dict[int, messages.NodeEndpoint] = {}
    responses = tuple(
        _answer(call, topic, row, nodes, forbidden=forbidden)
        for topic, row in zip(request.topic_data, outcomes, strict=True)
    )
    return messages.ProduceResponse(responses, node_endpoints=tuple(nodes.values()))


async def _append(
    call: Call, request: messages.ProduceRequest
) -> list[list[BatchesAppended | LogError]]:
    """The outcome of each partition, in the request's order. Raises LogError if all fail alike."""
    broker = call.broker
    acks = ACKS.get(request.acks)
    if acks is None:
        raise LogError(BAD_REQUEST, f"acks is {request.acks}; it may be 0, 1 or -1.")
    frames: list[ProduceFrame] = []
    refused: list[LogError | None] = []
    """Errors by topic. A topic has the error of all its partitions, or None if each has a frame."""
    seen: defaultdict[str, set[int]] = defaultdict(set)
    for topic in request.topic_data:
        try:
            name = topic_name(broker, topic.name, topic.topic_id)
        except LogError as error:
            refused.append(error.as_outcome())
            for partition in topic.partition_data:
                broker.produce.note_rejected(
                    topic.topic_id or "", PartitionId(partition.index), partition.records or b""
                )
            continue
        refused.append(None)
        for partition in topic.partition_data:
            if partition.index in seen[name]:
                raise LogError(INVALID_BODY, f"Partition {name}-{partition.index} is there twice.")
            seen[name].add(partition.index)
            frames.append(
                ProduceFrame(name, PartitionId(partition.index), partition.records or b"")
            )
    timeout_s = min(max(request.timeout_ms, 1), TIMEOUT_MS_MAX) / 1000
    options = ProduceOptions(
        acks,
        timeout_s,
        transactional_id=request.transactional_id,
        adds_partition=call.version >= ADDS_BY_PRODUCE,
        any_node=call.any_node,
        may_start_anywhere=True,
    )
    appended: Iterator[BatchesAppended | LogError] = iter(())
    if frames:
        appended = iter(await broker.produce.append_batches(call.principal, frames, options))
    return [
        list(islice(appended, len(topic.partition_data)))
        if error is None
        else [error] * len(topic.partition_data)
        for topic, error in zip(request.topic_data, refused, strict=True)
    ]


def _answer(
    call: Call,
    topic: messages.TopicProduceData,
    outcomes: list[BatchesAppended | LogError],
    nodes: dict[int, messages.NodeEndpoint],
    *,
    forbidden: int,
) -> messages.TopicProduceResponse:
    """One topic's part. The leaders that it names are added to `nodes` (KIP-951).

    `forbidden` is Kafka's code of FORBIDDEN.
    """
    rows = []
    for partition, outcome in zip(topic.partition_data, outcomes, strict=True):
        if isinstance(outcome, LogError):
            rows.append(_failed(call, topic, partition.index, outcome, nodes, forbidden=forbidden))
        else:
            rows.append(
                messages.PartitionProduceResponse(
                    index=partition.index,
                    error_code=NONE,
                    base_offset=outcome.base_offset,
                    log_append_time_ms=outcome.log_append_time_ms,
                    log_start_offset=outcome.log_start_offset,
                )
            )
    return messages.TopicProduceResponse(topic.name, topic.topic_id, tuple(rows))


def _failed(
    call: Call,
    topic: messages.TopicProduceData,
    number: int,
    error: LogError,
    nodes: dict[int, messages.NodeEndpoint],
    *,
    forbidden: int,
) -> messages.PartitionProduceResponse:
    leader = messages.LeaderIdAndEpoch()
    if error.entry is NO_LEADER and call.version >= 10:
        try:
            name = topic_name(call.broker, topic.name, topic.topic_id)
        except LogError:
            name = ""
        known = current_leader(call, name, number)
        if known is not None:
            endpoint = known.endpoint
            nodes[endpoint.broker_id] = messages.NodeEndpoint(
                endpoint.broker_id, endpoint.host, endpoint.port, endpoint.rack
            )
            leader = messages.LeaderIdAndEpoch(endpoint.broker_id, known.epoch)
    error_code = partition_code(error)
    if error.entry is PRODUCER_FENCED:
        error_code = INVALID_PRODUCER_EPOCH
    elif error.entry is FORBIDDEN:
        error_code = forbidden
    return messages.PartitionProduceResponse(
        number,
        error_code,
        -1,
        log_start_offset=_log_start_offset(call, topic, number, error),
        error_message=error.message,
        current_leader=leader,
    )


def _log_start_offset(
    call: Call, topic: messages.TopicProduceData, number: int, error: LogError
) -> int:
    """The offset beside an unknown producer's error. Java repeats the batch while it is -1."""
    if error.entry is not UNKNOWN_PRODUCER_ID:
        return UNKNOWN_OFFSET
    try:
        name = topic_name(call.broker, topic.name, topic.topic_id)
        return call.broker.produce.log_start_offset(name, PartitionId(number))
    except LogError:
        # The partition was moved or deleted in between, which the next attempt finds.
        return UNKNOWN_OFFSET
