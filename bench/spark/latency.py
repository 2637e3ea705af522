"""Latency of a stream from topic to topic: from the due time of a record until its second read.

Open loop (`raftlog.workloads.open_loop`); the query starts its batches at once, and only copies.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from bench.node import running_node
from bench.replication.cluster import Options, run_workload
from bench.report import Result
from bench.spark.running import checkpoint, source, spark
from raftlog.workloads.latencies import Latencies
from raftlog.workloads.open_loop import open_loop

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS: Final = 2
RATE: Final = 200
SECONDS: Final = 20.0
SECONDS_MIN: Final = 5.0
WARM_UP_S: Final = 10.0
"""The query's first batches start its workers, and Java compiles."""
GOALS: Final = (("50pct", "p50", 350.0), ("99pct", "p99", None))


def micro_batch(options: Options) -> list[Result]:
    """Latency of records through a query, and durations of its batches."""
    seconds = max(SECONDS_MIN, SECONDS * options.scale)
    parameters = {"rate": RATE, "seconds": seconds, "partitions": PARTITIONS, "master": "local[*]"}
    results = [
        Result(f"spark: source to sink {name}", "ms", [], goal, True, dict(parameters))
        for _, name, goal in GOALS
    ]
    batches = Result("spark: micro-batch, median", "ms", [], None, True, dict(parameters))
    with running_node(options.flush) as node:
        for run in range(options.runs):
            topics = (f"in-{run}", f"out-{run}")
            for topic in topics:
                node.create_topic(topic, PARTITIONS)
            with checkpoint() as directory:
                query = _copying(node.address, *topics, directory)
                try:
                    samples = run_workload(
                        open_loop(
                            node.address,
                            topics[0],
                            RATE,
                            seconds,
                            consume=True,
                            partitions=PARTITIONS,
                            arrive_in=topics[1],
                            warm_up_s=WARM_UP_S,
                        )
                    )
                    parts = _durations_ms(query)
                finally:
                    query.stop()
            latencies = Latencies.from_seconds(samples.end_to_end)
            for result, (key, _, _) in zip(results, GOALS, strict=True):
                result.runs.append(latencies.percentiles[key])
            results[0].details[f"run {run + 1}"] = latencies.as_fields("endToEndLatency")
            batches.runs.append(parts.get("triggerExecution", float("nan")))
            batches.details[f"run {run + 1}"] = parts
            phases = ", ".join(f"{name} {ms:.0f}" for name, ms in sorted(parts.items()))
            print(
                f"   source to sink: p50 {results[0].runs[-1]:.0f} ms, "
                f"p99 {results[1].runs[-1]:.0f} ms; a batch's parts, ms: {phases}",
                flush=True,
            )
    return [*results, batches]


def _copying(servers: str, from_topic: str, to_topic: str, directory: str) -> StreamingQuery:
    return (
        spark()
        .readStream.format("raftlog")
        .options(**source(servers, from_topic, startingOffsets="earliest"))
        .schema("value binary")
        .load()
        .writeStream.format("raftlog")
        .option("bootstrap.servers", servers)
        .option("topic", to_topic)
        .option("checkpointLocation", directory)
        .start()
    )


def _durations_ms(query: StreamingQuery) -> dict[str, float]:
    """Medians of the phases of the query's last batches with rows, by Spark's names."""
    found: dict[str, list[float]] = defaultdict(list)
    progress: Any
    for progress in query.recentProgress:
        if progress["numInputRows"]:
            for name, milliseconds in progress["durationMs"].items():
                found[name].append(float(milliseconds))
    return {name: statistics.median(values) for name, values in sorted(found.items())}
