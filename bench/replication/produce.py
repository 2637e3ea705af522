"""Throughput and latency of one Python process against three nodes.

A replica outside the ISR makes the others faster, so the ISR at the end of a run is reported beside
the rate. Lone records leave one at a time, and 1,000 a second on a schedule that never waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from raftlog_client import Producer

from bench.cluster import (
    MIN_ISR,
    NODES,
    PARTITIONS,
    Cluster,
    Meter,
    publish_at,
    run_workload,
    running_cluster,
)
from bench.loads import awaited_sends, consume_each, consume_many
from bench.node import LoneNode, running_node
from bench.report import Options, Percentiles, Result
from raftlog.workloads.latencies import Latencies
from raftlog.workloads.load import payload, send_many

Send = Callable[[str, str, int, int], Coroutine[Any, Any, float]]

SMALL_BYTES: Final = 100
LARGE_BYTES: Final = 1_000


@dataclass(slots=True)
class Workload:
    """One way to produce, and its figures."""

    name: str
    send: Send
    record_bytes: int
    count: int
    """Records of a run at scale 1."""
    goal: float | None = None
    flush: str | None = None
    """The topic's own setting; None: the nodes'."""
    rate: Result = field(init=False)
    node_cpu: Result = field(init=False)
    client_cpu: Result = field(init=False)

    def __post_init__(self) -> None:
        parameters = {
            "nodes": NODES,
            "replicas": NODES,
            "acks": "all",
            "min.insync.replicas": MIN_ISR,
            "partitions": PARTITIONS,
            "record_bytes": self.record_bytes,
            "records": self.count,
            "flush of the topic": self.flush,
        }
        unit = "MB/s" if self.record_bytes == LARGE_BYTES else "records/s"
        name = f"cluster: {self.name}"
        self.rate = Result(name, unit, goal=self.goal, parameters=parameters)
        self.node_cpu = Result(f"{name}: CPU of 3 nodes", "ms/MB")
        self.client_cpu = Result(f"{name}: CPU of the client", "ms/MB")

    async def run(self, cluster: Cluster, topic: str, scale: float) -> None:
        """One run on a topic of its own."""
        count = max(1_000, int(self.count * scale))
        configs = {} if self.flush is None else {"flush": self.flush}
        await cluster.create_topic(topic, PARTITIONS, configs)
        meter = Meter(cluster)
        seconds = await self.send(cluster.servers, topic, self.record_bytes, count)
        used = meter.used()
        in_sync = min(len(row.isr) for row in await cluster.known([topic]))
        await cluster.wait_in_sync([topic])
        await cluster.delete_topic(topic)
        self.note(count, seconds, used, in_sync)

    def note(
        self, count: int, seconds: float, used: dict[str, tuple[float, float]], in_sync: int
    ) -> None:
        """Add a run to the figures."""
        megabytes = count * self.record_bytes / 1e6
        cost = {
            name: {
                "user ms/MB": user / megabytes * 1000,
                "system ms/MB": system / megabytes * 1000,
                "share of a core": (user + system) / seconds,
            }
            for name, (user, system) in used.items()
        }
        nodes = sum(sum(times) for name, times in used.items() if name != "client")
        self.rate.runs.append((megabytes if self.rate.unit == "MB/s" else count) / seconds)
        self.node_cpu.runs.append(nodes / megabytes * 1000)
        self.client_cpu.runs.append(sum(used["client"]) / megabytes * 1000)
        self.rate.details[f"run {len(self.rate.runs)}"] = {
            "seconds": seconds,
            "replicas in sync at the end": in_sync,
            "processor": cost,
        }
        shares = ", ".join(
            f"{name} {one['user ms/MB']:.1f}+{one['system ms/MB']:.1f}"
            for name, one in cost.items()
        )
        print(
            f"   {self.name}: {self.rate.runs[-1]:,.0f} {self.rate.unit}, {in_sync} in sync; "
            f"CPU ms/MB user+system: {shares}",
            flush=True,
        )


def workloads() -> list[Workload]:
    """All workloads, in turn within each run."""
    return [
        Workload(
            name="send_many 1 KB", send=send_many, record_bytes=LARGE_BYTES, count=500_000, goal=150
        ),
        Workload(
            name="send_many 100 B",
            send=send_many,
            record_bytes=SMALL_BYTES,
            count=2_000_000,
            goal=500_000,
        ),
        Workload("awaited send 1 KB", awaited_sends, LARGE_BYTES, 200_000),
        Workload("awaited send 100 B", awaited_sends, SMALL_BYTES, 600_000),
        Workload("send_many 1 KB, flush=async", send_many, LARGE_BYTES, 500_000, flush="async"),
        Workload("send_many 100 B, flush=async", send_many, SMALL_BYTES, 2_000_000, flush="async"),
    ]


def produce(options: Options) -> list[Result]:
    """Throughput of producers, and the processor time of a megabyte in each process."""
    found = workloads()
    with running_cluster(options.flush) as cluster:
        for run in range(options.runs):
            for number, workload in enumerate(found):
                run_workload(workload.run(cluster, f"produce-{number}-{run}", options.scale))
    return [result for one in found for result in (one.rate, one.node_cpu, one.client_cpu)]


def consume(options: Options) -> list[Result]:
    """Throughput of consumers, on a cluster and on one node in turn: the ratio counts."""
    count = max(10_000, int(2_000_000 * options.scale))
    parameters = {"partitions": PARTITIONS, "record_bytes": SMALL_BYTES, "records": count}
    names = ("getmany", "async for")
    rates: dict[tuple[str, str], Result] = {
        (place, name): Result(f"{place}: consume {name} 100 B", "records/s", parameters=parameters)
        for name in names
        for place in ("cluster", "one node")
    }
    with running_cluster(options.flush) as cluster, running_node(options.flush) as node:
        run_workload(_fill(cluster, node, count))
        for _ in range(options.runs):
            for name, read in zip(names, (consume_many, consume_each), strict=True):
                for place, servers in (("cluster", cluster.servers), ("one node", node.address)):
                    seconds = run_workload(read(servers, "read", count, PARTITIONS))
                    rates[place, name].runs.append(count / seconds)
    ratios = [
        Result(
            f"cluster / one node: consume {name}",
            "ratio",
            runs=[rates["cluster", name].median / rates["one node", name].median],
            goal=0.8,
        )
        for name in names
    ]
    return [*rates.values(), *ratios]


async def _fill(cluster: Cluster, node: LoneNode, count: int) -> None:
    node.create_topic("read", PARTITIONS)
    await cluster.create_topic("read")
    for servers in (node.address, cluster.servers):
        await send_many(servers, "read", SMALL_BYTES, count)
    await cluster.wait_in_sync(["read"])


LONE_RECORDS: Final = 3_000
WARM_UP: Final = 200
RATE: Final = 1_000
OPEN_LOOP_S: Final = 10.0
LONE_GOALS: Final = {"p50": 1.2, "p99": 5.0, "p99.9": None, "max": None}


def latency(options: Options) -> list[Result]:
    """Both ways, in turn within each run."""
    count = max(WARM_UP, int(LONE_RECORDS * options.scale))
    seconds = max(2.0, OPEN_LOOP_S * options.scale)
    given = {"record_bytes": 100, "partitions": PARTITIONS, "acks": "all"}
    alone, steady = (
        Percentiles(f"cluster: publish {{}}, {how}", LONE_GOALS, {**given, **own})
        for how, own in (
            ("one at a time", {"records": count}),
            (f"{RATE:,}/s", {"rate": RATE, "seconds": seconds}),
        )
    )
    with running_cluster(options.flush) as cluster:
        for run in range(options.runs):
            topic = f"latency-{run}"
            run_workload(cluster.create_topic(topic))
            alone.note(run_workload(one_at_a_time(cluster, topic, count)))
            samples = run_workload(publish_at(cluster, topic, RATE, seconds))
            steady.note(Latencies.from_seconds(samples.publish), publishErrors=samples.errors)
            run_workload(cluster.delete_topic(topic))
    return [*alone.results, *steady.results]


async def one_at_a_time(cluster: Cluster, topic: str, count: int) -> Latencies:
    """Latencies of `count` sends. Each leaves when the last is acknowledged."""
    value = payload(100)
    taken: list[float] = []
    async with Producer(bootstrap_servers=cluster.servers) as producer:
        for number in range(count + WARM_UP):
            started = time.perf_counter()
            await producer.send_and_wait(topic, value, partition=number % PARTITIONS)
            if number >= WARM_UP:
                taken.append(time.perf_counter() - started)
    return Latencies.from_seconds(taken)
