"""The sink under failures: never a lost row, and a bound on duplicates."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.cluster_processes import ClusterProcesses
from bench.node import LoneNode
from raftlog.record.errors import CORRUPT_BATCH
from tests.client.fake_node import FakeCluster, Fault

from .sink_parts import count, create, leader, read, run_available_now, save, values, wait_for
from .sink_program import copied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]
"""Where `python -m tests.…` finds its program."""
PRODUCE = "/v1/produce"


def big_rows(spark: SparkSession, number: int) -> DataFrame:
    """So many rows of 10 KB that begin with their number, in two tasks."""
    return spark.range(0, number, numPartitions=2).selectExpr(
        "rpad(lpad(cast(id AS string), 6, '0'), 10000, '.') AS value",
        "cast(id AS string) AS key",
    )


def numbers(found: list[str]) -> Counter[int]:
    """How often each row is there."""
    return Counter(int(value[:6]) for value in found)


def test_a_task_that_fails_and_runs_again_loses_no_row(
    spark: SparkSession, spark_node: LoneNode, topic_name: str
) -> None:
    topic = create(spark_node.address, topic_name)

    def fail_first(batches: Any) -> Any:
        from pyspark import TaskContext

        # All rows are given, and most are written, before the attempt fails.
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")

    frame = big_rows(spark, 1000).mapInArrow(fail_first, "value string, key string")
    save(frame, spark_node.address, topic)
    found = numbers(values(spark, spark_node.address, topic))
    assert sorted(found) == list(range(1000))
    # At least once: some rows of the failed attempt stay. Two attempts, so at most twice.
    assert set(found.values()) <= {1, 2}


class FakeLeader:
    """A fake node that serves in a thread, since Spark's calls block this one."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> FakeCluster:
        self._thread.start()
        self._run(self.cluster.__aenter__())
        return self.cluster

    def __exit__(self, *_: object) -> None:
        self._run(self.cluster.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeLeader() as cluster:
        cluster.create_topic("t", 1)
        yield cluster


def test_a_write_that_is_not_acknowledged_fails(spark: SparkSession, fake: FakeCluster) -> None:
    fake.fail(PRODUCE, *[Fault(frame_errors={0: CORRUPT_BATCH})] * 100)
    with pytest.raises(Exception, match=r"writing to 't': .*Not everything is written"):
        save(big_rows(spark, 10), fake.bootstrap, "t")


def test_a_stream_whose_write_is_refused_fails_and_goes_on_later(
    spark: SparkSession, fake: FakeCluster, tmp_path: Path
) -> None:
    frame = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 50)
        .load()
        .selectExpr("cast(value AS string) AS value")
    )
    fake.fail(PRODUCE, *[Fault(frame_errors={0: CORRUPT_BATCH})] * 100)
    with pytest.raises(Exception, match=r"writing to 't': .*Not everything is written"):
        run_available_now(frame, tmp_path, fake.bootstrap, "t")
    fake.faults[PRODUCE].clear()
    run_available_now(frame, tmp_path, fake.bootstrap, "t")
    found = Counter(int(value or b"") for value in fake.topics["t"].partitions[0].values())
    # The refused batch, and the next: neither is left out.
    assert sorted(found) == list(range(max(found) + 1))
    assert len(found) >= 50


def driver(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    """A driver that can be killed with its Java and its workers, and no other process with them."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.sink_program", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def test_a_killed_driver_goes_on_from_its_checkpoint_and_loses_no_row(
    spark: SparkSession, spark_node: LoneNode, topic_name: str, tmp_path: Path
) -> None:
    servers = spark_node.address
    topic, out = create(servers, topic_name), create(servers, f"{topic_name}-out")
    rows = 1500
    save(big_rows(spark, rows), servers, topic)
    log, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    process = driver(servers, topic, out, str(checkpoint), log=log)
    try:

        def is_well_under_way() -> bool:
            assert process.poll() is None, log.read_text()
            return count(servers, out) >= 350

        wait_for("hundreds of records written", is_well_under_way)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = count(servers, out)
    assert before < rows
    run_available_now(copied(spark, servers, topic), checkpoint, servers, out)
    found = numbers(values(spark, servers, out))
    assert sorted(found) == list(range(rows))
    # Only the uncommitted batch of 100 is written again.
    assert sum(found.values()) <= rows + 100


def test_a_leader_that_dies_while_the_sink_writes_costs_no_row(
    spark: SparkSession, spark_cluster: ClusterProcesses, topic_name: str
) -> None:
    servers = ",".join(node.address for node in spark_cluster.nodes.values())
    topic = create(servers, topic_name, 1, replicas=3)
    rows = 10_000

    def kill() -> int:
        wait_for("record written", lambda: count(servers, topic) >= 100)
        written = count(servers, topic)
        spark_cluster.kill(leader(servers, topic))
        return written

    # Spark finds Python sources only in threads with a session: so this thread writes.
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        save(big_rows(spark, rows), servers, topic)
        assert killing.result() < rows, "the leader is to die while there is something to write"
    found = read(spark, servers, topic)
    assert sorted(int(bytes(row.key)) for row in found) == list(range(rows))
