"""Seeds of parametrized tests: which run every time, and which in the whole suite only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import pytest

from tests.simulation.runner import Report, try_seed

QUICK_SEEDS: Final = 25
"""Histories of each kind in the ten-minute suite, besides the recorded seeds."""

R = TypeVar("R", bound=Report)


def seeds_of(numbers: range, recorded: Sequence[int] = ()) -> list[Any]:
    """Return seeds, or the first seed of each group, with the recorded seeds at the end.

    The seeds from 25 on belong to the whole suite, because all of them take many minutes.
    """
    drawn = [
        seed if seed < QUICK_SEEDS else pytest.param(seed, marks=pytest.mark.full)
        for seed in numbers
    ]
    return [*drawn, *recorded]


def report_of(kind: str, replay: Callable[[int], R], seed: int) -> R:
    """Replay a seed. A failure shows the command that replays it, and no trace."""
    _, report = try_seed(replay, seed)
    if isinstance(report, str):
        pytest.fail(f"scripts/simulate {kind} {seed}\n{report}", pytrace=False)
    return report


def digests_of(histories: str, seed: int) -> set[str]:
    """The different digests of a seed's history under two hash seeds, each in a new process.

    `histories` is the name of the module that replays.
    """
    program = f"from {histories} import replay; print(replay({seed}).digest)"
    return {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
