"""Runs random histories: one to replay it, or many on all cores.

A module of histories gives its `replay(seed)`, which raises AssertionError on a violation, and
calls `main` with this function:

    .venv/bin/python -m tests.simulation.quorum.schedules 486        replays seed 486
    .venv/bin/python -m tests.simulation.quorum.schedules 0:20000    runs all, on all cores

With `--digests` the runner prints a line `seed digest` per history: two trees of the same behaviour
in these histories print the same lines.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, Protocol, TypeVar


class Report(Protocol):
    """Result of a seed from any module of histories, besides its own counts."""

    @property
    def seed(self) -> int:
        """The history's seed."""

    @property
    def digest(self) -> str:
        """Of every line of its trace."""


R = TypeVar("R", bound=Report)

SEEDS_PER_JOB: Final = 20
FAILURES_SHOWN: Final = 20
FAILURE_CHARACTERS: Final = 1_500
SEEDS_LISTED: Final = 50
SIGN_CHARACTERS: Final = 160


def try_seed(replay: Callable[[int], R], seed: int) -> tuple[int, R | str]:
    """The seed's report, or its failure as text."""
    try:
        return seed, replay(seed)
    except BaseException as error:
        # The trace's end would hide the violation; a replay of the seed shows the trace.
        error.__notes__ = []
        return seed, traceback.format_exc()


def run_many(
    replay: Callable[[int], R], seeds: range, workers: int | None = None
) -> tuple[list[R], dict[int, str]]:
    """All seeds: reports, and failures by seed. `replay` must be a function of a module."""
    reports: list[R] = []
    failures: dict[int, str] = {}
    with ProcessPoolExecutor(workers) as pool:
        for seed, result in pool.map(partial(try_seed, replay), seeds, chunksize=SEEDS_PER_JOB):
            if isinstance(result, str):
                failures[seed] = result
            else:
                reports.append(result)
    return reports, failures


def main(
    replay: Callable[[int], R], summary: Callable[[Sequence[R]], str], arguments: Sequence[str]
) -> int:
    """Replay a seed, or run many: `486` or `0:20000`, and how many at a time, if not on all cores.

    `--digests` prints the digest of every seed. Returns the exit code: whether any went wrong.
    """
    with_digests = "--digests" in arguments
    arguments = [argument for argument in arguments if argument != "--digests"]
    first, _, last = arguments[0].partition(":")
    if not last:
        print(replay(int(first)))
        return 0
    started = time.time()
    workers: Any = int(arguments[1]) if len(arguments) > 1 else None
    reports, failures = run_many(replay, range(int(first), int(last)), workers)
    for seed, failure in sorted(failures.items())[:FAILURES_SHOWN]:
        print(f"--- seed {seed}\n{failure[-FAILURE_CHARACTERS:]}")
    if with_digests:
        for report in reports:
            print(report.seed, report.digest)
        return 1 if failures else 0
    print(
        f"{len(reports) + len(failures)} seeds, {len(failures)} failed "
        f"{sorted(failures)[:SEEDS_LISTED]}; {summary(reports)}, {time.time() - started:.0f} s"
    )
    return 1 if failures else 0


def sign_of(error: AssertionError) -> str:
    """What a history says about a planted bug, in one line."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:SIGN_CHARACTERS]


def finding(
    planted: AbstractContextManager[object], replay: Callable[[int], object], seed: int
) -> str | None:
    """What a seed's history finds of a planted bug, if anything."""
    try:
        with planted:
            replay(seed)
    except AssertionError as error:
        return sign_of(error)
    return None


def run_planted(
    names: Sequence[str], find: Callable[[str, int], str | None], arguments: Sequence[str]
) -> int:
    """Count the seeds that find each planted bug: `NAME 0:200`, or `all`, and how many at a time.

    `find` returns the sign of a bug in the history of a seed; it must be a function of a module.
    Returns the exit code: whether some bug was not found.
    """
    name, seeds = arguments[0], arguments[1] if len(arguments) > 1 else "0:200"
    workers = int(arguments[2]) if len(arguments) > 2 else None
    if name not in ("all", *names):
        print("all or one of:", *names)
        return 2
    first, _, end = seeds.partition(":")
    numbers = range(int(first), int(end or int(first) + 1))
    is_missed = False
    with ProcessPoolExecutor(workers) as pool:
        for each in names if name == "all" else (name,):
            started = time.time()
            signs = list(pool.map(partial(find, each), numbers, chunksize=5))
            found = {seed: sign for seed, sign in zip(numbers, signs, strict=True) if sign}
            is_missed = is_missed or not found
            print(
                f"{each}: {len(found)} of {len(signs)} seeds {list(found)[:8]}, "
                f"{time.time() - started:.0f} s",
                flush=True,
            )
            for seed, sign in list(found.items())[:1]:
                print(f"    {seed}: {sign}", flush=True)
    return 1 if is_missed else 0
