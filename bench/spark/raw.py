"""Throughput of one process that reads and writes raw batches: `python -m bench.spark.raw`.

One node and one client on this machine, so one core each on two cores. Nothing is decoded or
encoded: the figure covers the way from the log to the caller's memory, and back. Each figure is the
best of several rounds, as other work on the machine only ever makes a round slower; on a busy
machine, CPU seconds for each GB are more exact than MB/s.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
from raftlog_client import Admin
from raftlog_spark.cluster import Cluster

from bench.node import LoneNode
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression

TOPIC = "raw"
MB = 1_000_000
MIB = 1024 * 1024
FETCH_MIB = (1, 4, 8, 16, 32)


class Round(NamedTuple):
    """One round: bytes carried a second, and CPU seconds of each side for each GB."""

    mb_per_s: float
    client_s_per_gb: float
    node_s_per_gb: float


def measured(work: Callable[[], int], node: psutil.Process) -> Round:
    """Time `work`, which returns the number of bytes."""
    own = psutil.Process()
    before = [sum(process.cpu_times()[:2]) for process in (own, node)]
    began = time.perf_counter()
    size = work()
    seconds = time.perf_counter() - began
    spent = [
        sum(process.cpu_times()[:2]) - then
        for process, then in zip((own, node), before, strict=True)
    ]
    gb = size / 1_000 / MB
    return Round(size / MB / seconds, spent[0] / gb, spent[1] / gb)


def report(name: str, rounds: list[Round]) -> None:
    """Print the best round, and the least CPU."""
    print(
        f"{name:28} {max(one.mb_per_s for one in rounds):7.0f} MB/s   CPU s/GB: "
        f"client {min(one.client_s_per_gb for one in rounds):.2f}, "
        f"node {min(one.node_s_per_gb for one in rounds):.2f}",
        flush=True,
    )


def template(record_bytes: int, batch_bytes: int) -> tuple[bytes, int]:
    """A batch of such records, and their number."""
    builder = BatchBuilder(Compression.NONE, batch_bytes)
    value = b"x" * record_bytes
    # Retention uses the records' timestamps.
    now_ms = int(time.time() * 1000)
    while builder.append(now_ms, None, value):
        pass
    return bytes(builder.build()), builder.record_count


def write(cluster: Cluster, data: bytes, records: int, size_bytes: int) -> int:
    """Write `size` bytes of copies of the batch."""
    with cluster.writer(TOPIC) as writer:
        for _ in range(size_bytes // len(data)):
            writer.write(0, bytearray(data), records)
        return writer.flush().size_bytes


def read(cluster: Cluster, fetch_bytes: int) -> int:
    """Read the whole topic."""
    info = cluster.topics()[TOPIC]
    bounds = cluster.bounds([TOPIC], isolation="read_committed")[TOPIC, 0]
    chunks = cluster.read(
        TOPIC, info.topic_id, 0, bounds.start, bounds.end, fetch_bytes=fetch_bytes
    )
    return sum(len(chunk.data) for chunk in chunks)


async def create(address: str) -> None:
    """Make the topic."""
    async with Admin(bootstrap_servers=address) as admin:
        await admin.create_topic(TOPIC, partitions=1)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400, help="written in each round")
    parser.add_argument("--record-bytes", type=int, default=1_000)
    parser.add_argument("--batch-bytes", type=int, default=512 * 1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flush", choices=("sync", "async"), default="sync")
    arguments = parser.parse_args()
    data, records = template(arguments.record_bytes, arguments.batch_bytes)
    with tempfile.TemporaryDirectory(prefix="raftlog-raw-") as directory:
        node = LoneNode(Path(directory) / "data", flush=arguments.flush)
        node.start()
        try:
            asyncio.run(create(node.address))
            process = psutil.Process(node.pid)
            with Cluster(node.address) as cluster:
                size = arguments.megabytes * MB
                rounds = [
                    measured(lambda: write(cluster, data, records, size), process)
                    for _ in range(arguments.rounds)
                ]
                report(f"write, {arguments.record_bytes} B records", rounds)
                for mib in FETCH_MIB:
                    rounds = [
                        measured(lambda mib=mib: read(cluster, mib * MIB), process)  # type: ignore[misc]
                        for _ in range(arguments.rounds)
                    ]
                    report(f"read, fetch_bytes {mib} MiB", rounds)
        finally:
            node.stop()


if __name__ == "__main__":
    main()
