"""Synchronous access to a cluster, for the driver and the executors alike.

A `Cluster` pickles as its settings. It connects when it is first used, and again in a process that
was forked after that: what belongs to the parent is left alone there.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from raftlog_client import Producer
from raftlog_client.errors import RaftlogClientError, TopicNotFoundError
from raftlog_client.fetch_protocol import FetchConnectionPool
from raftlog_client.metadata import Backoff, ClusterMetadata
from raftlog_client.offsets import bounds_of_topics, offsets_of_times
from raftlog_client.range_reader import RangeReader
from raftlog_client.transport import Transport, parse_bootstrap
from raftlog_client.types import TopicPartition

from raftlog_spark.background import Background, result_of
from raftlog_spark.errors import RaftlogSparkError, TopicGone, spark_error
from raftlog_spark.sink.batch_writer import BatchWriter

ISOLATIONS: Final = ("read_uncommitted", "read_committed")
RETRY_FIRST_MS: Final = 20
RETRY_MAX_MS: Final = 250
CLIENT_ID: Final = "raftlog-spark"
BATCH_BYTES_MAX: Final = 1024 * 1024
REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
BUFFER_BYTES_DEFAULT: Final = 32 * 1024 * 1024
DELIVERY_TIMEOUT_S_DEFAULT: Final = 120.0

T = TypeVar("T")


FETCH_BYTES_DEFAULT = 8 * 1024 * 1024
"""Measured (DESIGN.md): larger chunks gain little, and two of them are held."""


class TopicInfo(NamedTuple):
    """A topic: which one of its name it is, and how many partitions it has."""

    topic_id: str
    partitions: int


class Bounds(NamedTuple):
    """The offsets of a partition that can be read: from `start` up to, not including, `end`."""

    start: int
    end: int


class _Parts(NamedTuple):
    """What one process has of a cluster."""

    background: Background
    transport: Transport
    metadata: ClusterMetadata
    fetcher: FetchConnectionPool


_others: list[_Parts] = []
"""Of the process that this one was forked from. Kept, as to collect them would close the parent's
connections; never used. As many as processes were forked in a row, each from a connected one."""


class Cluster:
    """A cluster as Spark sees it; a context manager. Not for several threads at once.

    Every call raises RaftlogSparkError: ClusterUnavailable if no node answers within
    `request_timeout_s`, or a partition has no leader for so long; others as they say.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        request_timeout_s: float = 30.0,
        client_id: str = CLIENT_ID,
    ) -> None:
        """`bootstrap_servers`: "host:port,…". Connects to nothing yet. Raises ValueError."""
        parse_bootstrap(bootstrap_servers)
        if request_timeout_s <= 0:
            raise ValueError(f"request_timeout_s must be more than 0, not {request_timeout_s}")
        self._bootstrap_servers = bootstrap_servers
        self._request_timeout_s = request_timeout_s
        self._client_id = client_id
        self._parts: _Parts | None = None
        self._process_id = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _connected_to, (self._bootstrap_servers, self._request_timeout_s, self._client_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        """What can be read of all partitions of these topics, by one call to one node.

        With isolation "read_committed" up to the last stable offset, with "read_uncommitted" up to
        the high watermark. Raises TopicGone.
        """
        is_stable = _is_committed(isolation)
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
        """The offset of each partition's first record at or after its time (ms since the epoch).

        None if no record is that young. One call to one node. Raises TopicGone.
        """
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
    ) -> Iterator[memoryview]:
        """The record batches of offsets `start` up to, not including, `end`, as they are stored.

        Each view holds whole batches, about `fetch_bytes` of them, and goes on where the one before
        it ended; the first and last may hold records outside of the range. `decode` checks CRCs.
        The next view is fetched while the caller works on one; each lives as long as it is used,
        and three at most are held for a caller that lets go of them. `end` is one that `bounds`
        gave for the same isolation: nothing beyond it is looked at. Goes on at the new leader when
        one dies.

        Raises OffsetOutOfRange (records of the range were deleted; `lowest` is what is left),
        TopicGone, TopicRecreated. ValueError for settings that make no sense.
        """
        _is_committed(isolation)
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
        )
        return chunks(parts.background, reader, topic=topic, end=end)

    def writer(
        self,
        topic: str | None = None,
        *,
        buffer_bytes: int = BUFFER_BYTES_DEFAULT,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S_DEFAULT,
    ) -> BatchWriter:
        """A writer of encoded batches, idempotent, acknowledged by all in-sync replicas.

        `topic`: where its batches go that name no other. `buffer_bytes` bounds what is not
        acknowledged yet: `write` waits for room. What is not acknowledged within
        `delivery_timeout_s` has failed. Raises TopicGone.
        """
        background = self._connected().background

        async def start() -> Producer:
            producer = Producer(
                bootstrap_servers=self._bootstrap_servers,
                client_id=self._client_id,
                batch_bytes_max=BATCH_BYTES_MAX,
                request_bytes_max=REQUEST_BYTES_MAX,
                buffer_bytes_max=max(buffer_bytes, BATCH_BYTES_MAX),
                delivery_timeout_ms=delivery_timeout_s * 1000,
                request_timeout_ms=self._request_timeout_s * 1000,
            )
            await producer.start()
            try:
                if topic is not None:
                    await producer.partitions_for(topic)
            except BaseException:
                await producer.close(timeout_ms=0)
                raise
            return producer

        what = f"opening a writer to {topic or self._bootstrap_servers!r}"
        producer = self._run(start(), what, () if topic is None else (topic,))
        return BatchWriter(background, producer, topic)

    def close(self) -> None:
        """End all connections and the thread. Used again, it connects again."""
        parts, self._parts = self._parts, None
        if parts is None:
            return
        if self._process_id != os.getpid():
            _others.append(parts)
            return
        try:
            parts.background.run(_close(parts))
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
            metadata = ClusterMetadata(transport, parse_bootstrap(self._bootstrap_servers), backoff)
            self._parts = _Parts(
                background, transport, metadata, FetchConnectionPool(self._client_id)
            )
            self._process_id = os.getpid()
            background.run(_start(transport))
        return self._parts

    def _run(self, work: Coroutine[Any, Any, T], what: str, topics: Collection[str] = ()) -> T:
        parts = self._connected()
        try:
            return parts.background.run(work)
        except TopicNotFoundError as error:
            raise self._gone(parts, topics, what, error) from error
        except RaftlogClientError as error:
            raise spark_error(error, what=what, topic=", ".join(sorted(topics))) from error

    def _gone(
        self, parts: _Parts, topics: Collection[str], what: str, error: TopicNotFoundError
    ) -> RaftlogSparkError:
        """Which of the topics it is that does not exist."""
        try:
            view = parts.background.run(parts.metadata.refresh(topics))
        except RaftlogClientError:
            # Then the error says what there is to say.
            missing = []
        else:
            missing = sorted(set(topics) - view.topics.keys())
        names = missing or sorted(topics)
        return TopicGone(f"{what}: {error}", topic=names[0] if names else "")


def _connected_to(bootstrap_servers: str, request_timeout_s: float, client_id: str) -> Cluster:
    return Cluster(bootstrap_servers, request_timeout_s=request_timeout_s, client_id=client_id)


def _is_committed(isolation: str) -> bool:
    if isolation not in ISOLATIONS:
        raise ValueError(f"isolation must be one of {', '.join(ISOLATIONS)}, not {isolation!r}")
    return isolation == "read_committed"


async def _start(transport: Transport) -> None:
    transport.start()


async def _close(parts: _Parts) -> None:
    parts.fetcher.close()
    await parts.metadata.close()
    await parts.transport.close()


def chunks(
    background: Background, reader: RangeReader, *, topic: str, end: int
) -> Iterator[memoryview]:
    """What the reader gives, chunk by chunk; never an empty one.

    Holds the chunk that the caller works on, and the next. Raises RaftlogSparkError.
    """
    pending = background.submit(reader.next())
    try:
        while True:
            try:
                chunk = result_of(pending)
            except RaftlogClientError as error:
                raise spark_error(error, what=f"reading {topic!r}", topic=topic) from error
            if chunk is None:
                return
            is_last = chunk.next_offset >= end
            if not is_last:
                pending = background.submit(reader.next())
            if chunk.data:
                yield chunk.data
            if is_last:
                return
            # Not held while the next one is waited for.
            del chunk
    finally:
        pending.cancel()
