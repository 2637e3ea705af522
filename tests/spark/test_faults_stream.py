"""Faults during a stream: every batch is exact, and a loss is an error or in the log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.cluster import Cluster
from tests.waiting import wait_until

from .fault_parts import (
    ROOT,
    Batches,
    Topic,
    failing_once,
    merged,
    run_available,
    stream,
)
from .programs import STOPPED_AT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WHAT_TO_DO = r".*failOnDataLoss=false"
EITHER_WAY = pytest.mark.parametrize(
    "available_now", [False, True], ids=["for ever", "available now"]
)


def test_a_task_that_failed_is_run_again_and_no_row_comes_twice(
    spark: SparkSession, filled_topic: Topic, tmp_path: Path
) -> None:
    frame = stream(spark, filled_topic, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    batches = run_available(failing_once(frame), tmp_path)
    assert [len(batches[number]) for number in sorted(batches)] == [40, 20]
    assert merged(*batches.values()) == filled_topic.everything()


@pytest.mark.full  # starts Spark; the next test fails before a commit in this Spark
def test_a_killed_driver_goes_on_from_its_checkpoint_with_the_very_same_batch(
    spark: SparkSession, filled_topic: Topic, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.spark.programs", "streams"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [*command, filled_topic.servers, filled_topic.name, str(tmp_path)],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            # So that Python and Java can be killed at once, and no other process with them.
            start_new_session=True,
        )
        try:
            held = [tmp_path / f"{name}-{number}.json" for name, number in STOPPED_AT.items()]
            wait_until(
                lambda: all(map(Path.exists, held)) or driver.poll() is not None,
                "stream that is stopped",
            )
            assert driver.poll() is None, log.read_text()
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    before = filled_topic.everything()
    seen = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*-*.json")}
    # Planned again now, both batches would have these as well.
    filled_topic.send(10)
    again = run_available(
        stream(spark, filled_topic, startingOffsets="earliest", maxOffsetsPerTrigger="10"),
        tmp_path / "earliest",
    )
    stopped_at = STOPPED_AT["earliest"]
    assert min(again) == stopped_at
    assert again[stopped_at] == seen[f"earliest-{stopped_at}"]
    committed = [seen[f"earliest-{number}"] for number in range(stopped_at)]
    assert merged(*committed, *again.values()) == filled_topic.everything()
    # Its first batch was planned, and never committed: the records since then are still new.
    again = run_available(
        stream(spark, filled_topic, startingOffsets="latest"), tmp_path / "latest"
    )
    assert again[0] == seen["latest-0"] == []
    assert merged(*again.values()) == sorted(set(filled_topic.everything()) - set(before))


def test_a_stream_of_new_records_restarted_before_its_first_commit_skips_none(
    spark: SparkSession, filled_topic: Topic, tmp_path: Path
) -> None:
    frame = stream(spark, filled_topic, startingOffsets="latest")
    old = filled_topic.everything()

    def fail(number: int) -> None:
        raise RuntimeError("the sink is down")

    for _ in range(2):
        with (
            Batches(frame, tmp_path, act=fail) as batches,
            pytest.raises(Exception, match="the sink is down"),
        ):
            batches.join()
        filled_topic.send(5)
    found = run_available(frame, tmp_path)
    assert found[0] == []
    assert merged(*found.values()) == sorted(set(filled_topic.everything()) - set(old))


def test_a_leader_killed_between_a_batchs_plan_and_its_read_costs_no_row(
    spark: SparkSession,
    spark_cluster: Cluster,
    topic_name: str,
    tmp_path: Path,
) -> None:
    servers = spark_cluster.servers
    topic = Topic(servers, topic_name, partitions=3, replicas=3)
    topic.send(50)
    killed: list[int] = []

    def kill(number: int) -> None:
        if number == 1:
            killed.append(topic.leader())
            spark_cluster.kill(*killed)

    frame = stream(spark, topic, startingOffsets="earliest", maxOffsetsPerTrigger="60")
    with Batches(frame, tmp_path, act=kill) as batches:
        batches.drain()
        assert killed
        assert batches.all == topic.everything()
        topic.send(20)
        batches.drain()
        assert batches.all == topic.everything()


def test_partitions_added_to_a_running_stream_are_read_from_their_first_record(
    spark: SparkSession, filled_topic: Topic, tmp_path: Path
) -> None:
    old = set(filled_topic.everything())
    with Batches(stream(spark, filled_topic), tmp_path) as batches:
        batches.drain()
        filled_topic.grow(5)
        filled_topic.send(7)
        batches.drain()
        assert batches.all == sorted(set(filled_topic.everything()) - old)
        filled_topic.send(3, partition=4)
        batches.drain()
        assert batches.all == sorted(set(filled_topic.everything()) - old)


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(10, id="shorter", marks=pytest.mark.full),
        pytest.param(30, id="as long"),
        # The id of the topic decides, not its length. test_stream_reader has no Spark.
        pytest.param(50, id="longer", marks=pytest.mark.full),
    ],
)
def test_a_topic_recreated_ends_a_stream_that_must_not_lose_records(
    spark: SparkSession, filled_topic: Topic, tmp_path: Path, count: int
) -> None:
    first = filled_topic.everything()

    def recreate(number: int) -> None:
        filled_topic.delete()
        filled_topic.create()
        filled_topic.send(count)

    with Batches(
        stream(spark, filled_topic, startingOffsets="earliest"), tmp_path, after=recreate
    ) as batches:
        with pytest.raises(Exception, match="DataLossError.*created again.*up to 30" + WHAT_TO_DO):
            batches.join()
        assert batches.rows == {0: first}


def test_a_stream_that_may_lose_records_goes_on_with_the_topic_recreated(
    spark: SparkSession, filled_topic: Topic, tmp_path: Path
) -> None:
    frame = stream(spark, filled_topic, startingOffsets="earliest", failOnDataLoss="false")
    first = filled_topic.everything()
    with Batches(frame, tmp_path) as batches:
        batches.drain()
        for count in (10, 50):
            filled_topic.delete()
            # With or without a trigger in between, the result is the same.
            batches.drain()
            filled_topic.create()
            filled_topic.send(count)
            batches.drain()
            first = sorted(first + filled_topic.everything())
            assert batches.all == first


def test_a_deleted_topic_ends_a_stream_that_must_not_lose_records(
    spark: SparkSession, filled_topic: Topic, tmp_path: Path
) -> None:
    with Batches(stream(spark, filled_topic), tmp_path) as batches:
        batches.drain()
        filled_topic.delete()
        with pytest.raises(Exception, match="DataLossError.*the topic is deleted" + WHAT_TO_DO):
            batches.join()


@pytest.mark.full  # starts two streams; test_faults_batch deletes the topic of a planned query
def test_a_topic_deleted_after_a_batchs_plan_is_a_loss(
    spark: SparkSession, filled_topic: Topic, tmp_path: Path
) -> None:
    def recreate(number: int) -> None:
        filled_topic.delete()
        filled_topic.create()
        filled_topic.send(30)

    frame = stream(spark, filled_topic, startingOffsets="earliest")
    with Batches(frame, tmp_path / "strict", act=recreate) as batches:
        with pytest.raises(Exception, match="DataLossError.*the topic was deleted" + WHAT_TO_DO):
            batches.join()
        assert batches.rows == {}
    frame = stream(spark, filled_topic, startingOffsets="earliest", failOnDataLoss="false")
    assert run_available(frame, tmp_path / "lenient", act=recreate) == {0: []}


@pytest.mark.full  # retention overtakes a stream in the last test and in test_stream_reader
@EITHER_WAY
def test_retention_that_overtakes_a_slow_stream_ends_it_if_it_must_not_lose_records(
    spark: SparkSession, filled_topic: Topic, tmp_path: Path, available_now: bool
) -> None:
    frame = stream(spark, filled_topic, startingOffsets="earliest", maxOffsetsPerTrigger="10")

    def overtake(number: int) -> None:
        filled_topic.delete_before(20)

    with Batches(frame, tmp_path, after=overtake, available_now=available_now) as batches:
        with pytest.raises(Exception, match="DataLossError.*(begins at 20|5 to)" + WHAT_TO_DO):
            batches.join()
        assert batches.all == sorted(filled_topic.values(0, 0, 5) + filled_topic.values(1, 0, 5))


@pytest.mark.full  # retention overtakes a stream in the last test and in test_stream_reader
@EITHER_WAY
def test_retention_that_overtakes_a_slow_stream_leaves_a_gap_if_it_may(
    spark: SparkSession, filled_topic: Topic, tmp_path: Path, available_now: bool
) -> None:
    frame = stream(
        spark,
        filled_topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="10",
        failOnDataLoss="false",
    )

    def overtake(number: int) -> None:
        if number == 0:
            filled_topic.delete_before(20)

    with Batches(frame, tmp_path, after=overtake, available_now=available_now) as batches:
        if available_now:
            batches.join()
        else:
            batches.drain()
        read = filled_topic.values(0, 0, 5) + filled_topic.values(1, 0, 5)
        assert batches.all == sorted(read + filled_topic.everything(20))


@pytest.mark.parametrize("may_lose", [False, True], ids=["must not lose", "may lose"])
def test_retention_may_overtake_a_stream_between_a_batchs_plan_and_its_read(
    spark: SparkSession, filled_topic: Topic, tmp_path: Path, may_lose: bool
) -> None:
    frame = stream(
        spark,
        filled_topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="10",
        failOnDataLoss=str(not may_lose).lower(),
    )

    def overtake(number: int) -> None:
        if number == 1:
            # It begins at 5 in each partition.
            filled_topic.delete_before(8)

    read = filled_topic.values(0, 0, 5) + filled_topic.values(1, 0, 5)
    with Batches(frame, tmp_path, act=overtake) as batches:
        if may_lose:
            batches.drain()
            assert batches.all == sorted(read + filled_topic.everything(8))
            return
        with pytest.raises(Exception, match="DataLossError.*offsets 5 to 7 were del" + WHAT_TO_DO):
            batches.join()
        assert batches.all == sorted(read)
