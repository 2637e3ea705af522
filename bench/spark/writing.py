"""How fast Spark writes topics, exactly once and at least once: to one node, and to three."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from raftlog_spark.options import DELIVERY_GUARANTEES

from bench.cluster import Cluster, run_workload, running_cluster
from bench.node import MeasuredNode, running_node
from bench.report import Options, Result, ratio
from bench.spark.running import PARTITIONS, SMALL_BYTES, Meter, Used, note, records_in, spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORDS: Final = 5_000_000
RECORDS_MIN: Final = 10_000
NUMBER_BYTES: Final = 20
GOALS: Final = {"one node": 700_000.0, "three nodes": 400_000.0}
RATIO_GOAL: Final = 0.85
"""Exactly once by at least once."""


def write(options: Options) -> list[Result]:
    """Writes of rows that Spark generates; and the generation alone."""
    count = max(RECORDS_MIN, int(RECORDS * options.scale))
    parameters = {"partitions": PARTITIONS, "records": count, "tasks": os.cpu_count()}
    made = Result("spark: rows made for writing, 100 B", "rows/s", parameters=parameters)
    rates = {
        (place, guarantee): Result(
            f"spark: write 100 B, {guarantee}, {place}",
            "rows/s",
            goal=goal if guarantee == DELIVERY_GUARANTEES[0] else None,
            parameters=dict(parameters),
        )
        for place, goal in GOALS.items()
        for guarantee in DELIVERY_GUARANTEES
    }
    with running_node(options.flush) as node, running_cluster(options.flush) as cluster:
        places: dict[str, list[MeasuredNode]] = {
            "one node": [node],
            "three nodes": list(cluster.nodes.values()),
        }
        for nodes in places.values():  # Java compiles hot code
            _written(cluster, nodes, "warm-up", max(RECORDS_MIN, count // 10))
        for run in range(options.runs):
            meter = Meter()
            rows(count).write.format("noop").mode("overwrite").save()
            note(made, meter.used(), count)
            for (place, guarantee), rate in rates.items():
                topic = f"{guarantee}-{run}"
                used = _written(cluster, places[place], topic, count, guarantee)
                note(rate, used, count)
    once, least = DELIVERY_GUARANTEES
    ratios = [
        ratio(
            f"spark: exactly once by at least once, {place}",
            rates[place, once],
            rates[place, least],
            RATIO_GOAL,
        )
        for place in GOALS
    ]
    return [made, *rates.values(), *ratios]


def rows(count: int) -> DataFrame:
    """As many values of 100 bytes, in as many tasks as there are cores. No two are the same."""
    filler = "x" * (SMALL_BYTES - NUMBER_BYTES)
    numbers = spark().range(0, count, 1, os.cpu_count() or 1)
    number = f"lpad(cast(id AS string), {NUMBER_BYTES}, '0')"
    return numbers.selectExpr(f"cast(concat({number}, '{filler}') AS binary) AS value")


def _written(
    cluster: Cluster,
    nodes: list[MeasuredNode],
    topic: str,
    count: int,
    guarantee: str = DELIVERY_GUARANTEES[0],
) -> Used:
    """One write into a topic of its own on these nodes."""
    if len(nodes) == 1:
        nodes[0].create_topic(topic, PARTITIONS)
    else:
        run_workload(cluster.create_topic(topic, PARTITIONS))
    servers = ",".join(node.address for node in nodes)
    frame = rows(count)
    meter = Meter(*nodes)
    (
        frame.write.format("raftlog")
        .mode("append")
        .option("bootstrap.servers", servers)
        .option("topic", topic)
        .option("deliveryGuarantee", guarantee)
        .save()
    )
    used = meter.used()
    written = records_in(servers, topic)
    if written < count:
        raise RuntimeError(f"{topic}: {written} records of {count}")
    nodes[0].delete_topic(topic)
    return used
