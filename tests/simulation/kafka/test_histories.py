"""Histories of Kafka's clients: acknowledged once, in order, nothing held for long."""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.kafka.histories import replay
from tests.simulation.kafka.planted_bugs import BUGS, PlantedBug
from tests.simulation.seeds import seeds_of

SEEDS: Final = range(60)
SEEDS_EACH: Final = 3
"""Histories in one test."""


@pytest.mark.parametrize("first", seeds_of(SEEDS[::SEEDS_EACH]))
def test_kafka_clients_keep_their_promises(first: int) -> None:
    reports = [replay(seed) for seed in range(first, first + SEEDS_EACH)]
    assert sum(report.acknowledged for report in reports)
    assert sum(report.records for report in reports)
    assert sum(report.wires for report in reports)


def test_a_seed_replays() -> None:
    assert replay(3) == replay(3)


@pytest.mark.parametrize("bug", BUGS, ids=lambda one: one.name)
def test_a_planted_bug_is_found(bug: PlantedBug) -> None:
    with bug.planted(), pytest.raises(AssertionError):
        replay(bug.seed)
