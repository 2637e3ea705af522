"""Spark reads a topic by raftlog's connector and by its own for Kafka, in turn, in one session.

    python -m bench.spark.beside '{"jars": "…", "runs": 3, "rows": 9, "reads": [["raftlog", …]]}'

Each of `reads`: connector, servers, topic. A process of its own: a JVM loads its jars at the start.
Prints seconds by read and run as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from raftlog_spark.session import session

from bench.spark.running import CONFIG, source, sum_of_lengths


def main(given: str) -> None:
    """Run each read once more than counted: Java compiles hot code in the first."""
    asked: dict[str, Any] = json.loads(given)
    reads: Sequence[Sequence[str]] = asked["reads"]
    spark = session("beside", config={**CONFIG, "spark.jars": asked["jars"]})
    spark.sparkContext.setLogLevel("ERROR")
    seconds: list[list[float]] = [[] for _ in reads]
    for _ in range(asked["runs"] + 1):
        for taken, (connector, servers, topic) in zip(seconds, reads, strict=True):
            options = source(servers, topic, startingOffsets="earliest")
            if connector == "kafka":
                options["kafka.bootstrap.servers"] = options.pop("bootstrap.servers")
            reader = spark.read.format(connector).options(**options)
            if connector == "raftlog":
                # Its projection; the Kafka connector has none, Spark drops what is not used.
                reader = reader.schema("value binary")
            started = time.perf_counter()
            rows, _ = sum_of_lengths(reader.load())
            taken.append(time.perf_counter() - started)
            if rows != asked["rows"]:
                raise RuntimeError(f"{connector} on {topic}: {rows} rows of {asked['rows']}")
    spark.stop()
    print(json.dumps([taken[1:] for taken in seconds]))


if __name__ == "__main__":
    main(sys.argv[1])
