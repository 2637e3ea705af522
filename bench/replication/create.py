"""Creating and deleting a topic of many partitions."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Final

from bench.kept_connection import KeptConnection
from bench.replication.cluster import (
    NODES,
    POLL_S,
    Cluster,
    NotWholeError,
    Options,
    run_workload,
    running_cluster,
)
from bench.report import Result

PARTITIONS: Final = 1_000
"""At scale 1; scale 10 creates 10,000, the most of a topic."""
OPENED_TIMEOUT_S: Final = 300.0


def create(options: Options) -> list[Result]:
    """Seconds until a creation is answered, until every node has opened all replicas, and until
    the deletion is answered."""
    count = max(1, int(PARTITIONS * options.scale))
    parameters: dict[str, Any] = {"partitions": count, "replicas": NODES}
    goal = 3.0 if count <= PARTITIONS else 30.0
    what = f"cluster: {count:,} partitions"
    answered = Result(f"{what}, creation answered", "s", [], None, True, parameters)
    opened = Result(f"{what}, opened on all nodes", "s", [], goal, True, parameters)
    deleted = Result(f"{what}, deletion answered", "s", [], None, True, parameters)
    with running_cluster(options.flush) as cluster:
        for run in range(options.runs):
            times = run_workload(_measure(cluster, f"create-{run}", count))
            for result, seconds in zip((answered, opened, deleted), times, strict=True):
                result.runs.append(seconds)
    return [answered, opened, deleted]


async def _measure(cluster: Cluster, name: str, count: int) -> tuple[float, float, float]:
    started = time.perf_counter()
    body = {"topic_name": name, "partitions_count": count, "replication_factor": NODES}
    await cluster.change("POST", "/v3/clusters/-/topics", body)
    answered = time.perf_counter() - started
    while any([await _opening(cluster, node_id) for node_id in cluster.addresses]):
        if time.perf_counter() - started > OPENED_TIMEOUT_S:
            raise NotWholeError(f"{name} is not open everywhere after {OPENED_TIMEOUT_S} s")
        await asyncio.sleep(POLL_S)
    opened = time.perf_counter() - started
    started = time.perf_counter()
    await cluster.delete_topic(name)
    return answered, opened, time.perf_counter() - started


async def _opening(cluster: Cluster, node_id: int) -> int:
    """Replicas that a node is still opening."""
    connection = KeptConnection(cluster.addresses[node_id])
    try:
        answer = await connection.request("GET", "/v1/nodes", b"", timeout_s=OPENED_TIMEOUT_S)
    finally:
        connection.close()
    nodes = json.loads(answer.body)["nodes"]
    opening: int = next(node["opening"] for node in nodes if node["node_id"] == node_id)
    return opening
