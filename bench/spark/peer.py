"""Reads of wide and narrow records, beside Spark's own connector for Kafka on Apache Kafka.

    python -m bench.spark.peer '{"jars": "…", "runs": 3, "rows": 9, "reads": [["raftlog", …]]}'

prints the seconds of each read and run as JSON. Each of `reads` has a connector, servers and a
topic. A JVM loads its jars at the start, so this is a separate process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from raftlog_spark.session import session

from bench.kafka.suite import create, fill, systems
from bench.node import output_of
from bench.report import Options, Result, ratio
from bench.spark.running import CONFIG, LARGE_BYTES, SMALL_BYTES, source, sum_of_lengths

COUNTS: Final = {SMALL_BYTES: 10_000_000, LARGE_BYTES: 2_000_000}
RECORDS_MIN: Final = 10_000
GOAL: Final = 1.5
TIMEOUT_S: Final = 1_200.0


def peer(options: Options) -> list[Result]:
    """The same query by both connectors, and by Spark's own on raftlog's Kafka listeners."""
    if options.kafka_classpath is None:
        print("left out: Spark's connector for Kafka (no --kafka-classpath)", flush=True)
        return []
    kept = jars_directory() / "spark.classpath"
    if not kept.exists():
        print(f"left out: no {kept}, which scripts/trial-kafka makes", flush=True)
        return []
    jars = kept.read_text().partition("\n")[2].strip().replace(os.pathsep, ",")
    results: list[Result] = []
    with systems(options) as (ours, theirs):
        for size, most in COUNTS.items():
            count = max(RECORDS_MIN, int(most * options.scale))
            topic = f"wide-{size}"
            for system in (ours, theirs):
                create(system, topic)
                fill(system, topic, size, count)
            reads = {
                "raftlog": ("raftlog", ours.nodes.servers, topic),
                "Kafka": ("kafka", theirs.servers, topic),
                "Spark's Kafka connector on raftlog": ("kafka", ours.servers, topic),
            }
            # The client sends one record before the time runs.
            rows = count + 1
            asked = {"jars": jars, "runs": options.runs, "rows": rows, "reads": [*reads.values()]}
            results += _compared(f"spark: batch read {size} B beside", reads, asked, rows)
    return results


def jars_directory() -> Path:
    """The cache of class paths. Each has the checksum of its sources in the first line."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "raftlog/kafka-jars"
    return Path(os.environ.get("RAFTLOG_KAFKA_JARS") or cache).expanduser()


def _compared(
    title: str, reads: dict[str, tuple[str, str, str]], asked: dict[str, object], rows: int
) -> list[Result]:
    command = [sys.executable, "-m", "bench.spark.peer", json.dumps(asked)]
    output = output_of(command, TIMEOUT_S)
    seconds = dict(zip(reads, json.loads(output.splitlines()[-1]), strict=True))
    rates = {
        name: Result(
            f"{title}, {name}",
            "rows/s",
            runs=[rows / one for one in taken],
            parameters={"rows": rows},
        )
        for name, taken in seconds.items()
    }
    results = [
        *rates.values(),
        ratio(f"{title}, by Kafka's", rates["raftlog"], rates["Kafka"], GOAL),
    ]
    for result in results:
        print(f"   {result.name}: {result.median:,.2f} {result.unit}", flush=True)
    return results


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
