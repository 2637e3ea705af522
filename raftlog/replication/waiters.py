"""Who waits at a partition: writers for their commit, readers for records.

How many bytes become committed: what a long poll that wants so many of them waits for.

Long polls: wait at several partitions until one has committed records.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from typing import Final

from raftlog.record.errors import OVERLOADED, RETRIABLE, LogError, outcome_unknown_error
from raftlog.record.types import Offset

COMMIT_WAITERS_MAX: Final = 100_000
"""Appends of one partition that may wait for their commit at once; more are refused."""
READ_WAITERS_MAX: Final = 100_000
"""Readers of one partition that may wait for records at once; more are refused."""
FORGOTTEN_READERS_MAX: Final = 64
"""Entries of readers that wait no more, beyond as many as do: then they are swept out."""


class CommitWaiters:
    """Writers, woken in the order of their offsets."""

    def __init__(self, name: str) -> None:
        """`name` is the partition's, for errors."""
        self._name = name
        self._heap: list[tuple[Offset, int, asyncio.Future[None]]] = []
        self._count = 0

    def require_room(self) -> None:
        """Raise LogError(OVERLOADED) if too many wait."""
        if len(self._heap) >= COMMIT_WAITERS_MAX:
            raise LogError(OVERLOADED, f"{self._name}: too many writers wait.")

    async def wait(self, last_offset: Offset, timeout_s: float) -> None:
        """Return once `last_offset` is committed. Raises LogError(RETRIABLE) after the timeout."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._count += 1
        heapq.heappush(self._heap, (last_offset, self._count, future))
        timer = loop.call_later(timeout_s, self._expire, future)
        try:
            await future
        finally:
            timer.cancel()

    def _expire(self, future: asyncio.Future[None]) -> None:
        if not future.done():
            future.set_exception(
                outcome_unknown_error(
                    LogError(RETRIABLE, f"{self._name}: they were not committed in time.")
                )
            )

    def committed(self, high_watermark: Offset) -> None:
        """Everything below is committed: wake who waited for it."""
        heap = self._heap
        while heap and heap[0][0] < high_watermark:
            future = heapq.heappop(heap)[2]
            if not future.done():
                future.set_result(None)

    def fail(self, error: LogError) -> None:
        """Tell all who wait that the outcome of their write is in doubt.

        It may yet be committed: an error that says "not written" would have a client use its
        sequence numbers for other records.
        """
        heap, self._heap = self._heap, []
        for _, _, future in heap:
            if not future.done():
                future.set_exception(outcome_unknown_error(error))


class ReadWaiters:
    """Readers, woken once, in the order of their offsets.

    Most readers wait at the end: a high watermark that moves must not cost what all of them do.
    """

    def __init__(self, name: str) -> None:
        """`name` is the partition's, for errors."""
        self._name = name
        self._wakes: dict[int, Callable[[], None]] = {}
        self._heap: list[tuple[Offset, int]] = []
        """Offsets and handles; also of those that have been forgotten, for a while."""
        self._count = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._wakes)

    def add(self, offset: Offset, wake: Callable[[], None]) -> int:
        """Call `wake` when the high watermark passes `offset`. Returns a handle to forget it.

        Raises LogError(OVERLOADED).
        """
        if len(self._wakes) >= READ_WAITERS_MAX:
            raise LogError(OVERLOADED, f"{self._name}: too many readers wait.")
        self._count += 1
        self._wakes[self._count] = wake
        heapq.heappush(self._heap, (offset, self._count))
        return self._count

    def remove(self, handle: int) -> None:
        """Forget a reader, woken or not."""
        if self._wakes.pop(handle, None) is None:
            return
        if len(self._heap) > 2 * len(self._wakes) + FORGOTTEN_READERS_MAX:
            # Of a partition that nobody writes to, nothing else would take them out.
            self._heap = [entry for entry in self._heap if entry[1] in self._wakes]
            heapq.heapify(self._heap)

    def committed(self, high_watermark: Offset) -> None:
        """Everything below is committed: wake who waited for it."""
        heap = self._heap
        due: list[int] = []
        while heap and heap[0][0] < high_watermark:
            due.append(heapq.heappop(heap)[1])
        for handle in due:
            # One may have been forgotten by another's waking.
            wake = self._wakes.pop(handle, None)
            if wake is not None:
                wake()

    def wake_all(self) -> None:
        """Have all find out by reading what has happened."""
        wakes, self._wakes, self._heap = self._wakes, {}, []
        for wake in wakes.values():
            wake()


UNCOMMITTED_MAX: Final = 1024
"""Appends whose commit is still to come that are told apart; what follows counts with the last."""


class CommittedBytes:
    """Of one replica: bytes appended, by the offset that has to be committed for them to count."""

    __slots__ = ("_uncommitted", "total")

    def __init__(self) -> None:
        self.total = 0
        """Committed since the replica was opened; never falls."""
        self._uncommitted: deque[tuple[Offset, int]] = deque()

    def appended(self, end_offset: Offset, size_bytes: int) -> None:
        """The log has grown by so many bytes, and ends at that offset now."""
        uncommitted = self._uncommitted
        if len(uncommitted) >= UNCOMMITTED_MAX:
            size_bytes += uncommitted.pop()[1]
        uncommitted.append((end_offset, size_bytes))

    def committed(self, high_watermark: Offset) -> None:
        """Everything below is committed."""
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= high_watermark:
            self.total += uncommitted.popleft()[1]

    def cut(self, end_offset: Offset) -> None:
        """The log ends at that offset now, and what was behind it is gone."""
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[-1][0] > end_offset:
            uncommitted.pop()
