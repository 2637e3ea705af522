"""The time of decisions by age is behind the cluster, steady, and None while unknown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.world.cluster_clock import ClusterClock, SteadyClock
from tests.examples import examples
from tests.simulation.clock import ManualClock

HOUR = 3_600_000
DAY = 24 * HOUR
NOW = 1_700_000_000_000


def following(wall_ms: int = NOW) -> tuple[ManualClock, ClusterClock]:
    machine = ManualClock(wall_ms)
    clock = ClusterClock(machine)
    clock.follow_cluster_time()
    return machine, clock


def test_the_time_of_decisions_is_never_ahead_of_the_cluster_time() -> None:
    machine, clock = following(NOW + 2 * DAY)
    machine.advance(0.01)
    assert not clock.knows_cluster_time
    assert clock.expiry_ms() is None
    clock.note_cluster_time(NOW + 10, NOW + 10)
    assert clock.skew_ms == 2 * DAY
    assert clock.knows_cluster_time
    machine.advance(0.05)
    assert clock.expiry_ms() == NOW + 60
    # Cut off from the controller, the monotonic clock continues the cluster time.
    machine.now_ms += DAY
    machine.advance(60)
    assert clock.expiry_ms() == NOW + 60_060
    # Set right, and then behind.
    machine.now_ms = NOW - DAY
    assert clock.expiry_ms() == NOW - DAY


def test_what_is_stored_gets_the_upper_median_whatever_this_nodes_clock_shows() -> None:
    machine, clock = following(NOW - 30 * DAY)
    assert clock.time_ms() is None
    assert clock.estimate_ms() == NOW - 30 * DAY
    clock.note_cluster_time(NOW - 30 * DAY, NOW)
    assert clock.time_ms() == clock.estimate_ms() == NOW
    machine.now_ms += 60 * DAY
    machine.seconds += 1.0
    assert clock.time_ms() == clock.estimate_ms() == NOW + 1000


def test_the_clock_of_an_only_node_is_taken_as_it_is() -> None:
    machine = ManualClock(NOW)
    clock = ClusterClock(machine)
    machine.advance(0.005)
    assert clock.expiry_ms() == clock.time_ms() == NOW + 5


def test_an_only_nodes_time_does_not_jump_forward() -> None:
    """It hears its own clock as the cluster time."""
    machine, clock = following()
    clock.note_cluster_time(NOW, NOW)
    machine.now_ms += 30 * DAY
    for _ in range(60):
        machine.advance(1.0)
        clock.note_cluster_time(machine.now_ms, machine.now_ms)
        expiry_ms = clock.expiry_ms()
    assert expiry_ms == NOW + 2 * 60_000


def test_a_jump_forward_that_lasts_is_believed_in_the_end() -> None:
    clock = SteadyClock(NOW, 0)
    for minute in range(61):
        now = clock.now_ms(NOW + HOUR + 60_000 * minute, 60_000 * minute)
    assert now == NOW + HOUR + 60 * 60_000


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.25, 1.0, 60.0]),
            st.sampled_from([0, -30 * DAY, 30 * DAY]),
            st.none() | st.tuples(st.sampled_from([0, 30 * DAY]), st.sampled_from([0, 30 * DAY])),
        ),
        max_size=20,
    )
)
@settings(max_examples=examples(200), deadline=None)
def test_expiry_is_behind_the_medians_and_within_twice_the_monotonic_time(
    steps: list[tuple[float, int, tuple[int, int] | None]],
) -> None:
    machine, clock = following()
    lower_ms: int | None = None
    expired_ms: int | None = None
    for seconds, jump_ms, medians in steps:
        machine.advance(seconds)
        machine.now_ms += jump_ms
        if lower_ms is not None:
            lower_ms += int(seconds * 1000)
        if medians is not None:
            elapsed_ms = int((machine.seconds - 1000.0) * 1000)
            lower_ms = NOW + elapsed_ms + medians[0]
            clock.note_cluster_time(lower_ms, lower_ms + medians[1])
        now_ms, time_ms = clock.expiry_ms(), clock.time_ms()
        assert (now_ms is None) == (lower_ms is None) == (time_ms is None)
        if now_ms is None or lower_ms is None or time_ms is None:
            continue
        assert now_ms <= min(lower_ms, machine.now_ms, time_ms)
        elapsed_ms = int((machine.seconds - 1000.0) * 1000)
        assert now_ms <= NOW + 2 * elapsed_ms
        expired_ms = now_ms
    assert expired_ms is None or lower_ms is not None


def test_a_wrong_clock_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    machine, clock = following()
    for ahead_ms in (0, DAY, DAY, 0, DAY):
        machine.now_ms = NOW + ahead_ms
        clock.note_cluster_time(NOW, NOW)
    assert [record.levelname for record in caplog.records if record.levelname == "ERROR"] == [
        "ERROR",
        "ERROR",
    ]


def test_an_unknown_time_is_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    machine, clock = following()
    for _ in range(150):
        machine.advance(1.0)
        assert clock.expiry_ms() is None
    assert len(caplog.records) == 2
