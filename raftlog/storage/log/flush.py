"""Group commit for all logs of a node.

A log with unsynced bytes is queued once, whatever is appended until its sync. A round takes its
share of the queue and syncs those logs. So appends arriving during a sync share the next sync. A
single log is synced without delay. When many logs are busy, several share the cost of a round,
while the device still gets several syncs at once, to merge. Measured in
docs/decisions/group-commit.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from raftlog.world import Clock, Disk, Sync

ROUNDS_MAX: Final = 4
"""Most rounds at once. Where threads execute them, the disk's other threads stay free for reads."""
GATHER_ITERATIONS: Final = 3
"""Iterations of the event loop between the first request for a sync and its start. Appends from
sockets that become readable in these iterations are included. An idle loop takes microseconds for
them."""
SYNCS_PER_ROUND_MAX: Final = 16
"""Most logs synced in one round. All their writers wait for the last sync."""


BeginSync: TypeAlias = Callable[[], Sync | None]
"""Returns the sync that makes everything written so far durable, or None without any."""
EndSync: TypeAlias = Callable[[Exception | None], None]
"""Called when the sync has returned, or raised the error."""


class _Progress:
    """Progress of a round. Written where its syncs run, read by the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.since = clock.monotonic()
        """Start of the present syncs. Before the first sync, the time of the request for them."""

    def on_begun(self) -> None:
        """Note the start of a sync. Many lengthy syncs are a slow disk, not a stalled disk."""
        self.since = self._clock.monotonic()


class Flusher:
    """Queue of logs waiting for a sync, and the rounds that sync them."""

    def __init__(self, disk: Disk, clock: Clock, rounds_max: int = ROUNDS_MAX) -> None:
        self.syncs = 0
        """Syncs done, for metrics."""
        self._disk = disk
        self._clock = clock
        self._rounds_max = rounds_max
        self._queue: dict[BeginSync, EndSync] = {}
        self._rounds: set[asyncio.Task[None]] = set()
        self._progress: dict[_Progress, None] = {}
        self._scheduled = False

    @property
    def oldest_sync_at(self) -> float | None:
        """Monotonic start time of the oldest running sync, or None."""
        return min((progress.since for progress in self._progress), default=None)

    def request(self, begin_sync: BeginSync, end_sync: EndSync) -> None:
        """Queue one sync of a log, however often requested before `begin_sync` is called."""
        self._queue[begin_sync] = end_sync
        if not self._scheduled and len(self._rounds) < self._rounds_max:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._gather, GATHER_ITERATIONS)

    def _gather(self, iterations: int) -> None:
        if iterations:
            asyncio.get_running_loop().call_soon(self._gather, iterations - 1)
        else:
            self._start()

    def _start(self) -> None:
        self._scheduled = False
        while self._queue and len(self._rounds) < self._rounds_max:
            free = self._rounds_max - len(self._rounds)
            share = min(-(-len(self._queue) // free), SYNCS_PER_ROUND_MAX)
            begins = [begin for begin, _ in zip(self._queue, range(share), strict=False)]
            syncs = [(begin, self._queue.pop(begin)) for begin in begins]
            round_ = asyncio.get_running_loop().create_task(self._round(syncs))
            self._rounds.add(round_)
            round_.add_done_callback(self._end_round)

    def _end_round(self, round_: asyncio.Task[None]) -> None:
        self._rounds.discard(round_)
        if not round_.cancelled() and round_.exception() is None:
            # Logs queued during a whole sync start without further gathering.
            self._start()

    async def _round(self, requests: list[tuple[BeginSync, EndSync]]) -> None:
        syncs = [(sync, end) for begin, end in requests if (sync := begin()) is not None]
        progress = _Progress(self._clock)
        self._progress[progress] = None
        errors: list[Exception | None]
        try:
            errors = await self._disk.sync_all([sync for sync, _ in syncs], progress.on_begun)
        except Exception as error:
            # Any cause leaves the extent of the round's syncs unknown.
            errors = [error] * len(syncs)
        finally:
            del self._progress[progress]
        self.syncs += len(syncs)
        for (_, end_sync), failure in zip(syncs, errors, strict=True):
            end_sync(failure)
