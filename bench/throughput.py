"""Throughput of one Python process against one node: produce and consume."""

from __future__ import annotations

import uvloop

from bench.loads import awaited_sends, consume_each, consume_many
from bench.node import LoneNode
from bench.report import Result
from raftlog.workloads.load import PARTITIONS, send_many


def run(node: LoneNode, *, runs: int, scale: float) -> list[Result]:
    """All throughput figures, the workloads in turn within each run."""
    small_count, large_count = int(3_000_000 * scale), int(1_000_000 * scale)
    send_count = int(600_000 * scale)
    workloads = {"partitions": PARTITIONS, "acks": "all"}
    small = {**workloads, "record_bytes": 100}
    large = {**workloads, "record_bytes": 1000}
    results = [
        Result("produce send_many 100 B", "records/s", goal=1_000_000, parameters=small),
        Result("produce awaited send 100 B", "records/s", goal=250_000, parameters=small),
        Result("produce send_many 1 KB", "MB/s", goal=300, parameters=large),
        Result("consume getmany 100 B", "records/s", goal=2_000_000, parameters=small),
        Result("consume async for 100 B", "records/s", goal=700_000, parameters=small),
        Result("produce send_many keyed 100 B", "records/s", goal=1_200_000, parameters=small),
        Result("produce awaited send keyed 100 B", "records/s", goal=450_000, parameters=small),
    ]
    for run_number in range(runs):
        topic, large_topic = f"small-{run_number}", f"large-{run_number}"
        node.create_topic(topic, PARTITIONS)
        node.create_topic(large_topic, PARTITIONS)
        seconds = uvloop.run(send_many(node.address, topic, 100, small_count))
        results[0].runs.append(small_count / seconds)
        seconds = uvloop.run(awaited_sends(node.address, topic, 100, send_count))
        results[1].runs.append(send_count / seconds)
        seconds = uvloop.run(send_many(node.address, large_topic, 1000, large_count))
        results[2].runs.append(large_count * 1000 / seconds / 1e6)
        seconds = uvloop.run(consume_many(node.address, topic, small_count))
        results[3].runs.append(small_count / seconds)
        each = int(small_count / 2)
        seconds = uvloop.run(consume_each(node.address, topic, each))
        results[4].runs.append(each / seconds)
        keyed_count = int(small_count / 3)
        seconds = uvloop.run(send_many(node.address, topic, 100, keyed_count, keyed=True))
        results[5].runs.append(keyed_count / seconds)
        seconds = uvloop.run(awaited_sends(node.address, topic, 100, send_count, keyed=True))
        results[6].runs.append(send_count / seconds)
        node.delete_topic(topic)
        node.delete_topic(large_topic)
    return results
