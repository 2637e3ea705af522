"""Copies a time window of a topic to a new topic, all or nothing.

One batch write, which readers of committed records see as a whole. A record belongs to the window
by its timestamp. In each partition the window begins at its first record that is young enough.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from raftlog_spark.examples.flights import table_of
from raftlog_spark.session import session


def window_of(
    spark: SparkSession, servers: str, topic: str, *, begin: datetime, end: datetime
) -> DataFrame:
    """The records from `begin` to before `end`, with their headers."""
    return table_of(
        spark,
        servers,
        topic,
        includeHeaders="true",
        startingTimestamp=str(_ms(begin)),
        startingOffsetsByTimestampStrategy="latest",
        endingTimestamp=str(_ms(end)),
    )


def replay(
    spark: SparkSession, servers: str, *, source: str, target: str, begin: datetime, end: datetime
) -> None:
    """Write the window of `source` to `target`, each record to the partition that it had."""
    window = window_of(spark, servers, source, begin=begin, end=end)
    (
        window.select("key", "value", "headers", "partition")
        .write.format("raftlog")
        .mode("append")
        .option("bootstrap.servers", servers)
        .option("topic", target)
        .save()
    )


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def main(given: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", default="127.0.0.1:8082", help="nodes, as HOST:PORT,…")
    parser.add_argument("--master", help="Spark master, by default on this machine")
    parser.add_argument("--source", required=True, help="topic to replay")
    parser.add_argument("--target", required=True, help="topic with as many partitions")
    for name in ("begin", "end"):
        parser.add_argument(
            f"--{name}",
            required=True,
            type=datetime.fromisoformat,
            help="such as 2026-01-31T12:00:00+00:00",
        )
    args = vars(parser.parse_args(given))
    servers, master = args.pop("servers"), args.pop("master")
    spark = session("replay", master=master)
    replay(spark, servers, **args)
    spark.stop()


if __name__ == "__main__":
    main()
