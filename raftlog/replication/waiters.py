"""Waiters of one partition are appends for their commit, and long polls for records.

Also the count of committed bytes, for long polls with `min_bytes`.
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
"""Most appends of one partition that wait for their commit at once. More are refused."""
READ_WAITERS_MAX: Final = 100_000
"""Most readers of one partition that wait for records at once. More are refused."""
FORGOTTEN_READERS_MAX: Final = 64
"""Heap entries of removed readers, above the number of waiting readers, that start a sweep."""


class CommitWaiters:
    """Appends that wait for their commit, woken in the order of their offsets."""

    def __init__(self, name: str) -> None:
        """`name` is the partition's, for errors."""
        self._name = name
        self._heap: list[tuple[Offset, int, asyncio.Future[None]]] = []
        self._count = 0

    def require_room(self) -> None:
        """Raise LogError(OVERLOADED) if too many appends wait."""
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
                outcome_unknown_error(LogError(RETRIABLE, f"{self._name}: not committed in time."))
            )

    def committed(self, high_watermark: Offset) -> None:
        """Wake the appends below the high watermark, which are committed."""
        heap = self._heap
        while heap and heap[0][0] < high_watermark:
            future = heapq.heappop(heap)[2]
            if not future.done():
                future.set_result(None)

    def fail(self, error: LogError) -> None:
        """Fail all waiting appends, with an unknown outcome.

        Each may yet be committed. After an error that means "not written" a client would reuse its
        sequence numbers for other records.
        """
        heap, self._heap = self._heap, []
        # In order, because a router repeats idempotent appends as they fail.
        for _, _, future in sorted(heap):
            if not future.done():
                future.set_exception(outcome_unknown_error(error))


class ReadWaiters:
    """Readers, woken once, in the order of their offsets. Most readers wait at the end, so a move
    of the high watermark must not scan all of them."""

    def __init__(self, name: str) -> None:
        """`name` is the partition's, for errors."""
        self._name = name
        self._wakes: dict[int, Callable[[], None]] = {}
        self._heap: list[tuple[Offset, int]] = []
        """Offsets and handles, also of removed readers until the next sweep."""
        self._count = 0

    def __len__(self) -> int:
        """Number of waiting readers."""
        return len(self._wakes)

    def add(self, offset: Offset, wake: Callable[[], None]) -> int:
        """Call `wake` once when the high watermark passes `offset`. Returns a handle for `remove`.
        Never calls `wake` at once. Raises LogError(OVERLOADED)."""
        if len(self._wakes) >= READ_WAITERS_MAX:
            raise LogError(OVERLOADED, f"{self._name}: too many readers wait.")
        self._count += 1
        self._wakes[self._count] = wake
        heapq.heappush(self._heap, (offset, self._count))
        return self._count

    def remove(self, handle: int) -> None:
        """Remove a reader, woken or not."""
        if self._wakes.pop(handle, None) is None:
            return
        if len(self._heap) > 2 * len(self._wakes) + FORGOTTEN_READERS_MAX:
            # Without appends to the partition, no commit would ever remove the entries.
            self._heap = [entry for entry in self._heap if entry[1] in self._wakes]
            heapq.heapify(self._heap)

    def committed(self, high_watermark: Offset) -> None:
        """Wake the readers below the high watermark."""
        heap = self._heap
        due: list[int] = []
        while heap and heap[0][0] < high_watermark:
            due.append(heapq.heappop(heap)[1])
        for handle in due:
            # The wake of one reader may have removed another.
            wake = self._wakes.pop(handle, None)
            if wake is not None:
                wake()

    def wake_all(self) -> None:
        """Wake all readers. The next read of each raises the reason."""
        wakes, self._wakes, self._heap = self._wakes, {}, []
        for wake in wakes.values():
            wake()


UNCOMMITTED_MAX: Final = 1024
"""Most uncommitted appends that are counted separately. Later appends count with the last."""


class CommittedBytes:
    """Committed bytes of one replica. Appended bytes count once their end offset is committed."""

    __slots__ = ("_uncommitted", "total")

    def __init__(self) -> None:
        self.total = 0
        """Bytes committed since the replica was opened. Never falls."""
        self._uncommitted: deque[tuple[Offset, int]] = deque()

    def appended(self, end_offset: Offset, size_bytes: int) -> None:
        """Count an append that ends at `end_offset`."""
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
        """Drop the uncommitted appends above a truncation to `end_offset`."""
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[-1][0] > end_offset:
            uncommitted.pop()
