"""A streaming query that copies a topic, run as a process of its own, to be killed:

`python -m tests.spark.sink_program SERVERS TOPIC OUT CHECKPOINT`. Never ends by itself.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from raftlog_spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def copied(spark: SparkSession, servers: str, topic: str) -> DataFrame:
    """All records of a topic, a hundred in every batch."""
    return (
        spark.readStream.format("raftlog")
        .options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="100")
        .option("bootstrap.servers", servers)
        .load()
        .select("value", "key")
    )


def main(servers: str, topic: str, out: str, checkpoint: str) -> None:
    spark = session(
        master="local[2]",
        config={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"},
    )
    query = (
        copied(spark, servers, topic)
        .writeStream.format("raftlog")
        .options(topic=out, checkpointLocation=checkpoint)
        .option("bootstrap.servers", servers)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
