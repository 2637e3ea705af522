"""acks, min.insync.replicas and flush: the latency of a write, and how many nodes may die (CAP).

The claims are those of the DESOSA analysis (2021) and of the article on Apache ZooKeeper and Kafka
that the Tiny Log notes quote: with f + 1 members in sync a partition survives f crashes, and the
same setting decides how long writes go on. `deaths` computes both numbers for three replicas, and
`claim_promises` kills nodes to see whether the numbers hold: replicas on the voters, where the
quorum needs two of three, and replicas on three nodes beside the voters.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import product
from typing import Final, Literal, TypeAlias

import msgspec
from raftlog_client import Consumer, Producer, RaftlogClientError, TopicPartition

from bench.cluster_processes import ClusterProcesses
from bench.node import data_directory
from bench.replication.cluster import (
    NODES,
    POLL_S,
    Cluster,
    NotWholeError,
    Options,
    cancelled,
    run_workload,
    running_cluster,
)
from bench.report import Result
from bench.sources.curves import Curves, Panel
from raftlog.cluster.manifest import Flush
from raftlog.workloads.latencies import Latencies
from raftlog.workloads.open_loop import open_loop

Acks: TypeAlias = Literal["all", 1, 0]

ACKS: Final[tuple[Acks, ...]] = (0, 1, "all")
MIN_ISRS: Final = (1, 2, 3)
FLUSHES: Final[tuple[Flush, ...]] = ("sync", "async")
RATE: Final = 500
LATENCY_S: Final = 1.0
LATENCY_S_MIN: Final = 0.4
WARM_UP_S: Final = 0.2
ON_VOTERS: Final = (1, 2, 3)
BESIDE_VOTERS: Final = (4, 5, 6)
ATTEMPT_MS: Final = 2_000
"""Of one write that may be refused."""
LOAD_S: Final = 0.5
"""Of writes before a kill."""
OUTCOME_TIMEOUT_S: Final = 60.0
"""Until writes go on, or stop, as promised: leases, elections and ISR changes take their time."""


class PromiseBrokenError(Exception):
    """Writes stopped, went on or lost records against the promise."""


@dataclass(frozen=True, slots=True)
class Deaths:
    """How many of the three nodes with replicas may die."""

    writing: int
    """With writes going on, where the nodes are the voters."""
    writing_beside: int
    """The same where the voters are other nodes."""
    lossless: int
    """For good, disks and all, with nothing lost that was acknowledged."""


def deaths(acks: Acks, min_isr: int) -> Deaths:
    """The promise: acks=all needs `min_isr` replicas in sync, other writes need a leader."""
    by_isr = NODES - (min_isr if acks == "all" else 1)
    by_quorum = (NODES - 1) // 2
    return Deaths(min(by_isr, by_quorum), by_isr, min_isr - 1 if acks == "all" else 0)


def claim_promises(options: Options) -> list[Result]:
    """Latencies of all combinations, then the kills, then the table of both."""
    p50, p99 = (
        Curves(Panel(f"publish {name}, {RATE}/s", "min.insync.replicas", "ms", True))
        for name in ("p50", "p99")
    )
    seconds = max(LATENCY_S_MIN, LATENCY_S * options.scale)
    with running_cluster(options.flush) as cluster:
        for run in range(options.runs):
            for flush, min_isr in product(FLUSHES, MIN_ISRS):
                topic = f"promise-{run}-{flush}-{min_isr}"
                configs = {"flush": flush, "min.insync.replicas": str(min_isr)}
                run_workload(cluster.create_topic(topic, 1, configs))
                for acks in ACKS:
                    found = run_workload(_latency(cluster, topic, acks, seconds))
                    way = f"acks={acks}, flush={flush}"
                    p50.add(way, min_isr, found.percentiles["50pct"])
                    p99.add(way, min_isr, found.percentiles["99pct"])
                run_workload(cluster.delete_topic(topic))
    lost = _kill_nodes(options.flush)
    print_promises(p50, p99, lost)
    return [*p50.results(), *p99.results(), *death_curves().results()]


async def _latency(cluster: Cluster, topic: str, acks: Acks, seconds: float) -> Latencies:
    samples = await open_loop(
        cluster.servers,
        topic,
        RATE,
        seconds,
        consume=False,
        partitions=1,
        warm_up_s=WARM_UP_S,
        spin_s=0.0,  # three nodes need both cores
        acks=acks,
    )
    return Latencies.from_seconds(samples.publish)


def death_curves() -> Curves:
    """The promise over min.insync.replicas."""
    curves = Curves(
        Panel("nodes of 3 that may die", "min.insync.replicas", "nodes", is_linear_y=True)
    )
    ways: dict[str, Acks] = {"acks=all": "all", "acks=0 or 1": 1}
    for (way, acks), min_isr in product(ways.items(), MIN_ISRS):
        found = deaths(acks, min_isr)
        curves.note(f"{way}: writes go on, nodes are voters", min_isr, found.writing)
        curves.note(f"{way}: writes go on, voters elsewhere", min_isr, found.writing_beside)
        curves.note(f"{way}: nothing lost", min_isr, found.lossless)
    return curves


def print_promises(p50: Curves, p99: Curves, lost: dict[Acks, tuple[int, int]]) -> None:
    """Latency and promise of each combination, as a table; the losses of the kills below."""
    print("   acks  min ISR  flush     p50 ms     p99 ms  may die: writing  beside  nothing lost")
    for acks, flush, min_isr in product(ACKS, FLUSHES, MIN_ISRS):
        way, found = f"acks={acks}, flush={flush}", deaths(acks, min_isr)
        print(
            f"   {acks!s:>4}  {min_isr:>7}  {flush:<5} {p50.median(way, min_isr):>10.2f} "
            f"{p99.median(way, min_isr):>10.2f}  {found.writing:>16}  {found.writing_beside:>6}  "
            f"{found.lossless:>12}"
        )
    for acks, (acknowledged, missing) in lost.items():
        print(f"   acks={acks}: {missing} of {acknowledged:,} sent records lost by the kills")


# The kills


@dataclass(slots=True)
class Cell:
    """One topic under one kind of acknowledgement, and the records that were acknowledged."""

    topic: str
    nodes: Sequence[int]
    acks: Acks
    min_isr: int
    producer: Producer[bytes, bytes]
    acknowledged: set[bytes] = field(default_factory=set)
    attempts: int = 0

    def goes_on(self, dead: int) -> bool:
        """Whether writes are promised with so many of the nodes dead."""
        promised = deaths(self.acks, self.min_isr)
        return dead <= (promised.writing if self.nodes == ON_VOTERS else promised.writing_beside)

    async def attempt(self) -> bool:
        """Write one record; whether the record is acknowledged."""
        self.attempts += 1
        value = msgspec.json.encode(f"{self.topic}, acks={self.acks}, {self.attempts}")
        try:
            await self.producer.send_and_wait(self.topic, value, partition=0)
        except RaftlogClientError:
            return False
        self.acknowledged.add(value)
        return True

    async def check(self, dead: int) -> None:
        """Attempt until the outcome is the promised one. Raises PromiseBrokenError."""
        deadline = time.perf_counter() + OUTCOME_TIMEOUT_S
        while await self.attempt() != self.goes_on(dead):
            if time.perf_counter() > deadline:
                verb = "stopped" if self.goes_on(dead) else "went on"
                raise PromiseBrokenError(
                    f"writes with acks={self.acks}, min.insync.replicas={self.min_isr} {verb} "
                    f"with {dead} of the nodes {self.nodes} dead"
                )
            await asyncio.sleep(POLL_S)


def _kill_nodes(flush: Flush) -> dict[Acks, tuple[int, int]]:
    """Kill two of three nodes, one after the other, of either kind; all come back.

    Returns by acks the numbers of acknowledged and of lost records. Raises PromiseBrokenError.
    """
    with data_directory() as directory, ClusterProcesses(directory, NODES, flush=flush) as nodes:
        nodes.start()
        for _ in BESIDE_VOTERS:
            nodes.join()
        return run_workload(_kills(Cluster(nodes)))


async def _kills(cluster: Cluster) -> dict[Acks, tuple[int, int]]:
    async with AsyncExitStack() as stack:
        producers: dict[Acks, Producer[bytes, bytes]] = {
            acks: await stack.enter_async_context(
                Producer(
                    bootstrap_servers=cluster.servers, acks=acks, delivery_timeout_ms=ATTEMPT_MS
                )
            )
            for acks in ACKS
        }
        cells: list[Cell] = []
        for nodes, min_isr, flush in product((ON_VOTERS, BESIDE_VOTERS), MIN_ISRS, FLUSHES):
            topic = f"kills-{nodes[0]}-{min_isr}-{flush}"
            configs = {"min.insync.replicas": str(min_isr), "flush": flush}
            await cluster.create_topic(topic, 1, configs)
            cells += [Cell(topic, nodes, acks, min_isr, producers[acks]) for acks in ACKS]
        for nodes in (ON_VOTERS, BESIDE_VOTERS):
            await _place(cluster, sorted({one.topic for one in cells if one.nodes == nodes}), nodes)
        for nodes in (BESIDE_VOTERS, ON_VOTERS):
            own = [one for one in cells if one.nodes == nodes]
            await asyncio.gather(*(one.check(0) for one in own))
            for dead, victim in enumerate(nodes[:-1], start=1):
                # Records that a survivor does not know as committed wait for the others' return.
                await _read(cluster, own, nodes[dead:])
                await _kill_under_load(cluster, victim, [one for one in own if one.acks != "all"])
                await asyncio.gather(*(one.check(dead) for one in own))
                print(f"   {dead} of the nodes {nodes} dead: writes are as promised", flush=True)
            if nodes == BESIDE_VOTERS:
                await _read(cluster, own, nodes[-1:])
                print(f"   node {nodes[-1]} alone has all acknowledged by acks=all", flush=True)
            await asyncio.to_thread(cluster.processes.restart, *nodes[:-1])
            await cluster.wait_settled(sorted({one.topic for one in cells}))
        return await _losses(cluster, cells)


async def _kill_under_load(cluster: Cluster, victim: int, cells: Sequence[Cell]) -> None:
    """Kill a node between two writes to these cells, of which the node may lead some."""

    async def write() -> None:
        while True:
            await asyncio.gather(*(one.attempt() for one in cells))

    writing = asyncio.create_task(write())
    try:
        await asyncio.sleep(LOAD_S)
        await asyncio.to_thread(cluster.processes.kill, victim)
    finally:
        await cancelled(writing)


async def _place(cluster: Cluster, topics: Sequence[str], nodes: Sequence[int]) -> None:
    """Move all replicas to these nodes, the leader to the first."""
    moves = [{"topic": topic, "partition": 0, "replicas": nodes} for topic in topics]
    await cluster.change("POST", "/v1/reassignments", {"reassignments": moves})
    deadline = time.perf_counter() + OUTCOME_TIMEOUT_S
    while True:
        rows = await cluster.known(topics)
        if all(set(row.isr) == set(row.replicas) == set(nodes) for row in rows):
            return
        if time.perf_counter() > deadline:
            raise NotWholeError(f"the replicas did not move to {nodes}: {rows}")
        await asyncio.sleep(POLL_S)


async def _read(cluster: Cluster, cells: Sequence[Cell], nodes: Sequence[int]) -> None:
    """Wait until each of these nodes shows all records acknowledged by acks=all.

    Raises PromiseBrokenError.
    """
    wanted: dict[str, set[bytes]] = {}
    for cell in cells:
        if cell.acks == "all":
            wanted.setdefault(cell.topic, set()).update(cell.acknowledged)
    deadline = time.perf_counter() + OUTCOME_TIMEOUT_S
    for node_id, (topic, values) in product(nodes, wanted.items()):
        while missing := values - await _values_at(cluster, node_id, topic):
            if time.perf_counter() > deadline:
                raise PromiseBrokenError(f"node {node_id} does not show {sorted(missing)[:3]}")
            await asyncio.sleep(POLL_S)


async def _values_at(cluster: Cluster, node_id: int, topic: str) -> set[bytes]:
    """The values that a node shows by its own replica."""
    path = f"/topics/{topic}/partitions/0/records?offset=0&replica=any&isolation=read_uncommitted"
    node = cluster.processes.nodes[node_id]
    return {
        msgspec.json.encode(record["value"])
        for record in await asyncio.to_thread(node.request, "GET", path)
    }


async def _losses(cluster: Cluster, cells: Sequence[Cell]) -> dict[Acks, tuple[int, int]]:
    """By acks, the acknowledged records and those of them that no reader finds.

    Raises PromiseBrokenError: some of acks=all are missing.
    """
    found: set[bytes] = set()
    async with Consumer(
        bootstrap_servers=cluster.servers, auto_offset_reset="earliest"
    ) as consumer:
        places = [TopicPartition(topic, 0) for topic in sorted({one.topic for one in cells})]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        while any([await consumer.position(place) < end for place, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                found |= {record.value for record in records if record.value is not None}
    totals: dict[Acks, tuple[int, int]] = {}
    for acks in ACKS:
        acknowledged = {value for one in cells if one.acks == acks for value in one.acknowledged}
        totals[acks] = len(acknowledged), len(acknowledged - found)
    if totals["all"][1]:
        raise PromiseBrokenError(f"{totals['all'][1]} records acknowledged by acks=all are lost")
    return totals
