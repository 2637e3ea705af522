"""The sink's task routes, buffers and encodes rows from Spark, and writes them until acknowledged.

A row goes to its own partition, or to that of Kafka's default partitioner over its key, or to each
partition in turn. All rows of a batch are routed in step.

The rows are encoded in one call for each destination, and a call costs some 100 us for any number
of rows. So rows are kept until the destinations with rows have about 1 MB each on average, or until
the whole buffer is full. Then all rows leave. Rejected: only the largest destination leaves. The
rows of one destination are slices of arrays that hold all others too, so the rest would keep
everything in memory.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from raftlog_client.transactions.sinks import sink_transactional_id

from raftlog.record.partitioner import murmur2
from raftlog_spark.cluster import Cluster
from raftlog_spark.codec.encode import encode
from raftlog_spark.codec.varints import Pieces, Positions, Window
from raftlog_spark.errors import RaftlogSparkError, SinkRefused, TopicGone
from raftlog_spark.options import SinkOptions
from raftlog_spark.schema import SinkColumns
from raftlog_spark.sink.commit_message import AttemptId, PartitionWritten, TaskCommit, once_sink_id

if TYPE_CHECKING:
    from raftlog_spark.cluster import BatchWriter

Destinations = NDArray[np.int32]
"""Indices into `Router.places`, for every row."""


TURNS: Final = 2**31
"""Turns after which the count wraps around to 0. Turns count in 32 bits."""


class RowError(RaftlogSparkError):
    """A row's topic or partition cannot be written to."""


class Destination(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Router:
    """Assigns to each row its own partition, its key's, or the current turn's.

    Rows without a key stay together until `next_turn`, so that batches become large. Then the next
    partition of their topic is used. `places` grows with every new topic. The number of a topic's
    partitions is read once, so that a key's records of one task stay together.
    """

    def __init__(self, partitions: Callable[[str], int], *, turn: int) -> None:
        """`partitions` returns the number of a topic's partitions. `turn` is the first turn."""
        self.places: list[Destination] = []
        self._partitions = partitions
        self._turn = turn % TURNS
        self._topics: dict[str, int] = {}
        self._firsts = np.empty(0, np.int32)
        self._counts = np.empty(0, np.int32)

    def route(
        self,
        rows: int,
        *,
        topics: pa.Array | str,
        partitions: pa.Array | None = None,
        keys: pa.Array | None = None,
    ) -> Destinations:
        """The destinations of so many rows. `topics` is one for all rows, or one for each row.
        Raises RowError, and the errors of `partitions`."""
        numbers = self._numbers(topics, rows)
        counts = self._counts[numbers]
        chosen = np.full(rows, NO_PARTITION, np.int32)
        if keys is not None and keys.null_count < rows:
            chosen = partition_of(keys, counts)
        if partitions is not None and partitions.null_count < rows:
            given = partitions.cast(pa.int64()).fill_null(NO_PARTITION).to_numpy()
            is_given = partitions.is_valid().to_numpy(zero_copy_only=False)
            self._check(given, is_given, counts, numbers)
            chosen = np.where(is_given, given, chosen).astype(np.int32)
        chosen = np.where(chosen == NO_PARTITION, self._turn % counts, chosen)
        return (self._firsts[numbers] + chosen).astype(np.int32)

    def next_turn(self) -> None:
        """Route rows without a key to the next partition from now on."""
        self._turn = (self._turn + 1) % TURNS

    def _numbers(self, topics: pa.Array | str, rows: int) -> NDArray[np.int32]:
        """Each row's topic, as a number."""
        if isinstance(topics, str):
            return np.full(rows, self._number(topics), np.int32)
        if topics.null_count:
            raise RowError(
                'a row has null as its topic: give every row one, or .option("topic", ...) for all'
            )
        encoded = topics.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        numbers = np.array([self._number(name) for name in names], np.int32)
        found: NDArray[np.int32] = numbers[encoded.indices.to_numpy()]
        return found

    def _number(self, topic: str) -> int:
        number = self._topics.get(topic)
        if number is None:
            count = self._partitions(topic)
            number = self._topics[topic] = len(self._topics)
            self._firsts = np.append(self._firsts, np.int32(len(self.places)))
            self._counts = np.append(self._counts, np.int32(count))
            self.places += [Destination(topic, partition) for partition in range(count)]
        return number

    def _check(
        self,
        given: NDArray[np.int64],
        is_given: NDArray[np.bool_],
        counts: NDArray[np.int32],
        numbers: NDArray[np.int32],
    ) -> None:
        wrong = np.flatnonzero(is_given & ((given < 0) | (given >= counts)))
        if len(wrong):
            row = int(wrong[0])
            topic = list(self._topics)[int(numbers[row])]
            raise RowError(
                f"a row is for partition {given[row]} of {topic!r}, which has partitions 0 to "
                f"{counts[row] - 1}: correct or drop the column partition, or add partitions"
            )


NO_PARTITION: Final = -1
KEYS_FEW: Final = 16
"""Number of keys left below which the one-key function is faster for further words."""

_SEED: Final = np.uint32(0x9747B28C)
_MULTIPLIER: Final = np.uint32(0x5BD1E995)
_POSITIVE: Final = np.uint32(0x7FFFFFFF)
_TAIL_MASKS: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)


def partition_of(keys: pa.Array, partitions: int | NDArray[np.int32]) -> NDArray[np.int32]:
    """The partition of each key (binary or string). NO_PARTITION for null.

    `partitions` is one number for all keys, or one for each key. The same function as
    `raftlog.record.partitioner.partition_for_key`.
    """
    data, starts, sizes = Pieces.of(keys)
    if not len(sizes):
        return np.empty(0, np.int32)
    digests = _murmur2(Window(data), starts, np.maximum(sizes, 0))
    numbers = ((digests & _POSITIVE) % np.asarray(partitions, np.uint32)).astype(np.int32)
    return np.where(sizes < 0, np.int32(NO_PARTITION), numbers)


def _murmur2(window: Window, starts: Positions, sizes: Positions) -> NDArray[np.uint32]:
    """murmur2 with Kafka's seed of all slices."""
    digests = sizes.astype(np.uint32) ^ _SEED
    counts = sizes >> 2
    smallest = int(counts.min())
    for number in range(smallest):
        digests = _mixed(digests, _word(window, starts + 4 * number))
    number = smallest
    active = np.flatnonzero(counts > number)
    while len(active) >= KEYS_FEW:
        words = _word(window, starts[active] + 4 * number)
        digests[active] = _mixed(digests[active], words)
        number += 1
        active = active[counts[active] > number]
    tails = _word(window, starts + 4 * counts) & _TAIL_MASKS[sizes & 3]
    digests = np.where(sizes & 3, (digests ^ tails) * _MULTIPLIER, digests)
    digests = (digests ^ (digests >> np.uint32(13))) * _MULTIPLIER
    digests ^= digests >> np.uint32(15)
    for key in active.tolist():
        start = int(starts[key])
        digests[key] = murmur2(window.data[start : start + int(sizes[key])].tobytes())
    return digests


def _word(window: Window, positions: Positions) -> NDArray[np.uint32]:
    return window.words(positions).astype(np.uint32)


def _mixed(digests: NDArray[np.uint32], words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    words = words * _MULTIPLIER
    words = (words ^ (words >> np.uint32(24))) * _MULTIPLIER
    return (digests * _MULTIPLIER) ^ words


PART_BYTES: Final = 1024 * 1024
"""Bytes of each destination's rows that make a call worth it."""
BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most buffered bytes. While the rows leave, a second copy exists, in another order."""


class RowBuffer:
    """Buffered rows. Bounded, since the caller empties the buffer as soon as `is_full`."""

    def __init__(self, *, part_bytes: int = PART_BYTES, bytes_max: int = BUFFER_BYTES_MAX) -> None:
        self._part_bytes = part_bytes
        self._bytes_max = bytes_max
        self._clear()

    def _clear(self) -> None:
        self._rows: list[pa.RecordBatch] = []
        self._destinations: list[Destinations] = []
        self._counts = np.zeros(0, np.int64)
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the caller must empty the buffer now."""
        enough = self._part_bytes * int(np.count_nonzero(self._counts))
        return bool(self._rows) and self._size_bytes >= min(enough, self._bytes_max)

    def add(self, rows: pa.RecordBatch, destinations: Destinations) -> None:
        """Add rows, at least one, and the destination of each."""
        assert len(destinations) == rows.num_rows > 0
        counts = np.bincount(destinations, minlength=len(self._counts))
        counts[: len(self._counts)] += self._counts
        self._counts = counts
        self._rows.append(rows)
        self._destinations.append(destinations)
        self._size_bytes += rows.nbytes

    def take(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Each destination with its rows, in the order of `add`. Empties the buffer. Every added
        row comes out exactly once."""
        if not self._rows:
            return
        (rows,) = pa.Table.from_batches(self._rows).combine_chunks().to_batches()
        counts, destinations = self._counts, np.concatenate(self._destinations)
        self._clear()
        present = np.flatnonzero(counts)
        if len(present) > 1:
            # A counting sort, and so linear, for numbers of 16 bits.
            smallest = np.min_scalar_type(len(counts))
            order = np.argsort(destinations.astype(smallest), kind="stable")
            rows = rows.take(pa.array(order))
        first = 0
        for destination in present.tolist():
            count = int(counts[destination])
            yield destination, rows.slice(first, count)
            first += count


def parts(rows: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The rows in order, in parts of at most so many bytes. Only a part with a single row may have
    more."""
    if rows.nbytes <= bytes_max or rows.num_rows <= 1:
        if rows.num_rows:
            yield rows
        return
    half = rows.num_rows // 2
    yield from parts(rows.slice(0, half), bytes_max)
    yield from parts(rows.slice(half), bytes_max)


QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Spark's names among the properties of a streaming query's tasks."""

BATCH_BYTES: Final = 512 * 1024
"""Bytes of a record batch. Half of the default limit of topics."""


def current_tag(sink_id: str | None, *, write_id: str | None = None) -> AttemptId:
    """The id of the running attempt. Without `sink_id`, its query is the sink.

    `write_id` names a batch write, which commits once. With `sink_id`, a write in a stream's
    `foreachBatch` commits by the stream's batches instead. Raises RaftlogSparkError outside of a
    task of Spark's and of a query.
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
    error. A task without rows sends no request. Memory is bounded for any input, by `RowBuffer` and
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
            for data, count in encode(rows, batch_bytes=BATCH_BYTES, now_ms=now_ms):
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
