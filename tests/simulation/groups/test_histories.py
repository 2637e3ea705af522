"""Histories of groups: one owner for each partition, no offset lost, back or ahead."""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.groups.histories import CONVERGE_S_MAX, replay
from tests.simulation.groups.planted_bugs import BUGS, PlantedBug
from tests.simulation.seeds import seeds_of

SEEDS: Final = range(100)
SEEDS_EACH: Final = 5
"""Histories in one test."""
RECORDED: Final = (20043, 20298, 20982, 21602, 22108, 22433, 22442, 22446)
"""Failed once: late copies of reports; the simulation's mistakes (20298, 21602, 22446)."""


@pytest.mark.parametrize("first", seeds_of(SEEDS[::SEEDS_EACH]))
def test_groups_keep_their_promises(first: int) -> None:
    reports = [replay(seed) for seed in range(first, first + SEEDS_EACH)]
    assert sum(report.acknowledged for report in reports)
    assert sum(report.lookups for report in reports)
    assert sum(report.records for report in reports)
    assert max(report.converge_s for report in reports) < CONVERGE_S_MAX


@pytest.mark.parametrize("seed", RECORDED)
def test_a_seed_that_failed_once(seed: int) -> None:
    replay(seed)


def test_a_seed_replays() -> None:
    assert replay(3) == replay(3)


@pytest.mark.parametrize("bug", BUGS, ids=lambda one: one.name)
def test_a_planted_bug_is_found(bug: PlantedBug) -> None:
    with bug.planted(), pytest.raises(AssertionError):
        replay(bug.seed)
