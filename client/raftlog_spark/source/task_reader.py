"""Reads one task on an executor by fetching and decoding a range of offsets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from raftlog_spark.cluster import Cluster
from raftlog_spark.codec.decode import decode
from raftlog_spark.errors import OffsetOutOfRange, TopicGone, TopicRecreated
from raftlog_spark.options import SourceOptions
from raftlog_spark.source import planning
from raftlog_spark.source.planning import Range

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


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
    loss = f"{task.topic}/{task.partition}: {what}"
    if options.fail_on_data_loss:
        raise planning.loss_error([loss])
    _log.warning("records are gone, reading continues: %s", loss)
