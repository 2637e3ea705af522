"""A consumer instance's partitions are each read at the cluster of their log.

The home cluster has the positions, and the read is that of a node (raftlog/rest/v2/instance_reads).
Partitions are read in waves, each with its share of the remaining bytes. At most one record of each
partition exceeds the share, and the response is cut exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from raftlog.api.instances import (
    READ_WAIT_MS_MAX,
    BeginReadRequest,
    BeginReadResponse,
    EndReadRequest,
    EndReadResponse,
)
from raftlog.gateway.forwarding import Context, filled
from raftlog.gateway.links import Reply
from raftlog.gateway.read_parts import Part, key_of, move_of, part_of, take
from raftlog.gateway.service import NOT_CHECKED
from raftlog.http.request import Request
from raftlog.record.errors import INTERNAL, NO_LEADER, NOT_READY, UNKNOWN_TOPIC, LogError
from raftlog.rest.v2.consumers import RECORDS_OFFERED
from raftlog.rest.v2.instance_reads import PARTITION_S, RETRY_S, Plan, ReadBounds, Room, unreadable
from raftlog.rest.v2.topics import ISOLATIONS, NEXT_OFFSET_HEADER, OffsetsAnswer

PARTS_AT_ONCE: Final = 8
"""Partitions of one wave."""
POLLS_MAX: Final = 64
"""Partitions of one read in a long poll at one time. Others have a pass each second."""
_EARLIEST: Final = "earliest"
_BEGIN: Final = "/v1/groups/{group}/instances/{instance}/begin-read"
_END: Final = "/v1/groups/{group}/instances/{instance}/end-read"


class _Fetched(NamedTuple):
    """A cluster's response, and its bytes in flight."""

    reply: Reply
    held_bytes: int


class ClusterSource:
    """The partitions of one read, at the clusters of their logs."""

    def __init__(self, request: Request, context: Context, bounds: ReadBounds) -> None:
        self._request = request
        self._context = context
        self._gateway = context.broker
        self._isolation = next(
            name for name, isolation in ISOLATIONS.items() if isolation is bounds.isolation
        )
        self._clock = context.broker.clock

    # The home cluster

    async def begin(
        self, formats: Sequence[str], *, is_first: bool, wait_s: float
    ) -> tuple[Plan, list[Part]]:
        """Positions by the home cluster, of served logs. Others keep their positions."""
        wait_ms = min(int(wait_s * 1000), READ_WAIT_MS_MAX)
        plan = await self._gateway.home.call(
            "POST",
            filled(_BEGIN, self._request.path_parameters),
            BeginReadResponse,
            BeginReadRequest(list(formats), is_first, wait_ms),
            wait_s=wait_ms / 1000,
            # No position moves.
            may_repeat=True,
        )
        parts = [part_of(planned) for planned in plan.partitions if self._is_served(planned.topic)]
        if plan.partitions and not parts:
            # All partitions are of logs out of service. The home cluster waits for no further
            # partition.
            await self._gateway.closing.unless_set(self._clock.sleep(RETRY_S))
        return plan, parts

    async def end(self, moved: Sequence[Part], last: Sequence[Part]) -> set[Part]:
        """Report new positions and turns to the home cluster."""
        try:
            outcome = await self._gateway.home.call(
                "POST",
                filled(_END, self._request.path_parameters),
                EndReadResponse,
                EndReadRequest(list(map(move_of, moved)), list(map(key_of, last))),
            )
        except LogError as error:
            if not error.entry.outcome_unknown:
                raise
            return set()
        lost = set(outcome.lost)
        return {part for part in moved if key_of(part) in lost}

    def _is_served(self, log: str) -> bool:
        try:
            self._gateway.catalog.find(log)
        except LogError as error:
            if error.entry is not UNKNOWN_TOPIC:
                raise
            return False
        return True

    # Records

    async def read(
        self, parts: Sequence[Part], plan: Plan, room: Room, _deadline: float
    ) -> AsyncGenerator[tuple[Part, LogError | None]]:
        """Read each partition once, in waves, until there is no room."""
        for start in range(0, len(parts), PARTS_AT_ONCE):
            wave = parts[start : start + PARTS_AT_ONCE]
            share = room.share(len(wave))
            fetches = [self._fetch(part, plan, *share) for part in wave]
            outcomes = await asyncio.gather(*fetches, return_exceptions=True)
            for part, outcome in zip(wave, outcomes, strict=True):
                if room.is_full:
                    return
                yield part, self._take(part, room, outcome)

    def _take(self, part: Part, room: Room, outcome: _Fetched | BaseException) -> LogError | None:
        """Take the records of one partition. Returns the error if there are none."""
        if isinstance(outcome, TimeoutError):
            return LogError(NO_LEADER, f"{part.name} could not be read in time.")
        if isinstance(outcome, LogError):
            return outcome
        if isinstance(outcome, BaseException):
            raise outcome
        kept_bytes = 0
        try:
            following = int(outcome.reply.headers[NEXT_OFFSET_HEADER])
            kept_bytes = take(room, part, outcome.reply.body, following)
        except (KeyError, ValueError):
            return LogError(INTERNAL, f"{part.name}: the cluster's response has no next offset.")
        except LogError as error:
            return error
        finally:
            self._context.free(self._request, max(outcome.held_bytes - kept_bytes, 0))
        return None

    async def _fetch(self, part: Part, plan: Plan, bytes_max: int, records_max: int) -> _Fetched:
        """The next records of a partition. Raises LogError, TimeoutError."""
        log = part.place.topic
        if log not in self._gateway.stubs:
            reason = self._gateway.without_stub.get(log, NOT_CHECKED)
            raise LogError(NOT_READY, f"Groups cannot read log {log!r} yet: {reason}.")
        async with asyncio.timeout(PARTITION_S):
            return await part.read(
                lambda: self._named_offset(part, plan.auto_offset_reset),
                lambda: self._records(part, plan.format, bytes_max, records_max),
            )

    async def _named_offset(self, part: Part, name: str) -> int:
        found = await self._gateway.link(part.place.topic).call(
            "GET", f"{_path(part)}/offsets", OffsetsAnswer, may_repeat=True
        )
        return found.beginning_offset if name == _EARLIEST else found.end_offset

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
            # The read may continue for minutes, and meet the same failure again and again.
            self._context.free(self._request, held_bytes)
            raise
        if reply.is_error:
            self._context.free(self._request, held_bytes)
            raise unreadable(reply.error(), record_format)
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
        return await self._gateway.link(part.place.topic).send(
            "GET",
            f"{_path(part)}/records?offset={part.offset}&timeout={int(wait_s * 1000)}"
            f"&max_bytes={bytes_max}&max_records={records_max}&isolation={self._isolation}",
            headers={"Accept": RECORDS_OFFERED[record_format][0]},
            wait_s=wait_s,
            may_repeat=True,
            hold=hold,
        )

    async def wait(self, parts: Sequence[Part], timeout_s: float) -> None:
        """Wait at the clusters for a further record."""
        await self._gateway.closing.unless_set(self._poll_all(parts, timeout_s))

    async def _poll_all(self, parts: Sequence[Part], timeout_s: float) -> None:
        polls = [asyncio.create_task(self._has_more(part, timeout_s)) for part in parts[:POLLS_MAX]]
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
        """Wait at the cluster for a record. Returns whether the next pass has news to report."""
        try:
            # One record is enough, because the next pass also has the others.
            reply = await self._poll(part, "binary", bytes_max=1, records_max=1, wait_s=timeout_s)
        except LogError as error:
            return not error.entry.retriable
        if reply.is_error:
            return not reply.error().entry.retriable
        # Behind markers of transactions, or a compacted end, the offset moves without a record.
        return reply.headers.get(NEXT_OFFSET_HEADER) != str(part.offset)


def _path(part: Part) -> str:
    return f"/topics/{quote(part.place.topic, safe='')}/partitions/{part.place.partition}"
