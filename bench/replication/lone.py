"""Latency of lone records: one at a time, and 1,000 a second on a schedule that never waits."""

from __future__ import annotations

import time
from typing import Final

from raftlog_client import Producer

from bench.cluster import PARTITIONS, Cluster, run_workload, running_cluster
from bench.report import Options, Result
from raftlog.workloads.latencies import Latencies
from raftlog.workloads.load import payload
from raftlog.workloads.open_loop import open_loop

RECORDS: Final = 3_000
WARM_UP: Final = 200
RATE: Final = 1_000
OPEN_LOOP_S: Final = 10.0
GOALS: Final = (("50pct", "p50", 1.2), ("99pct", "p99", 5.0), ("99.9pct", "p99.9", None))


def latency(options: Options) -> list[Result]:
    """Both ways, in turn within each run."""
    count = max(WARM_UP, int(RECORDS * options.scale))
    seconds = max(2.0, OPEN_LOOP_S * options.scale)
    alone = _results("one at a time", {"records": count})
    steady = _results(f"{RATE:,}/s", {"rate": RATE, "seconds": seconds})
    with running_cluster(options.flush) as cluster:
        for run in range(options.runs):
            topic = f"latency-{run}"
            run_workload(cluster.create_topic(topic))
            _note(alone, run_workload(one_at_a_time(cluster, topic, count)))
            samples = run_workload(
                open_loop(
                    cluster.servers,
                    topic,
                    RATE,
                    seconds,
                    consume=False,
                    partitions=PARTITIONS,
                    spin_s=0.0,  # three nodes need both cores
                )
            )
            _note(steady, samples.publish, samples.errors)
            run_workload(cluster.delete_topic(topic))
    return [*alone, *steady]


async def one_at_a_time(cluster: Cluster, topic: str, count: int) -> list[float]:
    """Seconds of each of `count` sends; the next leaves when the last is acknowledged."""
    value = payload(100)
    taken: list[float] = []
    async with Producer(bootstrap_servers=cluster.servers) as producer:
        for number in range(count + WARM_UP):
            started = time.perf_counter()
            await producer.send_and_wait(topic, value, partition=number % PARTITIONS)
            if number >= WARM_UP:
                taken.append(time.perf_counter() - started)
    return taken


def _results(how: str, parameters: dict[str, object]) -> list[Result]:
    given = {**parameters, "record_bytes": 100, "partitions": PARTITIONS, "acks": "all"}
    return [
        *(
            Result(f"cluster: publish {name}, {how}", "ms", goal=goal, parameters=given)
            for _, name, goal in GOALS
        ),
        Result(f"cluster: publish max, {how}", "ms", parameters=given),
    ]


def _note(results: list[Result], seconds: list[float], errors: int = 0) -> None:
    latencies = Latencies.from_seconds(seconds)
    for result, (key, _, _) in zip(results, GOALS, strict=False):
        result.runs.append(latencies.percentiles[key])
    results[-1].runs.append(latencies.max)
    results[0].details[f"run {len(results[0].runs)}"] = {
        **latencies.as_fields("publishLatency"),
        "publishErrors": errors,
    }
