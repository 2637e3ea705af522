"""When a pass is worthwhile, its range, and the retention of tombstones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.record.types import Offset
from raftlog.storage.compaction.plan import (
    GROUP_OFFSETS_MAX,
    HISTORY_PASSES_MAX,
    CleanTo,
    CompactionHistory,
    CompactionPlan,
    group_segments,
    plan_compaction,
)
from raftlog.storage.compaction.retention import SegmentInfo
from raftlog.storage.leader_epochs import LeaderEpochs
from tests.examples import examples

HOUR = 3_600_000
DAY = 24 * HOUR
NOW = 1_700_000_000_000


def segments(*sizes: int, newest: int = NOW - DAY) -> list[SegmentInfo]:
    """Segments of ten offsets each; the last one is active."""
    return [
        SegmentInfo(Offset(10 * n), Offset(10 * n + 10), size, newest, newest)
        for n, size in enumerate(sizes)
    ]


def clean_to(
    offset: int, *, awaits_deletion: bool = False, deleted_before: int = 0
) -> CompactionHistory:
    passes = (CleanTo(Offset(offset), NOW - DAY),)
    return CompactionHistory(passes, Offset(deleted_before), awaits_deletion)


def plan(
    log: list[SegmentInfo],
    history: CompactionHistory | None = None,
    *,
    now: int = NOW,
    high_watermark: int = 2**40,
    lag_ms: int = 0,
    ratio: float = 0.5,
    delete_retention_ms: int = DAY,
) -> CompactionPlan | None:
    history = history or CompactionHistory()
    return plan_compaction(
        log,
        history,
        now_ms=now,
        latest_ms=now,
        high_watermark=Offset(high_watermark),
        segment_ms=7 * DAY,
        min_compaction_lag_ms=lag_ms,
        min_cleanable_dirty_ratio=ratio,
        deletable_before=history.deletable_before(now, delete_retention_ms),
    )


def test_the_first_pass_takes_all_but_the_active_segment() -> None:
    assert plan(segments(100, 100, 100)) == CompactionPlan(Offset(0), Offset(20), 0, 200)


def test_a_log_of_one_segment_is_not_compacted() -> None:
    assert plan(segments(100)) is None
    assert plan([]) is None


def test_nothing_at_or_above_the_high_watermark_is_compacted() -> None:
    chosen = plan(segments(100, 100, 100), high_watermark=19)
    assert chosen is not None
    assert chosen.end_offset == 10


def test_young_records_and_all_behind_them_wait() -> None:
    log = segments(100, 100, 100, 100)
    log[1] = SegmentInfo(Offset(10), Offset(20), 100, NOW - HOUR, NOW - DAY)
    chosen = plan(log, lag_ms=2 * HOUR)
    assert chosen is not None
    assert chosen.end_offset == 10
    assert plan(log, lag_ms=2 * DAY) is None


def test_a_timestamp_in_the_future_does_not_stop_compaction_forever() -> None:
    log = segments(100, 100, newest=NOW + 36500 * DAY)
    log = [replace(info, created_ms=NOW - 9 * DAY) for info in log]
    assert plan(log, lag_ms=DAY) is not None


def test_a_small_dirty_part_waits_until_it_is_worth_a_pass() -> None:
    assert plan(segments(100, 100, 99, 1), clean_to(20)) is None
    assert plan(segments(100, 100, 200, 1), clean_to(20)) == CompactionPlan(
        Offset(20), Offset(30), 200, 200
    )
    assert plan(segments(100, 100, 99, 1), clean_to(20), ratio=0.0) is not None


def test_a_clean_log_is_left_alone() -> None:
    assert plan(segments(100, 100, 1), clean_to(20), ratio=0.0) is None


def test_a_pass_is_due_when_tombstones_are_even_if_nothing_is_dirty() -> None:
    history = clean_to(20, awaits_deletion=True)
    assert plan(segments(100, 100, 1), history, now=NOW - 1) is None
    chosen = plan(segments(100, 100, 1), history)
    assert chosen == CompactionPlan(Offset(20), Offset(20), 200, 0)
    done = clean_to(20, awaits_deletion=True, deleted_before=20)
    assert plan(segments(100, 100, 1), done) is None


def test_what_retention_dropped_is_not_dirty() -> None:
    chosen = plan(segments(100, 100, 100)[1:], CompactionHistory())
    assert chosen is not None
    assert chosen.first_dirty_offset == 10


def test_segments_are_grouped_up_to_the_segment_size() -> None:
    log = segments(60, 30, 20, 100, 10, 10)
    groups = group_segments(log, end_offset=Offset(50), segment_bytes=100)
    assert [[s.base_offset for s in group] for group in groups] == [[0, 10], [20], [30], [40]]


def test_a_group_spans_no_more_offsets_than_an_index_can_hold() -> None:
    far = GROUP_OFFSETS_MAX
    log = [
        SegmentInfo(Offset(0), Offset(10), 1, NOW, NOW),
        SegmentInfo(Offset(10), Offset(far), 1, NOW, NOW),
        SegmentInfo(Offset(far), Offset(far + 1), 1, NOW, NOW),
    ]
    groups = group_segments(log, end_offset=Offset(far + 1), segment_bytes=100)
    assert [len(group) for group in groups] == [2, 1]


def after(history: CompactionHistory, end: int, now: int, retention: int) -> CompactionHistory:
    return history.after(
        Offset(end),
        now_ms=now,
        delete_retention_ms=retention,
        deleted_before=history.deletable_before(now, retention),
        awaits_deletion=True,
    )


def test_tombstones_may_go_once_they_have_been_clean_for_the_retention_time() -> None:
    history = after(CompactionHistory(), 10, NOW, DAY)
    history = after(history, 20, NOW + HOUR, DAY)
    assert history.first_dirty_offset == 20
    assert history.deletable_before(NOW + DAY - 1, DAY) == 0
    assert history.deletable_before(NOW + DAY, DAY) == 10
    assert history.deletable_before(NOW + DAY + HOUR, DAY) == 20


def test_a_clock_that_goes_back_only_delays() -> None:
    history = after(CompactionHistory(), 10, NOW, DAY)
    history = after(history, 20, NOW - HOUR, DAY)
    assert history.deletable_before(NOW + DAY - HOUR, DAY) == 0
    assert history.deletable_before(NOW + DAY, DAY) == 20


def test_without_retention_time_tombstones_go_in_the_pass_after() -> None:
    history = after(CompactionHistory(), 10, NOW, 0)
    assert history.deletable_before(NOW, 0) == 10


def test_truncation_makes_what_it_cut_dirty_again() -> None:
    history = after(after(CompactionHistory(), 10, NOW, DAY), 20, NOW + HOUR, DAY)
    history = history.truncate_to(Offset(15), LeaderEpochs())
    assert history.first_dirty_offset == 15
    assert history.deletable_before(NOW + DAY, DAY) == 10


def test_many_passes_share_entries() -> None:
    history = CompactionHistory()
    for minute in range(3000):
        history = after(history, minute, NOW + 60_000 * minute, DAY)
    assert len(history.passes) <= 70
    assert history.deletable_before(NOW + 3000 * 60_000, DAY) >= 3000 - 24 * 60 - 50


@given(
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 3 * HOUR)), max_size=200),
    st.sampled_from([0, 1, HOUR, DAY]),
)
@settings(max_examples=examples(100), deadline=None)
def test_the_history_is_short_never_too_early_and_hardly_late(
    passes: list[tuple[int, int]], retention: int
) -> None:
    history = CompactionHistory()
    full: list[tuple[int, int]] = []
    end, now = 0, NOW
    for step, pause in passes:
        end, now = end + step, now + pause
        full.append((end, now))
        history = after(history, end, now, retention)
        assert len(history.passes) <= 70 < HISTORY_PASSES_MAX
        assert history.first_dirty_offset == end

        def exact(at: int) -> int:
            return max((o for o, t in full if at - t >= retention), default=0)

        for at in (now, now + retention // 2, now + retention):
            assert history.deletable_before(at, retention) <= exact(at)
            grain = retention // 32
            assert history.deletable_before(at + grain, retention) >= exact(at)
