"""Planted mistakes in transactions are found by random histories: at least one for each rule."""

from __future__ import annotations

import pytest

from tests.simulation.data.planted_bugs import BlindSpot
from tests.simulation.transactions.planted_bugs import PLANTED
from tests.simulation.transactions.planted_runs import find


def test_every_invariant_of_transactions_has_a_planted_bug() -> None:
    assert {bug.name.partition("-")[0] for bug in PLANTED} == {"2", "3", "4", "5", "6", "7"}


@pytest.mark.parametrize("bug", PLANTED, ids=str)
def test_the_recorded_seed_finds_the_planted_bug(bug: BlindSpot) -> None:
    # After a change of the histories another seed may find it:
    # scripts/simulate planted-transactions NAME 0:200
    assert find(bug.name, bug.seed) is not None
