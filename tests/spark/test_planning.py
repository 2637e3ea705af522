"""Ranges, shares, tasks and losses of a plan, and its limits by filters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from raftlog_spark.cluster import Bounds, TopicInfo
from raftlog_spark.options import OptionsError, Subscription
from raftlog_spark.source.offsets import (
    EARLIEST,
    LATEST,
    EachOffset,
    EachTime,
    Partition,
    SameTime,
    StreamOffset,
)
from raftlog_spark.source.planning import (
    DataLossError,
    Range,
    RangeLimits,
    Snapshot,
    advance,
    apply_limits,
    apportion,
    begin,
    clamp,
    describe,
    limits_of,
    missing,
    moved_back,
    offsets_between,
    ranges_between,
    resolve,
    select_partitions,
    split,
    timestamps_to_query,
)

TOPICS = {"a": TopicInfo("ia", 2), "ab": TopicInfo("iab", 1), "b": TopicInfo("ib", 3)}
T0, T1 = ("t", 0), ("t", 1)


def snapshot(bounds: dict[Partition, tuple[int, int]], **topic_ids: str) -> Snapshot:
    ids = {topic: f"id-{topic}" for topic, _ in bounds} | topic_ids
    return Snapshot(ids, {part: Bounds(*pair) for part, pair in bounds.items()})


def read_to(ends: dict[Partition, int]) -> StreamOffset:
    return StreamOffset(ends, {}, {topic: f"id-{topic}" for topic, _ in ends})


# Topics and partitions


def test_topics_are_chosen_by_name_by_pattern_or_by_partition() -> None:
    def chosen(**subscription: object) -> dict[Partition, str]:
        return select_partitions(Subscription(**subscription), TOPICS)  # type: ignore[arg-type]

    assert chosen(topics=("ab", "a", "none")) == {("a", 0): "ia", ("a", 1): "ia", ("ab", 0): "iab"}
    assert chosen(pattern="a") == {("a", 0): "ia", ("a", 1): "ia"}
    assert chosen(assign={"b": (0, 2, 7)}) == {("b", 0): "ib", ("b", 2): "ib"}


def test_what_is_named_and_does_not_exist_is_told() -> None:
    assert missing(Subscription(topics=("a", "z")), TOPICS) == ["topic z"]
    assert missing(Subscription(assign={"a": (1, 2)}), TOPICS) == ["partition a/2"]
    assert missing(Subscription(pattern="z"), TOPICS) == []


BOUNDS = {T0: Bounds(5, 20), T1: Bounds(0, 9)}


def test_points_become_offsets() -> None:
    assert resolve(EARLIEST, BOUNDS, {}) == {T0: 5, T1: 0}
    assert resolve(LATEST, BOUNDS, {}) == {T0: 20, T1: 9}
    assert resolve(EachOffset({"t": {0: 7, 1: -1}}), BOUNDS, {}) == {T0: 7, T1: 9}
    assert resolve(EachOffset({"t": {0: -2, 1: 99}}), BOUNDS, {}) == {T0: 5, T1: 99}


def test_times_become_offsets_of_what_is_committed() -> None:
    same = SameTime(100, "error")
    assert timestamps_to_query(same, BOUNDS) == {T0: 100, T1: 100}
    assert timestamps_to_query(EachTime({"t": {0: 1, 1: 2}}, "error"), BOUNDS) == {T0: 1, T1: 2}
    assert timestamps_to_query(LATEST, BOUNDS) == {}
    assert resolve(same, BOUNDS, {T0: 7, T1: 12}) == {T0: 7, T1: 9}


def test_a_time_after_the_last_record_is_an_error_or_latest() -> None:
    with pytest.raises(OptionsError, match=r"t/1.*Strategy=latest"):
        resolve(SameTime(100, "error"), BOUNDS, {T0: 7, T1: None})
    assert resolve(SameTime(100, "latest"), BOUNDS, {T0: 7, T1: None}) == {T0: 7, T1: 9}


@pytest.mark.parametrize("table", [{"t": {0: 1}}, {"t": {0: 1, 1: 1, 2: 1}}])
def test_tables_name_exactly_the_partitions_that_are_read(table: dict[str, dict[int, int]]) -> None:
    with pytest.raises(OptionsError, match="all partitions"):
        resolve(EachOffset(table), BOUNDS, {})
    with pytest.raises(OptionsError, match="all partitions"):
        timestamps_to_query(EachTime(table, "error"), BOUNDS)


def test_offsets_outside_of_the_log_are_moved_in_and_told() -> None:
    clamped, losses = clamp({T0: 2, T1: 10}, BOUNDS)
    assert clamped == {T0: 5, T1: 9}
    assert losses == (
        "t/0 has nothing before 5, the query names 2",
        "t/1 ends at 9, the query names 10",
    )
    assert clamp({T0: 5, T1: 9}, BOUNDS) == ({T0: 5, T1: 9}, ())


# Streams


def test_the_first_batch_carries_all_its_starts_even_if_it_reads_nothing() -> None:
    now = snapshot({T0: (0, 10), T1: (3, 4)})
    first = begin(now, {T0: 10, T1: 4}, None)
    assert first == StreamOffset({T0: 10, T1: 4}, {T0: 10, T1: 4}, {"t": "id-t"})
    limited = begin(now, {T0: 0, T1: 3}, 5)
    assert sum(limited.ends.values()) - sum(limited.starts.values()) == 5


def test_without_news_the_offset_is_the_very_same() -> None:
    start = read_to({T0: 10})
    step = advance(start, snapshot({T0: (0, 10)}), None)
    assert step.offset is start
    assert step.losses == ()


def test_a_batch_goes_on_where_the_last_one_ended() -> None:
    start = StreamOffset({T0: 10, T1: 5}, {T0: 2}, {"t": "id-t"})
    step = advance(start, snapshot({T0: (4, 12), T1: (5, 5)}), None)
    assert step.offset == StreamOffset({T0: 12, T1: 5}, {}, {"t": "id-t"})
    assert ranges_between(start, step.offset) == [Range("t", "id-t", 0, 10, 12)]


def test_a_new_partition_is_read_from_its_first_record() -> None:
    start = read_to({T0: 10})
    step = advance(start, snapshot({T0: (0, 10), T1: (0, 3)}), None)
    assert step == (StreamOffset({T0: 10, T1: 3}, {T1: 0}, {"t": "id-t"}), ())
    assert ranges_between(start, step.offset) == [Range("t", "id-t", 1, 0, 3)]


def test_a_new_partition_that_lost_records_already_is_a_loss() -> None:
    step = advance(read_to({T0: 10}), snapshot({T0: (0, 10), T1: (2, 3)}), None)
    assert step.losses == ("t/1 is new and begins at 2, not 0",)


def test_retention_that_overtook_the_stream_is_a_loss() -> None:
    start = read_to({T0: 10})
    step = advance(start, snapshot({T0: (15, 20)}), None)
    assert step.losses == ("t/0 begins at 15 by now; offsets from 10 on were not read",)
    assert ranges_between(start, step.offset) == [Range("t", "id-t", 0, 15, 20)]


def test_retention_up_to_where_the_stream_is_loses_nothing() -> None:
    assert advance(read_to({T0: 10}), snapshot({T0: (10, 20)}), None).losses == ()


def test_a_topic_recreated_is_a_loss_and_read_from_its_first_record() -> None:
    start = read_to({T0: 10})
    step = advance(start, snapshot({T0: (0, 30)}, t="other"), None)
    assert "deleted and created again" in step.losses[0]
    assert ranges_between(start, step.offset) == [Range("t", "other", 0, 0, 30)]
    assert advance(step.offset, snapshot({T0: (0, 30)}, t="other"), None).losses == ()


def test_a_deleted_topic_is_a_loss_once() -> None:
    start = read_to({T0: 10, ("u", 0): 4})
    step = advance(start, snapshot({("u", 0): (0, 4)}), None)
    assert step.losses == ("t/0: the topic is deleted or no longer subscribed; read up to 10",)
    assert step.offset == read_to({("u", 0): 4})
    assert advance(step.offset, snapshot({("u", 0): (0, 4)}), None).offset is step.offset


def test_an_end_that_moved_back_is_a_loss() -> None:
    start, now = read_to({T0: 10}), snapshot({T0: (0, 8)})
    assert moved_back(start, now) == [T0]
    step = advance(start, now, None)
    assert step.losses == ("t/0 ends at 8, though 10 was reached",)
    assert ranges_between(start, step.offset) == []
    assert moved_back(start, snapshot({T0: (0, 8)}, t="other")) == []
    assert moved_back(start, snapshot({T0: (0, 10)})) == []


def test_a_checkpoint_that_does_not_fit_together_is_refused() -> None:
    with pytest.raises(DataLossError, match="does not fit"):
        ranges_between(StreamOffset(), read_to({T0: 3}))
    with pytest.raises(DataLossError, match="does not fit"):
        ranges_between(read_to({T0: 4}), read_to({T0: 3}))


def test_many_losses_are_told_in_one_line() -> None:
    assert describe(["x"] * 7) == "x; x; x; x; x; and 2 more"


parts = st.tuples(st.sampled_from("tu"), st.integers(0, 3))
bounds = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted).map(tuple)


@given(
    st.dictionaries(parts, st.integers(0, 50)),
    st.dictionaries(parts, bounds),
    st.none() | st.integers(1, 60),
    st.dictionaries(st.sampled_from("tu"), st.just("other")),
)
def test_a_batch_stays_in_the_log_within_the_limit_and_can_be_planned_from_its_offsets(
    ends: dict[Partition, int],
    now: dict[Partition, tuple[int, int]],
    limit: int | None,
    new_ids: dict[str, str],
) -> None:
    start = read_to(ends)
    seen = snapshot(
        now, **{topic: i for topic, i in new_ids.items() if topic in {t for t, _ in now}}
    )
    step = advance(start, seen, limit)
    ranges = ranges_between(start, step.offset)
    for item in ranges:
        at = seen.bounds[item.topic, item.partition]
        assert at.start <= item.start < item.end <= at.end
    size = sum(item.end - item.start for item in ranges)
    assert size == offsets_between(start, step.offset)
    available = offsets_between(start, advance(start, seen, None).offset)
    assert size == (available if limit is None else min(limit, available))
    again = advance(step.offset, seen, limit)
    assert again.losses == ()
    if size == available:
        assert again.offset is step.offset


# Rates and tasks


@given(
    st.dictionaries(parts, st.integers(0, 1000), min_size=1),
    st.integers(1, 3000),
    st.integers(0, 100),
)
def test_a_limit_is_used_whole_and_never_exceeded(
    backlog: dict[Partition, int], limit: int, turn: int
) -> None:
    granted = apportion(backlog, limit, turn=turn)
    assert granted.keys() == backlog.keys()
    assert all(0 <= granted[part] <= backlog[part] for part in backlog)
    assert sum(granted.values()) == min(limit, sum(backlog.values()))


def test_a_small_backlog_is_served_beside_large_ones() -> None:
    backlog = {("t", n): 10**9 for n in range(5)} | {("t", 5): 1}
    served = [apportion(backlog, 2, turn=turn)["t", 5] for turn in range(6)]
    assert 1 in served


ranges = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 200)).map(
        lambda pair: Range("t", "id", 0, pair[0], pair[0] + pair[1])
    ),
    max_size=6,
)


@given(ranges, st.none() | st.integers(1, 40), st.none() | st.integers(1, 50))
def test_pieces_cover_the_ranges_exactly_and_heed_the_limits(
    whole: list[Range], min_partitions: int | None, max_records: int | None
) -> None:
    pieces = split(whole, min_partitions=min_partitions, max_records=max_records)
    assert all(piece.start < piece.end for piece in pieces)
    assert [offset for piece in pieces for offset in range(piece.start, piece.end)] == [
        offset for item in whole for offset in range(item.start, item.end)
    ]
    if max_records is not None:
        assert all(piece.end - piece.start <= max_records for piece in pieces)
    if min_partitions is None and max_records is None:
        assert len(pieces) == sum(1 for item in whole if item.start < item.end)


def test_large_ranges_are_cut_into_as_many_pieces_as_are_asked_for() -> None:
    whole = [Range("t", "id", 0, 0, 1000), Range("t", "id", 1, 0, 10)]
    pieces = split(whole, min_partitions=5, max_records=None)
    assert [piece.end - piece.start for piece in pieces] == [250, 250, 250, 250, 10]
    assert split(whole, min_partitions=2, max_records=None) == whole


def test_a_plan_of_too_many_tasks_is_refused() -> None:
    with pytest.raises(OptionsError, match="raise maxRecordsPerPartition"):
        split([Range("t", "id", 0, 0, 10**9)], min_partitions=None, max_records=1)
    with pytest.raises(OptionsError, match="tasks"):
        split([Range("t", "id", 0, 0, 10**9)], min_partitions=10**8, max_records=None)


WHOLE = [
    Range("a", "ia", 0, 0, 10),
    Range("a", "ia", 1, 5, 15),
    Range("ab", "iab", 0, 0, 10),
]
TOPIC, PARTITION, OFFSET, TIME = ("topic",), ("partition",), ("offset",), ("timestamp",)
SECOND = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def left(*filters: Filter) -> list[tuple[str, int, int, int]]:
    kept = apply_limits(limits_of(filters), WHOLE, {})
    return [(item.topic, item.partition, item.start, item.end) for item in kept]


ALL = left()


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(TOPIC, "ab")], [("ab", 0, 0, 10)]),
        ([In(TOPIC, ("ab", None, "x"))], [("ab", 0, 0, 10)]),
        ([EqualTo(TOPIC, "ab"), EqualTo(TOPIC, "a")], []),
        ([StringStartsWith(TOPIC, "ab")], [("ab", 0, 0, 10)]),
        ([EqualTo(PARTITION, 1)], [("a", 1, 5, 15)]),
        ([In(PARTITION, (1, 7)), In(PARTITION, (7, None))], []),
        ([GreaterThan(PARTITION, 0)], [("a", 1, 5, 15)]),
        ([LessThan(PARTITION, 1)], [("a", 0, 0, 10), ("ab", 0, 0, 10)]),
        ([EqualNullSafe(OFFSET, 12)], [("a", 1, 12, 13)]),
        ([In(OFFSET, (11, 13))], [("a", 1, 11, 14)]),
        ([GreaterThanOrEqual(OFFSET, 9), LessThanOrEqual(OFFSET, 9), EqualTo(PARTITION, 0)],
         [("a", 0, 9, 10), ("ab", 0, 9, 10)]),
        ([LessThan(OFFSET, 0)], []),
    ],
)  # fmt: skip
def test_filters_leave_out_what_cannot_match(
    filters: list[Filter], expected: list[tuple[str, int, int, int]]
) -> None:
    assert left(*filters) == expected


@pytest.mark.parametrize(
    "each",
    [
        Not(EqualTo(PARTITION, 1)),
        IsNotNull(PARTITION),
        EqualNullSafe(PARTITION, None),
        EqualTo(PARTITION, True),
        In(PARTITION, (None,)),
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "key"), "x"),
        EqualTo(TOPIC, None),
        LessThan(TOPIC, "a"),
        LessThan(TIME, SECOND),
        GreaterThan(TIME, SECOND.replace(tzinfo=None)),
    ],
)
def test_what_is_not_understood_leaves_nothing_out(each: Filter) -> None:
    assert left(each) == ALL
    assert limits_of([each]) == RangeLimits()


def test_timestamps_narrow_from_below_by_whole_milliseconds() -> None:
    later = (SECOND + timedelta(microseconds=1999)).astimezone(timezone(timedelta(hours=5)))
    found = limits_of([GreaterThan(TIME, SECOND), GreaterThanOrEqual(TIME, later)])
    assert found.not_before_ms == 1001
    kept = apply_limits(found, WHOLE, {("a", 0): 4, ("a", 1): None})
    assert kept == [WHOLE[0]._replace(start=4), WHOLE[2]]
    before = datetime(1960, 1, 1, tzinfo=UTC)
    assert limits_of([EqualTo(TIME, before)]).not_before_ms == 0


numbers = st.integers(-2, 16)
one = st.sampled_from(
    [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
)
filters = st.builds(
    lambda kind, column, number: kind(column, number),
    one,
    st.sampled_from([PARTITION, OFFSET]),
    numbers,
) | st.builds(
    lambda column, chosen: In(column, tuple(chosen)),
    st.sampled_from([PARTITION, OFFSET]),
    st.lists(st.none() | numbers, min_size=1),
)


def holds(each: Filter, row: dict[tuple[str, ...], int]) -> bool:
    value = row[each.attribute]  # type: ignore[attr-defined]
    match each:
        case EqualTo(_, number) | EqualNullSafe(_, number):
            return bool(value == number)
        case GreaterThan(_, number):
            return bool(value > number)
        case GreaterThanOrEqual(_, number):
            return bool(value >= number)
        case LessThan(_, number):
            return bool(value < number)
        case LessThanOrEqual(_, number):
            return bool(value <= number)
        case In(_, chosen):
            return value in chosen
    raise AssertionError(each)


@given(st.lists(filters, max_size=4))
def test_no_row_that_matches_is_left_out(chosen: list[Filter]) -> None:
    kept = {
        (item.topic, item.partition, offset)
        for item in apply_limits(limits_of(chosen), WHOLE, {})
        for offset in range(item.start, item.end)
    }
    matching = {
        (item.topic, item.partition, offset)
        for item in WHOLE
        for offset in range(item.start, item.end)
        if all(holds(each, {PARTITION: item.partition, OFFSET: offset}) for each in chosen)
    }
    assert matching <= kept
