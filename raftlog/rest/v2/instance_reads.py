"""One read takes an instance's partitions in turn, until the response is full or late.

The coordinator returns the positions, and moves them before any record is returned. Records of
partitions that another reader has moved during the read are left out. A node reads at the leaders
(`leader_reads`), a gateway at the clusters of the logs. See docs/decisions/rest-consumers.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from raftlog.api.instances import NO_POSITION
from raftlog.broker.fetch import Isolation
from raftlog.broker.shared import ListenedService
from raftlog.http.request import ServerContext
from raftlog.record import errors
from raftlog.record.errors import LogError
from raftlog.rest.json.records_answer import joined

RENEWAL_S: Final = 1.0
"""Seconds between two requests to the coordinator, because partitions may be added or removed."""
PARTITION_S: Final = 1.0
"""Longest seconds for one partition, whose leader may be gone while others wait behind it."""
HOLD_S: Final = 30.0
"""Longest seconds to wait for more bytes after a record, far below the idle timeout."""
RETRY_S: Final = 0.1
"""Seconds of pause of a read in which a partition could not be read."""

Place = TypeVar("Place")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """The bounds of one read."""

    timeout_s: float | None
    """Timeout in seconds, or None for the instance's."""
    bytes_max: int
    records_max: int
    isolation: Isolation


@dataclass(slots=True)
class Room:
    """Bounds of a response, and the records that it has."""

    bytes_max: int
    records_max: int
    count: int = 0
    size_bytes: int = 0
    is_cut: bool = False
    """Whether a record was left out for lack of room."""

    @property
    def is_full(self) -> bool:
        """Whether no further record is wanted."""
        return self.is_cut or self.size_bytes >= self.bytes_max or self.count >= self.records_max

    def share(self, parts: int) -> tuple[int, int]:
        """Bytes for each of `parts` partitions, and records for any of them.

        Both are at least 1.
        """
        left = (self.bytes_max - self.size_bytes) // max(parts, 1)
        return max(left, 1), max(self.records_max - self.count, 1)


@dataclass(slots=True, eq=False)
class ReadPart(Generic[Place]):
    """A partition of the read."""

    place: Place
    """Where its source reads it."""
    name: str
    """Topic and partition, for messages."""
    planned: int
    """Position when the read starts. With NO_POSITION, `auto_offset_reset` decides."""
    offset: int = NO_POSITION
    """The next offset to read."""
    reset_to: int = NO_POSITION
    """Offset of a reset."""
    pieces: list[bytes] = field(default_factory=list)
    """JSON of records, without the brackets around all of them."""
    is_tried: bool = False
    """Whether it had a turn."""
    error: LogError | None = None
    """Error that blocks its records, until a seek past it."""

    def __post_init__(self) -> None:
        self.offset = self.planned

    @property
    def has_moved(self) -> bool:
        """Whether the coordinator must move the position."""
        return self.offset not in (self.planned, NO_POSITION)

    async def read(
        self, first: Callable[[], Awaitable[int]], records: Callable[[], Awaitable[T]]
    ) -> T:
        """Call `records` from the first offset of the part.

        A position that is missing or out of range is reset.
        """
        if self.offset == NO_POSITION:
            self.offset = self.reset_to = await first()
        try:
            return await records()
        except LogError as error:
            if error.entry is not errors.OFFSET_OUT_OF_RANGE:
                raise
        self.offset = self.reset_to = await first()
        return await records()


class Plan(Protocol):
    """Options of the instance."""

    @property
    def format(self) -> str:
        """Record format."""

    @property
    def auto_offset_reset(self) -> str:
        """Start of a partition without a position, earliest or latest."""

    @property
    def fetch_min_bytes(self) -> int:
        """Bytes of a response to wait for, until the timeout of the read."""

    @property
    def request_timeout_ms(self) -> int:
        """Timeout of a read that names none."""


class ReadSource(Protocol[Place]):
    """The coordinator of the instance, and the partitions. Every call raises LogError."""

    async def begin(
        self, formats: Sequence[str], *, is_first: bool, wait_s: float
    ) -> tuple[Plan, list[ReadPart[Place]]]:
        """Start or continue a read and wait for a first partition. Parts in order of turns."""
        ...

    def read(
        self, parts: Sequence[ReadPart[Place]], plan: Plan, room: Room, deadline: float
    ) -> AsyncGenerator[tuple[ReadPart[Place], LogError | None]]:
        """Read each partition once, until there is no room. Yields each part after its turn."""
        ...

    async def wait(self, parts: Sequence[ReadPart[Place]], timeout_s: float) -> None:
        """Return when one of the partitions has more, at the timeout, or when listeners close."""
        ...

    async def end(
        self, moved: Sequence[ReadPart[Place]], last: Sequence[ReadPart[Place]]
    ) -> set[ReadPart[Place]]:
        """Move positions. Returns the partitions lost to another reader.

        The `last` partitions have had their turn. None is lost if the outcome is unknown, because
        records read twice are better than records lost.
        """
        ...


class InstanceRead(Generic[Place]):
    """One read. `run` returns the response."""

    def __init__(
        self,
        context: ServerContext[ListenedService],
        source: ReadSource[Place],
        media_types: Mapping[str, str],
        bounds: ReadBounds,
    ) -> None:
        """`media_types` are those of the response, by the formats that the client accepts."""
        self._context = context
        self._source = source
        self._media_types = media_types
        self._bounds = bounds
        self._clock = context.broker.clock
        self._closing = context.broker.closing
        self._room = self._empty_room()

    async def run(self) -> tuple[bytes, str]:
        """The JSON of the response and its media type. Raises LogError if there are no records."""
        started_s = self._clock.monotonic()
        timeout_s, is_first = self._bounds.timeout_s, True
        while True:
            wait_s = 0.0
            if not is_first and timeout_s is not None:
                left_s = started_s + timeout_s - self._clock.monotonic()
                wait_s = min(max(left_s, 0.0), RENEWAL_S)
            plan, parts = await self._source.begin(
                tuple(self._media_types), is_first=is_first, wait_s=wait_s
            )
            if timeout_s is None:
                timeout_s = plan.request_timeout_ms / 1000
            timeout_s = min(timeout_s, self._context.limits.long_poll_ms_max / 1000)
            deadline = started_s + timeout_s
            error = await self._read(parts, plan, deadline)
            pieces = await self._end(parts, error)
            if pieces or self._clock.monotonic() >= deadline or self._closing.is_set():
                if error is not None and not pieces:
                    raise error
                return await joined(self._context, pieces), self._media_types[plan.format]
            is_first = False

    async def _read(
        self, parts: Sequence[ReadPart[Place]], plan: Plan, deadline: float
    ) -> LogError | None:
        """Read until the response is full, after a wait for a first record or `fetch_min_bytes`.

        Returns a retriable error of some partition, if any. A partition with a lasting error raises
        its LogError on its turn, or if no other partition has records.
        """
        self._room = room = self._empty_room()
        bytes_min = min(plan.fetch_min_bytes, room.bytes_max)
        started_s = self._clock.monotonic()
        while True:
            passing = await self._pass(parts, plan, deadline)
            if not room.count:
                await self._raise_failure(parts)
            if room.is_full or (room.count and room.size_bytes >= bytes_min):
                return None
            wait_s = HOLD_S if room.count else RENEWAL_S
            remaining_s = min(deadline, started_s + wait_s) - self._clock.monotonic()
            if remaining_s <= 0 or not parts or self._closing.is_set():
                return passing
            if passing is not None:
                await self._clock.sleep(min(remaining_s, RETRY_S))
            wanted = [part for part in parts if part.offset != NO_POSITION and part.error is None]
            await self._source.wait(wanted, remaining_s)

    async def _pass(
        self, parts: Sequence[ReadPart[Place]], plan: Plan, deadline: float
    ) -> LogError | None:
        """Read each partition once, while there is room. Returns a retriable error, if any."""
        passing: LogError | None = None
        turns = [part for part in parts if part.error is None]
        async with aclosing(self._source.read(turns, plan, self._room, deadline)) as outcomes:
            async for part, error in outcomes:
                part.is_tried = True
                if error is None:
                    continue
                if error.entry.retriable:
                    passing = error
                    continue
                part.error = error
                if part is parts[0] and not self._room.count:
                    break
        return passing

    async def _raise_failure(self, parts: Sequence[ReadPart[Place]]) -> None:
        """Raise the first lasting error. The next read takes its partition last."""
        for part in parts:
            if part.error is not None:
                await self._move(parts, [part])
                raise part.error

    async def _end(self, parts: Sequence[ReadPart[Place]], error: LogError | None) -> list[bytes]:
        """Move the positions. Returns the records to return."""
        had_turns = [part for part in parts if part.is_tried and part.error is None]
        # Positions also move after a retriable error, so the next read starts with other
        # partitions.
        must_turn = self._room.count > 0 or error is not None
        lost = await self._move(parts, had_turns if must_turn else [])
        return [piece for part in parts if part not in lost for piece in part.pieces]

    async def _move(
        self, parts: Sequence[ReadPart[Place]], last: Sequence[ReadPart[Place]]
    ) -> set[ReadPart[Place]]:
        moved = [part for part in parts if part.has_moved]
        return await self._source.end(moved, last) if moved or last else set()

    def _empty_room(self) -> Room:
        bytes_max = min(self._bounds.bytes_max, self._context.limits.response_bytes_max)
        return Room(bytes_max, self._bounds.records_max)


def unreadable(error: LogError, record_format: str) -> LogError:
    """The error of a partition, in the words of consumer instances."""
    if error.entry is not errors.UNSUPPORTED_FORMAT:
        return error
    return LogError(
        errors.UNREADABLE_RECORD,
        f"value deserialization error for format {record_format}: {error.message}",
    )
