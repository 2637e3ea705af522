"""A task of the sink against a writer in memory: every row written, none reported too early."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftlog_client.produce.record_encoder import murmur2_partitioner
from raftlog_spark.errors import RaftlogSparkError, SinkRefused, TopicGone, WriteFailed
from raftlog_spark.options import SinkOptions
from raftlog_spark.schema import SinkColumns
from raftlog_spark.sink import sink_task
from raftlog_spark.sink.commit_message import AttemptId, TaskCommit
from raftlog_spark.sink.sink_task import BUFFER_BYTES_MAX

from .fake_cluster import FakeCluster

KEYED = SinkColumns(value=0, key=1)
VALUES = SinkColumns(value=0)


def tag(task: int = 0, batch_id: int | None = None) -> AttemptId:
    return AttemptId("sink", None, batch_id, task, 0)


def write(
    cluster: FakeCluster,
    columns: SinkColumns,
    batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch],
    *,
    topic: str | None = "t",
    who: AttemptId | None = None,
    sink_id: str | None = None,
    is_exactly_once: bool = True,
) -> TaskCommit:
    options = SinkOptions("fake:1", topic, sink_id, is_exactly_once)
    return sink_task.write_rows(options, columns, who or tag(), iter(batches), cluster=cluster)


@pytest.fixture
def cluster() -> FakeCluster:
    return with_topics()


def with_topics() -> FakeCluster:
    made = FakeCluster()
    made.create("t", 3)
    made.create("u", 2)
    return made


def rows(*values: bytes | None, **columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary()), **columns})


def values(cluster: FakeCluster, partition: int, topic: str = "t") -> list[bytes | None]:
    return [record.value for record in cluster.written.get((topic, partition), [])]


@given(
    batches=st.lists(
        st.lists(st.tuples(st.sampled_from("tu"), st.none() | st.binary(max_size=3)), max_size=30),
        max_size=5,
    )
)
def test_every_row_is_written_once_where_its_key_belongs_in_order(
    batches: list[list[tuple[str, bytes | None]]],
) -> None:
    cluster = with_topics()
    frames = []
    expected: dict[tuple[str, int], list[tuple[bytes | None, bytes]]] = {}
    count = 0
    for batch in batches:
        numbers = [b"%d" % (count + i) for i in range(len(batch))]
        count += len(batch)
        for (topic, key), value in zip(batch, numbers, strict=True):
            number = murmur2_partitioner(topic, key, None, 3 if topic == "t" else 2) or 0
            expected.setdefault((topic, number), []).append((key, value))
        frames.append(
            rows(
                *numbers,
                key=pa.array([row[1] for row in batch], pa.binary()),
                topic=pa.array([row[0] for row in batch], pa.string()),
            )
        )
    commit = write(cluster, SinkColumns(value=0, key=1, topic=2), frames, topic=None)
    found = {
        place: [(record.key, record.value) for record in records]
        for place, records in cluster.written.items()
    }
    assert found == expected
    assert [(each.topic, each.partition, each.records) for each in commit.written] == [
        (*place, len(records)) for place, records in sorted(expected.items())
    ]
    assert commit.records == count


def test_keys_headers_and_tombstones_are_written(cluster: FakeCluster) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    frame = rows(
        b"a",
        None,
        key=pa.array(["k", "k"]),
        headers=pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None], kind),
        partition=pa.array([2, 2]),
    )
    write(cluster, SinkColumns(0, 1, 2, None, 3), [frame])
    assert [
        (record.key, record.value, list(record.headers)) for record in cluster.written["t", 2]
    ] == [(b"k", b"a", [("h", b"1"), ("h", None)]), (b"k", None, [])]


def test_a_task_says_who_it_is_and_what_it_wrote(cluster: FakeCluster) -> None:
    who = AttemptId("sink", "query", 4, 1, 2)
    commit = write(cluster, VALUES, [rows(b"a", b"b")], who=who)
    assert commit.tag == who
    [written] = commit.written
    assert written[:3] == ("t", (4 + 1) % 3, 2)
    assert written.size_bytes == cluster.writers[0].size_bytes


def test_an_attempt_prepares_a_transaction_of_its_own(cluster: FakeCluster) -> None:
    who = AttemptId("sink", "query", 4, 1, 2, 4)
    names = [write(cluster, VALUES, [rows(b"a")], who=who).transactional_id for _ in range(2)]
    assert names == [writer.transactional_id for writer in cluster.writers]
    assert all(writer.is_prepared and writer.ends == ["closed"] for writer in cluster.writers)
    assert len(set(names)) == 2, "a replay gives the same numbers again"
    for name in names:
        assert str(name).startswith("sink/sink/4-1.2-")


def test_at_least_once_has_no_transaction(cluster: FakeCluster) -> None:
    commit = write(cluster, VALUES, [rows(b"a")], is_exactly_once=False)
    assert commit.transactional_id is cluster.writers[0].transactional_id is None
    assert not cluster.writers[0].is_prepared


def test_a_named_sink_of_another_query_is_refused_before_anything_is_written(
    cluster: FakeCluster,
) -> None:
    who = AttemptId("s", "mine", 4, 1, 2, 4)
    for owner in (None, "mine"):
        cluster.owners = {} if owner is None else {"s": owner}
        write(cluster, VALUES, [rows(b"a")], who=who, sink_id="s")
    assert cluster.asked["sink owner"] == 2
    cluster.owners["s"] = "other"
    with pytest.raises(SinkRefused, match="sinkId 's' belongs to query 'other'"):
        write(cluster, VALUES, [rows(b"a")], who=who, sink_id="s")
    assert len(cluster.writers) == 2


def test_a_task_without_rows_asks_nothing(cluster: FakeCluster) -> None:
    assert write(cluster, VALUES, [rows()]) == TaskCommit(tag(), ())
    assert not cluster.asked
    write(cluster, VALUES, [rows(), rows(b"a"), rows()])
    assert values(cluster, 0) == [b"a"]


def test_rows_without_a_key_stay_together_and_then_go_on_to_the_next_partition(
    cluster: FakeCluster,
) -> None:
    many = [rows(*[b"%06d" % number + bytes(94)] * 2000) for number in range(60)]
    write(cluster, VALUES, many, who=tag(task=1))
    counts = [len(values(cluster, number)) for number in range(3)]
    assert sum(counts) == 120_000
    # Of 100 bytes, some 10,000 fill a call: a turn.
    assert max(counts) - min(counts) <= 12_000
    calls = cluster.writers[0].calls
    assert calls <= 40, "batches are large"


def test_memory_is_bounded_however_much_comes(cluster: FakeCluster) -> None:
    cluster.create("wide", 1000)
    size = 3_000_000
    kept_max = 0

    def frames() -> Iterator[pa.RecordBatch]:
        nonlocal kept_max
        for number in range(30):
            yield rows(*[bytes(30_000)] * 100, key=pa.array([f"{number}-{i}" for i in range(100)]))
            sent = sum(writer.size_bytes for writer in cluster.writers)
            kept_max = max(kept_max, (number + 1) * size - sent)

    commit = write(cluster, KEYED, frames(), topic="wide")
    assert commit.records == 3000
    assert size < kept_max < BUFFER_BYTES_MAX + size


def test_a_batch_that_is_too_large_is_taken_in_parts(cluster: FakeCluster) -> None:
    count = 3 * BUFFER_BYTES_MAX // 30_000
    commit = write(cluster, VALUES, [rows(*[bytes(30_000)] * count)])
    assert commit.records == count
    # Each part is a turn of its own.
    assert [each.partition for each in commit.written] == [0, 1, 2]


def test_nothing_counts_as_written_before_it_is_acknowledged(cluster: FakeCluster) -> None:
    cluster.acknowledged_max = 0
    with pytest.raises(WriteFailed, match="not acknowledged"):
        write(cluster, VALUES, [rows(b"a")])
    assert cluster.writers[0].ends == ["aborted"]
    assert cluster.is_closed


def test_an_attempt_that_fails_takes_its_writer_with_it(cluster: FakeCluster) -> None:
    def frames() -> Iterator[pa.RecordBatch]:
        yield rows(b"a")
        raise KeyError("the query's own code")

    with pytest.raises(KeyError):
        write(cluster, VALUES, frames())
    assert cluster.writers[0].ends == ["aborted"]
    assert cluster.is_closed
    assert not cluster.written


def test_a_topic_that_is_not_there_is_told_with_what_to_do(cluster: FakeCluster) -> None:
    with pytest.raises(TopicGone, match=r"'nope' does not exist on fake:1.*topic create nope"):
        write(cluster, VALUES, [rows(b"a")], topic="nope")


def test_rows_are_written_by_tasks_only() -> None:
    with pytest.raises(RaftlogSparkError, match="tasks"):
        sink_task.current_tag("sink")


class FakeContext:
    """Spark's properties of a task."""

    def __init__(self, **properties: str) -> None:
        self.properties = {name.replace("_", "."): value for name, value in properties.items()}

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802  Spark's name
        return self.properties.get(name)

    def partitionId(self) -> int:  # noqa: N802  Spark's name
        return 3

    def attemptNumber(self) -> int:  # noqa: N802  Spark's name
        return 1


def test_a_task_learns_from_spark_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_by(context: FakeContext) -> None:
        monkeypatch.setattr(sink_task.TaskContext, "get", lambda: context)

    run_by(FakeContext(sql_streaming_queryId="q", streaming_sql_batchId="12"))
    assert sink_task.current_tag(None) == AttemptId("q", "q", 12, 3, 1, 12)
    assert sink_task.current_tag("s") == AttemptId("s", "q", 12, 3, 1, 12)
    # In foreachBatch, a write with a name has the stream's epochs, one without commits once.
    assert sink_task.current_tag("s", write_id="w") == AttemptId("s", "q", 12, 3, 1, 12)
    assert sink_task.current_tag(None, write_id="w") == AttemptId("w", "q", 12, 3, 1, None)
    run_by(FakeContext())
    assert sink_task.current_tag("s") == AttemptId("s", None, None, 3, 1)
    assert sink_task.current_tag("s", write_id="w") == AttemptId("s.w", None, None, 3, 1)
    with pytest.raises(RaftlogSparkError, match="sinkId"):
        sink_task.current_tag(None)
