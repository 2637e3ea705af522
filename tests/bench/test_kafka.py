"""Figures of `scripts/bench kafka`: gaps between reports, and lone requests on a real listener."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.kafka.beside import gap_after
from bench.kafka.lone import PARTITIONS, TOPIC, load
from bench.node import LoneNode, free_port


@pytest.mark.parametrize(
    ("times", "gap"),
    [
        ([0.0, 9.0, 11.0, 11.5], 1.0),
        ([9.9, 10.4, 12.4, 12.5], 2.0),
        ([9.0, 9.9], 0.0),
    ],
)
def test_a_gap_counts_as_far_as_it_is_after_the_fault(times: list[float], gap: float) -> None:
    assert gap_after(times, 10.0) == pytest.approx(gap)


async def test_lone_requests_are_counted_as_they_are_acknowledged(tmp_path: Path) -> None:
    port = free_port()
    node = LoneNode(tmp_path / "data", "sync", arguments=("--kafka-listen", f"127.0.0.1:{port}"))
    node.start()
    try:
        with pytest.raises(RuntimeError, match="code 3"):
            await load(port, 1, 0.01)
        node.create_topic(TOPIC, PARTITIONS)
        rate, latencies = await load(port, 3, 0.3)
        assert rate > 0
        ends = [
            node.request("GET", f"/topics/{TOPIC}/partitions/{number}/offsets")["end_offset"]
            for number in range(PARTITIONS)
        ]
    finally:
        node.stop()
    assert latencies.count == sum(ends)
