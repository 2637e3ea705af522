"""A user's program, timed: `python -m bench.spark.first ADDRESS TOPIC` prints seconds as JSON.

The program imports nothing else of the benchmarks: a user's imports are part of the user's wait.
`python -m bench.spark.first alone` reads ready rows, to show the time that Spark itself needs.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 10_000
ROW_BYTES = 100


def main(servers: str, topic: str = "") -> None:
    """Start a session, and query the sum of all values' lengths twice."""
    times = [time.perf_counter()]
    from raftlog_spark.session import session  # noqa: PLC0415 - a part of what is measured

    spark = session("first", config={"spark.ui.showConsoleProgress": "false"})
    times.append(time.perf_counter())
    for _ in range(2):
        frame = _read(spark, servers, topic) if topic else _ready(spark)
        frame.selectExpr("sum(length(value))").collect()
        times.append(time.perf_counter())
    taken = [after - before for before, after in itertools.pairwise(times)]
    print(json.dumps(dict(zip(("session", "first", "second"), taken, strict=True))))


def _read(spark: SparkSession, servers: str, topic: str) -> DataFrame:
    topics = spark.read.format("raftlog").option("bootstrap.servers", servers)
    return topics.option("subscribe", topic).load()


def _ready(spark: SparkSession) -> DataFrame:
    from bench.spark.ceiling import ready_rows  # noqa: PLC0415 - Spark alone has it

    return ready_rows(spark, ROW_BYTES, ROWS)


if __name__ == "__main__":
    main(*sys.argv[1:])
