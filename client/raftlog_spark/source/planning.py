"""Plans reads purely from options, bounds, offsets and filters. No network, no Spark, no clock.

A partition here is a pair of topic and number. A range has an inclusive start and an exclusive end.
Limits count offsets, not records. Aborted records and control records also take offsets, so a range
may hold fewer records than its length, and never more.

A query's filters only skip ranges, and Spark still applies every filter to each row. So an unknown
filter costs time and never rows. Timestamps limit a range only from below. The first record that is
late enough is known, but later records may have earlier timestamps again, since producers set them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, assert_never

from raftlog_spark.errors import RaftlogSparkError
from raftlog_spark.options import OptionsError, Subscription
from raftlog_spark.source.offsets import (
    OFFSET_EARLIEST,
    OFFSET_LATEST,
    OFFSET_MAX,
    EachOffset,
    EachTime,
    Everywhere,
    Partition,
    SameTime,
    StartPoint,
    StreamOffset,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from raftlog_spark.cluster import Bounds, TopicInfo

LOSSES_SHOWN = 5
SPLITS_MAX = 100_000


class DataLossError(RaftlogSparkError):
    """Records of the query's range are gone, and `failOnDataLoss` is true."""


class Range(NamedTuple):
    """Offsets of one partition, of the topic with that id."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int


def range_of(part: Partition, topic_ids: Mapping[str, str], start: int, end: int) -> Range:
    """The offsets of a partition from `start` to before `end`."""
    topic, number = part
    return Range(topic, topic_ids[topic], partition=number, start=start, end=end)


class Snapshot(NamedTuple):
    """Topic ids and bounds of a query's partitions, at one moment."""

    topic_ids: Mapping[str, str]
    bounds: Mapping[Partition, Bounds]


class Advance(NamedTuple):
    """The next offset of a stream, and texts of the losses on the way."""

    offset: StreamOffset
    losses: tuple[str, ...]


def select_topics(subscription: Subscription, topics: Iterable[str]) -> list[str]:
    """The names of the query's existing topics, sorted."""
    existing = sorted(topics)
    if subscription.pattern is not None:
        pattern = re.compile(subscription.pattern)
        return [topic for topic in existing if pattern.fullmatch(topic)]
    named = subscription.topics if subscription.assign is None else tuple(subscription.assign)
    return [topic for topic in existing if topic in (named or ())]


def select_partitions(
    subscription: Subscription, topics: Mapping[str, TopicInfo]
) -> dict[Partition, str]:
    """The query's existing partitions, sorted, with their topics' ids."""
    selected: dict[Partition, str] = {}
    for topic in select_topics(subscription, topics):
        info = topics[topic]
        numbers: Iterable[int] = range(info.partitions)
        if subscription.assign is not None:
            numbers = [n for n in subscription.assign[topic] if n < info.partitions]
        selected.update({(topic, number): info.topic_id for number in numbers})
    return selected


def missing(subscription: Subscription, topics: Mapping[str, TopicInfo]) -> list[str]:
    """Named topics and partitions that do not exist, as texts."""
    named = subscription.topics or tuple(subscription.assign or ())
    absent = [f"topic {topic}" for topic in named if topic not in topics]
    for topic, numbers in (subscription.assign or {}).items():
        if topic in topics:
            count = topics[topic].partitions
            absent += [f"partition {topic}/{number}" for number in numbers if number >= count]
    return absent


def timestamps_to_query(point: StartPoint, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """The timestamps (ms) to look up in the cluster, to resolve a point. Raises OptionsError if the
    point's table names other partitions than these."""
    if isinstance(point, SameTime):
        return dict.fromkeys(partitions, point.time_ms)
    if isinstance(point, EachTime):
        return _covering(point.times_ms, partitions)
    return {}


def resolve(
    point: StartPoint, bounds: Mapping[Partition, Bounds], times: Mapping[Partition, int | None]
) -> dict[Partition, int]:
    """The offset of a point in every partition of `bounds`.

    `times` are the responses to `timestamps_to_query`. Offsets given as numbers are returned
    unchanged, in bounds or not. Raises OptionsError if the point's table names other partitions, or
    no record is as late as its time and the point treats this as an error.
    """
    if isinstance(point, Everywhere):
        earliest = point.end == "earliest"
        return {part: at.start if earliest else at.end for part, at in bounds.items()}
    if isinstance(point, EachOffset):
        given = _covering(point.offsets, bounds)
        special = {OFFSET_EARLIEST: 0, OFFSET_LATEST: 1}
        return {
            part: bounds[part][special[offset]] if offset in special else offset
            for part, offset in given.items()
        }
    if isinstance(point, SameTime | EachTime):
        resolved: dict[Partition, int] = {}
        for part, at in bounds.items():
            offset = times[part]
            if offset is None and point.missing == "error":
                raise OptionsError(
                    f"no record of {_name(part)} has the starting timestamp or a later one: give "
                    "an earlier one, or startingOffsetsByTimestampStrategy=latest"
                )
            # The search covers all records, the query only committed records.
            resolved[part] = at.end if offset is None else max(at.start, min(offset, at.end))
        return resolved
    assert_never(point)


def clamp(
    wanted: Mapping[Partition, int], bounds: Mapping[Partition, Bounds]
) -> tuple[dict[Partition, int], tuple[str, ...]]:
    """The offsets, clamped to their partitions' bounds. Also texts of skipped or missing ranges."""
    clamped: dict[Partition, int] = {}
    losses: list[str] = []
    for part, offset in sorted(wanted.items()):
        at = bounds[part]
        clamped[part] = max(at.start, min(offset, at.end))
        if offset < at.start:
            losses.append(f"{_name(part)} has nothing before {at.start}, the query names {offset}")
        elif offset > at.end:
            losses.append(f"{_name(part)} ends at {at.end}, the query names {offset}")
    return clamped, tuple(losses)


def begin(snapshot: Snapshot, starts: Mapping[Partition, int], limit: int | None) -> StreamOffset:
    """The end of a stream's first batch, at most `limit` offsets from its starts.

    The batch may be empty, and is kept all the same. So `latest` means the moment of the stream's
    first start, however often it restarts before any record arrives.
    """
    before = StreamOffset(dict(starts), topic_ids=snapshot.topic_ids)
    ends = advance(before, snapshot, limit).offset.ends
    return StreamOffset(ends, dict(starts), dict(snapshot.topic_ids))


def advance(start: StreamOffset, snapshot: Snapshot, limit: int | None) -> Advance:
    """The end of the batch after `start`, at most `limit` offsets further.

    New partitions are read from their first record. After a loss, the batch continues with the
    remaining records, if the caller allows. Without new records the offset is `start`.
    """
    positions: dict[Partition, int] = {}
    starts: dict[Partition, int] = {}
    losses = [_gone(part, start, snapshot) for part in start.ends if part not in snapshot.bounds]
    for part, at in sorted(snapshot.bounds.items()):
        topic = part[0]
        before = start.ends.get(part)
        topic_id = snapshot.topic_ids[topic]
        recreated = start.topic_ids.get(topic, topic_id) != topic_id
        if before is not None and not recreated and at.start <= before <= at.end:
            positions[part] = before
            continue
        # All records before an end that moved back were read already.
        positions[part] = (
            at.end if before is not None and not recreated and before > at.end else at.start
        )
        starts[part] = positions[part]
        loss = _loss(part, before, at, recreated=recreated)
        if loss is not None:
            losses.append(loss)
    waiting = {part: at.end - positions[part] for part, at in sorted(snapshot.bounds.items())}
    granted = waiting if limit is None else apportion(waiting, limit, turn=sum(start.ends.values()))
    ends = {part: position + granted[part] for part, position in positions.items()}
    offset = StreamOffset(ends, starts, dict(snapshot.topic_ids))
    unchanged = not starts and ends == start.ends and offset.topic_ids == start.topic_ids
    return Advance(start if unchanged else offset, tuple(losses))


def moved_back(start: StreamOffset, snapshot: Snapshot) -> list[Partition]:
    """Partitions that end before the last read. Lost, or their new leader must catch up."""
    return [
        part
        for part, before in sorted(start.ends.items())
        if part in snapshot.bounds
        and before > snapshot.bounds[part].end
        and start.topic_ids.get(part[0]) == snapshot.topic_ids.get(part[0])
    ]


def offsets_between(start: StreamOffset, end: StreamOffset) -> int:
    """Number of offsets between two offsets of a stream."""
    return sum(item.end - item.start for item in ranges_between(start, end))


def waiting_after(offset: StreamOffset, snapshot: Snapshot) -> list[Range]:
    """The ranges that a batch up to `offset` leaves for later, most records first."""
    ranges = [
        range_of(part, snapshot.topic_ids, first, bounds.end)
        for part, bounds in snapshot.bounds.items()
        if (first := max(offset.ends.get(part, bounds.start), bounds.start)) < bounds.end
    ]
    return sorted(ranges, key=lambda item: (item.start - item.end, item))


def ranges_between(start: StreamOffset, end: StreamOffset) -> list[Range]:
    """The ranges of the batch from `start` to `end`, always the same. None is empty. Raises
    DataLossError if the checkpoint lacks the start of a partition."""
    ranges: list[Range] = []
    for part, last in sorted(end.ends.items()):
        first = end.starts.get(part, start.ends.get(part))
        if first is None or first > last:
            raise DataLossError(
                f"the checkpoint does not fit together: {_name(part)} should be read from {first} "
                f"to {last}; start with a new checkpointLocation"
            )
        if first < last:
            ranges.append(range_of(part, end.topic_ids, first, last))
    return ranges


def apportion(backlog: Mapping[Partition, int], limit: int, *, turn: int) -> dict[Partition, int]:
    """Shares of each backlog, `limit` in all, or everything if that is less.

    In proportion to the backlogs. The remainder of rounding goes one by one to partitions, starting
    at another partition each `turn`, so that a small backlog beside large backlogs does not starve.
    """
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    granted = {part: size * limit // total for part, size in backlog.items()}
    spare = limit - sum(granted.values())
    waiting = [part for part in sorted(backlog) if granted[part] < backlog[part]]
    first = turn % len(waiting)
    for part in (waiting[first:] + waiting[:first])[:spare]:
        granted[part] += 1
    return granted


def split(
    ranges: Sequence[Range], *, min_partitions: int | None, max_records: int | None
) -> list[Range]:
    """The ranges, cut into pieces for Spark's tasks, in order, none empty.

    Each piece has at most `max_records` offsets, and there are about `min_partitions` pieces or
    more, large ranges being cut into more. Raises OptionsError for over 100,000 pieces.
    """
    counts = [0 if item.end <= item.start else 1 for item in ranges]
    sizes = [max(0, item.end - item.start) for item in ranges]
    if max_records is not None:
        counts = [-(-size // max_records) for size in sizes]
    if min_partitions is not None and sum(counts) < min_partitions:
        wanted = _shares(sizes, min_partitions)
        counts = [max(pair) for pair in zip(counts, wanted, strict=True)]
    if sum(counts) > max(SPLITS_MAX, len(ranges)):
        raise OptionsError(
            f"the query would have {sum(counts)} tasks: raise maxRecordsPerPartition, or lower "
            "minPartitions or maxOffsetsPerTrigger"
        )
    pieces: list[Range] = []
    for item, size, count in zip(ranges, sizes, counts, strict=True):
        cuts = [item.start + size * step // count for step in range(count)] + [item.end]
        pieces += [
            item._replace(start=low, end=high)
            for low, high in itertools.pairwise(cuts)
            if low < high
        ]
    return pieces


def describe(losses: Sequence[str]) -> str:
    """The first losses, in one line."""
    more = len(losses) - LOSSES_SHOWN
    return "; ".join(losses[:LOSSES_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def loss_error(losses: Sequence[str]) -> DataLossError:
    """The error for a query with `failOnDataLoss`."""
    return DataLossError(
        f"records are gone that this query should read: {describe(losses)}. "
        "To go on with what is left, set failOnDataLoss=false"
    )


def _shares(sizes: Sequence[int], pieces: int) -> list[int]:
    """Numbers of pieces by size, about `pieces` in all. Sizes too small for a second piece count
    first. Their one piece each does not reduce the share of the large sizes."""
    total = sum(sizes)
    small = [size > 0 and size * pieces * 2 < 3 * total for size in sizes]
    large_total = sum(size for size, is_small in zip(sizes, small, strict=True) if not is_small)
    left = max(1, pieces - sum(small))
    return [
        min(size, 1 if is_small else -(-size * left // large_total)) if size else 0
        for size, is_small in zip(sizes, small, strict=True)
    ]


def _covering(
    table: Mapping[str, Mapping[int, int]], partitions: Iterable[Partition]
) -> dict[Partition, int]:
    flat = {(topic, number): value for topic, row in table.items() for number, value in row.items()}
    wanted = sorted(partitions)
    absent = [part for part in wanted if part not in flat]
    excess = sorted(set(flat) - set(wanted))
    if absent or excess:
        what = "lack" if absent else "name, though it is not read,"
        raise OptionsError(
            f"offsets or timestamps given as JSON must name all partitions that are read, and no "
            f"others: they {what} {', '.join(map(_name, (absent or excess)[:LOSSES_SHOWN]))}"
        )
    return {part: flat[part] for part in wanted}


def _gone(part: Partition, start: StreamOffset, snapshot: Snapshot) -> str:
    topic = part[0]
    what = "the partition is" if topic in snapshot.topic_ids else "the topic is"
    return f"{_name(part)}: {what} deleted or no longer subscribed; read up to {start.ends[part]}"


def _loss(part: Partition, before: int | None, at: Bounds, *, recreated: bool) -> str | None:
    if recreated:
        return f"{_name(part)}: the topic was deleted and created again; read up to {before or 0}"
    if before is None:
        return f"{_name(part)} is new and begins at {at.start}, not 0" if at.start > 0 else None
    if before > at.end:
        return f"{_name(part)} ends at {at.end}, though {before} was reached"
    return f"{_name(part)} begins at {at.start} by now; offsets from {before} on were not read"


def _name(part: Partition) -> str:
    return f"{part[0]}/{part[1]}"


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
    without such a record. Partitions without an entry have no limit by time.
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
