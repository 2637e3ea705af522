"""Shared by the examples: flights as records and rows, topics as DataFrames, a command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the usual name)
from pyspark.sql.streaming.query import StreamingQuery

from raftlog_spark.session import session

FLIGHT = (
    "flight string, scheduled timestamp, carrier string, origin string, dest string,"
    " tailnum string, dep_delay int, arr_delay int, air_time int, distance int"
)
"""A flight as the value of a record: JSON with these fields. Delays and times are in minutes,
distances in miles; a flight without `dep_delay` was cancelled.
"""

_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss'Z'", "timeZone": "UTC"}


def rows(records: DataFrame, schema: str) -> DataFrame:
    """The JSON values of records as columns. Other values become nulls."""
    value = F.col("value").cast("string")
    return records.select(F.from_json(value, schema).alias("row")).select("row.*")


def flights_in(records: DataFrame) -> DataFrame:
    """Records as flights, without malformed records. `dead_letters` handles those."""
    return rows(records, FLIGHT).where(F.col("flight").isNotNull())


def records(frame: DataFrame, *, key: str) -> DataFrame:
    """Rows as records. One column is the key, and all columns are the value, as JSON."""
    value = F.to_json(F.struct("*"), _TIMES)
    return frame.select(F.col(key).alias("key"), value.alias("value"))


def stream_of(spark: SparkSession, servers: str, topic: str, **options: str) -> DataFrame:
    """A topic as a stream, from its first record on."""
    return (
        spark.readStream.format("raftlog")
        .option("bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
    )


def table_of(spark: SparkSession, servers: str, topic: str, **options: str) -> DataFrame:
    """All current records of a topic, unless the options say otherwise."""
    return (
        spark.read.format("raftlog")
        .option("bootstrap.servers", servers)
        .options(subscribe=topic, **options)
        .load()
    )


def write(
    frame: DataFrame, servers: str, *, checkpoint: str, topic: str | None = None
) -> StreamingQuery:
    """Start writing records to a topic, or to the topics in a column `topic`.

    The query reads the current records of its sources, and ends. `checkpoint` is the directory of
    its progress. The next run continues there.
    """
    writer = (
        frame.writeStream.format("raftlog")
        .option("bootstrap.servers", servers)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
    )
    return (writer if topic is None else writer.option("topic", topic)).start()


def run(
    start: Callable[..., StreamingQuery],
    name: str,
    description: str | None,
    arguments: Sequence[str] | None,
    **needed: str,
) -> None:
    """Run an example as a program: start it, wait for its end, stop Spark.

    The command line has `--servers`, `--master`, the options `needed`, each with its help, and
    `--checkpoint`. Their values are arguments of `start`, by name.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--servers", default="127.0.0.1:8082", help="nodes, as HOST:PORT,…")
    parser.add_argument("--master", help="Spark master, by default on this machine")
    needed["checkpoint"] = "directory for the progress of the query"
    for option, text in needed.items():
        parser.add_argument(f"--{option.replace('_', '-')}", required=True, help=text)
    args = vars(parser.parse_args(arguments))
    servers, master = args.pop("servers"), args.pop("master")
    spark = session(name, master=master)
    start(spark, servers, **args).awaitTermination()
    spark.stop()
