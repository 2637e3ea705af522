"""Faults during a batch query: it reads exactly its plan, or fails with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.cluster import Cluster
from tests.waiting import wait_until

from .fault_parts import LIST, TIMEOUT_S, Topic, batch, failing_once, listed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELETED = r"DataLossError: records are gone.*the topic was deleted.*failOnDataLoss=false"
OVERTAKEN = (
    r"DataLossError: records are gone.*offsets 0 to 14 were deleted by retention"
    r".*failOnDataLoss=false"
)


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Functions of Arrow batches get their first rows early: by default 10,000 at once."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "100")
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


class Planned:
    """A query with fixed ranges, which it reads on command."""

    def __init__(self, frame: DataFrame) -> None:
        self._rdd = frame.rdd
        self.tasks = self._rdd.getNumPartitions()

    def read(self) -> list[str]:
        return sorted(row.value for row in self._rdd.collect())


def test_a_task_that_failed_is_run_again_and_no_row_comes_twice(
    spark: SparkSession, filled_topic: Topic
) -> None:
    frame = batch(spark, filled_topic, maxRecordsPerPartition="10")
    assert frame.rdd.getNumPartitions() == 6
    assert listed(failing_once(frame)) == filled_topic.everything()


def test_what_arrives_after_the_plan_is_not_read(spark: SparkSession, filled_topic: Topic) -> None:
    query = Planned(batch(spark, filled_topic))
    planned = filled_topic.everything()
    filled_topic.grow(4)
    filled_topic.send(5)
    assert query.read() == planned
    assert listed(batch(spark, filled_topic)) == filled_topic.everything()


def test_records_deleted_after_the_plan_fail_the_query(
    spark: SparkSession, filled_topic: Topic
) -> None:
    query = Planned(batch(spark, filled_topic))
    filled_topic.delete_before(15)
    with pytest.raises(Exception, match=OVERTAKEN):
        query.read()


def test_a_query_that_may_lose_records_reads_what_is_left(
    spark: SparkSession, filled_topic: Topic
) -> None:
    query = Planned(batch(spark, filled_topic, failOnDataLoss="false", maxRecordsPerPartition="10"))
    assert query.tasks == 6
    filled_topic.delete_before(15)
    assert query.read() == filled_topic.everything(15)


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "recreated"])
def test_a_topic_deleted_after_the_plan_is_a_loss(
    spark: SparkSession, filled_topic: Topic, again: bool
) -> None:
    strict = Planned(batch(spark, filled_topic))
    lenient = Planned(batch(spark, filled_topic, failOnDataLoss="false"))
    filled_topic.delete()
    if again:
        filled_topic.create()
        # As long as the other was: offsets alone do not show the difference.
        filled_topic.send(30)
    with pytest.raises(Exception, match=DELETED):
        strict.read()
    assert lenient.read() == []


def gated(frame: DataFrame, directory: Path) -> DataFrame:
    """The same rows, by tasks that report their first row, and then wait for permission."""
    began, go = str(directory / "began"), str(directory / "go")
    patience_s = TIMEOUT_S

    def hold(batches: Iterator[Any]) -> Iterator[Any]:
        import time
        from pathlib import Path

        for number, rows in enumerate(batches):
            if number == 0:
                Path(began).touch()
                deadline = time.monotonic() + patience_s
                while not Path(go).exists():
                    assert time.monotonic() < deadline, "nobody let the task go on"
                    time.sleep(0.02)
            yield rows

    return frame.mapInArrow(hold, LIST)


@pytest.mark.full  # reads 30 MB; test_cluster kills the leader of such a read without Spark
@pytest.mark.usefixtures("small_batches")
def test_a_leader_killed_in_the_middle_of_a_query_costs_no_row(
    spark: SparkSession,
    spark_cluster: Cluster,
    topic_name: str,
    tmp_path: Path,
) -> None:
    servers = spark_cluster.servers
    topic = Topic(servers, topic_name, partitions=6, replicas=3)
    # 5 MB each: the small fetches of two tasks are in flight then, those of four are to come.
    topic.send(5_000, record_bytes=1_000)
    frame = gated(batch(spark, topic, fetchBytes="65536"), tmp_path)
    victim = topic.leader()
    with ThreadPoolExecutor(1) as pool:
        query = pool.submit(listed, frame)
        try:
            wait_until(lambda: query.done() or (tmp_path / "began").exists(), "task with rows")
            spark_cluster.kill(victim)
        finally:
            (tmp_path / "go").touch()
        assert query.result(TIMEOUT_S) == topic.everything()
