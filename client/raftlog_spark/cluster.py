"""Synchronous access to a cluster, for the driver and the executors alike.

A `Cluster` pickles as its settings. The first call connects. After a fork, the first call in the
child connects again, and the parent's connections are left alone.

The asyncio client runs in the event loop of a separate thread (`Background`). Spark calls from
threads without a loop, from threads with a running loop (a notebook), and in processes forked from
a process with threads. So the loop never runs in the caller's thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final, NamedTuple, Self, TypeVar

from raftlog_client import Producer, Transaction
from raftlog_client.errors import (
    RaftlogClientError,
    SerializationError,
    ServerError,
    TopicNotFoundError,
)
from raftlog_client.fetch.protocol import FetchConnectionPool
from raftlog_client.fetch.range_reader import RangeChunk, RangeReader
from raftlog_client.groups.offsets import commit_for_group
from raftlog_client.metadata import BOOTSTRAP_TIMEOUT_MS, Backoff, ClusterMetadata
from raftlog_client.offsets import bounds_of_topics, offsets_of_times
from raftlog_client.produce.batches import RawBatchBuilder
from raftlog_client.transactions import sinks
from raftlog_client.transport import Transport, parse_bootstrap
from raftlog_client.types import TopicPartition

from raftlog.api.groups import OffsetCommit
from raftlog.api.records import Isolation
from raftlog.api.transactions import TRANSACTION_TIMEOUT_MS_DEFAULT
from raftlog.record.errors import INVALID_TXN_STATE, SINK_OWNED, UNKNOWN_TRANSACTION
from raftlog.record.header import parse_header
from raftlog.record.types import Offset
from raftlog_spark.errors import (
    RaftlogSparkError,
    SinkRefused,
    TopicGone,
    spark_error,
    write_failure,
)

CLOSE_TIMEOUT_S: Final = 10.0
"""Time for cancelled tasks to end."""
WAIT_LOGGED_S: Final = 10.0
"""A caller that waits for so long is logged, and again after each such time."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Background:
    """A running event loop. `close` ends the loop and all its tasks."""

    def __init__(self) -> None:
        # Not the policy's loop. By measurement, a selector loop takes less CPU for large responses,
        # and it keeps no state for the whole process that a fork would copy.
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._main, name="raftlog-spark", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work`, and return its future. Cancelling the future cancels `work`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """Run `work` and return its result. `what` names it in the log. An interrupt cancels it."""
        return result_of(self.submit(work), what)

    def close(self) -> None:
        """Cancel all tasks, end the loop, and wait for the thread."""
        if self._thread is threading.current_thread() or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            logger.warning("background tasks did not end within %s s", CLOSE_TIMEOUT_S)

    def _main(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def result_of(future: Future[T], what: str) -> T:
    """The future's result. A long wait is logged. An interrupt of the caller cancels the future."""
    begun = time.monotonic()
    try:
        while not wait([future], WAIT_LOGGED_S).done:
            logger.warning("waiting for raftlog since %.0f s: %s", time.monotonic() - begun, what)
        return future.result()
    except BaseException:
        future.cancel()
        raise


ABORT_TIMEOUT_MS: Final = 5_000


class Written(NamedTuple):
    """Acknowledged by all in-sync replicas, since the writer was made."""

    batches: int
    records: int
    size_bytes: int


class BatchWriter:
    """Writes under a separate producer id. A context manager, which closes the writer on leaving,
    or aborts it after an error. Not for several threads at once.

    The writer's own retries never write a batch twice. After a failed batch, `write` accepts no
    more.
    """

    def __init__(
        self,
        background: Background,
        producer: Producer,
        topic: str | None,
        transaction: Transaction | None = None,
    ) -> None:
        """The writer owns `producer` and its transaction. `topic` is the default of `write`."""
        self.topic = topic
        self._transaction = transaction
        self._background = background
        self._producer = producer
        self._batches = self._records = self._size_bytes = 0
        self._failure: tuple[RaftlogClientError, str] | None = None
        """The first failure, and its topic."""
        self._is_closed = False

    def partitions(self, topic: str) -> int:
        """The number of partitions of a topic. Raises TopicGone, ClusterUnavailable."""
        self._require_open()
        what = f"looking up {topic!r}"
        try:
            return len(self._background.run(self._producer.partitions_for(topic), what))
        except RaftlogClientError as error:
            raise spark_error(error, what=what, topic=topic) from error

    def write(
        self, partition: int, data: bytearray, records: int, *, topic: str | None = None
    ) -> None:
        """Send one whole batch (format v2) of so many records, after all earlier batches.

        `topic`: overrides the writer's own. `data` is changed (producer id, sequence, CRC) and must
        not be touched afterwards. Returns when there is room, not when the batch is written. Raises
        WriteFailed for this or an earlier batch, ValueError if `data` is not one batch.
        """
        topic = topic or self.topic
        if topic is None:
            raise ValueError("No topic is given, and the writer has no default topic.")
        self._require_open()
        self._check()
        try:
            held = RawBatchBuilder(data).record_count
        except SerializationError as error:
            raise ValueError(str(error)) from error
        if held != records:
            raise ValueError(f"The batch holds {held} records, not {records}.")
        try:
            self._background.run(
                self._send(topic, partition, data, records), f"writing to {topic!r}"
            )
        except RaftlogClientError as error:
            raise write_failure(error, topic) from error

    def flush(self) -> Written:
        """Wait until all batches are acknowledged. Returns the totals. Raises WriteFailed with the
        first failure, once no batch is in flight."""
        self._require_open()
        try:
            self._background.run(self._producer.flush(), "writing what is buffered")
        except RaftlogClientError as error:
            raise write_failure(error, self.topic or "all topics") from error
        self._check()
        return Written(self._batches, self._records, self._size_bytes)

    def prepare(self) -> None:
        """Prepare the transaction, with all batches. It outlives the writer, until committed.
        Raises WriteFailed if it is not prepared."""
        self._require_open()
        assert self._transaction is not None
        try:
            self._background.run(self._transaction.prepare(), "preparing the transaction")
        except RaftlogClientError as error:
            raise write_failure(error, self.topic or "all topics") from error

    def close(self) -> Written:
        """Flush, and free all resources. Raises WriteFailed, after which the writer is also closed.
        Idempotent."""
        if self._is_closed:
            return Written(self._batches, self._records, self._size_bytes)
        try:
            return self.flush()
        finally:
            self.abort()

    def abort(self) -> None:
        """Send no more batches, and abort a transaction that is not prepared. Without a
        transaction, batches in flight may be written. Acknowledged batches are."""
        if not self._is_closed:
            self._is_closed = True
            timeout_ms = 0 if self._transaction is None else ABORT_TIMEOUT_MS
            self._background.run(self._producer.close(timeout_ms=timeout_ms), "closing the writer")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    async def _send(self, topic: str, partition: int, data: bytearray, records: int) -> None:
        size = len(data)
        future = await self._producer.send_batch(topic, partition, data)

        def settled(done: asyncio.Future[int]) -> None:
            error = done.exception()
            if error is None:
                self._batches += 1
                self._records += records
                self._size_bytes += size
            elif self._failure is None:
                assert isinstance(error, RaftlogClientError)
                self._failure = error, topic

        future.add_done_callback(settled)

    def _check(self) -> None:
        if self._failure is not None:
            error, topic = self._failure
            raise write_failure(error, topic) from error

    def _require_open(self) -> None:
        if self._is_closed:
            raise RaftlogSparkError("The writer is closed.")


RETRY_FIRST_MS: Final = 20
RETRY_MAX_MS: Final = 250
CLIENT_ID: Final = "raftlog-spark"
BATCH_BYTES_MAX: Final = 1024 * 1024
REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
BUFFER_BYTES_DEFAULT: Final = 32 * 1024 * 1024
DELIVERY_TIMEOUT_S_DEFAULT: Final = 120.0
REFUSALS: Final = frozenset([UNKNOWN_TRANSACTION, INVALID_TXN_STATE, SINK_OWNED])
"""Refusals of a sink's commit, for good."""


FETCH_BYTES_DEFAULT = 8 * 1024 * 1024
"""Measured in docs/decisions/spark-fetch.md. Larger chunks gain little, and two are held."""


class TopicInfo(NamedTuple):
    """A topic's partitions and id, which is unique among topics of one name."""

    topic_id: str
    partitions: int


class Bounds(NamedTuple):
    """The readable offsets of a partition, from `start` to before `end`."""

    start: int
    end: int


class _Parts(NamedTuple):
    """The connections of one process."""

    background: Background
    transport: Transport
    metadata: ClusterMetadata
    fetcher: FetchConnectionPool


_others: list[_Parts] = []
"""Connections of parent processes. Kept, as collecting them would close the parent's sockets,
and never used. One entry for each fork of a connected process in a row."""


class Cluster:
    """A cluster as Spark sees it. A context manager. Not for several threads at once.

    Every call raises RaftlogSparkError, of type ClusterUnavailable if no node responds within
    `request_timeout_s` (the first time within `bootstrap_timeout_s`), or a partition has no leader
    for so long. Other errors are documented by call.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        request_timeout_s: float = 30.0,
        client_id: str = CLIENT_ID,
        bootstrap_timeout_s: float = BOOTSTRAP_TIMEOUT_MS / 1000,
    ) -> None:
        """`bootstrap_servers`: "host:port,…". Does not connect yet. Raises ValueError.

        `bootstrap_timeout_s`: for the first answer of any node to this object, at most
        `request_timeout_s`.
        """
        parse_bootstrap(bootstrap_servers)
        if request_timeout_s <= 0:
            raise ValueError(f"request_timeout_s must be more than 0, not {request_timeout_s}")
        self._bootstrap_servers = bootstrap_servers
        self._request_timeout_s = request_timeout_s
        self._client_id = client_id
        self._bootstrap_timeout_s = bootstrap_timeout_s
        self._parts: _Parts | None = None
        self._process_id = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _connected_to, (self._bootstrap_servers, self._request_timeout_s, self._client_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def topics(self) -> dict[str, TopicInfo]:
        """All topics of the cluster, by name."""
        metadata = self._connected().metadata
        view = self._run(metadata.refresh(None), "listing the topics")
        return {
            name: TopicInfo(topic.topic_id, len(topic.partitions))
            for name, topic in sorted(view.topics.items())
        }

    def bounds(self, topics: Collection[str], *, isolation: str) -> dict[tuple[str, int], Bounds]:
        """The readable offsets of all partitions of these topics, by one call to one node.

        With isolation "read_committed" up to the last stable offset, with "read_uncommitted" up to
        the high watermark. Raises TopicGone.
        """
        is_stable = _isolation(isolation) == "read_committed"
        metadata = self._connected().metadata
        found = self._run(bounds_of_topics(metadata, topics), "asking for offsets", topics)
        return {
            (one.topic, one.partition): Bounds(
                row.log_start_offset, row.last_stable_offset if is_stable else row.high_watermark
            )
            for one, row in found.items()
        }

    def offsets_for_times(
        self, times_ms: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], int | None]:
        """The offset of each partition's first record at or after its time in Unix milliseconds.
        None if no record is that young. One call to one node. Raises TopicGone."""
        wanted = {TopicPartition(topic, number): time for (topic, number), time in times_ms.items()}
        if not wanted:
            return {}
        metadata = self._connected().metadata
        topics = {topic for topic, _ in times_ms}
        found = self._run(offsets_of_times(metadata, wanted), "asking for offsets by time", topics)
        return {
            (one.topic, one.partition): None if row.found is None else row.found.offset
            for one, row in found.items()
        }

    def read(
        self,
        topic: str,
        topic_id: str,
        partition: int,
        start: int,
        end: int,
        *,
        fetch_bytes: int = FETCH_BYTES_DEFAULT,
        isolation: str = "read_uncommitted",
    ) -> Iterator[RangeChunk]:
        """The record batches of offsets `start` to before `end`, as stored.

        Each chunk holds whole batches, about `fetch_bytes` of data, and continues where the last
        chunk ended. The first and last may hold records outside of the range. With "read_committed"
        it names the aborted transactions in its data. `decode` checks CRCs, and skips aborted
        records. The next chunk is fetched while the caller works on the present chunk. A chunk's
        data lives as long as the caller uses it, and at most three are held for a caller that drops
        each chunk. `end` comes from `bounds` with the same isolation, and no later data is read.
        After a leader's death the fetch continues at the new leader.

        Raises OffsetOutOfRange (records of the range were deleted, `lowest` is the first offset
        left), TopicGone, TopicRecreated, or ValueError for invalid settings.
        """
        isolated = _isolation(isolation)
        if fetch_bytes < 1 or start < 0:
            raise ValueError(f"fetch_bytes {fetch_bytes} and start {start} make no sense")
        if start >= end:
            return iter(())
        parts = self._connected()
        reader = RangeReader(
            parts.fetcher,
            parts.metadata,
            TopicPartition(topic, partition),
            topic_id=topic_id,
            start=start,
            end=end,
            chunk_bytes=fetch_bytes,
            isolation=isolated,
        )
        return chunks(parts.background, reader, topic=topic, end=end)

    def written_ms(self, topic: str, topic_id: str, partition: int, offset: int) -> int | None:
        """When the batch of a record was written (its last timestamp, ms since the epoch). Of the
        first batch after it if it is gone by compaction. Raises as `read`."""
        found = self.read(topic, topic_id, partition, offset, offset + 1, fetch_bytes=1)
        for chunk in found:
            return parse_header(chunk.data).max_timestamp_ms
        return None

    def writer(
        self,
        topic: str | None = None,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS_DEFAULT,
        buffer_bytes: int = BUFFER_BYTES_DEFAULT,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S_DEFAULT,
    ) -> BatchWriter:
        """A writer of encoded batches, idempotent, acknowledged by all in-sync replicas.

        `topic` is the default for batches without a topic. `buffer_bytes` bounds unacknowledged
        data,
        as `write` waits for room. A batch not acknowledged within `delivery_timeout_s` has failed.
        With a `transactional_id` all is written in one transaction, which `prepare` keeps, and
        which is aborted otherwise, at the latest after `transaction_timeout_ms`. Raises TopicGone.
        """
        background = self._connected().background

        async def start() -> tuple[Producer, Transaction | None]:
            producer = Producer(
                bootstrap_servers=self._bootstrap_servers,
                client_id=self._client_id,
                batch_bytes_max=BATCH_BYTES_MAX,
                request_bytes_max=REQUEST_BYTES_MAX,
                buffer_bytes_max=max(buffer_bytes, BATCH_BYTES_MAX),
                delivery_timeout_ms=delivery_timeout_s * 1000,
                request_timeout_ms=self._request_timeout_s * 1000,
                bootstrap_timeout_ms=self._bootstrap_timeout_s * 1000,
                transactional_id=transactional_id,
                transaction_timeout_ms=transaction_timeout_ms,
            )
            await producer.start()
            transaction = None
            try:
                if transactional_id is not None:
                    transaction = producer.transaction()
                    await transaction.begin()
                if topic is not None:
                    await producer.partitions_for(topic)
            except BaseException:
                await producer.close(timeout_ms=0)
                raise
            return producer, transaction

        what = f"opening a writer to {topic or self._bootstrap_servers!r}"
        producer, transaction = self._run(start(), what, () if topic is None else (topic,))
        return BatchWriter(background, producer, topic, transaction)

    def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], topic_ids: Mapping[str, str]
    ) -> None:
        """Commit offsets of a group without members. Skips a topic with another id. Raises
        RaftlogSparkError for the first that is refused. The others are committed."""
        metadata = self._connected().metadata
        commits = [
            OffsetCommit(topic, partition, Offset(offset), topic_id=topic_ids.get(topic))
            for (topic, partition), offset in sorted(offsets.items())
        ]
        work = commit_for_group(metadata, group, commits)
        self._run(work, f"committing offsets of group {group!r}")

    def sink_owner(self, sink_id: str) -> str | None:
        """The owner of the sink's epochs. None before the first owner."""
        metadata = self._connected().metadata
        found = self._run(sinks.describe_sink(metadata, sink_id), f"asking for sink {sink_id!r}")
        return None if found.epoch < 0 else found.owner

    def commit_sink(
        self, sink_id: str, transactional_ids: Sequence[str], *, epoch: int | None, owner: str
    ) -> None:
        """Commit these prepared transactions of a sink together, and abort its others.

        Harmless to repeat with an epoch. Without an epoch (None), only for a minute, and with no
        ids everything of the sink is aborted. Raises SinkRefused if nothing is committed and never
        will be, or ClusterUnavailable if it may be.
        """
        metadata = self._connected().metadata
        work: Coroutine[Any, Any, object]
        if epoch is None:
            work = sinks.commit_sink(metadata, sink_id, transactional_ids, owner=owner)
        else:
            work = sinks.commit_sink_epoch(metadata, sink_id, epoch, transactional_ids, owner=owner)
        try:
            self._run(work, f"committing sink {sink_id!r}")
        except RaftlogSparkError as error:
            cause = error.__cause__
            if isinstance(cause, ServerError) and cause.entry in REFUSALS:
                raise SinkRefused(
                    str(cause),
                    is_owned=cause.entry is SINK_OWNED,
                    # An earlier request may have committed a sink without an epoch.
                    is_unknown=epoch is None and cause.entry is UNKNOWN_TRANSACTION,
                ) from cause
            raise

    def close(self) -> None:
        """Close all connections and end the thread. The next call connects again."""
        parts, self._parts = self._parts, None
        if parts is None:
            return
        if self._process_id != os.getpid():
            _others.append(parts)
            return
        try:
            parts.background.run(_close(parts), "closing connections")
        finally:
            parts.background.close()

    def _connected(self) -> _Parts:
        if self._parts is not None and self._process_id != os.getpid():
            self.close()
        if self._parts is None:
            background = Background()
            transport = Transport(
                client_id=self._client_id, request_timeout_ms=self._request_timeout_s * 1000
            )
            backoff = Backoff(RETRY_FIRST_MS, RETRY_MAX_MS)
            metadata = ClusterMetadata(
                transport,
                parse_bootstrap(self._bootstrap_servers),
                backoff,
                bootstrap_timeout_ms=self._bootstrap_timeout_s * 1000,
            )
            self._parts = _Parts(
                background, transport, metadata, FetchConnectionPool(self._client_id)
            )
            self._process_id = os.getpid()
            background.run(_start(transport), "starting")
        return self._parts

    def _run(self, work: Coroutine[Any, Any, T], what: str, topics: Collection[str] = ()) -> T:
        parts = self._connected()
        try:
            return parts.background.run(work, f"{what} ({self._bootstrap_servers})")
        except TopicNotFoundError as error:
            raise self._gone(parts, topics, what, error) from error
        except RaftlogClientError as error:
            raise spark_error(error, what=what, topic=", ".join(sorted(topics))) from error

    def _gone(
        self, parts: _Parts, topics: Collection[str], what: str, error: TopicNotFoundError
    ) -> RaftlogSparkError:
        """The one of these topics that does not exist."""
        try:
            view = parts.background.run(parts.metadata.refresh(topics), "listing the topics")
        except RaftlogClientError:
            # The caller's error then keeps its own text.
            missing = []
        else:
            missing = sorted(set(topics) - view.topics.keys())
        names = missing or sorted(topics)
        return TopicGone(f"{what}: {error}", topic=names[0] if names else "")


def _connected_to(bootstrap_servers: str, request_timeout_s: float, client_id: str) -> Cluster:
    # The driver has reached the cluster, so a silent cluster is down, and not at another address.
    return Cluster(
        bootstrap_servers,
        request_timeout_s=request_timeout_s,
        client_id=client_id,
        bootstrap_timeout_s=request_timeout_s,
    )


def _isolation(name: str) -> Isolation:
    if name not in ("read_uncommitted", "read_committed"):
        raise ValueError(f"isolation must be read_uncommitted or read_committed, not {name!r}")
    return "read_committed" if name == "read_committed" else "read_uncommitted"


async def _start(transport: Transport) -> None:
    transport.start()


async def _close(parts: _Parts) -> None:
    parts.fetcher.close()
    await parts.metadata.close()
    await parts.transport.close()


def chunks(
    background: Background, reader: RangeReader, *, topic: str, end: int
) -> Iterator[RangeChunk]:
    """The reader's chunks in sequence. None without data. Holds the caller's chunk and the next.
    Raises RaftlogSparkError."""
    what = f"reading {topic!r}"
    pending = background.submit(reader.next())
    try:
        while True:
            try:
                chunk = result_of(pending, what)
            except RaftlogClientError as error:
                raise spark_error(error, what=what, topic=topic) from error
            if chunk is None:
                return
            is_last = chunk.next_offset >= end
            if not is_last:
                pending = background.submit(reader.next())
            if chunk.data:
                yield chunk
            if is_last:
                return
            # Drop the chunk before waiting for the next.
            del chunk
    finally:
        pending.cancel()
