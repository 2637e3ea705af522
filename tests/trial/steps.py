"""The steps of a trial, in order: each prints its time and its verdict."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tests.trial.lab import LabError

Steps: TypeAlias = Sequence[tuple[str, Callable[[], str]]]
"""Titles, and the work, which returns its verdict."""


class StepError(Exception):
    """A claim that does not hold; `str()` has the observations."""


def run_steps(steps: Steps, on_failure: Callable[[], None] = lambda: None) -> bool:
    """Run the steps; whether all hold. A step after a failed one would prove nothing."""
    for title, step in steps:
        say(f"== {title}")
        started_s = time.monotonic()
        try:
            verdict = step()
        except (StepError, LabError, subprocess.TimeoutExpired) as error:
            say(f"   FAILED after {time.monotonic() - started_s:.1f} s: {error}")
            on_failure()
            return False
        say(f"   ok, {time.monotonic() - started_s:.1f} s: {verdict}")
    return True


def require(is_so: bool, otherwise: str) -> None:
    """Raise StepError with the observations unless a claim holds."""
    if not is_so:
        raise StepError(otherwise)


def say(line: str) -> None:
    """Print a line at once, as CI shows it."""
    print(line, flush=True)
