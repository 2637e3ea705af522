"""The sink in a real Spark, on a real node: written rows are read back unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from raftlog_client.produce.record_encoder import murmur2_partitioner

from .sink_parts import TIMEOUT_S, create, options, read, run_available_now, save, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def numbered(spark: SparkSession, count: int, *columns: str) -> DataFrame:
    """Rows with these expressions of `id`, in four tasks; `value` is added if not given."""
    return spark.range(0, count, numPartitions=4).selectExpr(
        "cast(id AS string) AS value", *columns
    )


def test_what_is_written_is_read_back(spark: SparkSession, servers: str, topic: str) -> None:
    frame = spark.range(0, 4_000, numPartitions=4).selectExpr(
        "if(id % 7 = 0, null, cast(cast(id AS string) AS binary)) AS value",
        "concat('key-', id) AS key",
        "if(id % 3 = 0, null, "
        "array(struct('h' AS key, cast(cast(id AS string) AS binary) AS value))) AS headers",
    )
    save(frame, servers, topic)
    found = {bytes(row.key): row for row in read(spark, servers, topic)}
    assert len(found) == 4_000
    for number in range(4_000):
        key = b"key-%d" % number
        row = found[key]
        binary = b"%d" % number
        assert (row.value and bytes(row.value)) == (None if number % 7 == 0 else binary)
        assert row.partition == murmur2_partitioner(topic, key, None, 3)
        headers = [(header.key, bytes(header.value)) for header in row.headers or []]
        assert headers == ([] if number % 3 == 0 else [("h", binary)])


def test_a_tasks_rows_of_a_partition_keep_their_order(
    spark: SparkSession, servers: str, topic: str
) -> None:
    # Spark gives a task 10,000 rows at a time.
    save(numbered(spark, 12_000, "concat('k', id % 50) AS key").coalesce(1), servers, topic)
    last: dict[bytes, int] = {}
    for row in read(spark, servers, topic):
        number = int(row.value)
        assert last.get(bytes(row.key), -1) < number
        last[bytes(row.key)] = number
    assert len(last) == 50


def test_rows_go_to_the_topic_and_partition_that_they_name(
    spark: SparkSession, servers: str, topic: str
) -> None:
    other = create(servers, f"{topic}-other", 2)
    frame = numbered(
        spark,
        300,
        f"if(id % 2 = 0, '{topic}', '{other}') AS topic",
        "cast(if(id < 100, 1, null) AS int) AS partition",
        "cast(id AS string) AS key",
    )
    save(frame, servers)
    for row in read(spark, servers, topic, other):
        number = int(row.value)
        assert row.topic == (other if number % 2 else topic)
        by_key = murmur2_partitioner(topic, row.key, None, 2 if number % 2 else 3)
        assert row.partition == (1 if number < 100 else by_key)
    save(frame.drop("partition"), servers, other)
    assert len(values(spark, servers, topic)) == 150
    assert len(values(spark, servers, other)) == 450


def test_a_frame_that_was_read_can_be_written(
    spark: SparkSession, servers: str, topic: str
) -> None:
    copy = create(servers, f"{topic}-copy", 3)
    save(numbered(spark, 100, "cast(id AS string) AS key"), servers, topic)
    source = spark.read.format("raftlog").options(**{"bootstrap.servers": servers})
    save(source.option("subscribe", topic).load(), servers, copy)
    assert [row[:4] for row in read(spark, servers, topic)] == [
        (row.key, row.value, topic, row.partition) for row in read(spark, servers, copy)
    ]


def test_mistakes_are_told_before_anything_runs(
    spark: SparkSession, servers: str, topic: str
) -> None:
    frame = numbered(spark, 3)
    with pytest.raises(Exception, match=r"did you mean topic\?"):
        save(frame, servers, None, topics=topic)
    with pytest.raises(Exception, match="no column 'extra'"):
        save(numbered(spark, 3, "1 AS extra"), servers, topic)
    with pytest.raises(Exception, match="which topic to write to"):
        save(frame, servers)
    with pytest.raises(Exception, match=r"use mode\(\"append\"\)"):
        frame.write.format("raftlog").mode("overwrite").options(**options(servers, topic)).save()
    # Without a mode, Spark itself refuses.
    with pytest.raises(Exception, match="Append"):
        frame.write.format("raftlog").options(**options(servers, topic)).save()
    assert values(spark, servers, topic) == []


def test_rows_that_cannot_be_written_are_told(
    spark: SparkSession, servers: str, topic: str
) -> None:
    # Each attempt of a task costs a worker. Every save has a single task.
    with pytest.raises(Exception, match=r"'nope' does not exist .*raftlog topic create nope"):
        save(numbered(spark, 3).coalesce(1), servers, "nope")
    with pytest.raises(Exception, match=r"partition 3 of .*has partitions 0 to 2"):
        save(numbered(spark, 3, "3 AS partition").coalesce(1), servers, topic)
    with pytest.raises(Exception, match="null as its topic"):
        save(numbered(spark, 3, "cast(null AS string) AS topic").coalesce(1), servers)
    assert values(spark, servers, topic) == []


def counted(spark: SparkSession) -> DataFrame:
    """A stream of Spark's own: 50 numbers in every batch."""
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 50)
        .option("numPartitions", 3)
        .load()
        .selectExpr("cast(value AS string) AS value", "cast(value AS string) AS key")
    )


@pytest.mark.full  # starts three streams; test_exactly_once resumes from checkpoints
def test_a_stream_writes_on_from_its_checkpoint(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    for batches in (1, 2, 3):
        run_available_now(counted(spark), tmp_path, servers, topic)
        found = values(spark, servers, topic)
        assert found == sorted(str(number) for number in range(50 * batches))


@pytest.mark.full  # test_connect copies a topic by such a stream
def test_a_stream_from_topic_to_topic(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    out = create(servers, f"{topic}-out")
    save(numbered(spark, 500), servers, topic)
    frame = (
        spark.readStream.format("raftlog")
        .options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="200")
        .option("bootstrap.servers", servers)
        .load()
        .select("value")
    )
    query = run_available_now(frame, tmp_path, servers, out)
    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [
        200,
        200,
        100,
    ]
    assert values(spark, servers, out) == sorted(str(number) for number in range(500))


def test_a_streams_frames_are_written_in_foreach_batch(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    query = (
        counted(spark)
        .writeStream.foreachBatch(lambda frame, number: save(frame, servers, topic))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT_S)
    assert values(spark, servers, topic) == sorted(str(number) for number in range(50))


def test_a_stream_cannot_replace_what_is_there(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    totals = counted(spark).groupBy().count().selectExpr("cast(count AS string) AS value")
    query = (
        totals.writeStream.format("raftlog")
        .options(**options(servers, topic))
        .option("checkpointLocation", str(tmp_path))
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match=r"outputMode\(\"append\"\)"):
        query.awaitTermination(TIMEOUT_S)
    assert values(spark, servers, topic) == []
