"""Partitions have offsets by time, bounds, leader epochs, and the deletion of records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import Final

from msgspec.structs import replace

from raftlog.broker.fetch import Isolation
from raftlog.broker.offsets import PartitionBounds
from raftlog.kafka.call import Call
from raftlog.kafka.handlers.names import (
    INVALID_REQUEST,
    NONE,
    UNSUPPORTED_VERSION,
    by,
    deadline_of,
    each,
    epoch_error,
    in_turns,
    partition_code,
)
from raftlog.kafka.messages import offsets as messages
from raftlog.record.errors import LogError
from raftlog.record.types import LeaderEpoch, Offset, PartitionId

LATEST: Final = -1
EARLIEST: Final = -2
NEWEST: Final = -3
"""The record with the largest timestamp (KIP-734)."""
EARLIEST_LOCAL: Final = -4
EPOCHS_SINCE: Final = 4
"""The first version of ListOffsets with leader epochs."""
EPOCHS_PER_TURN: Final = 1_000
"""Partitions of an OffsetForLeaderEpoch request resolved in one turn of the event loop."""


async def list_offsets(
    call: Call, request: messages.ListOffsetsRequest
) -> messages.ListOffsetsResponse:
    """2. Returns the first offset at or after a time, the first offset, or the end.

    The end depends on the isolation.
    """
    isolation = Isolation(1 if request.isolation_level == 1 else 0)
    counts = Counter(
        (topic.name, row.partition_index) for topic in request.topics for row in topic.partitions
    )
    repeated = {place for place, count in counts.items() if count > 1}
    topics = [
        await _topic(call, topic, isolation, repeated)
        async for topic in in_turns(call, request.topics)
    ]
    return messages.ListOffsetsResponse(topics=tuple(topics))


async def _topic(
    call: Call,
    topic: messages.ListOffsetsTopic,
    isolation: Isolation,
    repeated: Collection[tuple[str, int]],
) -> messages.ListOffsetsTopicResponse:
    """The offsets of a topic. A partition that the request has twice gets INVALID_REQUEST."""
    rows: dict[int, messages.ListOffsetsPartitionResponse] = {}
    wanted = {row.partition_index: row for row in topic.partitions}
    for number, row in list(wanted.items()):
        error_code = INVALID_REQUEST
        if (topic.name, number) not in repeated:
            error_code = epoch_error(call.broker, topic.name, number, row.current_leader_epoch)
        if error_code:
            rows[number] = messages.ListOffsetsPartitionResponse(number, error_code)
            del wanted[number]
    newest = [number for number, row in wanted.items() if row.timestamp == NEWEST]
    ends = [n for n, row in wanted.items() if row.timestamp < 0 and row.timestamp != NEWEST]
    times = {PartitionId(n): row.timestamp for n, row in wanted.items() if row.timestamp >= 0}
    offsets, name = call.broker.offsets, topic.name
    try:
        if ends:
            found = await offsets.bounds_of(call.principal, {name: ends}, any_node=True)
            for number, bounds in found[name][1].items():
                rows[number] = _bound(wanted[number], bounds, isolation)
        if times:
            placed = await offsets.at_times(
                call.principal, {name: times}, any_node=True, isolation=isolation
            )
            for number, place in placed[name][1].items():
                rows[number] = _placed(number, place)
        for number in newest:
            rows[number] = await _newest(call, name, number, isolation)
    except LogError as error:
        for number in wanted:
            rows.setdefault(
                number, messages.ListOffsetsPartitionResponse(number, partition_code(error))
            )
    return messages.ListOffsetsTopicResponse(
        name,
        tuple(
            _with_epoch(call, name, row.timestamp, rows[row.partition_index])
            for row in topic.partitions
        ),
    )


def _with_epoch(
    call: Call, name: str, timestamp_ms: int, found: messages.ListOffsetsPartitionResponse
) -> messages.ListOffsetsPartitionResponse:
    """The response with the leader epoch of its record, or of the end (KIP-320)."""
    if found.offset < 0 or call.version < EPOCHS_SINCE:
        return found
    offset = None if timestamp_ms == LATEST else Offset(found.offset)
    epoch = call.broker.offsets.leader_epoch_at(name, found.partition_index, offset)
    return found if epoch is None else replace(found, leader_epoch=epoch)


async def _newest(
    call: Call, name: str, number: int, isolation: Isolation
) -> messages.ListOffsetsPartitionResponse:
    try:
        found = await call.broker.offsets.newest_record(
            call.principal, name, number, isolation, any_node=call.any_node
        )
    except LogError as error:
        return messages.ListOffsetsPartitionResponse(number, partition_code(error))
    return _placed(number, found)


def _bound(
    row: messages.ListOffsetsPartition, bounds: PartitionBounds | LogError, isolation: Isolation
) -> messages.ListOffsetsPartitionResponse:
    number = row.partition_index
    if isinstance(bounds, LogError):
        return messages.ListOffsetsPartitionResponse(number, partition_code(bounds))
    if row.timestamp == LATEST:
        return messages.ListOffsetsPartitionResponse(number, 0, -1, bounds.end(isolation))
    if row.timestamp in {EARLIEST, EARLIEST_LOCAL}:
        return messages.ListOffsetsPartitionResponse(number, 0, -1, bounds.log_start_offset)
    # Offsets of tiered storage.
    return messages.ListOffsetsPartitionResponse(number, UNSUPPORTED_VERSION)


def _placed(
    number: int, place: tuple[int, int] | LogError | None
) -> messages.ListOffsetsPartitionResponse:
    if isinstance(place, LogError):
        return messages.ListOffsetsPartitionResponse(number, partition_code(place))
    if place is None:
        # No record is that young, or there is none.
        return messages.ListOffsetsPartitionResponse(number)
    offset, timestamp_ms = place
    return messages.ListOffsetsPartitionResponse(number, 0, timestamp_ms, offset)


async def delete_records(
    call: Call, request: messages.DeleteRecordsRequest
) -> messages.DeleteRecordsResponse:
    """21. Raises log start offsets. Offset -1 stands for the high watermark."""
    targets = [
        (topic.name, row.partition_index, Offset(row.offset))
        for topic in request.topics
        for row in topic.partitions
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
    return messages.DeleteRecordsResponse(
        topics=tuple(
            messages.DeleteRecordsTopicResult(
                topic.name,
                tuple(_deleted(row.partition_index, next(outcome)) for row in topic.partitions),
            )
            for topic in request.topics
        )
    )


def _deleted(number: int, outcome: Offset | LogError) -> messages.DeleteRecordsPartitionResult:
    if isinstance(outcome, LogError):
        return messages.DeleteRecordsPartitionResult(number, -1, partition_code(outcome))
    return messages.DeleteRecordsPartitionResult(number, outcome, NONE)


async def offset_for_leader_epoch(
    call: Call, request: messages.OffsetForLeaderEpochRequest
) -> messages.OffsetForLeaderEpochResponse:
    """23. Returns the ends of leader epochs, by which clients detect lost records (KIP-320)."""
    topics: list[messages.OffsetForLeaderTopicResult] = []
    count = 0
    for topic in request.topics:
        rows: list[messages.EpochEndOffset] = []
        distinct = dict.fromkeys(topic.partitions)
        for row in distinct:
            count += 1
            if count % EPOCHS_PER_TURN == 0:
                await call.broker.turns.wait()
            if not call.any_node:
                rows.append(await _epoch_end(call, topic.topic, row))
        if call.any_node:
            rows = await each(call, partial(_epoch_end, call, topic.topic), distinct)
        topics.append(messages.OffsetForLeaderTopicResult(topic.topic, tuple(rows)))
    return messages.OffsetForLeaderEpochResponse(topics=tuple(topics))


async def _epoch_end(
    call: Call, topic: str, row: messages.OffsetForLeaderPartition
) -> messages.EpochEndOffset:
    number, epoch = row.partition, LeaderEpoch(row.leader_epoch)
    error_code = epoch_error(call.broker, topic, number, row.current_leader_epoch)
    if error_code:
        return messages.EpochEndOffset(error_code, number)
    try:
        found = await call.broker.offsets.epoch_end(
            call.principal, topic, number, epoch, any_node=call.any_node
        )
    except LogError as error:
        return messages.EpochEndOffset(partition_code(error), number)
    return (
        messages.EpochEndOffset(NONE, number)
        if found is None
        else messages.EpochEndOffset(NONE, number, *found)
    )
