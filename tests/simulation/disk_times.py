"""How long a simulated disk takes, in virtual time.

Work given to `Disk.run` is executed in one piece at some moment between its submission and its
completion; other nodes run, and crashes happen, before and after (and in the middle, by
`SimulatedDisk.crash_in`). As with the real disk's threads, cancelling the wait does not stop the
work, and works overtake each other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from tests.simulation.disk import SimulatedDisk
    from tests.simulation.loop import SimulatedLoop

T = TypeVar("T")

QUEUE_S: Final = 0.0001
SYNC_S: Final = 0.0005
READ_S: Final = 0.0001
HICCUP_S: Final = 0.02
HICCUPS: Final = 0.01
"""Share of works slowed down so much."""


class DiskTimes:
    """The clockwork of one disk."""

    def __init__(self, loop: SimulatedLoop, chance: random.Random) -> None:
        self.slow = 1.0
        """Factor on everything."""
        self._loop = loop
        self._random = chance
        self._stuck_until = 0.0

    def stick(self, seconds: float) -> None:
        """Let the disk do nothing for so long."""
        self._stuck_until = max(self._stuck_until, self._loop.now + seconds)

    def heal(self) -> None:
        """Full speed; stuck works still end at their time."""
        self.slow = 1.0
        self._stuck_until = 0.0

    async def run(self, disk: SimulatedDisk, work: Callable[[], T]) -> T:
        """Execute disk work, some time from now."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._loop.call_at(self._begin(), self._execute, disk, work, future)
        return await future

    def _begin(self) -> float:
        delay = self._random.expovariate(1.0) * QUEUE_S * self.slow
        if self._random.random() < HICCUPS:
            delay += self._random.random() * HICCUP_S * self.slow
        return max(self._loop.now, self._stuck_until) + delay

    def _execute(
        self, disk: SimulatedDisk, work: Callable[[], T], future: asyncio.Future[T]
    ) -> None:
        if self._loop.now < self._stuck_until:
            self._loop.call_at(self._begin(), self._execute, disk, work, future)
            return
        operations = disk.operations
        syncs, reads = operations["sync"] + operations["sync_directory"], operations["read"]
        result: Any = None
        error: Exception | None = None
        try:
            result = disk.execute(work)
        except Exception as caught:  # the waiter handles every error
            error = caught
        syncs = operations["sync"] + operations["sync_directory"] - syncs
        reads = operations["read"] - reads
        seconds = (syncs * SYNC_S + reads * READ_S) * self.slow * self._random.uniform(0.5, 2.0)
        if seconds:
            self._loop.call_later(seconds, _settle, future, result, error)
        else:
            _settle(future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    # The waiter may have given up long before.
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
