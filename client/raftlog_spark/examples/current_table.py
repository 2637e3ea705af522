"""Turns changes into a compacted topic, the current table with a row per key.

A change is JSON in the form that change-data-capture tools write: `op` is c, u, r or d, `after` the
row, `before` the row of a deletion. The target keeps the newest record of each key
(`cleanup.policy=compact`): an upsert is a record, a deletion a record without a value.

Changes of one key must be in one partition of the source: then they keep their order here.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  (the usual name)
from pyspark.sql.streaming.query import StreamingQuery

from raftlog_spark.examples.flights import run, stream_of, table_of, write

CHANGE = "op string, after string, before string"
WRITES = ("c", "u", "r")


def upserts(changes: DataFrame) -> DataFrame:
    """Records for the target. Other records than changes are left out."""
    change = F.from_json(F.col("value").cast("string"), CHANGE)
    is_write = F.col("change.op").isin(*WRITES) & F.col("change.after").isNotNull()
    return (
        changes.where(F.col("key").isNotNull())
        .select("key", change.alias("change"))
        .where(is_write | (F.col("change.op") == "d"))
        .select("key", F.when(is_write, F.col("change.after")).alias("value"))
    )


def current(letters: DataFrame) -> DataFrame:
    """The rows of the table, `key` and `value`, from the records of the target. Compaction comes
    later: until then there are older records of a key, and deletions."""
    newest = Window.partitionBy("key").orderBy(F.col("offset").desc())
    return (
        letters.withColumn("_age", F.row_number().over(newest))
        .where((F.col("_age") == 1) & F.col("value").isNotNull())
        .select("key", F.col("value").cast("string").alias("value"))
    )


def table(spark: SparkSession, servers: str, topic: str) -> DataFrame:
    """The current table of a target."""
    return current(table_of(spark, servers, topic))


def start(
    spark: SparkSession, servers: str, *, source: str, target: str, checkpoint: str
) -> StreamingQuery:
    """Start keeping the compacted topic `target` current."""
    rows = upserts(stream_of(spark, servers, source))
    return write(rows, servers, topic=target, checkpoint=checkpoint)


def main(given: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    run(
        start,
        "current table",
        __doc__,
        given,
        source="topic of changes",
        target="compacted topic for the table",
    )


if __name__ == "__main__":
    main()
