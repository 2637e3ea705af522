"""Random histories of transactions: all or nothing, no hung transaction, whatever fails.

Two processes of their own run the seeds, from the first test on.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Final, TypeAlias

import pytest

from tests.simulation.runner import try_seed
from tests.simulation.transactions.histories import Report, replay

RECORDED: Final[tuple[int, ...]] = ()
"""Seeds above those that have failed once, by defects since mended."""
SEEDS: Final = (*range(100), *RECORDED)
PROCESSES: Final = 2

Outcomes: TypeAlias = dict[int, Future[tuple[int, Report | str]]]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """Results of the selected seeds: reports, or failures as text."""
    name = test_transactions_keep_their_promises.__name__
    wanted = {
        item.callspec.params["seed"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == name
    }
    pool = ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield {seed: pool.submit(try_seed, replay, seed) for seed in SEEDS if seed in wanted}
    finally:
        pool.shutdown(cancel_futures=True)


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
