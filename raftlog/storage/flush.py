"""Group commit for all logs of a node.

A log that has something to sync stands in line once, whatever was appended to it since. Whenever a
thread is free it takes its share of the line and syncs those logs one after the other. So appends
that arrive during a sync share the next one; a lone log waits for nobody; and when many logs are
busy, several share the cost of one change of threads, while the device still gets several syncs at
once, which it can merge. Measured in DESIGN.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from raftlog.world import Clock, Disk

SYNC_THREADS_MAX: Final = 4
"""Syncs at once; the disk's other threads stay free for reads."""
GATHER_ITERATIONS: Final = 3
"""Rounds of the event loop between the first request for a sync and its start. What has arrived in
sockets meanwhile gets into it, and the sync's thread does not compete with the loop for the
interpreter while the loop still has appends to make. An idle loop takes microseconds for them."""
SYNCS_PER_ROUND_MAX: Final = 16
"""Logs that one thread syncs in one turn: their writers all wait for the last of them."""


BeginSync: TypeAlias = Callable[[], Callable[[], None] | None]
"""Returns the blocking work that makes everything written so far durable; None without any."""
EndSync: TypeAlias = Callable[[Exception | None], None]
"""Called when that work has returned, or raised the error."""


class _Progress:
    """How far a turn is. Written by its thread, read by the event loop."""

    def __init__(self, now: float) -> None:
        self.since = now
        """When its present sync began; before the first, when the thread was asked for."""


class Flusher:
    """The line of logs that wait for a sync."""

    def __init__(self, disk: Disk, clock: Clock, threads_max: int = SYNC_THREADS_MAX) -> None:
        self.syncs = 0
        """Syncs done, for metrics."""
        self._disk = disk
        self._clock = clock
        self._threads_max = threads_max
        self._queue: dict[BeginSync, EndSync] = {}
        self._rounds: set[asyncio.Task[None]] = set()
        self._progress: dict[_Progress, None] = {}
        self._scheduled = False

    @property
    def oldest_sync_at(self) -> float | None:
        """The monotonic time since which the oldest of the present syncs is waited for, if any."""
        return min((progress.since for progress in self._progress), default=None)

    def request(self, begin_sync: BeginSync, end_sync: EndSync) -> None:
        """Sync a log soon, once however often it is requested before `begin_sync` is called."""
        self._queue[begin_sync] = end_sync
        if not self._scheduled and len(self._rounds) < self._threads_max:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._gather, GATHER_ITERATIONS)

    def _gather(self, iterations: int) -> None:
        if iterations:
            asyncio.get_running_loop().call_soon(self._gather, iterations - 1)
        else:
            self._start()

    def _start(self) -> None:
        self._scheduled = False
        while self._queue and len(self._rounds) < self._threads_max:
            free = self._threads_max - len(self._rounds)
            share = min(-(-len(self._queue) // free), SYNCS_PER_ROUND_MAX)
            begins = [begin for begin, _ in zip(self._queue, range(share), strict=False)]
            syncs = [(begin, self._queue.pop(begin)) for begin in begins]
            round_ = asyncio.get_running_loop().create_task(self._round(syncs))
            self._rounds.add(round_)
            round_.add_done_callback(self._end_round)

    def _end_round(self, round_: asyncio.Task[None]) -> None:
        self._rounds.discard(round_)
        if not round_.cancelled() and round_.exception() is None:
            # Who waited through a whole sync has gathered company enough.
            self._start()

    async def _round(self, syncs: list[tuple[BeginSync, EndSync]]) -> None:
        works = [(work, end) for begin, end in syncs if (work := begin()) is not None]
        progress = _Progress(self._clock.monotonic())
        self._progress[progress] = None
        errors: list[Exception | None]
        try:
            errors = await self._disk.run(lambda: self._sync_all(works, progress))
        except Exception as error:
            # Whatever stopped the thread, nobody knows what it had synced.
            errors = [error] * len(works)
        finally:
            del self._progress[progress]
        self.syncs += len(works)
        for (_, end_sync), failure in zip(works, errors, strict=True):
            end_sync(failure)

    def _sync_all(
        self, works: list[tuple[Callable[[], None], EndSync]], progress: _Progress
    ) -> list[Exception | None]:
        """One sync after the other. Blocks."""
        errors = []
        for work, _ in works:
            # Many syncs that take a while are a slow disk, not one that hangs.
            progress.since = self._clock.monotonic()
            errors.append(_attempt(work))
        return errors


def _attempt(work: Callable[[], None]) -> Exception | None:
    """Run one sync. Its error is an answer, so that one log's failure leaves the others alone."""
    try:
        work()
    except Exception as error:
        return error
    return None
