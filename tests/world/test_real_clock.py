from __future__ import annotations

import time

from raftlog.world import Clock, Randomness
from raftlog.world.real_clock import SystemClock
from raftlog.world.real_randomness import SystemRandomness


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
