"""A streaming query that copies a topic, run as a process of its own, to be killed:

`python -m tests.spark.sink_program SERVERS TOPIC OUT CHECKPOINT SINK_SERVERS HELD`. Never ends by
itself. A task of batch 2 that finds no file HELD makes it, when it has given its rows, and waits.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raftlog_spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def copied(spark: SparkSession, servers: str, topic: str, **more: str) -> DataFrame:
    """All records of a topic, a hundred in every batch."""
    return (
        spark.readStream.format("raftlog")
        .options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="100", **more)
        .option("bootstrap.servers", servers)
        .load()
        .select("value", "key")
    )


def main(servers: str, topic: str, out: str, checkpoint: str, *rest: str) -> None:
    sink_servers, held = rest

    def wait_once(batches: Any) -> Any:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty("streaming.sql.batchId")
        if batch == "2" and not Path(held).exists():
            Path(held).touch()
            threading.Event().wait()

    spark = session(
        master="local[2]",
        config={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"},
    )
    query = (
        copied(spark, servers, topic)
        .mapInArrow(wait_once, "value binary, key binary")
        .writeStream.format("raftlog")
        .options(topic=out, checkpointLocation=checkpoint)
        .option("bootstrap.servers", sink_servers)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
