"""Random histories of transactions: all or nothing, no hung transaction, whatever fails.

Two processes of their own run the seeds, from the first test on.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final, TypeAlias

import pytest

from tests.simulation.seed_pool import seeds_of
from tests.simulation.transactions.histories import Report, replay

RECORDED: Final = (20825, 21076, 21725)
"""Seeds above those that have failed once: the last operator asked once, of a node that started."""
SEEDS: Final = (*range(100), *RECORDED)

Outcomes: TypeAlias = dict[int, Future[tuple[int, Report | str]]]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """Of the selected seeds."""
    with seeds_of(test_transactions_keep_their_promises, request.session, replay) as found:
        yield found


@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_keep_their_promises(seed: int, outcomes: Outcomes) -> None:
    _, report = outcomes[seed].result()
    if isinstance(report, str):
        pytest.fail(f"scripts/simulate transactions {seed}\n{report}", pytrace=False)
    assert report.seed == seed
    assert report.markers
    assert report.endings == ()


def test_a_seed_replays() -> None:
    assert replay(3) == replay(3)
