"""The source in a real Spark, on a real node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from raftlog_client import Admin, Producer

from bench.node import LoneNode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader

TIMEOUT_S = 120


class AbortOnPurposeError(Exception):
    pass


class Topic:
    """A topic of two partitions, filled by its test."""

    def __init__(self, address: str, name: str) -> None:
        self.address = address
        self.name = name
        asyncio.run(self._create())

    def send(self, partition: int, first: int, end: int) -> None:
        """Records with value `partition:number`, timestamp number * 1000 ms, a key and a header."""
        asyncio.run(self._send(partition, first, end))

    @property
    def options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.address, "subscribe": self.name}

    def send_in_transaction(self, partition: int, first: int, end: int, *, commits: bool) -> None:
        """Records with value `partition:number`, in one transaction and the marker's offset."""
        asyncio.run(self._send_in_transaction(partition, first, end, commits=commits))

    async def _send_in_transaction(
        self, partition: int, first: int, end: int, *, commits: bool
    ) -> None:
        async with Producer(bootstrap_servers=self.address, transactional_id="writer") as producer:
            with suppress(AbortOnPurposeError):
                async with producer.transaction():
                    for number in range(first, end):
                        await producer.send(
                            self.name, b"%d:%d" % (partition, number), partition=partition
                        )
                    await producer.flush()
                    if not commits:
                        raise AbortOnPurposeError

    async def _create(self) -> None:
        async with Admin(bootstrap_servers=self.address) as admin:
            # Records as old as 1970 are to stay.
            await admin.create_topic(self.name, partitions=2, configs={"retention.ms": "-1"})

    async def _send(self, partition: int, first: int, end: int) -> None:
        async with Producer(bootstrap_servers=self.address) as producer:
            for number in range(first, end):
                await producer.send(
                    self.name,
                    b"%d:%d" % (partition, number),
                    b"key",
                    partition=partition,
                    timestamp_ms=number * 1000,
                    headers=[("h", b"%d" % number)],
                )
            await producer.flush()


@pytest.fixture
def topic(spark_node: LoneNode, topic_name: str) -> Topic:
    made = Topic(spark_node.address, topic_name)
    made.send(0, 0, 20)
    made.send(1, 0, 5)
    return made


def batch(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    return spark.read.format("raftlog").options(**topic.options, **options).load()


def stream(spark: SparkSession, topic: Topic, **options: str) -> DataStreamReader:
    return spark.readStream.format("raftlog").options(**topic.options, **options)


def rows(frame: DataFrame) -> list[tuple[int, int]]:
    """Partitions and offsets, sorted."""
    return sorted(
        (row.partition, row.offset) for row in frame.select("partition", "offset").collect()
    )


def part(partition: int, first: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(first, end)]


def test_a_batch_query_reads_every_column_of_every_record(
    spark: SparkSession, topic: Topic
) -> None:
    frame = batch(spark, topic, includeHeaders="true")
    assert [field.name for field in frame.schema] == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
    ]
    found = frame.withColumn("seconds", frame.timestamp.cast("double")).collect()
    assert len(found) == 25
    for row in found:
        assert bytes(row.value) == b"%d:%d" % (row.partition, row.offset)
        assert (bytes(row.key), row.topic, row.seconds) == (b"key", topic.name, row.offset)
        assert row.timestampType == 0
        assert [(h.key, bytes(h.value)) for h in row.headers] == [("h", b"%d" % row.offset)]


def test_a_query_reads_the_range_and_the_columns_that_it_asks_for(
    spark: SparkSession, topic: Topic
) -> None:
    name = topic.name
    frame = (
        spark.read.format("raftlog")
        .options(**topic.options, minPartitions="4")
        .option("startingOffsets", f'{{"{name}": {{"0": 3, "1": -2}}}}')
        .option("endingOffsets", f'{{"{name}": {{"0": 13, "1": -1}}}}')
        .schema("offset long, partition int")
        .load()
    )
    assert frame.columns == ["offset", "partition"]
    assert frame.rdd.getNumPartitions() == 4
    assert rows(frame) == part(0, 3, 13) + part(1, 0, 5)
    timed = batch(spark, topic, startingTimestamp="4000", endingTimestamp="12000")
    assert rows(timed) == part(0, 4, 12) + part(1, 4, 5)


@pytest.fixture(params=[True, False], ids=["pushdown", "no pushdown"])
def is_pushed(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[bool]:
    """Whether the session offers filters to Python sources; without, all must work as well."""
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, str(request.param).lower())
    try:
        yield request.param
    finally:
        spark.conf.set(name, str(before))


def test_filters_narrow_what_is_read_and_are_checked_all_the_same(
    spark: SparkSession, topic: Topic, is_pushed: bool
) -> None:
    frame = batch(spark, topic, maxRecordsPerPartition="5")
    assert frame.rdd.getNumPartitions() == 5
    for condition, tasks, expected in [
        ("partition = 0 and offset >= 7 and offset < 11", 1, part(0, 7, 11)),
        ("partition in (1, 9) and offset % 2 = 0", 1, [(1, 0), (1, 2), (1, 4)]),
        ("timestamp >= timestamp'1970-01-01 00:00:12Z'", 2, part(0, 12, 20)),
    ]:
        filtered = frame.where(condition)
        assert rows(filtered) == expected
        assert filtered.rdd.getNumPartitions() == (tasks if is_pushed else 5)
    assert rows(frame.where("topic = 'another'")) == []


def test_mistakes_are_told_when_the_source_is_loaded(spark: SparkSession, topic: Topic) -> None:
    with pytest.raises(Exception, match=r"did you mean startingOffsets\?"):
        batch(spark, topic, startingOffset="earliest")
    with pytest.raises(Exception, match=r"column offset is bigint, not string"):
        spark.read.format("raftlog").options(**topic.options).schema("offset string").load().count()
    with pytest.raises(Exception, match=r"topic nope does not exist"):
        spark.read.format("raftlog").options(**topic.options | {"subscribe": "nope"}).load().count()


def run_available_now(frame: DataFrame, checkpoint: Path) -> list[list[tuple[int, int]]]:
    """The rows of each batch, without empty batches."""
    batches: list[list[tuple[int, int]]] = []

    def keep(found: DataFrame, number: int) -> None:
        if read := rows(found):
            batches.append(read)

    query = (
        frame.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(TIMEOUT_S)
    finally:
        query.stop()
    return batches


def test_a_stream_goes_on_where_its_checkpoint_is(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    frame = stream(spark, topic, startingOffsets="earliest", maxOffsetsPerTrigger="15").load()
    first = run_available_now(frame, tmp_path)
    assert [len(each) for each in first] == [15, 10]
    assert sorted(row for each in first for row in each) == part(0, 0, 20) + part(1, 0, 5)
    topic.send(1, 5, 8)
    assert run_available_now(frame, tmp_path) == [part(1, 5, 8)]
    assert run_available_now(frame, tmp_path) == []


@pytest.mark.parametrize(
    "starting",
    # test_faults_stream restarts a stream of new records in the fast suite.
    ["earliest", pytest.param("latest", marks=pytest.mark.full)],
)
def test_a_first_batch_that_failed_is_read_again_exactly(
    spark: SparkSession, topic: Topic, tmp_path: Path, starting: str
) -> None:
    frame = stream(spark, topic, startingOffsets=starting).load()
    failed: list[list[tuple[int, int]]] = []

    def fail(found: DataFrame, number: int) -> None:
        failed.append(rows(found))
        raise RuntimeError("the sink is down")

    query = frame.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(Exception, match="the sink is down"):
        query.awaitTermination(TIMEOUT_S)
    topic.send(1, 5, 8)
    batches = run_available_now(frame, tmp_path)
    whole = part(0, 0, 20) + part(1, 0, 5) if starting == "earliest" else []
    assert failed == [whole]
    assert batches == [*([whole] if whole else []), part(1, 5, 8)]


def test_batches_and_streams_read_committed_records_only(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """The markers take offsets 8, 12 and 15 of partition 1."""
    topic.send_in_transaction(1, 5, 8, commits=True)
    topic.send_in_transaction(1, 9, 12, commits=False)
    topic.send_in_transaction(1, 13, 15, commits=True)
    committed = part(1, 0, 8) + part(1, 13, 15)
    found = batch(spark, topic).where("partition = 1")
    assert rows(found) == committed
    assert found.count() == len(committed)
    assert rows(batch(spark, topic, isolationLevel="read_uncommitted").where("partition = 1")) == [
        *part(1, 0, 8),
        *part(1, 9, 12),
        *part(1, 13, 15),
    ]
    # Micro-batches of 4 offsets. That of offsets 8 to 11 holds no record at all.
    assign = {"assign": f'{{"{topic.name}": [1]}}', "startingOffsets": "earliest"}
    options = {name: value for name, value in topic.options.items() if name != "subscribe"}
    frame = (
        spark.readStream.format("raftlog")
        .options(**options, **assign, maxOffsetsPerTrigger="4")
        .load()
    )
    assert [row for each in run_available_now(frame, tmp_path) for row in each] == committed
    topic.send_in_transaction(1, 16, 18, commits=False)
    assert run_available_now(frame, tmp_path) == []
    topic.send(1, 19, 20)
    assert run_available_now(frame, tmp_path) == [part(1, 19, 20)]


def test_a_running_stream_reads_what_arrives(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    frame = stream(spark, topic).schema("partition int, offset long").load()
    table = topic.name.replace("-", "_")
    query = (
        frame.writeStream.format("memory")
        .queryName(table)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        query.processAllAvailable()
        topic.send(0, 20, 22)
        query.processAllAvailable()
        assert rows(spark.table(table)) == part(0, 20, 22)
    finally:
        query.stop()
