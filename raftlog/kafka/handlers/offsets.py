"""Offsets by time, and the bounds of partitions."""

from __future__ import annotations

from typing import Final

from raftlog.broker.fetch import Isolation
from raftlog.broker.offsets import PartitionBounds
from raftlog.kafka.call import Call
from raftlog.kafka.handlers.names import code
from raftlog.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from raftlog.record.errors import LogError
from raftlog.record.types import PartitionId

LATEST: Final = -1
EARLIEST: Final = -2
EARLIEST_LOCAL: Final = -4
UNSUPPORTED_VERSION: Final = 35
"""Of the other special timestamps: the newest timestamp (-3), and tiered storage."""


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
    ends = [number for number, one in wanted.items() if one.timestamp < 0]
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
    except LogError as error:
        for number in wanted:
            rows.setdefault(number, ListOffsetsPartitionResponse(number, code(error)))
    return ListOffsetsTopicResponse(
        name, tuple(rows[one.partition_index] for one in topic.partitions)
    )


def _bound(
    one: ListOffsetsPartition, bounds: PartitionBounds | LogError, isolation: Isolation
) -> ListOffsetsPartitionResponse:
    number = one.partition_index
    if isinstance(bounds, LogError):
        return ListOffsetsPartitionResponse(number, code(bounds))
    if one.timestamp == LATEST:
        return ListOffsetsPartitionResponse(number, 0, -1, bounds.end(isolation))
    if one.timestamp in {EARLIEST, EARLIEST_LOCAL}:
        return ListOffsetsPartitionResponse(number, 0, -1, bounds.log_start_offset)
    return ListOffsetsPartitionResponse(number, UNSUPPORTED_VERSION)


def _placed(number: int, place: tuple[int, int] | LogError | None) -> ListOffsetsPartitionResponse:
    if isinstance(place, LogError):
        return ListOffsetsPartitionResponse(number, code(place))
    if place is None:
        # No record is that young.
        return ListOffsetsPartitionResponse(number)
    offset, timestamp_ms = place
    return ListOffsetsPartitionResponse(number, 0, timestamp_ms, offset)
