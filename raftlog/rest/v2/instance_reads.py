"""One read of a consumer instance: its partitions in turn, until the answer is full or time is up.

The coordinator says where to begin, and learns how far the read came before anything is answered:
partitions that moved meanwhile are left out. See docs/decisions/rest-consumers.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from raftlog.broker.consumer_instances import (
    UNKNOWN_OFFSET,
    Pair,
    PartitionMove,
    PlannedRead,
    ReadPlan,
)
from raftlog.broker.fetch import Isolation, PartitionHandle, ReadProgress
from raftlog.broker.offsets import NamedOffset, named_offset
from raftlog.http.request import Request, ServerContext
from raftlog.record.errors import (
    NO_LEADER,
    OFFSET_OUT_OF_RANGE,
    UNREADABLE_RECORD,
    UNSUPPORTED_FORMAT,
    LogError,
)
from raftlog.record.types import Offset
from raftlog.rest.json.records import RecordFormat
from raftlog.rest.json.records_answer import RecordsAnswer, joined

RENEWAL_S: Final = 1.0
"""Between two questions to the coordinator: partitions may have come or gone."""
PARTITION_S: Final = 1.0
"""Longest time for one partition, the leader of which may be gone: others wait behind it. Records
read by then are answered."""
HOLD_S: Final = 30.0
"""Longest wait for more bytes once there are records: far less than an instance may be idle."""
RETRY_S: Final = 0.1
"""Pause of a read in which a partition could not be read."""


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """The bounds of one read."""

    timeout_s: float | None
    """None: the instance's."""
    bytes_max: int
    records_max: int
    isolation: Isolation


@dataclass(slots=True, eq=False)
class _Part:
    """A partition of the read."""

    handle: PartitionHandle
    planned: int
    reset_to: int = UNKNOWN_OFFSET
    answers: list[RecordsAnswer] = field(default_factory=list)
    """One for each pass with records."""
    offset: int = UNKNOWN_OFFSET
    """To be read next; UNKNOWN_OFFSET: not reached yet."""
    is_tried: bool = False
    """Whether it had a turn."""
    error: LogError | None = None
    """In the way of its records, until a seek past it."""

    @property
    def pair(self) -> Pair:
        """The partition, by its topic's id."""
        return self.handle.topic_id, self.handle.partition

    @property
    def move(self) -> PartitionMove | None:
        """The move to tell to the coordinator; None: there is none."""
        if self.offset == self.planned:
            return None
        return PartitionMove(*self.pair, self.planned, self.offset, self.reset_to)


class InstanceRead:
    """One read. `run` returns what to answer."""

    def __init__(
        self,
        request: Request,
        context: ServerContext,
        media_types: Mapping[str, str],
        bounds: ReadBounds,
    ) -> None:
        """`media_types`: of the answer, by the formats that the client accepts."""
        self._request = request
        self._context = context
        self._group = request.path_parameters["group"]
        self._instance = request.path_parameters["instance"]
        self._media_types = media_types
        self._bounds = bounds
        self._instances = context.broker.consumer_instances
        self._fetch = context.broker.fetch
        self._clock = context.broker.clock
        self._bytes_max = min(bounds.bytes_max, context.limits.response_bytes_max)
        self._count = self._size_bytes = 0
        """Of the answer so far."""
        self._is_cut = False

    async def run(self) -> tuple[bytes, str]:
        """The answer's JSON, and its media type. Raises LogError, unless there are records."""
        started_s = self._clock.monotonic()
        deadline = None if self._bounds.timeout_s is None else started_s + self._bounds.timeout_s
        is_first = True
        while True:
            found = await self._begin(deadline, is_first=is_first)
            if deadline is None:
                deadline = started_s + found.plan.request_timeout_ms / 1000
            deadline = min(deadline, started_s + self._fetch.settings.long_poll_s_max)
            parts = [_Part(one.handle, one.offset) for one in found.partitions]
            error = await self._read(parts, found, deadline)
            pieces = await self._end(parts, error)
            is_over = self._clock.monotonic() >= deadline or self._fetch.closing.is_set()
            if pieces or is_over:
                if error is not None and not pieces:
                    raise error
                return await joined(self._context, pieces), self._media_types[found.plan.format]
            is_first = False

    async def _begin(self, deadline: float | None, *, is_first: bool) -> PlannedRead:
        wait_s = 0.0
        if not is_first and deadline is not None:
            wait_s = min(max(deadline - self._clock.monotonic(), 0.0), RENEWAL_S)
        return await self._instances.begin_read(
            self._request.principal,
            self._group,
            self._instance,
            tuple(self._media_types),
            is_first=is_first,
            max_wait_s=wait_s,
        )

    async def _read(
        self, parts: Sequence[_Part], found: PlannedRead, deadline: float
    ) -> LogError | None:
        """Read what there is; wait for the first record, or for the bytes that the instance wants.

        Returns an error that a later read may not meet, of some partition. Raises LogError of a
        partition with an error that stays: if it is its turn, or if no other one has records.
        """
        plan = found.plan
        self._count = self._size_bytes = 0
        self._is_cut = False
        bytes_min = min(plan.fetch_min_bytes, self._bytes_max)
        started_s = self._clock.monotonic()
        while True:
            passing = await self._pass(parts, plan, deadline)
            if not self._count:
                await self._raise_failure(parts)
            if self._is_full() or (self._count and self._size_bytes >= bytes_min):
                return None
            wait_s = HOLD_S if self._count else RENEWAL_S
            remaining_s = min(deadline, started_s + wait_s) - self._clock.monotonic()
            if remaining_s <= 0 or not parts or self._fetch.closing.is_set():
                return passing
            if passing is not None:
                await self._clock.sleep(min(remaining_s, RETRY_S))
            wants = [
                (one.handle, Offset(one.offset))
                for one in parts
                if one.offset >= 0 and one.error is None
            ]
            await self._fetch.wait(wants, timeout_s=remaining_s, isolation=self._bounds.isolation)

    async def _pass(
        self, parts: Sequence[_Part], plan: ReadPlan, deadline: float
    ) -> LogError | None:
        """Read each partition once, until the answer is full. Returns an error that may pass."""
        passing: LogError | None = None
        for part in parts:
            if self._is_full():
                break
            if part.error is not None:
                continue
            part.is_tried = True
            try:
                async with asyncio.timeout(PARTITION_S):
                    await self._read_part(part, plan.format, plan.auto_offset_reset)
            except TimeoutError:
                name = f"{part.handle.topic}-{part.handle.partition}"
                passing = LogError(NO_LEADER, f"{name} could not be read in time.")
                if self._clock.monotonic() >= deadline:
                    # The others have their turns before this one in the next read.
                    break
            except LogError as error:
                if error.entry.retriable:
                    passing = error
                    continue
                part.error = error
                if part is parts[0] and not self._count:
                    break
        return passing

    async def _raise_failure(self, parts: Sequence[_Part]) -> None:
        """Raise the first error that stays; the partition is the last one of the next read."""
        for part in parts:
            if part.error is not None:
                await self._move(parts, [part.pair])
                raise part.error

    async def _read_part(self, part: _Part, record_format: str, reset: str) -> None:
        """Read a partition's records up to the bounds of the answer."""
        is_new = part.offset == UNKNOWN_OFFSET
        if is_new and part.planned != UNKNOWN_OFFSET:
            part.offset = part.planned
        if part.offset == UNKNOWN_OFFSET:
            await self._reset(part, reset)
        try:
            await self._read_from(part, record_format)
        except LogError as error:
            if error.entry is not OFFSET_OUT_OF_RANGE:
                raise
            await self._reset(part, reset)
            await self._read_from(part, record_format)

    async def _reset(self, part: _Part, reset: str) -> None:
        part.offset = part.reset_to = await named_offset(
            NamedOffset(reset), part.handle, self._bounds.isolation
        )

    async def _read_from(self, part: _Part, record_format: str) -> None:
        bounds = self._bounds
        self._context.broker.topics.topic(part.handle.topic).fetch_requests += 1
        progress = ReadProgress(Offset(part.offset), None)
        answer = RecordsAnswer(
            self._request,
            self._context,
            part.handle,
            progress,
            RecordFormat(record_format),
            records_max=bounds.records_max - self._count,
            bytes_max=self._bytes_max - self._size_bytes,
            is_exact=True,
            min_one=self._count == 0,
        )
        try:
            await self._fetch.read(
                part.handle,
                progress,
                answer.take,
                max_bytes=self._bytes_max,
                timeout_s=0.0,
                isolation=bounds.isolation,
            )
        except LogError as error:
            if error.entry is not UNSUPPORTED_FORMAT:
                raise
            raise LogError(
                UNREADABLE_RECORD,
                f"value deserialization error for format {record_format}: {error.message}",
            ) from None
        finally:
            part.offset = progress.offset
            if progress.count:
                part.answers.append(answer)
                self._count += progress.count
                self._size_bytes += answer.size_bytes
            self._is_cut = self._is_cut or answer.is_cut

    def _is_full(self) -> bool:
        return (
            self._is_cut
            or self._size_bytes >= self._bytes_max
            or self._count >= self._bounds.records_max
        )

    async def _end(self, parts: Sequence[_Part], error: LogError | None) -> list[bytes]:
        """Move the positions; the records to answer."""
        had_turns = [part.pair for part in parts if part.is_tried and part.error is None]
        # Also after an error that passes: the next read begins with other partitions.
        must_turn = self._count > 0 or error is not None
        lost = await self._move(parts, had_turns if must_turn else [])
        pieces: list[bytes] = []
        for part in parts:
            for answer in part.answers:
                if part.pair in lost:
                    answer.drop()
                counters = self._context.broker.topics.topic(part.handle.topic)
                counters.bytes_out += answer.size_bytes
                pieces += answer.pieces
        return pieces

    async def _move(self, parts: Sequence[_Part], last: Sequence[Pair]) -> set[Pair]:
        """Tell how far the read came, and which had a turn; the partitions that did not move."""
        moves = [move for part in parts if part.offset >= 0 and (move := part.move) is not None]
        if not moves and not last:
            return set()
        return await self._instances.end_read(
            self._request.principal, self._group, self._instance, moves, last
        )
