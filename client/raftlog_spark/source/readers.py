"""Spark's readers plan a query on the driver, and read its tasks on the executors.

A batch query reads the current offsets of topics, or a part of them, once. Spark stores the offsets
of a stream in its checkpoint before it reads up to them. They hold everything that a batch of the
stream needs, so a replay after a restart reads exactly the same ranges.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from raftlog_spark.cluster import Bounds, Cluster
from raftlog_spark.codec.decode import decode
from raftlog_spark.errors import OffsetOutOfRange, RaftlogSparkError, TopicGone, TopicRecreated
from raftlog_spark.options import OptionsError, SourceOptions
from raftlog_spark.source import planning
from raftlog_spark.source.offsets import (
    INITIAL,
    JsonOffset,
    Partition,
    StartPoint,
    StreamOffset,
    from_json,
    to_json,
)
from raftlog_spark.source.planning import (
    Advance,
    Range,
    RangeLimits,
    Snapshot,
    apply_limits,
    limits_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

SNAPSHOT_ATTEMPTS_MAX = 3
TOPICS_SHOWN = 20

_log = logging.getLogger(__name__)


def take_snapshot(cluster: Cluster, options: SourceOptions, *, must_exist: bool) -> Snapshot:
    """The partitions to read, and their bounds, in two calls for any number of partitions.

    Raises OptionsError if a topic or partition named in the options does not exist, with
    `must_exist`. Raises TopicGone if topics disappear between the calls, repeatedly.
    """
    for attempt in range(SNAPSHOT_ATTEMPTS_MAX):
        topics = cluster.topics()
        absent = planning.missing(options.subscription, topics)
        if must_exist and absent:
            existing = ", ".join(sorted(topics)[:TOPICS_SHOWN]) or "none"
            raise OptionsError(
                f"{absent[0]} does not exist on {options.bootstrap_servers}: create it, or correct "
                f"the name (topics there: {existing})"
            )
        selected = planning.select_partitions(options.subscription, topics)
        topic_ids = {topic: topic_id for (topic, _), topic_id in selected.items()}
        try:
            return Snapshot(topic_ids, _bounds(cluster, options, topic_ids, selected))
        except TopicGone:
            if attempt + 1 == SNAPSHOT_ATTEMPTS_MAX:
                raise
    raise AssertionError("the loop above returns or raises")


def refresh(cluster: Cluster, options: SourceOptions, before: Snapshot) -> Snapshot:
    """The current bounds of the same partitions, in one call. Raises TopicGone."""
    return before._replace(bounds=_bounds(cluster, options, before.topic_ids, before.bounds))


def _bounds(
    cluster: Cluster,
    options: SourceOptions,
    topics: Collection[str],
    partitions: Collection[Partition],
) -> dict[Partition, Bounds]:
    if not topics:
        return {}
    bounds = cluster.bounds(sorted(topics), isolation=options.isolation)
    return {part: bounds[part] for part in partitions if part in bounds}


def resolve_point(
    cluster: Cluster, point: StartPoint, snapshot: Snapshot
) -> tuple[dict[Partition, int], Sequence[str]]:
    """The offsets of a point, clamped to the bounds, and texts of the losses. Raises OptionsError
    if the point does not fit the partitions."""
    timestamps = planning.timestamps_to_query(point, snapshot.bounds)
    times = cluster.offsets_for_times(timestamps) if timestamps else {}
    return planning.clamp(planning.resolve(point, snapshot.bounds, times), snapshot.bounds)


def check_losses(losses: Sequence[str], options: SourceOptions) -> None:
    """Log losses that the query tolerates. Raises DataLossError if `failOnDataLoss` is set."""
    if not losses:
        return
    if options.fail_on_data_loss:
        raise planning.loss_error(losses)
    _log.warning("records are gone, reading continues: %s", planning.describe(losses))


def read_task(
    options: SourceOptions,
    columns: tuple[str, ...],
    task: Range | None,
    *,
    connect: Callable[[str], Cluster] = Cluster,
) -> Iterator[pa.RecordBatch]:
    """The records of a range, in order. None is the task of an empty plan.

    Raises DataLossError if records of the range are gone, with `failOnDataLoss`. Otherwise the task
    continues with the remaining records.
    """
    if task is None:
        return
    start = task.start
    with connect(options.bootstrap_servers) as cluster:
        while start < task.end:
            try:
                yield from _decoded(cluster, options, columns, task._replace(start=start))
            except OffsetOutOfRange as error:
                # All records read before have lower offsets, so no record comes twice.
                left = min(task.end, max(start + 1, error.lowest))
                _lost(task, options, f"offsets {start} to {left - 1} were deleted by retention")
                start = left
            except (TopicGone, TopicRecreated):
                _lost(task, options, "the topic was deleted")
                return
            else:
                return


def _decoded(
    cluster: Cluster, options: SourceOptions, columns: tuple[str, ...], task: Range
) -> Iterator[pa.RecordBatch]:
    fetched = cluster.read(
        task.topic,
        task.topic_id,
        task.partition,
        task.start,
        task.end,
        fetch_bytes=options.fetch_bytes,
        isolation=options.isolation,
    )
    for chunk in fetched:
        yield from decode(
            chunk.data,
            aborted=chunk.aborted,
            topic=task.topic,
            partition=task.partition,
            start=task.start,
            end=task.end,
            columns=columns,
        )


def _lost(task: Range, options: SourceOptions, what: str) -> None:
    check_losses([f"{task.topic}/{task.partition}: {what}"], options)


def _tasks(options: SourceOptions, ranges: Sequence[Range]) -> list[InputPartition]:
    pieces = planning.split(
        ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
    )
    return [InputPartition(piece) for piece in pieces]


class BatchReader(DataSourceReader):
    """Plans and reads one batch query. Pickles to the executors, which only read."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._limits = RangeLimits()

    def partitions(self) -> list[InputPartition]:
        """A task for each range of offsets.

        Raises OptionsError if a topic does not exist, or the given offsets do not fit the topics.
        Raises DataLossError if given offsets do not exist (any more), with `failOnDataLoss`.
        """
        with Cluster(self._options.bootstrap_servers) as cluster:
            ranges = self._limited(cluster, self._ranges(cluster))
        return _tasks(self._options, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return read_task(self._options, self._columns, partition.value)

    def _ranges(self, cluster: Cluster) -> list[Range]:
        options = self._options
        snapshot = take_snapshot(cluster, options, must_exist=True)
        starting = options.starting_point("batch")
        starts, too_early = resolve_point(cluster, starting, snapshot)
        ends, too_late = resolve_point(cluster, options.ending, snapshot)
        check_losses([*too_early, *too_late], options)
        return [
            planning.range_of(part, snapshot.topic_ids, start, ends[part])
            for part, start in sorted(starts.items())
            if start < ends[part]
        ]

    def _limited(self, cluster: Cluster, ranges: Collection[Range]) -> list[Range]:
        kept = apply_limits(self._limits, list(ranges), {})
        not_before_ms = self._limits.not_before_ms
        if not_before_ms is None or not kept:
            return kept
        timestamps = {(item.topic, item.partition): not_before_ms for item in kept}
        return apply_limits(self._limits, kept, cluster.offsets_for_times(timestamps))


class FilteringBatchReader(BatchReader):
    """A `BatchReader` that skips ranges by the query's filters."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802  Spark's name
        """Record the filters. Spark still applies all of them."""
        self._limits = limits_of(filters)
        return filters


IDLE_WAIT_S = 0.2
"""Seconds that an idle trigger waits for records. Spark would call again after 10 ms."""
IDLE_POLL_S = 0.02
CATCH_UP_WAIT_S = 10.0
"""Longest time for which an end may lie before the last read (leader change)."""
CATCH_UP_POLL_S = 0.1
LAG_INTERVAL_S = 5.0
"""Seconds between two queries for the time of the first record that waits."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads one streaming query. Pickles to the executors, which only read."""

    def __init__(
        self,
        options: SourceOptions,
        columns: tuple[str, ...],
        *,
        connect: Callable[[str], Cluster] = Cluster,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._columns = columns
        self._connect = connect
        self._clock = clock
        self._sleep = sleep
        self._wall = wall
        self._cluster: Cluster | None = None
        self._target: Snapshot | None = None
        self._latest: Snapshot | None = None
        self._triggered_at: float | None = None
        self._last_for_group: StreamOffset | None = None
        self._planned: StreamOffset | None = None
        self._asked_age_at: float | None = None
        self._known_age_s: float | None = None

    def __getstate__(self) -> dict[str, object]:
        """All state but the connection, which belongs to this process."""
        return {**self.__dict__, "_cluster": None}

    def initialOffset(self) -> JsonOffset:  # noqa: N802
        """The constant offset of a stream that has not begun."""
        return to_json(INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit by the options. If both are set, `latestOffset` also applies the lower."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limit this run to the current ends."""
        self._target = take_snapshot(self._connected(), self._options, must_exist=False)

    def latestOffset(self, start: JsonOffset, limit: ReadLimit) -> JsonOffset:  # noqa: N802
        """The end of the next batch. `start` itself if there is nothing to read.

        Raises DataLossError if records are gone, with `failOnDataLoss`. Raises OptionsError if the
        stream begins, and a topic does not exist or offsets do not fit.
        """
        before = from_json(start)
        if not before.begun:
            self._triggered_at = self._clock()
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            self._planned = self._begin(most)
            return to_json(self._planned)
        self._commit_to_group(before)
        snapshot = self._caught_up(before, self._snapshot())
        step = self._step(before, snapshot, limit)
        if step.offset is before and self._target is None:
            snapshot = self._wait_for_records(snapshot)
            step = self._step(before, snapshot, limit)
        self._latest, self._planned = snapshot, step.offset
        check_losses(step.losses, self._options)
        if step.offset is before:
            return start
        self._triggered_at = self._clock()
        return to_json(step.offset)

    def reportLatestOffset(self) -> JsonOffset | None:  # noqa: N802
        """The last seen ends, for Spark's progress reports, and the lag of the batch.

        `lag` has `records` in all partitions, and `seconds`, the age of the first record that waits
        in the partition with most. Null if that is not known. Spark has no other place for them.
        """
        if self._latest is None or self._planned is None:
            return None
        ends = {part: at.end for part, at in self._latest.bounds.items()}
        waiting = planning.waiting_after(self._planned, self._latest)
        seconds = self._age_s(waiting[0]) if waiting else 0.0
        records = sum(item.end - item.start for item in waiting)
        offset = to_json(StreamOffset(ends, topic_ids=self._latest.topic_ids))
        return {**offset, "lag": {"records": records, "seconds": seconds}}

    def partitions(self, start: JsonOffset, end: JsonOffset) -> list[InputPartition]:
        """A task for each range of offsets between two offsets of the stream."""
        return _tasks(self._options, planning.ranges_between(from_json(start), from_json(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return read_task(self._options, self._columns, partition.value)

    def stop(self) -> None:
        """Close the connection."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = self._connect(self._options.bootstrap_servers)
        return self._cluster

    def _snapshot(self) -> Snapshot:
        if self._target is not None:
            return self._target
        return take_snapshot(self._connected(), self._options, must_exist=False)

    def _commit_to_group(self, processed: StreamOffset) -> None:
        """Commit what is processed to the group of `commitToGroup`, if there is one.

        Spark's call `commit` would come with the next batch only, after the last one never. Raises
        nothing: these offsets are for operators, and the query does not need them.
        """
        group = self._options.commit_to_group
        if group is None or not processed.ends or processed == self._last_for_group:
            return
        self._last_for_group = processed
        try:
            self._connected().commit_offsets(group, processed.ends, processed.topic_ids)
        except RaftlogSparkError as error:
            _log.warning(
                "the offsets of group %r (commitToGroup) stay behind until the next batch: %s",
                group,
                error,
            )

    def _age_s(self, waiting: Range) -> float | None:
        """Waiting time of a range's first record, as known a few seconds ago or now."""
        if self._asked_age_at is None or self._clock() - self._asked_age_at >= LAG_INTERVAL_S:
            self._asked_age_at = self._clock()
            topic, topic_id, partition, first, _ = waiting
            self._known_age_s = None
            try:
                written_ms = self._connected().written_ms(topic, topic_id, partition, first)
            except RaftlogSparkError as error:
                _log.info("the age of %s/%d at %d is not known: %s", topic, partition, first, error)
            else:
                if written_ms is not None:
                    self._known_age_s = max(0.0, round(self._wall() - written_ms / 1000, 3))
        return self._known_age_s

    def _begin(self, most: int | None) -> StreamOffset:
        cluster = self._connected()
        snapshot = take_snapshot(cluster, self._options, must_exist=True)
        if self._target is not None:
            snapshot = self._target
        point = self._options.starting_point("stream")
        starts, losses = resolve_point(cluster, point, snapshot)
        check_losses(losses, self._options)
        self._latest = snapshot
        return planning.begin(snapshot, starts, most)

    def _caught_up(self, before: StreamOffset, snapshot: Snapshot) -> Snapshot:
        """Wait for a snapshot in which no partition ends before the last read. A new leader may not
        know yet how far the records before its time are replicated."""
        deadline = self._clock() + CATCH_UP_WAIT_S
        while planning.moved_back(before, snapshot) and self._clock() < deadline:
            self._sleep(CATCH_UP_POLL_S)
            snapshot = take_snapshot(self._connected(), self._options, must_exist=False)
            if self._target is not None:
                self._target = snapshot
        return snapshot

    def _wait_for_records(self, snapshot: Snapshot) -> Snapshot:
        """A later snapshot once a partition has grown or the wait is over."""
        deadline = self._clock() + IDLE_WAIT_S
        ends = _ends(snapshot)
        while _ends(snapshot) == ends and self._clock() + IDLE_POLL_S <= deadline:
            self._sleep(IDLE_POLL_S)
            try:
                snapshot = refresh(self._connected(), self._options, snapshot)
            except TopicGone:
                return self._snapshot()
        return snapshot

    def _step(self, before: StreamOffset, snapshot: Snapshot, limit: ReadLimit) -> Advance:
        """Plan like `planning.advance`, by the trigger's limit and `minOffsetsPerTrigger`. A run up
        to the current ends ignores the minimum, as no more records would come."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        step = planning.advance(before, snapshot, most)
        least = self._options.min_offsets_per_trigger
        if least is None or isinstance(limit, ReadAllAvailable) or self._target is not None:
            return step
        everything = planning.advance(before, snapshot, None).offset
        if planning.offsets_between(before, everything) >= least or self._triggered_at is None:
            return step
        waited_ms = (self._clock() - self._triggered_at) * 1000
        is_over = waited_ms >= self._options.max_trigger_delay_ms
        return step if is_over else step._replace(offset=before)


def _ends(snapshot: Snapshot) -> Mapping[tuple[str, int], int]:
    return {part: at.end for part, at in snapshot.bounds.items()}
