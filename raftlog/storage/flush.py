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
from typing import Final, Protocol

from raftlog.world import Disk

SYNC_THREADS_MAX: Final = 4
"""Syncs at once; the disk's other threads stay free for reads."""
GATHERING_ROUNDS: Final = 3
"""Rounds of the event loop between the first request for a sync and its start. What has arrived in
sockets meanwhile gets into it, and the sync's thread does not compete with the loop for the
interpreter while the loop still has appends to make. An idle loop takes microseconds for them."""
SYNCS_PER_TURN_MAX: Final = 16
"""Logs that one thread syncs in one turn: their writers all wait for the last of them."""


class Flushable(Protocol):
    """What the flusher needs of a log."""

    def begin_sync(self) -> Callable[[], None] | None:
        """The blocking work that makes everything written so far durable; None if nothing is."""
        ...

    def end_sync(self, error: Exception | None) -> None:
        """The work returned, or raised `error`."""
        ...


class Flusher:
    """The line of logs that wait for a sync."""

    def __init__(self, disk: Disk, threads_max: int = SYNC_THREADS_MAX) -> None:
        self.syncs = 0
        """Syncs done, for metrics."""
        self._disk = disk
        self._threads_max = threads_max
        self._line: dict[Flushable, None] = {}
        self._turns: set[asyncio.Task[None]] = set()
        self._scheduled = False

    def request(self, log: Flushable) -> None:
        """Sync `log` soon. It must not ask again before its `end_sync`."""
        self._line[log] = None
        if not self._scheduled and len(self._turns) < self._threads_max:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._gather, GATHERING_ROUNDS)

    def _gather(self, rounds: int) -> None:
        if rounds:
            asyncio.get_running_loop().call_soon(self._gather, rounds - 1)
        else:
            self._start()

    def _start(self) -> None:
        self._scheduled = False
        while self._line and len(self._turns) < self._threads_max:
            free = self._threads_max - len(self._turns)
            share = min(-(-len(self._line) // free), SYNCS_PER_TURN_MAX)
            logs = [log for log, _ in zip(self._line, range(share), strict=False)]
            for log in logs:
                del self._line[log]
            turn = asyncio.get_running_loop().create_task(self._turn(logs))
            self._turns.add(turn)
            turn.add_done_callback(self._end_turn)

    def _end_turn(self, turn: asyncio.Task[None]) -> None:
        self._turns.discard(turn)
        if not turn.cancelled() and turn.exception() is None:
            # Who waited through a whole sync has gathered company enough.
            self._start()

    async def _turn(self, logs: list[Flushable]) -> None:
        works = [(log, work) for log in logs if (work := log.begin_sync()) is not None]
        errors: list[Exception | None]
        try:
            errors = await self._disk.run(lambda: [_attempt(work) for _, work in works])
        except Exception as error:
            # Whatever stopped the thread, nobody knows what it had synced.
            errors = [error] * len(works)
        self.syncs += len(works)
        for (log, _), failure in zip(works, errors, strict=True):
            log.end_sync(failure)


def _attempt(work: Callable[[], None]) -> Exception | None:
    """Run one sync. Its error is an answer, so that one log's failure leaves the others alone."""
    try:
        work()
    except Exception as error:
        return error
    return None
