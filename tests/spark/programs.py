"""Programs that tests run as processes of their own: `python -m tests.spark.programs NAME ...`.

A session's master, its Java and its driver's life belong to the process, so a test of one of them
needs another process. A program prints its result as its last line, in JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raftlog_spark.session import session

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

        for rows in batches:
            yield pa.RecordBatch.from_pydict({"value": [str(Path.cwd())] * len(rows)})
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 and context.partitionId() == 0:
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
    {"streams": streams, "read": read, "cluster": cluster}[sys.argv[1]](*sys.argv[2:])
