"""Seeds of parametrized tests: which run every time, and which in the whole suite only."""

from __future__ import annotations

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
