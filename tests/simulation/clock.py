"""A clock that stands still until moved."""

from __future__ import annotations

import asyncio


class ManualClock:
    """`Clock` by hand: sleeping advances the time at once."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms
        self.seconds = 1000.0

    def time_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Move both clocks on."""
        self.seconds += seconds
        self.now_ms += int(seconds * 1000)

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await asyncio.sleep(0)


class SimulatedClock:
    """`Clock` of one machine in virtual time. The wall clock may jump and drift."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ms: int = 1_700_000_000_000) -> None:
        self._loop = loop
        self._base_ms = float(now_ms)
        self._since = loop.time()
        self._rate = 1.0
        self.suspended_s = 0.0
        """Time for which the machine has slept. `monotonic` counts it, as CLOCK_BOOTTIME does."""

    def time_ms(self) -> int:
        return int(self._base_ms + (self._loop.time() - self._since) * 1000 * self._rate)

    def monotonic(self) -> float:
        return self._loop.time()

    def jump(self, seconds: float) -> None:
        """Set the wall clock on, or back."""
        self._base_ms += seconds * 1000

    def drift(self, rate: float) -> None:
        """Let the wall clock run `rate` times as fast as time itself from now on."""
        now = self._loop.time()
        self._base_ms += (now - self._since) * 1000 * self._rate
        self._since = now
        self._rate = rate

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
