"""One read of a consumer instance: records of its partitions, each from the cluster of its log.

As a node reads for its own instances (rest/v2/instance_reads.py): the home cluster says where
to begin, and learns the new positions before anything is answered; records of partitions lost to
another member meanwhile are left out. Partitions are read in waves, each with its share of
the remaining bytes: at most one record of each exceeds the share, and the answer is cut exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from raftlog.api.instances import (
    NO_POSITION,
    READ_WAIT_MS_MAX,
    BeginReadRequest,
    BeginReadResponse,
    EndReadRequest,
    EndReadResponse,
)
from raftlog.gateway.forwarding import Context, filled
from raftlog.gateway.links import Reply
from raftlog.gateway.read_parts import AnswerBounds, Part
from raftlog.gateway.service import NOT_CHECKED
from raftlog.http.request import Request
from raftlog.record.errors import (
    INTERNAL,
    NO_LEADER,
    NOT_READY,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC,
    UNREADABLE_RECORD,
    UNSUPPORTED_FORMAT,
    LogError,
)
from raftlog.rest.v2.consumers import RECORDS_OFFERED
from raftlog.rest.v2.instance_reads import HOLD_S, PARTITION_S, RENEWAL_S, RETRY_S, ReadBounds
from raftlog.rest.v2.topics import ISOLATIONS, NEXT_OFFSET_HEADER, OffsetsAnswer

PARTS_AT_ONCE: Final = 8
"""Partitions of one wave."""
POLLS_MAX: Final = 64
"""Partitions of one read with a long poll at one time; further ones have a pass each second."""
_EARLIEST: Final = "earliest"
_BEGIN: Final = "/v1/groups/{group}/instances/{instance}/begin-read"
_END: Final = "/v1/groups/{group}/instances/{instance}/end-read"


class _Fetched(NamedTuple):
    """A cluster's answer, and its bytes in flight."""

    reply: Reply
    held_bytes: int


class GroupRead:
    """One read. `run` returns the answer."""

    def __init__(
        self,
        request: Request,
        context: Context,
        media_types: Mapping[str, str],
        bounds: ReadBounds,
    ) -> None:
        """`media_types`: of the answer, by the formats in the Accept header."""
        self._request = request
        self._context = context
        self._gateway = context.broker
        self._media_types = media_types
        self._bounds = bounds
        self._bytes_max = min(bounds.bytes_max, context.limits.response_bytes_max)
        self._isolation = next(
            name for name, isolation in ISOLATIONS.items() if isolation is bounds.isolation
        )
        self._clock = context.broker.clock
        self._answer = AnswerBounds(self._bytes_max, bounds.records_max)

    async def run(self) -> tuple[bytes, str]:
        """The answer's JSON, and its media type. Raises LogError, unless there are records."""
        started_s = self._clock.monotonic()
        timeout_s = self._bounds.timeout_s
        closing = self._gateway.closing
        is_first = True
        while True:
            wait_s = 0.0
            if not is_first and timeout_s is not None:
                wait_s = started_s + timeout_s - self._clock.monotonic()
            plan = await self._begin(wait_s, is_first=is_first)
            if timeout_s is None:
                timeout_s = plan.request_timeout_ms / 1000
            timeout_s = min(timeout_s, self._context.limits.long_poll_ms_max / 1000)
            deadline = started_s + timeout_s
            parts = self._parts(plan)
            if plan.partitions and not parts:
                # All of logs out of service: the home cluster waits for no further partition.
                await closing.unless_set(self._clock.sleep(RETRY_S))
            error = await self._read(parts, plan, deadline)
            pieces = await self._end(parts, error)
            is_over = self._clock.monotonic() >= deadline or closing.is_set()
            if pieces or is_over:
                if error is not None and not pieces:
                    raise error
                return b"[%b]" % b",".join(pieces), self._media_types[plan.format]
            is_first = False

    # The home cluster

    async def _begin(self, wait_s: float, *, is_first: bool) -> BeginReadResponse:
        wait_ms = int(min(max(wait_s, 0.0), RENEWAL_S) * 1000)
        return await self._gateway.home.call(
            "POST",
            filled(_BEGIN, self._request.path_parameters),
            BeginReadResponse,
            BeginReadRequest(list(self._media_types), is_first, min(wait_ms, READ_WAIT_MS_MAX)),
            wait_s=wait_ms / 1000,
            # No position moves.
            may_repeat=True,
        )

    async def _end(self, parts: Sequence[Part], error: LogError | None) -> list[bytes]:
        """Move the positions; the records to answer."""
        had_turns = [part for part in parts if part.is_tried and part.error is None]
        # Also after a retriable error: the next read begins with other partitions.
        must_turn = self._answer.count > 0 or error is not None
        lost = await self._move(parts, had_turns if must_turn else [])
        return [piece for part in parts if part.pair not in lost for piece in part.pieces]

    async def _move(self, parts: Sequence[Part], last: Sequence[Part]) -> set[tuple[str, int]]:
        """Report new positions and turns; returns the partitions lost meanwhile."""
        moves = [move for part in parts if (move := part.move) is not None]
        if not moves and not last:
            return set()
        try:
            outcome = await self._gateway.home.call(
                "POST",
                filled(_END, self._request.path_parameters),
                EndReadResponse,
                EndReadRequest(moves, [part.key for part in last]),
            )
        except LogError as error:
            if not error.entry.outcome_unknown:
                raise
            # Records read twice are better than records lost.
            return set()
        return {(one.topic_id, one.partition) for one in outcome.lost}

    def _parts(self, plan: BeginReadResponse) -> list[Part]:
        """The partitions of served logs; others keep their positions."""
        served = []
        for one in plan.partitions:
            try:
                self._gateway.catalog.find(one.topic)
            except LogError as error:
                if error.entry is not UNKNOWN_TOPIC:
                    raise
                continue
            served.append(Part(one))
        return served

    # Records

    async def _read(
        self, parts: Sequence[Part], plan: BeginReadResponse, deadline: float
    ) -> LogError | None:
        """Read until the answer is full; wait for a first record, or for `fetch_min_bytes`.

        Returns a retriable error of some partition, if any. Raises LogError for a partition with a
        lasting error: on its turn, or if no other one has records.
        """
        self._answer = AnswerBounds(self._bytes_max, self._bounds.records_max)
        bytes_min = min(plan.fetch_min_bytes, self._bytes_max)
        started_s = self._clock.monotonic()
        closing = self._gateway.closing
        while True:
            passing = await self._pass(parts, plan)
            if not self._answer.count:
                await self._raise_failure(parts)
            if self._answer.is_full or (
                self._answer.count and self._answer.size_bytes >= bytes_min
            ):
                return None
            wait_s = HOLD_S if self._answer.count else RENEWAL_S
            remaining_s = min(deadline, started_s + wait_s) - self._clock.monotonic()
            if remaining_s <= 0 or not parts or closing.is_set():
                return passing
            if passing is not None:
                await self._clock.sleep(min(remaining_s, RETRY_S))
            await closing.unless_set(self._wait(parts, remaining_s))

    async def _pass(self, parts: Sequence[Part], plan: BeginReadResponse) -> LogError | None:
        """Read each partition once, until the answer is full. Returns a retriable error, if any."""
        passing: LogError | None = None
        turns = [part for part in parts if part.error is None]
        for start in range(0, len(turns), PARTS_AT_ONCE):
            wave = turns[start : start + PARTS_AT_ONCE]
            share = self._answer.share(len(wave))
            fetches = [self._fetch(part, plan, *share) for part in wave]
            outcomes = await asyncio.gather(*fetches, return_exceptions=True)
            for part, outcome in zip(wave, outcomes, strict=True):
                if self._answer.is_full:
                    return passing
                part.is_tried = True
                error = self._take(part, outcome)
                if error is None:
                    continue
                if error.entry.retriable:
                    passing = error
                    continue
                part.error = error
                if part is parts[0] and not self._answer.count:
                    return passing
        return passing

    def _take(self, part: Part, outcome: _Fetched | BaseException) -> LogError | None:
        """Take the records of one partition; the error if there are none."""
        if isinstance(outcome, TimeoutError):
            return LogError(NO_LEADER, f"{part.name} could not be read in time.")
        if isinstance(outcome, LogError):
            return outcome
        if isinstance(outcome, BaseException):
            raise outcome
        kept_bytes = 0
        try:
            following = int(outcome.reply.headers[NEXT_OFFSET_HEADER])
            kept_bytes = self._answer.take(part, outcome.reply.body, following)
        except (KeyError, ValueError):
            return LogError(INTERNAL, f"{part.name}: the cluster's answer has no next offset.")
        except LogError as error:
            return error
        finally:
            self._context.free(self._request, max(outcome.held_bytes - kept_bytes, 0))
        return None

    async def _raise_failure(self, parts: Sequence[Part]) -> None:
        """Raise the first lasting error; the partition is the last one of the next read."""
        for part in parts:
            if part.error is not None:
                await self._move(parts, [part])
                raise part.error

    async def _fetch(
        self, part: Part, plan: BeginReadResponse, bytes_max: int, records_max: int
    ) -> _Fetched:
        """The next records of a partition. Raises LogError, TimeoutError."""
        if part.log not in self._gateway.stubs:
            reason = self._gateway.without_stub.get(part.log, NOT_CHECKED)
            raise LogError(NOT_READY, f"Groups cannot read log {part.log!r} yet: {reason}.")
        async with asyncio.timeout(PARTITION_S):
            if part.offset == NO_POSITION:
                await self._reset(part, plan.auto_offset_reset)
            try:
                return await self._records(part, plan.format, bytes_max, records_max)
            except LogError as error:
                if error.entry is not OFFSET_OUT_OF_RANGE:
                    raise
            await self._reset(part, plan.auto_offset_reset)
            return await self._records(part, plan.format, bytes_max, records_max)

    async def _reset(self, part: Part, reset: str) -> None:
        path = f"/topics/{quote(part.log, safe='')}/partitions/{part.plan.partition}/offsets"
        found = await self._gateway.link(part.log).call("GET", path, OffsetsAnswer, may_repeat=True)
        part.reset(found.beginning_offset if reset == _EARLIEST else found.end_offset)

    async def _records(
        self, part: Part, record_format: str, bytes_max: int, records_max: int
    ) -> _Fetched:
        held_bytes = 0

        def hold(size: int) -> None:
            nonlocal held_bytes
            self._context.hold(self._request, size)
            held_bytes += size

        try:
            reply = await self._poll(
                part, record_format, bytes_max=bytes_max, records_max=records_max, hold=hold
            )
        except BaseException:
            # The read may go on for minutes, and meet the same failure again and again.
            self._context.free(self._request, held_bytes)
            raise
        if reply.is_error:
            self._context.free(self._request, held_bytes)
            raise _read_error(reply, record_format)
        return _Fetched(reply, held_bytes)

    async def _poll(
        self,
        part: Part,
        record_format: str,
        *,
        bytes_max: int,
        records_max: int,
        wait_s: float = 0.0,
        hold: Callable[[int], None] | None = None,
    ) -> Reply:
        return await self._gateway.link(part.log).send(
            "GET",
            f"/topics/{quote(part.log, safe='')}/partitions/{part.plan.partition}/records"
            f"?offset={part.offset}&timeout={int(wait_s * 1000)}&max_bytes={bytes_max}"
            f"&max_records={records_max}&isolation={self._isolation}",
            headers={"Accept": RECORDS_OFFERED[record_format][0]},
            wait_s=wait_s,
            may_repeat=True,
            hold=hold,
        )

    async def _wait(self, parts: Sequence[Part], timeout_s: float) -> None:
        """Return when a partition has a further record, or at the deadline."""
        polls = [
            asyncio.create_task(self._has_more(part, timeout_s))
            for part in parts
            if part.offset != NO_POSITION and part.error is None
        ][:POLLS_MAX]
        deadline = self._clock.monotonic() + timeout_s
        waiting = set(polls)
        try:
            while waiting:
                remaining_s = deadline - self._clock.monotonic()
                done, waiting = await asyncio.wait(
                    waiting, timeout=max(remaining_s, 0.0), return_when=asyncio.FIRST_COMPLETED
                )
                if not done or any(task.result() for task in done):
                    return
        finally:
            for task in polls:
                task.cancel()
            await asyncio.gather(*polls, return_exceptions=True)
        remaining_s = deadline - self._clock.monotonic()
        if remaining_s > 0:
            # No partition can be waited for.
            await self._clock.sleep(min(remaining_s, RETRY_S))

    async def _has_more(self, part: Part, timeout_s: float) -> bool:
        """Wait at the cluster for a record; whether the next pass has news to report."""
        try:
            # One record is enough: the next pass has the others, too.
            reply = await self._poll(part, "binary", bytes_max=1, records_max=1, wait_s=timeout_s)
        except LogError as error:
            return not error.entry.retriable
        if reply.is_error:
            return not reply.error().entry.retriable
        # Behind markers of transactions, or a compacted end, the offset moves without a record.
        return reply.headers.get(NEXT_OFFSET_HEADER) != str(part.offset)


def _read_error(reply: Reply, record_format: str) -> LogError:
    """The error of a read, in the words of consumer instances."""
    error = reply.error()
    if error.entry is not UNSUPPORTED_FORMAT:
        return error
    return LogError(
        UNREADABLE_RECORD,
        f"value deserialization error for format {record_format}: {error.message}",
    )
