"""Suites made of parts: the choice of parts, and their execution one after the other."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from bench.replication.cluster import Options
from bench.report import Result

Part = Callable[[Options], list[Result]]


def chosen(names: Sequence[str], parts: Sequence[str]) -> list[str]:
    """The chosen ones of `parts`: by full name or prefix; all if no name is given.

    Raises ValueError: a name matches no part.
    """
    for name in names:
        if not any(part.startswith(name) for part in parts):
            raise ValueError(f"{name!r} is none of {', '.join(parts)}")
    return [part for part in parts if not names or any(part.startswith(name) for name in names)]


def run_parts(
    suite: str, parts: Mapping[str, Part], names: Sequence[str], options: Options
) -> tuple[list[Result], list[str]]:
    """The figures of these parts of a suite, and which failed: the others are run all the same."""
    results: list[Result] = []
    failed: list[str] = []
    with _terminable():
        for name in names:
            load = os.getloadavg()[0]
            print(
                f"-- {suite}: {name} ({time.strftime('%H:%M:%S')}, load average {load:.1f})",
                flush=True,
            )
            try:
                found = parts[name](options)
            except Exception:  # reported in full, and by the exit code
                traceback.print_exc()
                failed.append(name)
                continue
            for result in found:
                result.details["load average before"] = load
            results += found
    return results, failed


@contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt, so that all nodes end with the program."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
