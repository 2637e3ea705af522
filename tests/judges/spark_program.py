"""The program of the Spark judge, in a process of its own: a JVM loads its jars at the start.

`python -m tests.judges.spark_program SERVERS PREFIX RECORDS DIRECTORY JARS` writes, reads, copies
as a stream to the end, twice, and prints the counts as JSON. Its topics are PREFIX-source and
PREFIX-target.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raftlog_spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM_TIMEOUT_S = 120


def main(servers: str, prefix: str, records: int, directory: Path, jars: str) -> None:
    """Run all parts, and print the counts."""
    spark = session(
        "judge",
        master="local[2]",
        config={
            "spark.jars": jars,
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "512m",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    source, target = f"{prefix}-source", f"{prefix}-target"
    counts: dict[str, Any] = {}
    for part in range(2):
        _write(spark, servers, source, part * records, records)
        counts[f"batch {part}"] = _distinct(_read(spark, servers, source))
        _copy(spark, servers, source, target, directory)
        counts[f"stream {part}"] = _distinct(_read(spark, servers, target))
    half = {"startingOffsets": json.dumps({source: {"0": 1, "1": -2, "2": -2}})}
    read = _read(spark, servers, source, **half)
    counts["partitions"] = {
        str(row["partition"]): row["count"] for row in read.groupBy("partition").count().collect()
    }
    print(json.dumps(counts), flush=True)
    spark.stop()


def _write(spark: SparkSession, servers: str, topic: str, start: int, count: int) -> None:
    frame = spark.range(start, start + count).selectExpr(
        "cast(id as string) as key",
        "concat('v', id) as value",
        "array(named_struct('key', 'h', 'value', cast('x' as binary))) as headers",
    )
    frame.write.format("kafka").option("kafka.bootstrap.servers", servers).option(
        "topic", topic
    ).save()


def _read(spark: SparkSession, servers: str, topic: str, **options: str) -> DataFrame:
    return (
        spark.read.format("kafka")
        .options(**{"kafka.bootstrap.servers": servers, "subscribe": topic, **options})
        .option("includeHeaders", "true")
        .load()
    )


def _distinct(frame: DataFrame) -> list[int]:
    """Return the number of records, of different values, and of records with the header."""
    row = frame.selectExpr("count(*)", "count(distinct value)", "count_if(headers[0].key = 'h')")
    return list(row.collect()[0])


def _copy(spark: SparkSession, servers: str, source: str, target: str, directory: Path) -> None:
    """Copy all that is new since the checkpoint."""
    read = (
        spark.readStream.format("kafka")
        .options(**{"kafka.bootstrap.servers": servers, "subscribe": source})
        .options(startingOffsets="earliest", includeHeaders="true", maxOffsetsPerTrigger="200")
        .load()
    )
    query = (
        read.select("key", "value", "headers")
        .writeStream.format("kafka")
        .options(**{"kafka.bootstrap.servers": servers, "topic": target})
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(STREAM_TIMEOUT_S):
        raise TimeoutError(f"the stream did not end within {STREAM_TIMEOUT_S} s")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
