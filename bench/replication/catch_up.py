"""Catch-up of a stopped follower: its speed, and the cost for concurrent writes.

The speed is all bytes that the follower missed, over the time from its first fetched byte until it
is in sync in every partition. Writes go on at a fixed pace before and during catch-up.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Final

from raftlog_client import Producer

from bench.cluster import (
    Cluster,
    NotWholeError,
    cancelled,
    run_workload,
    running_cluster,
)
from bench.replication.probes import while_probing
from bench.report import Options, Result
from raftlog.workloads.load import payload

TOPIC: Final = "missed"
RECORD_BYTES: Final = 1_000
PACE_MB_S: Final = 20.0
"""Of the writes before and during catch-up."""
SLICES_PER_S: Final = 50
BEHIND_S_MAX: Final = 2.0
"""Of its schedule the writer makes up for so much; the rest of the records is not written."""
BEFORE_S: Final = 5.0
CATCH_UP_TIMEOUT_S: Final = 300.0
POLL_S: Final = 0.05
FIRST_BYTES: Final = 1_000_000
"""Stored bytes that mark the start of catch-up."""
FOLLOWER: Final = 3


@dataclass(slots=True)
class Paced:
    """The writes of a paced writer: times, and total bytes by then."""

    written: list[tuple[float, int]] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    def total(self) -> int:
        """All bytes so far."""
        return self.written[-1][1] if self.written else 0

    def rate_mb_s(self, start: float, end: float) -> float:
        """Megabytes acknowledged a second between two moments."""
        inside = [size for moment, size in self.written if start <= moment <= end]
        return (inside[-1] - inside[0]) / (end - start) / 1e6 if len(inside) > 1 else 0.0


async def write_paced(cluster: Cluster, paced: Paced) -> None:
    """Write until cancelled, a slice at a time, each acknowledged before the next."""
    value = payload(RECORD_BYTES)
    count = int(PACE_MB_S * 1e6 / RECORD_BYTES / SLICES_PER_S)
    async with Producer(bootstrap_servers=cluster.servers) as producer:
        due = time.perf_counter()
        while True:
            started = time.perf_counter()
            await producer.send_many(TOPIC, repeat(value, count))
            now = time.perf_counter()
            paced.latencies.append(now - started)
            paced.written.append((now, paced.total() + count * RECORD_BYTES))
            due = max(due + 1 / SLICES_PER_S, now - BEHIND_S_MAX)
            await asyncio.sleep(max(0.0, due - now))


def catch_up(options: Options) -> list[Result]:
    """A follower is stopped, misses data, and is started again."""
    missed = int(options.gigabytes * 1e9)
    parameters = {"missed bytes": missed, "pace MB/s": PACE_MB_S, "record_bytes": RECORD_BYTES}
    speed = Result("cluster: catch-up of a follower", "MB/s", goal=200, parameters=parameters)
    share = Result(
        "cluster: writes meanwhile / before", "ratio", goal=0.7, parameters=dict(parameters)
    )
    for run in range(options.runs):
        with running_cluster(options.flush) as cluster:
            found = run_workload(_run(cluster, missed))
        print(f"   run {run + 1}: " + ", ".join(f"{k} {v:,.2f}" for k, v in found.items()))
        speed.runs.append(found["MB/s"])
        share.runs.append(found["MB/s written meanwhile"] / found["MB/s written before"])
        speed.details[f"run {run + 1}"] = found
    return [speed, share]


async def _run(cluster: Cluster, missed: int) -> dict[str, float]:
    await cluster.create_topic(TOPIC)
    follower = cluster.nodes[FOLLOWER]
    value = payload(RECORD_BYTES)
    paced = Paced()
    async with Producer(bootstrap_servers=cluster.servers) as producer:
        await producer.send_many(TOPIC, repeat(value, 1_000))
        await asyncio.to_thread(follower.stop)
        began = time.perf_counter()
        await producer.send_many(TOPIC, repeat(value, missed // RECORD_BYTES))
        fill_s = time.perf_counter() - began
    writing = asyncio.create_task(write_paced(cluster, paced))
    try:
        before = time.perf_counter()
        await asyncio.sleep(BEFORE_S)
        launched = time.perf_counter()
        stored = _stored_bytes(follower.data_dir)
        follower.relaunch()
        first = await while_probing(writing, _first_bytes(follower.data_dir, stored))
        await while_probing(writing, cluster.wait_in_sync([TOPIC], CATCH_UP_TIMEOUT_S))
        done = time.perf_counter()
    finally:
        await cancelled(writing)
    size = missed + paced.total()
    return {
        "MB/s": size / 1e6 / (done - first),
        "seconds from start to the first bytes": first - launched,
        "seconds from the first bytes to in sync": done - first,
        "MB/s written before": paced.rate_mb_s(before, launched),
        "MB/s written meanwhile": paced.rate_mb_s(first, done),
        "longest paced write, s": max(paced.latencies),
        "MB/s written at full speed while it was away": missed / 1e6 / fill_s,
    }


async def _first_bytes(directory: Path, stored: int) -> float:
    """The time of the follower's first fetch. Raises NotWholeError."""
    deadline = time.perf_counter() + CATCH_UP_TIMEOUT_S
    while _stored_bytes(directory) < stored + FIRST_BYTES:
        if time.perf_counter() > deadline:
            raise NotWholeError("the follower fetched nothing")
        await asyncio.sleep(POLL_S)
    return time.perf_counter()


def _stored_bytes(directory: Path) -> int:
    """Disk usage below a directory, in bytes; files may vanish meanwhile."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total
