"""A bound on the bytes per second that replicas are sent which a reassignment adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog.world import Clock

BURST_S: Final = 0.1
"""What was not used is kept for so long."""
WAIT_S_MIN: Final = 0.001
WAIT_S_MAX: Final = 0.5
"""Who waits asks again after that: the rate may have been raised."""


class Throttle:
    """A token bucket. A chunk may overdraw it: how long it is, is known only once it is read."""

    def __init__(self, clock: Clock, bytes_per_s: Callable[[], int]) -> None:
        """`bytes_per_s` is asked each time; 0 is no bound."""
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._tokens = 0.0
        self._as_of_s = clock.monotonic()

    def wait_s(self) -> float:
        """How long to wait before asking again; 0: the next chunk may be sent now."""
        rate = self._bytes_per_s()
        if rate <= 0:
            return 0.0
        now_s = self._clock.monotonic()
        earned = (now_s - self._as_of_s) * rate
        self._tokens = min(self._tokens + earned, rate * BURST_S)
        self._as_of_s = now_s
        if self._tokens >= 0:
            return 0.0
        return min(max(-self._tokens / rate, WAIT_S_MIN), WAIT_S_MAX)

    def took(self, size_bytes: int) -> None:
        """So many bytes were sent."""
        if self._bytes_per_s() > 0:
            self._tokens -= size_bytes
