"""Clocks of a node, and waiting for an event or a time, whichever comes first."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """Two clocks that must not be mixed: wall time, for people, and monotonic time, for waiting."""

    def time_ms(self) -> int:
        """Milliseconds since the Unix epoch. May jump either way; not for measuring."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start. Never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of monotonic time."""
        ...


class SystemClock:
    """`Clock` by the operating system and the running event loop."""

    def time_ms(self) -> int:
        """Milliseconds since the Unix epoch, by the wall clock."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)


class Wakeup:
    """Wakes one waiter. A `set` without a waiter is kept for the next wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the waiter now."""
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, until: float | None) -> None:
        """Return at the next `set`, or at the monotonic time `until`, if any."""
        if not self._is_set:
            delay_s = None if until is None else until - self._clock.monotonic()
            if delay_s is not None and delay_s <= 0:
                # Other tasks run, too, however late this one is.
                await asyncio.sleep(0)
            else:
                await self._woken(delay_s)
        self._is_set = False

    async def _woken(self, delay_s: float | None) -> None:
        assert self._waiter is None, "a wakeup has one waiter"
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        sleeper = None
        if delay_s is not None:
            sleeper = loop.create_task(self._clock.sleep(delay_s))
            sleeper.add_done_callback(partial(_slept, waiter))
        try:
            await waiter
        finally:
            self._waiter = None
            if sleeper is not None:
                # A cancelled sleeper ends in the loop's next iteration: no need to wait.
                sleeper.cancel()


def _slept(waiter: asyncio.Future[None], sleeper: asyncio.Task[None]) -> None:
    if sleeper.cancelled() or waiter.done():
        return
    error = sleeper.exception()
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
