"""Histories of the replicated examples: linearizable, commands once, one primary a term."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import pytest

from tests.simulation.replicated.histories import replay
from tests.simulation.replicated.planted_bugs import PLANTED
from tests.simulation.replicated.service import Service
from tests.simulation.seeds import seeds_of

SEEDS: Final = range(100)
SEEDS_EACH: Final = 10
"""Histories in one test."""


@pytest.mark.parametrize("first", seeds_of(SEEDS[::SEEDS_EACH]))
def test_replicas_keep_their_promises(first: int) -> None:
    reports = [replay(seed) for seed in range(first, first + SEEDS_EACH)]
    assert all(report.acknowledged for report in reports)
    assert {report.workload for report in reports} == {"bank", "kv"}
    assert any(report.snapshots for report in reports)
    assert any(report.primaries > 1 for report in reports)


def test_a_seed_replays() -> None:
    assert replay(3) == replay(3)


@pytest.mark.parametrize(
    ("plant", "seed"), PLANTED.items(), ids=lambda one: getattr(one, "__name__", one)
)
def test_a_planted_mistake_is_found(
    plant: Callable[[Service], AbstractContextManager[None]], seed: int
) -> None:
    with pytest.raises(AssertionError):
        replay(seed, plant=plant)
