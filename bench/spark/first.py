"""A user's program, timed: `python -m bench.spark.first ADDRESS TOPIC` prints seconds as JSON.

The program imports nothing else of the benchmarks: a user's imports are part of the user's wait.
"""

from __future__ import annotations

import itertools
import json
import sys
import time


def main(servers: str, topic: str) -> None:
    """Start a session, and query the sum of all values' lengths twice."""
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
