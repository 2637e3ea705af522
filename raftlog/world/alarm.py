"""Waiting for an event or a time, whichever comes first, on a clock."""

from __future__ import annotations

import asyncio

from raftlog.world.clock import Clock


class Alarm:
    """Wakes one waiter. A ring that comes while nobody waits is kept for the next wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake the waiter now."""
        self._rung.set()

    async def wait(self, until: float | None) -> None:
        """Return at the next ring, or at that monotonic time; without one, only at a ring."""
        if until is None:
            await self._rung.wait()
        elif not self._rung.is_set():
            delay_s = until - self._clock.monotonic()
            if delay_s <= 0:
                # The other tasks get their turn, too, however late we are.
                await asyncio.sleep(0)
            else:
                await self._either(delay_s)
        self._rung.clear()

    async def _either(self, delay_s: float) -> None:
        waits = (
            asyncio.ensure_future(self._rung.wait()),
            asyncio.ensure_future(self._clock.sleep(delay_s)),
        )
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
