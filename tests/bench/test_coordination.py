"""Gaps between completions, and the choice of parts, of `scripts/bench groups|transactions`."""

from __future__ import annotations

import asyncio
import time

from bench.coordination.takeover import PROBES, Completions
from bench.main import PARTS, choose_parts


def test_gap_is_the_longest_time_without_a_completed_operation() -> None:
    done = Completions()
    for number in range(PROBES):
        done.note(number, 0.0)
    done.forget()
    time.sleep(0.02)
    done.note(3, time.perf_counter())
    assert 0.02 <= done.gap[3] < 1
    assert done.gap[4] == 0
    done.forget()
    done.note(3, time.perf_counter())
    assert done.gap[3] < 0.02


async def test_operations_that_began_before_the_moment_do_not_count() -> None:
    done = Completions()
    moment = time.perf_counter()
    waiting = asyncio.ensure_future(done.wait_all_since(moment))
    for number in range(PROBES):
        done.note(number, moment - 0.001)
    await asyncio.sleep(0.02)
    assert not waiting.done()
    for number in range(PROBES):
        done.note(number, moment + 0.001)
    await waiting


def test_parts_of_all_suites_have_names_of_their_own() -> None:
    names = [part for parts in PARTS.values() for part in parts]
    assert len(names) == len(set(names))
    own = [*PARTS["groups"], *PARTS["transactions"]]
    assert choose_parts(["coordinator-kill"], own) == ["coordinator-kill"]
