""""""

from __future__ import annotations

import asyncio
import time

import pytest

from raftlog.world import Clock, Randomness, Wakeup
from raftlog.world.randomness import SystemRandomness
from raftlog.world.time import SystemClock, _choose_elapsed_s
from tests.controller.clock import SteppedClock, settle


async def woken_at(clock: SteppedClock, alarm: Wakeup, until: float | None) -> float:
    await alarm.wait(until)
    return clock.now


async def test_waits_until_its_time() -> None:
    clock = SteppedClock()
    task = asyncio.create_task(woken_at(clock, Wakeup(clock), 1002.0))
    await clock.advance(5)
    assert await task == 1002.0


async def test_ring_ends_the_wait() -> None:
    clock = SteppedClock()
    alarm = Wakeup(clock)
    for until in (1002.0, None):
        task = asyncio.create_task(woken_at(clock, alarm, until))
        await settle()
        assert not task.done()
        alarm.set()
        await settle()
        assert await task == 1000.0


async def test_ring_before_the_wait_is_kept_and_counts_once() -> None:
    clock = SteppedClock()
    alarm = Wakeup(clock)
    alarm.set()
    alarm.set()
    await alarm.wait(None)
    task = asyncio.create_task(woken_at(clock, alarm, 1001.0))
    await clock.advance(3)
    assert await task == 1001.0


async def test_time_that_has_passed_does_not_starve_others() -> None:
    clock = SteppedClock()
    alarm = Wakeup(clock)
    ran: list[int] = []
    asyncio.get_running_loop().call_soon(ran.append, 1)
    await alarm.wait(999.0)
    assert ran


async def test_cancelled_wait_leaves_nothing_behind() -> None:
    clock = SteppedClock()
    task = asyncio.create_task(Wakeup(clock).wait(1002.0))
    await settle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await settle()
    assert task.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_system_clock_tells_both_times_and_sleeps() -> None:
    clock: Clock = SystemClock()
    assert abs(clock.time_ms() - time.time() * 1000) < 5000
    before = clock.monotonic()
    await clock.sleep(0.01)
    assert clock.monotonic() - before >= 0.009


def test_system_randomness_does_not_repeat_and_keeps_its_bounds() -> None:
    randomness: Randomness = SystemRandomness()
    tokens = {randomness.token(16) for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) == 16 for token in tokens)
    assert all(2.0 <= randomness.uniform(2.0, 3.0) <= 3.0 for _ in range(100))


async def test_monotonic_time_counts_the_time_for_which_the_machine_slept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By CLOCK_MONOTONIC a lease would outlive any sleep of its holder."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= SystemClock().monotonic() <= time.clock_gettime(time.CLOCK_BOOTTIME)

    def clock_gettime(clock_id: int) -> float:
        return {time.CLOCK_BOOTTIME: 7_000.0, time.CLOCK_MONOTONIC: 100.0}[clock_id]

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    assert _choose_elapsed_s()() == 7_000.0


def test_monotonic_time_is_that_of_python_where_there_is_no_boottime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(clock_id: int) -> float:
        raise OSError("invalid clock")

    with monkeypatch.context() as patch:
        patch.setattr(time, "clock_gettime", refused)
        assert _choose_elapsed_s() is time.monotonic
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    assert _choose_elapsed_s() is time.monotonic
