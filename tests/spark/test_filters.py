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
from raftlog_spark.source.filters import RangeLimits, apply_limits, limits_of
from raftlog_spark.source.planning import Range

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
