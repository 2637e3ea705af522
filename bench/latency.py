"""Latency of one node at a fixed rate, open loop: publish alone, end to end with a consumer."""

from __future__ import annotations

import uvloop

from bench.node import LoneNode
from bench.report import Result
from raftlog.workloads.latencies import Latencies
from raftlog.workloads.load import PARTITIONS
from raftlog.workloads.open_loop import open_loop


def run(node: LoneNode, *, runs: int, scale: float) -> list[Result]:
    """Publish and end-to-end latency at 1,000 records a second."""
    rate, seconds = 1_000, max(3.0, 10.0 * scale)
    parameters = {"rate": rate, "record_bytes": 100, "seconds": seconds, "acks": "all"}
    parameters["partitions"] = PARTITIONS
    results = [
        Result("publish latency p50, 1,000/s", "ms", goal=1.0, parameters=parameters),
        Result("publish latency p99, 1,000/s", "ms", goal=5.0, parameters=parameters),
        Result("end-to-end latency p50, 1,000/s", "ms", parameters=parameters),
        Result("end-to-end latency p99, 1,000/s", "ms", parameters=parameters),
    ]
    for run_number in range(runs):
        topic = f"latency-{run_number}"
        node.create_topic(topic, PARTITIONS)
        samples = uvloop.run(open_loop(node.address, topic, rate, seconds, consume=False))
        publish = Latencies.from_seconds(samples.publish)
        delay = Latencies.from_seconds(samples.publish_delay)
        node.delete_topic(topic)
        node.create_topic(topic, PARTITIONS)
        both = uvloop.run(open_loop(node.address, topic, rate, seconds, consume=True))
        end_to_end = Latencies.from_seconds(both.end_to_end)
        for result, latencies, name in (
            (results[0], publish, "50pct"),
            (results[1], publish, "99pct"),
            (results[2], end_to_end, "50pct"),
            (results[3], end_to_end, "99pct"),
        ):
            result.runs.append(latencies.percentiles[name])
        results[0].details[f"run {run_number}"] = {
            **publish.as_fields("publishLatency"),
            **delay.as_fields("publishDelayLatency"),
            **end_to_end.as_fields("endToEndLatency"),
            "publishErrors": samples.errors + both.errors,
        }
        node.delete_topic(topic)
    return results
