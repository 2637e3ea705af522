"""When a container counts as healthy, and when its restart is due: the engine's rules. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tests.containers.compose import HealthCheck, RestartPolicy

Status: TypeAlias = Literal["starting", "healthy", "unhealthy"]

RESTART_DELAY_S_FIRST: Final = 0.1
RESTART_DELAY_S_MAX: Final = 60.0
STABLE_S: Final = 10.0
"""A container that ran for this long has its delays forgotten."""


@dataclass(slots=True)
class Health:
    """The state of one start of a container, by the results of its probes."""

    check: HealthCheck
    status: Status = "starting"
    failures: int = 0
    """Failed probes in sequence that count."""

    def record(self, *, succeeded: bool, age_s: float) -> None:
        """Take the result of a probe that began `age_s` after the container's start."""
        if succeeded:
            self.status, self.failures = "healthy", 0
            return
        if self.status == "starting" and age_s < self.check.start_period_s:
            return
        self.failures += 1
        if self.failures >= self.check.retries:
            self.status = "unhealthy"


@dataclass(slots=True)
class Restarts:
    """The delays between the restarts of one service."""

    policy: RestartPolicy
    next_delay_s: float = RESTART_DELAY_S_FIRST

    def delay_s(self, ran_s: float) -> float | None:
        """The delay before the next start after an exit; None: no restart."""
        if self.policy == "no":
            return None
        if ran_s >= STABLE_S:
            self.next_delay_s = RESTART_DELAY_S_FIRST
        delay = self.next_delay_s
        self.next_delay_s = min(2 * delay, RESTART_DELAY_S_MAX)
        return delay
