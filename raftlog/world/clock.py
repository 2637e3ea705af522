"""Time, as a node sees it."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Two clocks that must not be mixed: the wall's, for people, and the monotonic, for waiting."""

    def time_ms(self) -> int:
        """Milliseconds since the Unix epoch. May jump either way; never use it to measure."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start. Never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of monotonic time."""
        ...
