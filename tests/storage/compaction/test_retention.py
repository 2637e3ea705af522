"""Which segments are dropped, which never are, and the limits on clock jumps."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.record.types import Offset
from raftlog.storage.compaction.retention import (
    NO_TIMESTAMP,
    UNLIMITED,
    DropReason,
    RetentionPlan,
    SegmentInfo,
    newest_record_times,
    plan_retention,
)
from raftlog.world.cluster_clock import ClusterClock
from tests.examples import examples
from tests.simulation.clock import ManualClock

HOUR = 3_600_000
DAY = 24 * HOUR
NOW = 1_700_000_000_000


def segment(
    base: int, end: int, *, size: int = 100, newest: int = NOW, created: int = NOW
) -> SegmentInfo:
    return SegmentInfo(Offset(base), Offset(end), size, newest, created)


def plan(
    segments: list[SegmentInfo],
    *,
    now: int = NOW,
    latest: int = 0,
    retention_ms: int = UNLIMITED,
    retention_bytes: int = UNLIMITED,
    log_start: int = 0,
    high_watermark: int = 2**40,
    deletes: bool = True,
) -> RetentionPlan:
    return plan_retention(
        segments,
        now_ms=now,
        latest_ms=latest,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        segment_ms=7 * DAY,
        log_start_offset=Offset(log_start),
        high_watermark=Offset(high_watermark),
        deletes=deletes,
    )


def dropped(chosen: RetentionPlan) -> list[tuple[int, DropReason]]:
    return [(drop.base_offset, drop.reason) for drop in chosen.drops]


def daily(count: int) -> list[SegmentInfo]:
    """Segments of ten records, one a day, each created when the one before ended."""
    return [
        segment(
            10 * day,
            10 * day + 10,
            newest=NOW - (count - 1 - day) * DAY,
            created=NOW - (count - day) * DAY,
        )
        for day in range(count)
    ]


def test_segments_whose_newest_record_is_too_old_go() -> None:
    chosen = plan(daily(5), retention_ms=2 * DAY)
    assert dropped(chosen) == [(0, DropReason.AGE), (10, DropReason.AGE)]
    assert chosen.log_start_offset == 20
    assert not chosen.roll_first


def test_nothing_goes_without_a_limit() -> None:
    chosen = plan(daily(5))
    assert chosen == RetentionPlan((), Offset(0), roll_first=False)


def test_the_oldest_segments_go_while_what_is_left_still_fills_the_size() -> None:
    chosen = plan(daily(5), retention_bytes=250)
    assert dropped(chosen) == [(0, DropReason.SIZE), (10, DropReason.SIZE)]


def test_a_log_at_its_size_limit_keeps_everything() -> None:
    assert not plan(daily(5), retention_bytes=500).drops


def test_segments_below_the_log_start_offset_go_whatever_the_policy() -> None:
    chosen = plan(daily(5), log_start=25, deletes=False, retention_ms=0, retention_bytes=0)
    assert dropped(chosen) == [(0, DropReason.LOG_START), (10, DropReason.LOG_START)]
    assert chosen.log_start_offset == 25


def test_what_delete_records_frees_counts_for_the_size_limit() -> None:
    chosen = plan(daily(5), log_start=20, retention_bytes=300)
    assert dropped(chosen) == [(0, DropReason.LOG_START), (10, DropReason.LOG_START)]


def test_nothing_above_the_high_watermark_goes() -> None:
    chosen = plan(daily(5), retention_ms=0, now=NOW + 9 * DAY, high_watermark=29)
    assert [offset for offset, _ in dropped(chosen)] == [0, 10]


def test_an_old_segment_behind_a_young_one_waits_for_it() -> None:
    segments = [segment(0, 10), segment(10, 20, newest=NOW - 9 * DAY), segment(20, 30)]
    assert not plan(segments, retention_ms=DAY).drops


def test_the_active_segment_goes_only_after_it_was_rolled() -> None:
    chosen = plan(daily(2), retention_ms=HOUR, now=NOW + DAY)
    assert [offset for offset, _ in dropped(chosen)] == [0, 10]
    assert chosen.roll_first
    assert chosen.log_start_offset == 20


def test_an_empty_active_segment_stays() -> None:
    segments = [*daily(2), segment(20, 20, size=0, newest=NO_TIMESTAMP, created=NOW - 9 * DAY)]
    chosen = plan(segments, retention_ms=HOUR, now=NOW + DAY)
    assert [offset for offset, _ in dropped(chosen)] == [0, 10]
    assert not chosen.roll_first


def test_records_without_timestamps_count_from_the_creation_of_their_segment() -> None:
    segments = [
        segment(0, 10, newest=NO_TIMESTAMP, created=NOW - 2 * DAY),
        segment(10, 20, newest=NO_TIMESTAMP, created=NOW),
    ]
    assert [offset for offset, _ in dropped(plan(segments, retention_ms=DAY))] == [0]


def test_old_timestamps_are_believed() -> None:
    segments = [segment(0, 10, newest=NOW - 3650 * DAY), segment(10, 20)]
    assert [offset for offset, _ in dropped(plan(segments, retention_ms=7 * DAY))] == [0]


def test_a_timestamp_in_the_future_does_not_make_a_segment_immortal() -> None:
    century = NOW + 36500 * DAY
    segments = [
        segment(0, 10, newest=century, created=NOW - 9 * DAY),
        segment(10, 20, newest=NOW - 8 * DAY + HOUR, created=NOW - 8 * DAY),
        segment(20, 30),
    ]
    assert [offset for offset, _ in dropped(plan(segments, retention_ms=7 * DAY))] == [0, 10]
    assert not plan(segments, retention_ms=9 * DAY).drops


def test_nor_does_it_the_active_one() -> None:
    """Its last append was within segment.ms (7 days here) of its creation."""
    segments = [segment(0, 10, newest=NOW + 36500 * DAY, created=NOW)]
    assert not plan(segments, retention_ms=DAY, now=NOW + 7 * DAY).drops
    assert plan(segments, retention_ms=DAY, now=NOW + 9 * DAY).roll_first


def test_segments_of_unknown_age_are_kept() -> None:
    ahead = NOW + 400 * DAY
    segments = [segment(0, 10, newest=ahead, created=ahead), segment(10, 20, created=ahead)]
    assert not plan(segments, retention_ms=0).drops


def test_a_clock_that_starts_in_1970_deletes_nothing() -> None:
    assert not plan(daily(5), retention_ms=DAY, now=1000).drops


def test_a_segment_begun_while_the_clock_stood_in_1970_does_not_age_its_neighbours() -> None:
    segments = [
        segment(0, 10, newest=NOW + HOUR, created=NOW - HOUR),
        segment(10, 20, newest=5000, created=1000),
        segment(20, 30),
    ]
    assert (
        newest_record_times(segments, now_ms=NOW, latest_ms=NOW, segment_ms=7 * DAY)[0]
        == NOW - HOUR
    )
    assert not plan(segments, retention_ms=DAY).drops


def test_an_hour_forward_and_back_deletes_nothing() -> None:
    """Fault row 20: the wall clock shows an hour too much for five minutes."""
    machine = ManualClock(NOW)
    clock = ClusterClock(machine)
    segments = [
        segment(0, 10, newest=NOW - 20 * 60_000, created=NOW - 30 * 60_000),
        segment(10, 20, newest=NOW, created=NOW - 20 * 60_000),
    ]
    for second in range(600):
        machine.seconds = 1000.0 + second
        machine.now_ms = NOW + 1000 * second + (HOUR if 60 <= second < 360 else 0)
        now = clock.expiry_ms()
        assert now is not None
        assert NOW + 1000 * second <= now <= NOW + 2000 * second
        assert not plan(segments, retention_ms=HOUR, now=now).drops
    assert now == NOW + 599_000


def test_a_clock_that_is_behind_takes_no_record_for_one_of_the_future() -> None:
    """The segment was created by a clock 18 days behind; by now the clock is two days behind."""
    segments = [segment(0, 10, newest=NOW - HOUR, created=NOW - 18 * DAY)]
    clock = ClusterClock(ManualClock(NOW - 2 * DAY))
    clock.note_cluster_time(NOW, NOW)
    now, latest = clock.expiry_ms(), clock.latest_ms()
    assert (now, latest) == (NOW - 2 * DAY, NOW)
    assert plan(segments, now=NOW - 2 * DAY, retention_ms=7 * DAY).drops
    assert not plan(segments, now=NOW - 2 * DAY, latest=latest, retention_ms=7 * DAY).drops


def test_nor_does_it_if_the_cluster_time_is_its_own() -> None:
    """Of two brokers heard, the lower median is the clock that is behind (`data 200166`)."""
    segments = [segment(0, 10, newest=NOW - HOUR, created=NOW - 18 * DAY)]
    wall = NOW - 2 * DAY
    clock = ClusterClock(ManualClock(wall))
    clock.note_cluster_time(wall, NOW)
    latest = clock.latest_ms()
    assert latest == NOW
    assert not plan(segments, now=wall, latest=latest, retention_ms=7 * DAY).drops


def test_a_steady_clock_behind_its_own_wall_clock_does_neither() -> None:
    """A machine that starts in 1970, and learns the time later."""
    machine = ManualClock(0)
    clock = ClusterClock(machine)
    segments = [segment(0, 10, newest=NOW - HOUR, created=0)]
    machine.advance(30 * 86_400)
    machine.now_ms = NOW
    now = clock.expiry_ms()
    assert now is not None
    assert now < NOW
    assert not plan(segments, now=now, latest=clock.latest_ms(), retention_ms=7 * DAY).drops


@st.composite
def logs(draw: st.DrawFn) -> list[SegmentInfo]:
    segments = []
    offset = draw(st.integers(0, 50))
    for _ in range(draw(st.integers(1, 6))):
        count = draw(st.integers(0, 10))
        around = st.integers(NOW - 10 * DAY, NOW + 2 * DAY)
        segments.append(
            segment(
                offset,
                offset + count,
                size=draw(st.integers(1, 1000)) if count else 0,
                newest=draw(st.just(NO_TIMESTAMP) | around) if count else NO_TIMESTAMP,
                created=draw(around),
            )
        )
        offset += count
    return segments


@given(
    segments=logs(),
    high_watermark=st.integers(0, 100),
    log_start=st.integers(0, 100),
    retention_ms=st.integers(-1, 8 * DAY),
    retention_bytes=st.integers(-1, 3000),
    deletes=st.booleans(),
)
@settings(max_examples=examples(300), deadline=None)
def test_whatever_the_facts_only_a_due_prefix_goes(
    *,
    segments: list[SegmentInfo],
    high_watermark: int,
    log_start: int,
    retention_ms: int,
    retention_bytes: int,
    deletes: bool,
) -> None:
    chosen = plan(
        segments,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        log_start=log_start,
        high_watermark=high_watermark,
        deletes=deletes,
    )
    count = len(chosen.drops)
    assert [drop.base_offset for drop in chosen.drops] == [s.base_offset for s in segments[:count]]
    assert all(s.next_offset <= high_watermark for s in segments[:count])
    assert chosen.log_start_offset >= log_start
    assert chosen.roll_first == (count == len(segments))
    times = newest_record_times(segments, now_ms=NOW, latest_ms=NOW, segment_ms=7 * DAY)
    left = sum(s.size_bytes for s in segments)
    for s, time, drop in zip(segments, times, chosen.drops, strict=False):
        assert time <= NOW
        left -= s.size_bytes
        if drop.reason is DropReason.LOG_START:
            assert s.next_offset <= log_start
        elif drop.reason is DropReason.AGE:
            assert deletes
            assert NOW - time > retention_ms >= 0
        else:
            assert deletes
            assert left >= retention_bytes >= 0
