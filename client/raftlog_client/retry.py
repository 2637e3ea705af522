"""When to try again: growing pauses with jitter, so that many clients do not return in step."""

from __future__ import annotations

import random
from dataclasses import dataclass

JITTER = 0.2
"""Each pause is up to a fifth shorter or longer than its nominal length."""
DOUBLINGS_MAX = 16
"""From here on the pause cannot grow, whatever its bound: keeps the shift small."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts: the first about `first_ms`, doubling up to `max_ms`."""

    first_ms: float
    max_ms: float

    def delay_s(self, attempt: int) -> float:
        """Seconds to wait after failed attempt number `attempt`, counted from 0."""
        nominal_ms = min(self.max_ms, self.first_ms * (1 << min(attempt, DOUBLINGS_MAX)))
        return nominal_ms * random.uniform(1 - JITTER, 1 + JITTER) / 1000
