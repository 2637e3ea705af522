"""Pauses between the attempts of one piece of work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DOUBLINGS_MAX: Final = 32
"""Doublings after which a pause no longer grows. The bound keeps any count of attempts from
overflowing a float."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses double from `min_s` to `max_s`. The caller counts the attempts and adds jitter."""

    min_s: float
    max_s: float

    def delay_s(self, attempt: int) -> float:
        """Return the seconds to wait after failed attempt number `attempt`, counted from 0."""
        assert attempt >= 0
        return min(self.min_s * 2.0 ** min(attempt, DOUBLINGS_MAX), self.max_s)
