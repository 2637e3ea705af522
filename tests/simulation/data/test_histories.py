"""Random histories of replicated partitions: any fault, no loss."""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.data.data_world import RESUME_S_MAX
from tests.simulation.data.histories import replay
from tests.simulation.seeds import digests_of, report_of, seeds_of

RECORDED: Final = (200277, 200399, 200456, 200676, 200782, 202003)
"""Seeds that have failed once, by mistakes of the simulator without a scenario of their own."""
SEEDS: Final = range(140)


@pytest.mark.parametrize("seed", seeds_of(SEEDS, RECORDED))
def test_partitions_keep_their_promises(seed: int) -> None:
    report = report_of("data", replay, seed)
    assert report.seed == seed
    assert report.acknowledged
    assert report.polled
    assert report.resume_s < RESUME_S_MAX
    assert report.endings == ()


@pytest.mark.parametrize("seed", [4, pytest.param(1, marks=pytest.mark.full)])
def test_a_seed_replays_under_any_hash_seed(seed: int) -> None:
    assert len(digests_of("tests.simulation.data.histories", seed)) == 1
