"""Clocks of a node, and waiting for an event or a time, whichever comes first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol


class Clock(Protocol):
    """Two clocks that must not be mixed, wall time and monotonic time.

    Wall time is for people, monotonic time for waiting.
    """

    def time_ms(self) -> int:
        """Milliseconds since the Unix epoch. May jump either way, so it is not for measuring."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start. Never goes back.

        Counts the time for which the machine was suspended, so a lease, a session or an election
        timeout ends on time whatever the machine did.
        """
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of monotonic time, or later.

        Timers stand still while the machine is suspended. So code that acts on a deadline compares
        it with `monotonic` at that moment, and never takes a running timer for time left.
        """
        ...


class SystemClock:
    """`Clock` by the operating system and the running event loop."""

    def time_ms(self) -> int:
        """Milliseconds since the Unix epoch, by the wall clock."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since the start of the machine, time asleep included (CLOCK_BOOTTIME)."""
        return _elapsed_s()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)


def _choose_elapsed_s() -> Callable[[], float]:
    """Choose CLOCK_BOOTTIME where the kernel has it (Linux), or the best clock elsewhere."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is None:
        return time.monotonic
    try:
        time.clock_gettime(boottime)
    except OSError:
        return time.monotonic
    return partial(time.clock_gettime, boottime)


_elapsed_s: Final = _choose_elapsed_s()
"""The one clock of the process, since two clocks of different origin must never meet."""


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
                # Other tasks run first, however late this task is.
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
                # A cancelled sleeper ends in the loop's next iteration, so nothing waits for it.
                sleeper.cancel()


def _slept(waiter: asyncio.Future[None], sleeper: asyncio.Task[None]) -> None:
    if sleeper.cancelled() or waiter.done():
        return
    error = sleeper.exception()
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
