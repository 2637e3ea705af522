"""Offsets by time, the bounds of partitions, their leader epochs, and the deletion of records."""

from __future__ import annotations

from functools import partial
from typing import Final

from raftlog.broker.fetch import Isolation
from raftlog.broker.offsets import PartitionBounds
from raftlog.kafka.call import Call
from raftlog.kafka.handlers.names import (
    NONE,
    UNSUPPORTED_VERSION,
    by,
    deadline_of,
    each,
    epoch_error,
    partition_code,
)
from raftlog.kafka.messages.offsets import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from raftlog.record.errors import LogError
from raftlog.record.types import LeaderEpoch, Offset, PartitionId

LATEST: Final = -1
EARLIEST: Final = -2
NEWEST: Final = -3
"""The record with the largest timestamp (KIP-734)."""
EARLIEST_LOCAL: Final = -4
EPOCHS_PER_TURN: Final = 1_000
"""Partitions of an OffsetForLeaderEpoch request looked up in one turn of the event loop."""


async def list_offsets(call: Call, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """2: the first offset at or after a time; the first, and the end for the isolation."""
    isolation = Isolation(1 if request.isolation_level == 1 else 0)
    return ListOffsetsResponse(
        topics=tuple([await _topic(call, topic, isolation) for topic in request.topics])
    )


async def _topic(
    call: Call, topic: ListOffsetsTopic, isolation: Isolation
) -> ListOffsetsTopicResponse:
    rows: dict[int, ListOffsetsPartitionResponse] = {}
    wanted = {one.partition_index: one for one in topic.partitions}
    newest = [number for number, one in wanted.items() if one.timestamp == NEWEST]
    ends = [n for n, one in wanted.items() if one.timestamp < 0 and one.timestamp != NEWEST]
    times = {PartitionId(n): one.timestamp for n, one in wanted.items() if one.timestamp >= 0}
    offsets, name = call.broker.offsets, topic.name
    try:
        if ends:
            found = await offsets.bounds_of(call.principal, {name: ends}, any_node=True)
            for number, bounds in found[name][1].items():
                rows[number] = _bound(wanted[number], bounds, isolation)
        if times:
            placed = await offsets.at_times(call.principal, {name: times}, any_node=True)
            for number, place in placed[name][1].items():
                rows[number] = _placed(number, place)
        for number in newest:
            rows[number] = await _newest(call, name, number, isolation)
    except LogError as error:
        for number in wanted:
            rows.setdefault(number, ListOffsetsPartitionResponse(number, partition_code(error)))
    return ListOffsetsTopicResponse(
        name, tuple(rows[one.partition_index] for one in topic.partitions)
    )


async def _newest(
    call: Call, name: str, number: int, isolation: Isolation
) -> ListOffsetsPartitionResponse:
    try:
        found = await call.broker.offsets.newest_record(
            call.principal, name, number, isolation, any_node=call.any_node
        )
    except LogError as error:
        return ListOffsetsPartitionResponse(number, partition_code(error))
    return _placed(number, found)


def _bound(
    one: ListOffsetsPartition, bounds: PartitionBounds | LogError, isolation: Isolation
) -> ListOffsetsPartitionResponse:
    number = one.partition_index
    if isinstance(bounds, LogError):
        return ListOffsetsPartitionResponse(number, partition_code(bounds))
    if one.timestamp == LATEST:
        return ListOffsetsPartitionResponse(number, 0, -1, bounds.end(isolation))
    if one.timestamp in {EARLIEST, EARLIEST_LOCAL}:
        return ListOffsetsPartitionResponse(number, 0, -1, bounds.log_start_offset)
    # Offsets of tiered storage.
    return ListOffsetsPartitionResponse(number, UNSUPPORTED_VERSION)


def _placed(number: int, place: tuple[int, int] | LogError | None) -> ListOffsetsPartitionResponse:
    if isinstance(place, LogError):
        return ListOffsetsPartitionResponse(number, partition_code(place))
    if place is None:
        # No record is that young, or there is none.
        return ListOffsetsPartitionResponse(number)
    offset, timestamp_ms = place
    return ListOffsetsPartitionResponse(number, 0, timestamp_ms, offset)


async def delete_records(call: Call, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """21: raise log start offsets; offset -1: to the high watermark."""
    targets = [
        (topic.name, one.partition_index, Offset(one.offset))
        for topic in request.topics
        for one in topic.partitions
    ]
    deadline = deadline_of(request.timeout_ms)
    outcomes: list[Offset | LogError]
    try:
        outcomes = await by(
            deadline, lambda: call.broker.admin.delete_records(call.principal, targets)
        )
    except LogError as error:
        outcomes = [error.as_outcome()] * len(targets)
    outcome = iter(outcomes)
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(
                topic.name,
                tuple(_deleted(one.partition_index, next(outcome)) for one in topic.partitions),
            )
            for topic in request.topics
        )
    )


def _deleted(number: int, outcome: Offset | LogError) -> DeleteRecordsPartitionResult:
    if isinstance(outcome, LogError):
        return DeleteRecordsPartitionResult(number, -1, partition_code(outcome))
    return DeleteRecordsPartitionResult(number, outcome, NONE)


async def offset_for_leader_epoch(
    call: Call, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """23: where leader epochs end, for clients that look for records lost since (KIP-320)."""
    topics: list[OffsetForLeaderTopicResult] = []
    count = 0
    for topic in request.topics:
        rows: list[EpochEndOffset] = []
        for one in topic.partitions:
            count += 1
            if count % EPOCHS_PER_TURN == 0:
                await call.broker.turns.wait()
            if not call.any_node:
                rows.append(await _epoch_end(call, topic.topic, one))
        if call.any_node:
            rows = await each(call, partial(_epoch_end, call, topic.topic), topic.partitions)
        topics.append(OffsetForLeaderTopicResult(topic.topic, tuple(rows)))
    return OffsetForLeaderEpochResponse(topics=tuple(topics))


async def _epoch_end(call: Call, topic: str, one: OffsetForLeaderPartition) -> EpochEndOffset:
    number, epoch = one.partition, LeaderEpoch(one.leader_epoch)
    error_code = epoch_error(call.broker, topic, number, one.current_leader_epoch)
    if error_code:
        return EpochEndOffset(error_code, number)
    try:
        found = await call.broker.offsets.epoch_end(
            call.principal, topic, number, epoch, any_node=call.any_node
        )
    except LogError as error:
        return EpochEndOffset(partition_code(error), number)
    return EpochEndOffset(NONE, number) if found is None else EpochEndOffset(NONE, number, *found)
