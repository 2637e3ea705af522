"""A clock that stands still until it is told to move."""

from __future__ import annotations

import asyncio


class ManualClock:
    """`Clock` by hand: sleeping moves it on at once."""

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
