"""Queries over many partitions at once, with one call per leader.

Every partition has its own outcome, because one partition without a leader must not hold up a
thousand others. So there are no retries here, and each leader gets only the time for a response
from memory (or for a search). The caller repeats the query for partitions with an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

from raftlog.metadata.image import NO_LEADER_ID
from raftlog.record.errors import ERROR_TABLE, INTERNAL, LogError
from raftlog.record.types import BrokerId, Offset
from raftlog.replication.partition import Isolation, Partition
from raftlog.routing.forwarding_messages import (
    WANTS_MAX,
    BoundsOfMany,
    FindTimeInMany,
    FoundTimes,
    MarksOfMany,
    Operation,
    Outcome,
)
from raftlog.routing.handle import READ_S_MAX, PartitionHandle
from raftlog.routing.router import PartitionRouter

BOUNDS_S_MAX: Final = 1.5
"""Timeout of a leader's answer from memory. A leader that hangs must not use up the caller's time
for all others."""
SEARCHES_AT_ONCE_MAX: Final = 16
"""Most partitions of one request in search for a timestamp at once."""

T = TypeVar("T")
FoundRecord = tuple[Offset, int]
"""Offset and timestamp (ms) of a record."""


class PartitionBounds(NamedTuple):
    """The readable range of a partition."""

    log_start_offset: Offset
    high_watermark: Offset
    last_stable_offset: Offset
    """No open transaction has records below. Equal to the high watermark without transactions."""

    def end(self, isolation: Isolation) -> Offset:
        """First offset that readers of this isolation do not get yet."""
        if isolation is Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark


async def bounds_of_many(
    router: PartitionRouter, wanted: Sequence[PartitionHandle]
) -> list[PartitionBounds | LogError]:
    """The bounds of each partition, or its error. Never raises LogError."""

    async def local(indexes: Sequence[int]) -> list[PartitionBounds | LogError]:
        return await local_bounds([finder(router, wanted[index]) for index in indexes])

    def operation(some: Sequence[int]) -> Operation:
        return BoundsOfMany(tuple((wanted[i].topic_id, wanted[i].partition) for i in some))

    def answer(outcome: Outcome, _body: memoryview) -> list[PartitionBounds | int]:
        assert isinstance(outcome, MarksOfMany)
        return [
            row if isinstance(row, int) else PartitionBounds(*map(Offset, row))
            for row in outcome.rows
        ]

    return await call_leaders(router, wanted, local, operation, answer, timeout_s=BOUNDS_S_MAX)


async def times_of_many(
    router: PartitionRouter,
    wanted: Sequence[tuple[PartitionHandle, int]],
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> list[FoundRecord | LogError | None]:
    """Each partition's first committed record at or after its timestamp (ms), None, or its error.

    Never raises LogError.
    """

    async def local(indexes: Sequence[int]) -> list[FoundRecord | LogError | None]:
        return await local_times(
            [(finder(router, wanted[i][0]), wanted[i][1]) for i in indexes], isolation
        )

    def operation(some: Sequence[int]) -> Operation:
        return FindTimeInMany(
            tuple((wanted[i][0].topic_id, wanted[i][0].partition, wanted[i][1]) for i in some),
            int(isolation),
        )

    def answer(outcome: Outcome, _body: memoryview) -> list[FoundRecord | int | None]:
        assert isinstance(outcome, FoundTimes)
        return [
            row if row is None or isinstance(row, int) else (Offset(row[0]), row[1])
            for row in outcome.rows
        ]

    partitions = [partition for partition, _ in wanted]
    return await call_leaders(router, partitions, local, operation, answer, timeout_s=READ_S_MAX)


async def local_bounds(
    wanted: Sequence[Callable[[], Partition]],
) -> list[PartitionBounds | LogError]:
    """The bounds of partitions led here. Each callable raises LogError if its partition is not.

    One confirmation of the lead serves all partitions.
    """
    rows: list[PartitionBounds | LogError] = []
    doubted: list[int] = []
    to_ask: Partition | None = None
    for index, find in enumerate(wanted):
        try:
            partition = find()
            rows.append(_known_bounds(partition))
        except LogError as error:
            rows.append(error.as_outcome())
            continue
        if partition.may_be_led_elsewhere:
            doubted.append(index)
            to_ask = partition
    if to_ask is None:
        return rows
    refusal: LogError | None = None
    try:
        await to_ask.confirm()
    except LogError as error:
        refusal = error.as_outcome()
    for index in doubted:
        try:
            rows[index] = refusal or _known_bounds(wanted[index]())
        except LogError as error:
            rows[index] = error.as_outcome()
    return rows


def _known_bounds(partition: Partition) -> PartitionBounds:
    end = partition.require_leader().known_end_offset()
    return PartitionBounds(partition.log_start_offset, end, partition.last_stable_offset)


async def local_times(
    wanted: Sequence[tuple[Callable[[], Partition], int]],
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> list[FoundRecord | LogError | None]:
    """Records of partitions led here at or after a timestamp, with bounded parallel searches.

    One confirmation of the lead serves all partitions without such a record.
    """
    found = await _search_all(wanted, isolation)
    rows: list[FoundRecord | LogError | None] = [
        row[0] if isinstance(row, tuple) else row for row in found
    ]
    # No record is that young only if that holds up to the confirmed end.
    missing = [
        (index, row[1])
        for index, row in enumerate(found)
        if isinstance(row, tuple) and row[0] is None
    ]
    if not missing:
        return rows
    bounds = await local_bounds([wanted[index][0] for index, _ in missing])
    grown: list[int] = []
    for (index, end), known in zip(missing, bounds, strict=True):
        if isinstance(known, LogError):
            rows[index] = known
        elif known.end(isolation) > end:
            grown.append(index)
    again = await _search_all([wanted[index] for index in grown], isolation)
    for index, row in zip(grown, again, strict=True):
        rows[index] = row[0] if isinstance(row, tuple) else row
    return rows


_Known: TypeAlias = tuple[FoundRecord | None, Offset]
"""A record found among those below the offset, or none."""


async def _search_all(
    wanted: Sequence[tuple[Callable[[], Partition], int]], isolation: Isolation
) -> list[_Known | LogError]:
    async def search(find: Callable[[], Partition], time_ms: int) -> _Known | LogError:
        try:
            return await find().known_offset_for_timestamp(time_ms, isolation)
        except LogError as error:
            return error.as_outcome()

    found: list[_Known | LogError] = []
    for start in range(0, len(wanted), SEARCHES_AT_ONCE_MAX):
        some = wanted[start : start + SEARCHES_AT_ONCE_MAX]
        found += await asyncio.gather(*(search(find, time_ms) for find, time_ms in some))
    return found


def coded(row: T | LogError) -> T | int:
    """A partition's outcome on the wire, with an error as its code."""
    return row.entry.code if isinstance(row, LogError) else row


def finder(router: PartitionRouter, wanted: PartitionHandle) -> Callable[[], Partition]:
    """Finds the local partition. Raises LogError unless this node leads it."""

    def find() -> Partition:
        # Found by id, because a topic created again under the same name is another topic.
        topic = router.topic(wanted.topic_id)
        return router.replicas.partition(topic.name, wanted.partition)

    return find


async def call_leaders(
    router: PartitionRouter,
    wanted: Sequence[PartitionHandle],
    local: Callable[[Sequence[int]], Awaitable[list[T | LogError]]],
    operation: Callable[[Sequence[int]], Operation],
    answer: Callable[[Outcome, memoryview], list[T | int]],
    *,
    timeout_s: float,
) -> list[T | LogError]:
    """Outcomes in the order of `wanted`, with one call to each other leader.

    `local` and `operation` get indexes of `wanted`. `answer` gets an outcome with its body.
    """
    outcomes: dict[int, T | LogError] = {}
    mine: list[int] = []
    theirs: dict[BrokerId, list[int]] = {}
    for index, handle in enumerate(wanted):
        try:
            leader = router.leadership(handle.topic_id, handle.partition).leader
            if leader == NO_LEADER_ID:
                raise router.not_led_error(handle)
        except LogError as error:
            outcomes[index] = error.as_outcome()
        else:
            (mine if leader == router.broker_id else theirs.setdefault(leader, [])).append(index)

    async def call_local() -> None:
        outcomes.update(zip(mine, await local(mine), strict=True))

    async def call(leader: BrokerId, some: Sequence[int]) -> None:
        rows: Sequence[T | int | LogError]
        try:
            outcome, body = await router.call_leader(
                leader, operation(some), [wanted[index] for index in some], timeout_s=timeout_s
            )
        except LogError as error:
            rows = [LogError(error.entry, error.message) for _ in some]
        else:
            rows = answer(outcome, body)
        for index, row in zip(some, rows, strict=True):
            outcomes[index] = _coded_error(row, wanted[index]) if isinstance(row, int) else row

    await asyncio.gather(
        call_local(),
        *(
            call(leader, some[start : start + WANTS_MAX])
            for leader, some in theirs.items()
            for start in range(0, len(some), WANTS_MAX)
        ),
    )
    return [outcomes[index] for index in range(len(wanted))]


def _coded_error(code: int, wanted: PartitionHandle) -> LogError:
    """The error for a code that came without its message."""
    entry = ERROR_TABLE.get(code, INTERNAL)
    return LogError(entry, f"{wanted.topic}-{wanted.partition}: {entry.message}")
