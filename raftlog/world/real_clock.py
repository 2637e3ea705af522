"""The machine's clocks."""

from __future__ import annotations

import asyncio
import time


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
