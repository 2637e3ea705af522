"""Restart policy for dead node processes. Pure.

A restart is immediate at first, because most deaths are single. Then the back-off grows, because a
node in a crash loop should not keep the machine busy. Restarts are never given up, because the
cause may pass.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

DELAY_MIN_S: Final = 0.1
DELAY_MAX_S: Final = 10.0
DEATHS_MAX: Final = 5
"""Deaths within the window after which the node counts as failing."""
WINDOW_S: Final = 60.0
"""Seconds of life after which all earlier deaths are forgotten."""
FAILING_DELAY_S: Final = 30.0
_DOUBLINGS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Restart:
    """Consequence of a death."""

    delay_s: float
    is_failing: bool
    """Whether the node is in a crash loop, so that an operator should know."""


class RestartPolicy:
    """The deaths of one node, and the consequence of each."""

    def __init__(self) -> None:
        self._recent_s: deque[float] = deque(maxlen=DEATHS_MAX)
        self._short_lives = 0
        self._is_failing = False

    def died(self, now_s: float, lived_s: float, *, is_hopeless: bool = False) -> Restart:
        """The node died at `now_s`, `lived_s` after its start, without a request to stop.

        With `is_hopeless`, by its exit code, the next process will end the same way.
        """
        if lived_s >= WINDOW_S:
            self._recent_s.clear()
            self._short_lives = 0
            self._is_failing = False
        self._recent_s.append(now_s)
        doublings = min(self._short_lives, _DOUBLINGS_MAX)
        self._short_lives += 1
        is_often = len(self._recent_s) == DEATHS_MAX and now_s - self._recent_s[0] <= WINDOW_S
        # Failing stays failing. Five deaths 30 s apart are not within the window, and no better.
        self._is_failing = self._is_failing or is_often or is_hopeless
        if self._is_failing:
            return Restart(FAILING_DELAY_S, is_failing=True)
        return Restart(min(DELAY_MIN_S * 2**doublings, DELAY_MAX_S), is_failing=False)
