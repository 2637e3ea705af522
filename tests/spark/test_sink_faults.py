"""The sink under failures of nodes: never a lost row. With drivers and tasks: test_exactly_once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.cluster import Cluster
from raftlog.record.errors import CORRUPT_BATCH
from tests.client.fake_node import FakeCluster, Fault
from tests.waiting import wait_until

from .sink_parts import count, create, leader, read, run_available_now, save

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]
"""Where `python -m tests.…` finds its program."""
PRODUCE = "/v1/produce"
AT_LEAST_ONCE = {"deliveryGuarantee": "at-least-once"}
"""The fake node has no transactions."""


def big_rows(spark: SparkSession, number: int) -> DataFrame:
    """So many rows of 10 KB that begin with their number, in two tasks."""
    return spark.range(0, number, numPartitions=2).selectExpr(
        "rpad(lpad(cast(id AS string), 6, '0'), 10000, '.') AS value",
        "cast(id AS string) AS key",
    )


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
        save(big_rows(spark, 10), fake.bootstrap, "t", **AT_LEAST_ONCE)


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
        run_available_now(frame, tmp_path, fake.bootstrap, "t", **AT_LEAST_ONCE)
    fake.faults[PRODUCE].clear()
    run_available_now(frame, tmp_path, fake.bootstrap, "t", **AT_LEAST_ONCE)
    found = Counter(int(value or b"") for value in fake.topics["t"].partitions[0].values())
    # The refused batch, and the next: neither is left out.
    assert sorted(found) == list(range(max(found) + 1))
    assert len(found) >= 50


@pytest.mark.full  # writes 100 MB; test_exactly_once kills a leader at every step of a batch
def test_a_leader_that_dies_while_the_sink_writes_costs_no_row(
    spark: SparkSession, spark_cluster: Cluster, topic_name: str
) -> None:
    servers = spark_cluster.servers
    topic = create(servers, topic_name, 1, replicas=3)
    rows = 10_000

    def kill() -> int:
        def written() -> int:
            return count(servers, topic, isolation="read_uncommitted")

        wait_until(lambda: written() >= 100, "record written")
        found = written()
        spark_cluster.kill(leader(servers, topic))
        return found

    # Spark finds Python sources only in threads with a session: so this thread writes.
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        save(big_rows(spark, rows), servers, topic)
        assert killing.result() < rows, "the leader is to die while there is something to write"
    found = read(spark, servers, topic)
    assert sorted(int(bytes(row.key)) for row in found) == list(range(rows))
