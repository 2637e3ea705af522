"""The sink's task encodes rows from Spark, and writes them until acknowledged."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from raftlog_client.transactions.sinks import sink_transactional_id

from raftlog_spark.cluster import Cluster
from raftlog_spark.codec.encode import encode
from raftlog_spark.errors import RaftlogSparkError, SinkRefused, TopicGone
from raftlog_spark.options import SinkOptions
from raftlog_spark.schema import SinkColumns
from raftlog_spark.sink.commit_message import AttemptId, PartitionWritten, TaskCommit, once_sink_id
from raftlog_spark.sink.partition_router import Destination, Router
from raftlog_spark.sink.row_buffer import BUFFER_BYTES_MAX, RowBuffer, parts

if TYPE_CHECKING:
    from raftlog_spark.sink.batch_writer import BatchWriter

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Spark's names among the properties of a streaming query's tasks."""

BATCH_BYTES: Final = 512 * 1024
"""Bytes of a record batch. Half of the default limit of topics."""


def current_tag(sink_id: str | None, *, write_id: str | None = None) -> AttemptId:
    """The id of the running attempt. Without `sink_id`, its query is the sink.

    `write_id` names a batch write, which commits once. With `sink_id`, a write in a stream's
    `foreachBatch` commits by the stream's batches instead. Raises RaftlogSparkError outside of a
    task
    of Spark's and of a query.
    """
    context = TaskContext.get()
    if context is None:
        raise RaftlogSparkError("rows are written by Spark's tasks, and none runs here")
    query_id = context.getLocalProperty(QUERY_ID) or None
    batch = context.getLocalProperty(BATCH_ID) or None
    batch_id = epoch = None if batch is None else int(batch)
    if write_id is not None and (sink_id is None or query_id is None or epoch is None):
        sink_id, epoch = once_sink_id(sink_id, write_id), None
    sink_id = sink_id or query_id
    if sink_id is None:
        raise RaftlogSparkError(
            "Spark does not say which streaming query this task belongs to: give the sink a name, "
            'with .option("sinkId", ...)'
        )
    return AttemptId(
        sink_id=sink_id,
        query_id=query_id,
        batch_id=batch_id,
        task=context.partitionId(),
        attempt=context.attemptNumber(),
        epoch=epoch,
    )


def write_rows(
    options: SinkOptions,
    columns: SinkColumns,
    tag: AttemptId,
    batches: Iterator[pa.RecordBatch],
    *,
    cluster: Cluster | None = None,
) -> TaskCommit:
    """Write all rows. All in-sync replicas have acknowledged them at return.

    Exactly once, in a separate transaction of the attempt, prepared at return, aborted after an
    error.
    A task without rows sends no request. Memory is bounded for any input, by `RowBuffer` and
    `Cluster.writer`. `cluster` is for tests.

    Raises TopicGone, RowError, EncodeError, WriteFailed, ClusterUnavailable, SinkRefused. At least
    once, some rows may be written nevertheless, and the next attempt writes them again.
    """
    rows = (batch for batch in batches if batch.num_rows)
    first = next(rows, None)
    if first is None:
        return TaskCommit(tag, ())
    name = _transactional_id(tag) if options.is_exactly_once else None
    with cluster or Cluster(options.bootstrap_servers) as connected:
        if name is not None and tag.epoch is not None and options.sink_id is not None:
            _require_own_sink(connected, tag)
        with connected.writer(
            transactional_id=name, transaction_timeout_ms=options.transaction_timeout_ms
        ) as writer:
            work = _TaskWriter(options, columns, tag, writer)
            for batch in chain((first,), rows):
                work.add(batch)
            work.send()
            acknowledged = writer.flush()
            if name is not None:
                writer.prepare()
        assert acknowledged.records == work.rows, (
            f"{work.rows} rows came, {acknowledged.records} records are acknowledged"
        )
    return TaskCommit(tag, work.written(), name)


def _transactional_id(tag: AttemptId) -> str:
    """Transactional id of only one attempt, as Spark reuses the numbers of tasks and attempts."""
    batch = "" if tag.batch_id is None else f"{tag.batch_id}-"
    unique = uuid.uuid4().hex[:12]
    return sink_transactional_id(tag.sink_id, f"{batch}{tag.task}.{tag.attempt}-{unique}")


def _require_own_sink(cluster: Cluster, tag: AttemptId) -> None:
    """Raise SinkRefused before anything is written. The commit checks it again."""
    owner = cluster.sink_owner(tag.sink_id)
    if owner is not None and owner != tag.owner:
        raise SinkRefused(
            f"sinkId {tag.sink_id!r} belongs to query {owner!r}, this one is {tag.owner!r}: a name "
            "is for one query, as long as its checkpoint lives. Give this query another sinkId, or "
            "none",
            is_owned=True,
        )


class _TaskWriter:
    """Writes the rows of one attempt."""

    def __init__(
        self, options: SinkOptions, columns: SinkColumns, tag: AttemptId, writer: BatchWriter
    ) -> None:
        self.rows = 0
        self._options = options
        self._columns = columns
        self._writer = writer
        # Tasks and batches with few rows begin at different partitions, and at the same partitions
        # when replayed.
        self._router = Router(self._partitions, turn=tag.task + (tag.batch_id or 0))
        self._gathered = RowBuffer()
        self._written: dict[Destination, PartitionWritten] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows, and write once the buffer is full."""
        columns = self._columns
        topic = self._options.topic
        for rows in parts(batch, BUFFER_BYTES_MAX):
            destinations = self._router.route(
                rows.num_rows,
                topics=_column(rows, columns.topic) if topic is None else topic,
                partitions=_column(rows, columns.partition),
                keys=_column(rows, columns.key),
            )
            self._gathered.add(_records(rows, columns), destinations)
            self.rows += rows.num_rows
            if self._gathered.is_full:
                self.send()

    def send(self) -> None:
        """Encode the buffered rows and pass them to the writer, which waits for room."""
        now_ms = int(time.time() * 1000)
        for number, rows in self._gathered.take():
            place = self._router.places[number]
            before = self._written.get(place, PartitionWritten(*place, 0, 0))
            records, size_bytes = before.records, before.size_bytes
            for data, count in encode(
                rows, batch_bytes=BATCH_BYTES, compression="none", now_ms=now_ms
            ):
                records += count
                size_bytes += len(data)
                self._writer.write(place.partition, data, count, topic=place.topic)
            self._written[place] = PartitionWritten(*place, records, size_bytes)
        self._router.next_turn()

    def written(self) -> tuple[PartitionWritten, ...]:
        """The written records, by topic and partition."""
        return tuple(self._written[place] for place in sorted(self._written))

    def _partitions(self, topic: str) -> int:
        try:
            return self._writer.partitions(topic)
        except TopicGone as error:
            raise TopicGone(
                f"topic {topic!r} does not exist on {self._options.bootstrap_servers}, which "
                f"creates no topics by itself: create it (raftlog topic create {topic}), or "
                "correct the name",
                topic=topic,
            ) from error


def _column(rows: pa.RecordBatch, place: int | None) -> pa.Array | None:
    return None if place is None else rows.column(place)


def _records(rows: pa.RecordBatch, columns: SinkColumns) -> pa.RecordBatch:
    """The columns for records, by the names of `encode`."""
    places = {"value": columns.value, "key": columns.key, "headers": columns.headers}
    found = {name: rows.column(place) for name, place in places.items() if place is not None}
    return pa.RecordBatch.from_arrays(list(found.values()), names=list(found))
