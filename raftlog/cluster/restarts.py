"""When a node that ended by itself is started again. Pure.

At once at first, because most deaths are single; then later and later, because a node that cannot
live should not keep the machine busy; and never given up, because what kept it down may pass.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

DELAY_MIN_S: Final = 0.1
DELAY_MAX_S: Final = 10.0
DEATHS_MAX: Final = 5
"""So many deaths within the window, and the node counts as failing."""
WINDOW_S: Final = 60.0
"""A life as long as this makes all deaths before it forgotten."""
FAILING_DELAY_S: Final = 30.0
_DOUBLINGS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Restart:
    """What follows from a death."""

    delay_s: float
    is_failing: bool
    """Whether it has died so often that a person should know."""


class RestartPolicy:
    """The deaths of one node, and what follows from each."""

    def __init__(self) -> None:
        self._recent_s: deque[float] = deque(maxlen=DEATHS_MAX)
        self._short_lives = 0
        self._is_failing = False

    def died(self, now_s: float, lived_s: float, *, is_hopeless: bool = False) -> Restart:
        """The node has ended at `now_s`, `lived_s` after its start, without having been told to.

        `is_hopeless`: what it said leaves no doubt that the next one will end the same way.
        """
        if lived_s >= WINDOW_S:
            self._recent_s.clear()
            self._short_lives = 0
            self._is_failing = False
        self._recent_s.append(now_s)
        doublings = min(self._short_lives, _DOUBLINGS_MAX)
        self._short_lives += 1
        is_often = len(self._recent_s) == DEATHS_MAX and now_s - self._recent_s[0] <= WINDOW_S
        # It stays so: five deaths 30 s apart are not within the window, and no better.
        self._is_failing = self._is_failing or is_often or is_hopeless
        if self._is_failing:
            return Restart(FAILING_DELAY_S, is_failing=True)
        return Restart(min(DELAY_MIN_S * 2**doublings, DELAY_MAX_S), is_failing=False)
