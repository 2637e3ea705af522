"""Programs that tests run as processes of their own: `python -m tests.spark.programs NAME ...`.

A session's master, its Java and its driver's life belong to the process, so a test of one of them
needs another process. A program prints its result as its last line, in JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raftlog_spark.session import prepare_environment, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONFIG = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
TIMEOUT_S = 120
STOPPED_AT = {"earliest": 2, "latest": 0}
"""At which batch each of the `streams` stands still, planned and read but not committed."""


def streams(servers: str, topic: str, directory: str) -> None:
    """Two streams that write their batches to files, and block until they are killed."""
    spark = session(master="local[2]", config=CONFIG)
    root = Path(directory)

    def keep(name: str) -> Callable[[DataFrame, int], None]:
        def take(frame: DataFrame, number: int) -> None:
            found = sorted(row.value for row in frame.collect())
            written = root / f"{name}-{number}.tmp"
            written.write_text(json.dumps(found))
            written.rename(written.with_suffix(".json"))
            if number == STOPPED_AT[name]:
                threading.Event().wait()

        return take

    for name in STOPPED_AT:
        (
            spark.readStream.format("raftlog")
            .options(subscribe=topic, startingOffsets=name, maxOffsetsPerTrigger="10")
            .option("bootstrap.servers", servers)
            .load()
            .selectExpr("cast(value AS string) AS value")
            .writeStream.foreachBatch(keep(name))
            .option("checkpointLocation", str(root / name))
            .start()
        )
    spark.streams.awaitAnyTermination()


def read(servers: str, topic: str) -> None:
    """Read a topic in a batch; print the Java version."""
    spark = session(master="local[2]", config=CONFIG)
    frame = _batch(spark, servers, topic)
    jvm = spark.sparkContext._jvm  # type: ignore[attr-defined]
    _tell(rows=_listed(frame), java=jvm.java.lang.System.getProperty("java.home"))


def cluster(servers: str, topic: str, out: str, directory: str) -> None:
    """On executors in processes of their own: read in batch and stream, and write.

    Prints the rows of each, and the directories of the tasks, one for each executor.
    """
    both = {
        # Before the second executor is there, the first one would take all tasks. The ratio is of
        # `cores.max`: without that, no executor at all is enough.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{TIMEOUT_S}s",
    }
    spark = session(master="local-cluster[2,1,1024]", config=CONFIG | both)
    spark.sparkContext.setLogLevel("ERROR")
    frame = _batch(spark, servers, topic)

    def where(batches: Any) -> Any:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        is_failing = context.attemptNumber() == 0 and context.partitionId() == 0
        if not is_failing:
            # A task that has ended leaves its executor to the repeated one: the other stayed idle.
            _wait_for_both(Path(directory) / "executors", Path.cwd().name)
        for rows in batches:
            yield pa.RecordBatch.from_pydict({"value": [str(Path.cwd())] * len(rows)})
        if is_failing:
            raise RuntimeError("the first attempt fails")

    places = sorted({row.value for row in frame.mapInArrow(where, "value string").collect()})
    frame.write.format("raftlog").mode("append").option("bootstrap.servers", servers).option(
        "topic", out
    ).save()
    streamed: list[str] = []
    query = (
        spark.readStream.format("raftlog")
        .options(subscribe=topic, startingOffsets="earliest")
        .option("bootstrap.servers", servers)
        .load()
        .selectExpr("cast(value AS string) AS value")
        .writeStream.foreachBatch(lambda found, number: streamed.extend(_listed(found)))
        .option("checkpointLocation", str(Path(directory) / "read"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT_S)
    copying = (
        spark.readStream.format("raftlog")
        .options(subscribe=topic, startingOffsets="earliest")
        .option("bootstrap.servers", servers)
        .load()
        .select("value")
        .writeStream.format("raftlog")
        .option("bootstrap.servers", servers)
        .option("topic", out)
        .option("checkpointLocation", str(Path(directory) / "copy"))
        .trigger(availableNow=True)
        .start()
    )
    assert copying.awaitTermination(TIMEOUT_S)
    _tell(rows=_listed(frame), streamed=sorted(streamed), places=places)


def _wait_for_both(marks: Path, executor: str) -> None:
    """Return once tasks of two executors have called this, or the time is up."""
    marks.mkdir(parents=True, exist_ok=True)
    (marks / executor).touch()
    deadline = time.monotonic() + TIMEOUT_S
    while len(list(marks.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)


def faulty_executors(servers: str, topic: str, rows: str, directory: str) -> None:
    """Write numbers, while one executor is killed, and one task has two attempts side by side.

    Prints the number of killed executors, of attempts of the second task that gave all rows, and of
    those that waited for another one in vain.
    """
    marks = Path(directory)
    marks.mkdir()
    faults = {
        "spark.cores.max": "2",
        "spark.executor.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.25",
        "spark.speculation.multiplier": "1.01",
        "spark.speculation.interval": "50ms",
        "spark.speculation.minTaskRuntime": "50ms",
    }
    spark = session(master=_master_of_two_hosts(marks / "work"), config=CONFIG | faults)
    spark.sparkContext.setLogLevel("ERROR")

    def fail(batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        yield from batches
        if task == 0 and not (marks / "killed").exists():
            (marks / "killed").touch()
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
            executor = int(daemon.rpartition(")")[2].split()[1])
            os.kill(executor, signal.SIGKILL)
            threading.Event().wait()
        if task == 1:
            (marks / f"attempt-{attempt}").touch()
            deadline = time.monotonic() + TIMEOUT_S
            while len(list(marks.glob("attempt-*"))) < 2:
                if time.monotonic() > deadline:
                    (marks / f"alone-{attempt}").touch()
                    raise AssertionError("no second attempt")
                time.sleep(0.02)

    frame = spark.range(0, int(rows), numPartitions=4).selectExpr("cast(id AS string) AS value")
    (
        frame.mapInArrow(fail, "value string")
        .write.format("raftlog")
        .mode("append")
        .option("bootstrap.servers", servers)
        .option("topic", topic)
        .save()
    )
    _tell(
        killed=len(list(marks.glob("killed"))),
        attempts=len(list(marks.glob("attempt-*"))),
        alone=len(list(marks.glob("alone-*"))),
    )


def _master_of_two_hosts(directory: Path) -> str:
    """Start Spark's master and two workers in this process's JVM; return the master's URL.

    Spark never runs two attempts of a task on one host at a time, and a `local-cluster` is on one.
    """
    from pyspark import SparkContext

    prepare_environment(os.environ)
    SparkContext._ensure_initialized()  # type: ignore[attr-defined]
    jvm: Any = SparkContext._jvm
    gateway: Any = SparkContext._gateway
    conf = jvm.org.apache.spark.SparkConf().set("spark.master.rest.enabled", "false")
    deploy, none = jvm.org.apache.spark.deploy, jvm.scala.Option.empty()
    master = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)
    masters = gateway.new_array(jvm.java.lang.String, 1)
    masters[0] = f"spark://{master._1().address().hostPort()}"
    for host in ("127.0.0.1", "127.0.0.2"):
        where = (host, 0, 0, 1, 1024, masters, str(directory / host), none, conf, none)
        deploy.worker.Worker.startRpcEnvAndEndpoint(*where)
    return str(masters[0])


def _batch(spark: SparkSession, servers: str, topic: str) -> DataFrame:
    return (
        spark.read.format("raftlog")
        .options(subscribe=topic, maxRecordsPerPartition="10")
        .option("bootstrap.servers", servers)
        .load()
        .selectExpr("cast(value AS string) AS value")
    )


def _listed(frame: DataFrame) -> list[str]:
    return sorted(row.value for row in frame.collect())


def _tell(**found: object) -> None:
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    {
        "streams": streams,
        "read": read,
        "cluster": cluster,
        "faulty_executors": faulty_executors,
    }[sys.argv[1]](*sys.argv[2:])
