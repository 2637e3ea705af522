"""The throttle of replicas in addition."""

from __future__ import annotations

import pytest

from raftlog.replication.streams.settings import BURST_S, WAIT_S_MAX, WAIT_S_MIN, Throttle
from tests.replication.one_node import JumpingClock

RATE = 1000


class Bucket:
    def __init__(self) -> None:
        self.clock = JumpingClock()
        self.rate = RATE
        self.throttle = Throttle(self.clock, lambda: self.rate)

    def send(self, size_bytes: int, times: int = 1) -> int:
        """Number of chunks of that size that pass at once."""
        for sent in range(times):
            if self.throttle.wait_s() > 0:
                return sent
            self.throttle.took(size_bytes)
        return times


def test_what_was_not_used_is_kept_for_a_moment_only() -> None:
    bucket = Bucket()
    bucket.clock.now += 3600
    chunk = 10
    burst = int(RATE * BURST_S)
    # The last one overdraws.
    assert bucket.send(chunk, 100_000) == burst // chunk + 1


def test_a_long_chunk_is_paid_for_before_the_next_one() -> None:
    bucket = Bucket()
    assert bucket.send(RATE * 3) == 1
    sent_s = bucket.clock.now
    while (wait_s := bucket.throttle.wait_s()) > 0:
        assert WAIT_S_MIN <= wait_s <= WAIT_S_MAX
        bucket.clock.now += wait_s
    assert bucket.clock.now - sent_s == pytest.approx(3.0, abs=0.01)


def test_a_rate_that_is_raised_or_taken_away_holds_at_once() -> None:
    bucket = Bucket()
    bucket.send(RATE * 100)
    assert bucket.throttle.wait_s() == WAIT_S_MAX
    bucket.rate = RATE * 1000
    bucket.clock.now += 1
    assert bucket.throttle.wait_s() == 0
    bucket.send(RATE * 10_000)
    bucket.rate = 0
    assert bucket.send(RATE * 1000, 50) == 50
