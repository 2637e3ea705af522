"""Histories of coordinators: every acknowledged operation is there, in order, once."""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.coordinator.histories import SERVE_S_MAX, replay
from tests.simulation.coordinator.planted_bugs import MISTAKES, Mistake

SEEDS: Final = (*range(12), 60)


@pytest.mark.parametrize("seed", SEEDS)
def test_coordinators_keep_their_promises(seed: int) -> None:
    report = replay(seed)
    assert report.acknowledged
    assert report.reads
    assert report.heal_s < SERVE_S_MAX


def test_a_seed_replays() -> None:
    assert replay(3) == replay(3)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.name)
def test_a_planted_mistake_is_found(mistake: Mistake) -> None:
    with mistake.planted(), pytest.raises(AssertionError):
        replay(mistake.seed)
