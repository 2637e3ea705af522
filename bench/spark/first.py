"""A user's program, timed: `python -m bench.spark.first ADDRESS TOPIC` prints seconds as JSON.

It imports nothing else of the benchmarks: what a user has to import is a part of what he waits for.
"""

from __future__ import annotations

import itertools
import json
import sys
import time


def main(servers: str, topic: str) -> None:
    """Start a session and ask twice for the sum of all values' lengths."""
    times = [time.perf_counter()]
    from raftlog_spark.session import session  # noqa: PLC0415 - a part of what is measured

    spark = session("first", config={"spark.ui.showConsoleProgress": "false"})
    times.append(time.perf_counter())
    for _ in range(2):
        topics = spark.read.format("raftlog").option("bootstrap.servers", servers)
        topics.option("subscribe", topic).load().selectExpr("sum(length(value))").collect()
        times.append(time.perf_counter())
    taken = [after - before for before, after in itertools.pairwise(times)]
    print(json.dumps(dict(zip(("session", "first", "second"), taken, strict=True))))


if __name__ == "__main__":
    main(*sys.argv[1:])
