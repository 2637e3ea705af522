"""Reads the current offsets of topics, or a part of them, once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from raftlog_spark.cluster import Cluster
from raftlog_spark.options import SourceOptions
from raftlog_spark.source import planning
from raftlog_spark.source.filters import RangeLimits, apply_limits, limits_of
from raftlog_spark.source.planning import Range
from raftlog_spark.source.queries import check_losses, resolve_point, take_snapshot
from raftlog_spark.source.task_reader import read_task

if TYPE_CHECKING:
    import pyarrow as pa


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
        pieces = planning.split(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )
        return [InputPartition(piece) for piece in pieces]

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
            Range(
                topic=topic,
                topic_id=snapshot.topic_ids[topic],
                partition=number,
                start=start,
                end=ends[topic, number],
            )
            for (topic, number), start in sorted(starts.items())
            if start < ends[topic, number]
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
