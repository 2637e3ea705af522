"""Latency of a stream from topic to topic: from the due time of a record until its second read.

Open loop (`raftlog.workloads.open_loop`); the query starts its batches at once, and only copies.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from raftlog_spark.options import DELIVERY_GUARANTEES

from bench.cluster import run_workload
from bench.node import LoneNode, running_node
from bench.report import Options, Percentiles, Result
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
GOALS: Final = {"p50": 350.0, "p99": 700.0}
EPOCH_GOAL_MS: Final = 60.0


def micro_batch(options: Options) -> list[Result]:
    """Latency of records through a query, durations of its batches, and what an epoch adds."""
    seconds = max(SECONDS_MIN, SECONDS * options.scale)
    parameters = {"rate": RATE, "seconds": seconds, "partitions": PARTITIONS, "master": "local[*]"}
    results: dict[str, tuple[Percentiles, Result]] = {}
    for guarantee in DELIVERY_GUARANTEES:
        name = f"spark: source to sink, {guarantee}"
        results[guarantee] = (
            Percentiles(f"{name}, {{}}", GOALS, parameters),
            Result(f"{name}, median batch", "ms", parameters=parameters),
        )
    with running_node(options.flush) as node:
        for run in range(options.runs):
            for guarantee in DELIVERY_GUARANTEES:
                _copy(node, f"{guarantee}-{run}", seconds, guarantee, results[guarantee])
    once, least = (results[guarantee][1].runs for guarantee in DELIVERY_GUARANTEES)
    added = [one - other for one, other in zip(once, least, strict=True)]
    epoch = Result("spark: added by a sink epoch", "ms", runs=added, goal=EPOCH_GOAL_MS)
    return [*(one for ends, batch in results.values() for one in (*ends.results, batch)), epoch]


def _copy(
    node: LoneNode, name: str, seconds: float, guarantee: str, results: tuple[Percentiles, Result]
) -> None:
    """Run once, into the latencies and the batches of its guarantee."""
    ends, batch = results
    topics = (f"in-{name}", f"out-{name}")
    for topic in topics:
        node.create_topic(topic, PARTITIONS)
    with checkpoint() as directory:
        query = _copying(node.address, *topics, directory, guarantee)
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
    ends.note(Latencies.from_seconds(samples.end_to_end))
    batch.runs.append(parts.get("triggerExecution", float("nan")))
    batch.details[f"run {len(batch.runs)}"] = parts
    phases = ", ".join(f"{phase} {ms:.0f}" for phase, ms in sorted(parts.items()))
    print(
        f"   {guarantee}: {', '.join(f'{one.runs[-1]:.0f} ms' for one in ends.results)}; "
        f"a batch's parts, ms: {phases}",
        flush=True,
    )


def _copying(
    servers: str, from_topic: str, to_topic: str, directory: str, guarantee: str
) -> StreamingQuery:
    return (
        spark()
        .readStream.format("raftlog")
        .options(**source(servers, from_topic, startingOffsets="earliest"))
        .schema("value binary")
        .load()
        .writeStream.format("raftlog")
        .option("bootstrap.servers", servers)
        .option("topic", to_topic)
        .option("deliveryGuarantee", guarantee)
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
