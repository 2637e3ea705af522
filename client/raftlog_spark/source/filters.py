"""Limits of offsets, derived from a query's filters.

Filters only skip ranges, and Spark still applies every filter to each row. So an unknown filter
costs time and never rows.

Timestamps limit a range only from below. The first record that is late enough is known, but later
records may have earlier timestamps again, since producers set them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from raftlog_spark.source.offsets import Partition
from raftlog_spark.source.planning import Range
from raftlog_spark.source.start_points import OFFSET_MAX

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


@dataclass(frozen=True, slots=True)
class Interval:
    """Whole numbers from `low` to `high`, both included. Empty if low > high."""

    low: int = 0
    high: int = OFFSET_MAX

    def within(self, low: int, high: int) -> Interval:
        """The intersection of two intervals."""
        return Interval(max(self.low, low), min(self.high, high))


@dataclass(frozen=True, slots=True)
class RangeLimits:
    """The limits by all filters together. `topics` and `partitions` None allow any. `prefix` is
    that of a topic's name. `not_before_ms` is the earliest timestamp."""

    topics: frozenset[str] | None = None
    prefix: str = ""
    partitions: frozenset[int] | None = None
    partition: Interval = Interval()
    offset: Interval = Interval()
    not_before_ms: int | None = None

    def keeps(self, part: Partition) -> bool:
        """Whether the filters may match records of that partition."""
        topic, number = part
        return (
            (self.topics is None or topic in self.topics)
            and topic.startswith(self.prefix)
            and (self.partitions is None or number in self.partitions)
            and self.partition.low <= number <= self.partition.high
        )


def limits_of(filters: Iterable[Filter]) -> RangeLimits:
    """The limits by all filters, which are combined by AND."""
    found = RangeLimits()
    for each in filters:
        found = _limited(found, each)
    return found


def apply_limits(
    found: RangeLimits, ranges: Sequence[Range], times: Mapping[Partition, int | None]
) -> list[Range]:
    """The parts of the ranges that may match.

    `times` has per partition the offset of the first record not before `not_before_ms`, None
    without
    such a record. Partitions without an entry have no limit by time.
    """
    kept: list[Range] = []
    for item in ranges:
        part = (item.topic, item.partition)
        if not found.keeps(part):
            continue
        start = max(item.start, found.offset.low)
        if found.not_before_ms is not None and part in times:
            first = times[part]
            start = item.end if first is None else max(start, first)
        end = min(item.end, found.offset.high + 1)
        if start < end:
            kept.append(item._replace(start=start, end=end))
    return kept


def _limited(found: RangeLimits, each: Filter) -> RangeLimits:
    kind = type(each).__name__
    attribute = getattr(each, "attribute", None)
    value = getattr(each, "value", None)
    if attribute == ("topic",):
        return _by_topic(found, kind, value)
    if attribute == ("timestamp",):
        return _by_time(found, kind, value)
    if attribute in {("partition",), ("offset",)}:
        return _by_number(found, kind, value, is_offset=attribute == ("offset",))
    return found


def _by_number(found: RangeLimits, kind: str, value: object, *, is_offset: bool) -> RangeLimits:
    numbers = _numbers(kind, value)
    if numbers is None:
        return found
    low, high = _limits(kind, numbers)
    if is_offset:
        return replace(found, offset=found.offset.within(low, high))
    if kind == "In":
        chosen = frozenset(numbers)
        both = chosen if found.partitions is None else chosen & found.partitions
        return replace(found, partitions=both)
    return replace(found, partition=found.partition.within(low, high))


def _by_topic(found: RangeLimits, kind: str, value: object) -> RangeLimits:
    if kind == "StringStartsWith" and isinstance(value, str) and value.startswith(found.prefix):
        return replace(found, prefix=value)
    values: Iterable[object] = [value] if kind in {"EqualTo", "EqualNullSafe"} else []
    if kind == "In" and isinstance(value, tuple | list):
        values = value
    chosen = frozenset(item for item in values if isinstance(item, str))
    if kind not in {"EqualTo", "EqualNullSafe", "In"} or len(chosen) == 0:
        return found
    return replace(found, topics=chosen if found.topics is None else chosen & found.topics)


def _by_time(found: RangeLimits, kind: str, value: object) -> RangeLimits:
    from_below = {"EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"}
    # A time without a zone depends on the session, which is unknown here.
    if kind not in from_below or not isinstance(value, datetime) or value.tzinfo is None:
        return found
    # Records have whole milliseconds, so rounding down never skips a matching record.
    time_ms = max(0, (value - _EPOCH) // timedelta(milliseconds=1))
    return replace(found, not_before_ms=max(time_ms, found.not_before_ms or 0))


def _numbers(kind: str, value: object) -> list[int] | None:
    """The whole numbers of a filter. None if it has others. SQL's null equals nothing."""
    values = [value]
    if kind == "In" and isinstance(value, tuple | list):
        values = [item for item in value if item is not None]
    numbers = [item for item in values if isinstance(item, int) and not isinstance(item, bool)]
    return numbers if numbers and len(numbers) == len(values) else None


def _limits(kind: str, numbers: Sequence[int]) -> tuple[int, int]:
    first = numbers[0]
    return {
        "EqualTo": (first, first),
        "EqualNullSafe": (first, first),
        "In": (min(numbers), max(numbers)),
        "GreaterThan": (first + 1, OFFSET_MAX),
        "GreaterThanOrEqual": (first, OFFSET_MAX),
        "LessThan": (0, first - 1),
        "LessThanOrEqual": (0, first),
    }.get(kind, (0, OFFSET_MAX))
