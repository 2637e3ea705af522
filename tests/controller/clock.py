"""A clock that only tests advance, waking sleepers one by one on the way."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

TURNS = 60
"""Turns of the event loop until all consequences of an event have happened."""


class SteppedClock:
    """`Clock` by hand, for any number of sleeping tasks."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def time_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), wake))
        await wake

    async def advance(self, seconds: float) -> None:
        """Advance the time, and run all work due within it."""
        end = self.now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            at, _, wake = heapq.heappop(self._sleepers)
            if not wake.done():
                self.now = max(self.now, at)
                wake.set_result(None)
                await settle()
        self.now = end
        await settle()

    def jump(self, seconds: float) -> None:
        """Let time pass in which nothing runs: the process is stopped."""
        self.now += seconds


async def settle() -> None:
    """Run all work that needs no time."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
