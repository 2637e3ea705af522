"""Random histories of transactions: all or nothing, no hung transaction, whatever fails."""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.seeds import report_of, seeds_of
from tests.simulation.transactions.histories import replay

RECORDED: Final = (20825, 21076, 21725)
"""Seeds above those that have failed once: the last operator asked once, of a node that started."""
SEEDS: Final = range(100)


@pytest.mark.parametrize("seed", seeds_of(SEEDS, RECORDED))
def test_transactions_keep_their_promises(seed: int) -> None:
    report = report_of("transactions", replay, seed)
    assert report.seed == seed
    assert report.markers
    assert report.endings == ()


def test_a_seed_replays() -> None:
    assert replay(3) == replay(3)
