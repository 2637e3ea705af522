"""A cluster in memory, with `Cluster`'s interface, which counts its calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

from raftlog_client.fetch.range_reader import RangeChunk
from raftlog_spark.cluster import BatchWriter, Bounds, Cluster, TopicInfo, Written
from raftlog_spark.errors import (
    OffsetOutOfRange,
    RaftlogSparkError,
    TopicGone,
    TopicRecreated,
    WriteFailed,
)

from raftlog.record.batch import iterate_batches
from raftlog.record.codec import Record, decode
from tests.record.wire import encode_batches


class FakeCluster(Cluster):
    """Partitions as lists of values. Every record is a batch of its own, at its index."""

    def __init__(self) -> None:
        super().__init__("fake:1")
        self.logs: dict[tuple[str, int], list[bytes]] = {}
        self.log_starts: dict[tuple[str, int], int] = {}
        self.ids: dict[str, str] = {}
        self.asked: Counter[str] = Counter()
        self.on_bounds: Callable[[int], None] = lambda count: None
        self.written: dict[tuple[str, int], list[Record]] = {}
        """Batches given to writers, acknowledged or not, and in no log."""
        self.acknowledged_max = 1 << 62
        """How many batches are acknowledged; the next one fails, when the writer is flushed."""
        self.writers: list[FakeWriter] = []
        self.owners: dict[str, str] = {}
        """Of sinks."""
        self.committed: list[tuple[str, dict[tuple[str, int], int], dict[str, str]]] = []
        """Offsets of groups."""
        self.refusal: RaftlogSparkError | None = None
        """Of commits."""
        self.is_closed = False

    def create(self, topic: str, partitions: int = 1, topic_id: str = "id") -> None:
        """A topic, or more partitions of one."""
        self.ids[topic] = topic_id
        for number in range(partitions):
            self.logs.setdefault((topic, number), [])

    def delete(self, topic: str) -> None:
        """No such topic any more."""
        del self.ids[topic]
        self.logs = {part: log for part, log in self.logs.items() if part[0] != topic}
        self.log_starts = {}

    def append(self, topic: str, partition: int, count: int) -> None:
        """Append so many records."""
        log = self.logs[topic, partition]
        log += [b"%d" % (len(log) + i) for i in range(count)]

    def topics(self) -> dict[str, TopicInfo]:
        self.asked["topics"] += 1
        return {
            topic: TopicInfo(topic_id, sum(1 for part in self.logs if part[0] == topic))
            for topic, topic_id in self.ids.items()
        }

    def bounds(self, topics: Collection[str], *, isolation: str) -> dict[tuple[str, int], Bounds]:
        self.asked["bounds"] += 1
        self.on_bounds(self.asked["bounds"])
        for topic in topics:
            if topic not in self.ids:
                raise TopicGone("gone", topic=topic)
        return {
            part: Bounds(self.log_starts.get(part, 0), len(log))
            for part, log in self.logs.items()
            if part[0] in topics
        }

    def offsets_for_times(
        self, times_ms: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], int | None]:
        self.asked["times"] += 1
        return {
            part: time_ms if time_ms < len(self.logs[part]) else None
            for part, time_ms in times_ms.items()
        }

    def read(
        self,
        topic: str,
        topic_id: str,
        partition: int,
        start: int,
        end: int,
        *,
        fetch_bytes: int = 0,
        isolation: str = "",
    ) -> Iterator[RangeChunk]:
        self.asked["read"] += 1
        for offset in range(start, end):
            if topic not in self.ids:
                raise TopicGone("gone", topic=topic)
            if self.ids[topic] != topic_id:
                raise TopicRecreated(
                    "recreated", topic=topic, topic_id=topic_id, found_id=self.ids[topic]
                )
            lowest = self.log_starts.get((topic, partition), 0)
            if offset < lowest:
                raise OffsetOutOfRange(
                    "low", topic=topic, partition=partition, offset=offset, lowest=lowest
                )
            data = memoryview(_batch(offset, self.logs[topic, partition][offset]))
            yield RangeChunk(data, offset + 1)

    def written_ms(self, topic: str, topic_id: str, partition: int, offset: int) -> int | None:
        self.asked["written"] += 1
        if self.refusal is not None:
            raise self.refusal
        return offset * 1000

    def writer(
        self,
        topic: str | None = None,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 0,
        buffer_bytes: int = 0,
        delivery_timeout_s: float = 0,
    ) -> BatchWriter:
        self.asked["writer"] += 1
        self.writers.append(FakeWriter(self, transactional_id))
        return self.writers[-1]

    def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], topic_ids: Mapping[str, str]
    ) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.committed.append((group, dict(offsets), dict(topic_ids)))

    def sink_owner(self, sink_id: str) -> str | None:
        self.asked["sink owner"] += 1
        return self.owners.get(sink_id)

    def close(self) -> None:
        self.is_closed = True


class FakeWriter(BatchWriter):
    """Keeps batches, and reports failures only on flush, as a real writer may."""

    def __init__(self, cluster: FakeCluster, transactional_id: str | None) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.topic = None
        self.calls = self.records = self.size_bytes = 0
        self.ends: list[str] = []
        self.is_prepared = False

    def partitions(self, topic: str) -> int:
        self.cluster.asked["partitions"] += 1
        if topic not in self.cluster.ids:
            raise TopicGone("looking it up", topic=topic)
        return sum(1 for part in self.cluster.logs if part[0] == topic)

    def write(
        self, partition: int, data: bytearray, records: int, *, topic: str | None = None
    ) -> None:
        assert topic is not None
        assert not self.ends
        [batch] = iterate_batches(data)
        found = decode(batch, decompressed_bytes_max=1 << 30)
        assert len(found) == records
        self.cluster.written.setdefault((topic, partition), []).extend(found)
        self.calls += 1
        self.records += records
        self.size_bytes += len(data)

    def flush(self) -> Written:
        assert not self.ends
        if self.calls > self.cluster.acknowledged_max:
            raise WriteFailed("not acknowledged", topic="t", outcome_unknown=True)
        return Written(self.calls, self.records, self.size_bytes)

    def prepare(self) -> None:
        assert self.transactional_id is not None
        self.flush()
        self.is_prepared = True

    def close(self) -> Written:
        written = self.flush()
        self.ends.append("closed")
        return written

    def abort(self) -> None:
        self.ends.append("aborted")


def _batch(offset: int, value: bytes) -> bytes:
    [encoded] = encode_batches([(offset, None, value, None)])
    return offset.to_bytes(8, "big") + bytes(encoded.data[8:])
