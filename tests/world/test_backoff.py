"""Pauses double between their bounds, for any number of attempts."""

from __future__ import annotations

from raftlog.world import Backoff


def test_pauses_double_up_to_the_bound() -> None:
    backoff = Backoff(0.05, 1.0)
    assert [backoff.delay_s(n) for n in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_huge_count_of_attempts_is_the_bound() -> None:
    assert Backoff(0.001, 8.0).delay_s(10**9) == 8.0
