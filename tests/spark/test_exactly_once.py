"""The sink's exactly once, in a real Spark on real nodes: each row once, whatever fails."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from raftlog_client import Admin

from bench.cluster import Cluster
from tests.waiting import wait_until

from .fault_parts import ROOT, make_whole
from .sink_parts import (
    TIMEOUT_S,
    create,
    ended,
    leader,
    options,
    run_available_now,
    save,
    start_available_now,
    values,
)
from .sink_program import copied
from .sink_proxy import SinkProxy
from .test_local_cluster import program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from raftlog.api.transactions import TransactionListing

ROWS = 500


def numbered(spark: SparkSession, rows: int = ROWS, tasks: int = 2) -> DataFrame:
    return spark.range(0, rows, numPartitions=tasks).selectExpr(
        "cast(id AS string) AS value", "cast(id AS string) AS key"
    )


def counted(spark: SparkSession) -> DataFrame:
    """A stream of Spark's own: 50 numbers in every batch."""
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 50)
        .option("numPartitions", 2)
        .load()
        .selectExpr("cast(value AS string) AS value")
    )


def expected(rows: int) -> list[str]:
    return sorted(str(number) for number in range(rows))


def transactions(servers: str, part: str) -> list[TransactionListing]:
    """Those with this in their ids."""

    async def run() -> list[TransactionListing]:
        async with Admin(bootstrap_servers=servers) as admin:
            found = (await admin.list_transactions()).transactions
        return [one for one in found if part in one.transactional_id]

    return asyncio.run(run())


def open_transactions(servers: str, part: str) -> list[TransactionListing]:
    return [one for one in transactions(servers, part) if one.open_ms]


def epoch_of(path: str) -> int:
    return int(path.rsplit("/", 1)[1])


# Tasks


def test_a_task_that_fails_and_runs_again_writes_each_row_once(
    spark: SparkSession, servers: str, topic: str
) -> None:
    def fail_first(batches: Any) -> Any:
        from pyspark import TaskContext

        # All rows are given, and most are written, before the attempt fails.
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")

    # Two megabytes in each task. The sink keeps back one megabyte.
    frame = numbered(spark, 4_000).selectExpr("rpad(value, 1000, '.') AS value")
    save(frame.mapInArrow(fail_first, "value string"), servers, topic)
    assert sorted(value.rstrip(".") for value in values(spark, servers, topic)) == expected(4_000)


def test_a_write_that_fails_leaves_nothing_and_holds_nobody_back(
    spark: SparkSession, servers: str, topic: str
) -> None:
    def fail_some(batches: Any) -> Any:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1:
            raise RuntimeError("never works")

    frame = numbered(spark).mapInArrow(fail_some, "value string, key string")
    with pytest.raises(Exception, match="never works"):
        save(frame, servers, topic, sinkId=topic)
    wait_until(lambda: not open_transactions(servers, topic), "end of all transactions")
    assert values(spark, servers, topic) == []
    save(numbered(spark, 10), servers, topic)
    assert values(spark, servers, topic) == expected(10)


@pytest.mark.full  # starts Spark and three executors
def test_executors_that_die_and_attempts_side_by_side_write_each_row_once(
    servers: str, topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    """One executor is killed when it has written; one task runs twice, and both attempts end."""
    rows = 1_000_000
    result = program(
        tmp_path,
        dict(os.environ),
        *("faulty_executors", servers, topic, str(rows), str(tmp_path / "marks")),
    )
    assert result == {"killed": 1, "attempts": 2, "alone": 0}
    found = (
        spark.read.format("raftlog")
        .options(subscribe=topic)
        .option("bootstrap.servers", servers)
        .load()
        .selectExpr("cast(cast(value AS string) AS bigint) AS number")
        .selectExpr("count(*)", "count(DISTINCT number)", "min(number)", "max(number)")
        .first()
    )
    assert found is not None
    assert tuple(found) == (rows, rows, 0, rows - 1)


# Drivers


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


@pytest.mark.full  # starts Spark three times; the fast suite fails tasks instead
def test_a_driver_killed_at_any_step_writes_each_row_once(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    """In the write of batch 2, before its commit, and after it; then with other tasks."""
    out = create(servers, f"{topic}-out")
    save(numbered(spark), servers, topic)
    checkpoint = str(tmp_path / "checkpoint")
    held = tmp_path / "held"
    running: list[subprocess.Popen[bytes]] = []
    # Other tests on the node may leave transactions that end by their timeout.
    known = {each.transactional_id for each in transactions(servers, "sink/")}

    def left_open() -> list[TransactionListing]:
        found = open_transactions(servers, "sink/")
        return [each for each in found if each.transactional_id not in known]

    def start(proxy: SinkProxy, log: Path) -> None:
        arguments = (servers, topic, out, checkpoint, proxy.address, str(held))
        running.append(driver(*arguments, log=log))

    def kill() -> None:
        os.killpg(running[-1].pid, signal.SIGKILL)
        running[-1].wait()

    def kill_in_batch_2(path: str) -> bool | None:
        if epoch_of(path) != 2:
            return None
        kill()
        return False

    def wait_until_killed(log: Path) -> None:
        try:
            running[-1].wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            kill()
            raise AssertionError(log.read_text()[-5_000:]) from None
        assert running[-1].returncode == -signal.SIGKILL, log.read_text()[-5_000:]

    with SinkProxy(servers) as proxy:
        start(proxy, tmp_path / "write")
        try:
            wait_until(held.exists, "held task")
        finally:
            kill()
        proxy.before = kill_in_batch_2
        start(proxy, tmp_path / "before")
        wait_until_killed(tmp_path / "before")
        assert len(values(spark, servers, out)) == 200, "batches 0 and 1"
        assert left_open()
        proxy.before, proxy.after = None, kill_in_batch_2
        start(proxy, tmp_path / "after")
        wait_until_killed(tmp_path / "after")
    found = values(spark, servers, out)
    assert len(found) == len(set(found)) == 300
    frame = copied(spark, servers, topic).repartition(3)
    run_available_now(frame, tmp_path / "checkpoint", servers, out)
    assert values(spark, servers, out) == expected(ROWS)
    assert not left_open()


def test_a_commit_whose_answer_is_lost_is_not_lost(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    lost: list[str] = []

    def lose(path: str) -> bool | None:
        if len(lost) < 2:
            lost.append(path)
            return False
        return None

    with SinkProxy(servers, after=lose) as proxy:
        run_available_now(counted(spark), tmp_path, proxy.address, topic)
        save(numbered(spark, 60).filter("id >= 50"), proxy.address, topic)
    assert len(lost) == 2
    assert values(spark, servers, topic) == expected(60)


def test_a_batch_whose_transaction_has_expired_fails_and_runs_again(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    def wait_until_expired(path: str) -> None:
        sink = path.split("/")[3]
        wait_until(
            lambda: not open_transactions(servers, f"sink/{sink}/"), "end of the transactions"
        )

    with SinkProxy(servers, before=wait_until_expired) as proxy:
        said = r"Batch 0 is not committed, and no part of it: .*transactionTimeoutMs"
        with pytest.raises(Exception, match=said):
            run_available_now(
                counted(spark), tmp_path, proxy.address, topic, transactionTimeoutMs="1500"
            )
        said = "The write is not committed, and no part of it: .*transactionTimeoutMs"
        with pytest.raises(Exception, match=said):
            save(numbered(spark, 50), proxy.address, topic, transactionTimeoutMs="1500")
    assert values(spark, servers, topic) == []
    run_available_now(counted(spark), tmp_path, servers, topic)
    found = values(spark, servers, topic)
    assert found == expected(len(found))
    assert len(found) >= 50


# Nodes


def hold(directory: Path) -> Callable[[Any], Any]:
    """For `mapInArrow`: tasks have given all rows, and wait until `directory` has a file "go"."""
    directory.mkdir(parents=True)
    path = str(directory)

    def give_and_wait(batches: Any) -> Any:
        import time
        from pathlib import Path

        yield from batches
        (Path(path) / "written").touch()
        deadline = time.monotonic() + 60
        while not (Path(path) / "go").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    return give_and_wait


class Killer:
    """Kills the leader of a topic, or the coordinator of its sink's transactions, once."""

    def __init__(self, cluster: Cluster, servers: str, topic: str, victim: str) -> None:
        self._cluster = cluster
        self._servers = servers
        self._topic = topic
        self._victim = victim
        self.killed: int | None = None

    def kill(self, proxy: SinkProxy) -> None:
        if self.killed is not None:
            return
        if self._victim == "leader":
            self.killed = leader(self._servers, self._topic)
        else:
            self.killed = transactions(self._servers, f"sink/{self._topic}/")[0].coordinator
        self._cluster.kill(self.killed)
        left = [node for node_id, node in self._cluster.nodes.items() if node_id != self.killed]
        proxy.target = left[0].address


# The client takes the same way to a new coordinator as to a new leader.
@pytest.mark.parametrize("victim", ["leader", pytest.param("coordinator", marks=pytest.mark.full)])
def test_a_node_that_dies_at_any_step_costs_no_row_and_doubles_none(
    spark: SparkSession,
    spark_cluster: Cluster,
    topic_name: str,
    tmp_path: Path,
    victim: str,
) -> None:
    """Before the commit, in the write, and after the commit; each time in another batch."""
    servers = spark_cluster.servers
    topic = create(servers, topic_name, 1, replicas=3)
    with SinkProxy(servers.partition(",")[0]) as proxy:
        for number, step in enumerate(("before", "write", "after")):
            make_whole(spark_cluster)
            killer = Killer(spark_cluster, servers, topic, victim)

            def kill(_path: str, killer: Killer = killer) -> None:
                killer.kill(proxy)

            proxy.before = kill if step == "before" else None
            proxy.after = kill if step == "after" else None
            held = tmp_path / step
            frame = counted(spark).mapInArrow(hold(held), "value string")
            query = start_available_now(
                frame,
                tmp_path / "checkpoint",
                proxy.address if step != "write" else servers,
                topic,
                sinkId=topic,
            )
            wait_until(lambda: not query.isActive or (held / "written").exists(), "a written task")  # noqa: B023
            if step == "write":
                killer.kill(proxy)
            (held / "go").touch()
            ended(query)
            assert killer.killed is not None
            assert values(spark, servers, topic) == expected(50 * (number + 1))


# Sinks


def test_a_sink_id_is_for_one_query(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    run_available_now(counted(spark), tmp_path / "a", servers, topic, sinkId=topic)
    with pytest.raises(Exception, match=f"sinkId '{topic}' belongs to query"):
        run_available_now(counted(spark), tmp_path / "b", servers, topic, sinkId=topic)
    assert values(spark, servers, topic) == expected(50)
    run_available_now(counted(spark), tmp_path / "a", servers, topic, sinkId=topic)
    assert values(spark, servers, topic) == expected(100)


def test_a_query_without_its_checkpoint_is_another_one(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    for checkpoint in ("a", "b", "a"):
        run_available_now(counted(spark), tmp_path / checkpoint, servers, topic)
    assert values(spark, servers, topic) == sorted([*expected(50), *expected(100)])


def test_named_writes_of_foreach_batch_are_exactly_once(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    """The function writes twice, and fails after that, the first time."""
    failed: set[int] = set()

    def write(frame: DataFrame, number: int) -> None:
        save(frame, servers, topic, sinkId=f"{topic}-values")
        save(frame.selectExpr("concat('copy ', value) AS value"), servers, topic, sinkId=topic)
        if not failed:
            failed.add(number)
            raise RuntimeError("after its writes")

    def run() -> Callable[[], Any]:
        query = (
            counted(spark)
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        return lambda: query.awaitTermination(TIMEOUT_S)

    with pytest.raises(Exception, match="after its writes"):
        run()()
    assert run()()
    found = [value for value in values(spark, servers, topic) if " " not in value]
    copies = [value for value in values(spark, servers, topic) if " " in value]
    assert found == expected(len(found))
    assert copies == [f"copy {value}" for value in found]


def test_at_least_once_is_readable_at_once(spark: SparkSession, servers: str, topic: str) -> None:
    save(numbered(spark, 10), servers, topic, deliveryGuarantee="at-least-once")
    assert values(spark, servers, topic) == expected(10)
    with pytest.raises(Exception, match="deliveryGuarantee"):
        numbered(spark).write.format("raftlog").mode("append").options(
            **options(servers, topic, deliveryGuarantee="twice")
        ).save()


@pytest.mark.full  # test_stream_reader commits to a group without Spark
def test_a_querys_lag_is_that_of_the_group_that_it_commits_to(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    out = create(servers, f"{topic}-out")
    save(numbered(spark, 250), servers, topic)
    frame = copied(spark, servers, topic, commitToGroup=f"{topic}-query")
    run_available_now(frame, tmp_path, servers, out)
    save(numbered(spark, 30), servers, topic)

    async def lag() -> int:
        async with Admin(bootstrap_servers=servers) as admin:
            found = await admin.describe_group(f"{topic}-query")
        return sum(row.lag for row in found.offsets)

    # Each of two tasks ends with a marker in every partition that it wrote to.
    assert 30 <= asyncio.run(lag()) <= 36
