"""Seeds of parametrized tests, run by processes of their own from the first test on."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

import pytest

from tests.simulation.runner import Report, try_seed

PROCESSES: Final = 2

R = TypeVar("R", bound=Report)


@contextmanager
def seeds_of(
    test: Callable[..., object], session: pytest.Session, replay: Callable[[int], R]
) -> Iterator[dict[int, Future[tuple[int, R | str]]]]:
    """Results of the seeds of a test that are selected: reports, or failures as text.

    `test` has a parameter `seed`; `replay` must be a function of a module.
    """
    seeds = [
        item.callspec.params["seed"]
        for item in session.items
        if isinstance(item, pytest.Function) and item.originalname == test.__name__
    ]
    pool = ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield {seed: pool.submit(try_seed, replay, seed) for seed in seeds}
    finally:
        pool.shutdown(cancel_futures=True)
