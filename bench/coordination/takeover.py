"""Coordinators that move: a million committed offsets, and the death of the coordinator's node."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from raftlog_client import Admin, Consumer, Producer, RaftlogClientError, TopicPartition

from bench.cluster import (
    NODES,
    PARTITIONS,
    Cluster,
    Meter,
    cancelled,
    run_workload,
    running_cluster,
)
from bench.report import Options, Result, distribution

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
SHARDS: Final = 16
TOPIC: Final = "coordinated"
OFFSETS: Final = 1_000_000
OFFSETS_EACH: Final = 500
"""Partitions of the topic, and offsets of each group."""
COMMITTERS: Final = 8
PROBES: Final = 16
"""Groups, and transactional ids, so that all nodes coordinate some."""
RECOVERY_S_MAX: Final = 30.0
CALM_S: Final = (0.3, 0.9)
SEED: Final = 13


def million_offsets(options: Options) -> list[Result]:
    """A node that coordinates all groups, with 1,000,000 committed offsets."""
    groups = max(32, int(OFFSETS * options.scale) // OFFSETS_EACH)
    given = {"offsets": groups * OFFSETS_EACH, "groups": groups}
    what = f"{groups * OFFSETS_EACH:,} committed offsets"
    rss = Result(f"groups: {what}, RSS of their node", "MiB", goal=250e6 / 2**20, parameters=given)
    move = Result(f"groups: {what}, another node takes over", "s", goal=3.0, parameters=given)
    rate = Result(f"groups: {what}, committed", "offsets/s", parameters=given)
    with running_cluster(options.flush) as cluster:
        run_workload(_create(cluster, OFFSETS_EACH))
        before = cluster.rss_mib()
        started = time.perf_counter()
        run_workload(_commit_all(cluster, groups), 1_800)
        rate.runs.append(groups * OFFSETS_EACH / (time.perf_counter() - started))
        for run in range(options.runs):
            node_id = run % NODES + 1
            meter = Meter(cluster)
            move.runs.append(run_workload(_take_over(cluster, node_id, groups)))
            processor_s = sum(meter.used()[f"node{node_id}"])
            move.details[f"run {run + 1}"] = {"processor s of the node": processor_s}
            rss.runs.append(cluster.rss_mib()[node_id])
            print(
                f"   node {node_id} takes over in {move.runs[-1]:.2f} s ({processor_s:.2f} s of "
                f"processor), RSS {rss.runs[-1]:.0f} MiB, before {before[node_id]:.0f}",
                flush=True,
            )
        rss.details = {"before": before, "after": cluster.rss_mib()}
    return [rss, move, rate]


async def _create(cluster: Cluster, partitions: int) -> None:
    async with Admin(bootstrap_servers=cluster.servers) as admin:
        # Leaders stay where they are moved to.
        await admin.alter_cluster_settings({"leader.rebalance.delay.ms": -1})
    # One replica: the partitions themselves are not what is measured.
    body = {"topic_name": TOPIC, "partitions_count": partitions, "replication_factor": 1}
    await cluster.change("POST", "/v3/clusters/-/topics", body)
    async with _group_client(cluster, "first") as consumer:
        await _until_done(lambda: consumer.commit({TopicPartition(TOPIC, 0): 0}))
    await cluster.wait_in_sync([OFFSETS_TOPIC])


async def _until_done(act: Callable[[], Awaitable[None]]) -> None:
    """Repeat until it succeeds: right after its creation a topic is not known everywhere."""
    async with asyncio.timeout(RECOVERY_S_MAX):
        while True:
            try:
                return await act()
            except RaftlogClientError:
                await asyncio.sleep(0.1)


def _group_client(cluster: Cluster, group: str) -> Consumer[Any, Any]:
    return Consumer(bootstrap_servers=cluster.servers, group_id=group, auto_commit_interval_ms=None)


async def _commit_all(cluster: Cluster, groups: int) -> None:
    offsets = {TopicPartition(TOPIC, number): 1_000_000 for number in range(OFFSETS_EACH)}
    numbers = iter(range(groups))

    async def commit() -> None:
        for number in numbers:
            async with _group_client(cluster, f"g{number}") as consumer:
                await consumer.commit(offsets)

    await asyncio.gather(*(commit() for _ in range(COMMITTERS)))


async def _take_over(cluster: Cluster, node_id: int, groups: int) -> float:
    """Seconds from the first move until groups of all shards are answered by the new leader."""
    await cluster.wait_settled([OFFSETS_TOPIC])
    sample = [f"g{number}" for number in range(min(groups, 8 * SHARDS))]
    clients = [_group_client(cluster, group) for group in sample]
    try:
        for client in clients:
            await client.start()
        started = time.perf_counter()
        await cluster.lead_by(node_id, OFFSETS_TOPIC)
        async with asyncio.timeout(RECOVERY_S_MAX):
            while not await _leads_all(cluster, node_id):  # noqa: ASYNC110 - in a node's metadata
                await asyncio.sleep(0.02)
        await asyncio.gather(*(client.committed([TopicPartition(TOPIC, 0)]) for client in clients))
        return time.perf_counter() - started
    finally:
        await asyncio.gather(*(client.close() for client in clients))


async def _leads_all(cluster: Cluster, node_id: int) -> bool:
    rows = await cluster.rows(node_id, [OFFSETS_TOPIC]) or []
    return {row.leader for row in rows} == {node_id}


class Completions:
    """When each probe completed an operation that began after the newest mark."""

    def __init__(self) -> None:
        self.last = [0.0] * PROBES
        self.gap = [0.0] * PROBES
        self.newest_start = [0.0] * PROBES

    def note(self, number: int, started: float) -> None:
        """An operation of a probe, begun at `started`, is complete."""
        now = time.perf_counter()
        self.gap[number] = max(self.gap[number], now - self.last[number])
        self.last[number] = now
        self.newest_start[number] = started

    def forget(self) -> None:
        """Begin a new measurement of the gaps."""
        self.gap = [0.0] * PROBES

    async def wait_all_since(self, moment: float) -> None:
        """Wait until all probes have completed something begun later. Raises TimeoutError."""
        async with asyncio.timeout(RECOVERY_S_MAX):
            while min(self.newest_start) <= moment:  # noqa: ASYNC110 - of 16 probes
                await asyncio.sleep(0.005)


async def _commits(cluster: Cluster, number: int, done: Completions) -> None:
    place = TopicPartition(TOPIC, number)
    async with _group_client(cluster, f"probe-{number}") as consumer:
        offset = 0
        while True:
            started = time.perf_counter()
            offset += 1
            await consumer.commit({place: offset})
            done.note(number, started)
            await asyncio.sleep(0.01)


async def _transactions(cluster: Cluster, number: int, done: Completions) -> None:
    async with Producer(
        bootstrap_servers=cluster.servers, transactional_id=f"probe-{number}"
    ) as producer:
        while True:
            started = time.perf_counter()
            async with producer.transaction():
                await producer.send_and_wait(TOPIC, b"x", partition=number)
            done.note(number, started)
            await asyncio.sleep(0.02)


def groups_killed(options: Options) -> list[Result]:
    """SIGKILL of the node that coordinates most groups: the longest gap of commits."""
    return _killed(options, "groups", OFFSETS_TOPIC, _commits)


def transactions_killed(options: Options) -> list[Result]:
    """SIGKILL of the node that coordinates most transactional ids: the longest gap of commits."""
    return _killed(options, "transactions", TRANSACTIONS_TOPIC, _transactions)


def _killed(
    options: Options,
    what: str,
    internal_topic: str,
    probe: Callable[[Cluster, int, Completions], Awaitable[None]],
) -> list[Result]:
    with running_cluster(options.flush) as cluster:
        run_workload(cluster.create_topic(TOPIC, PARTITIONS))
        gaps = run_workload(_trials(cluster, internal_topic, probe, options.trials), 3_600)
    name = f"{what}: coordinator's node killed, gap"
    return distribution(name, gaps, {"p50": None, "p99": 0.6}, {"probes": PROBES})


async def _trials(
    cluster: Cluster,
    internal_topic: str,
    probe: Callable[[Cluster, int, Completions], Awaitable[None]],
    count: int,
) -> list[float]:
    randomness = random.Random(SEED)
    done = Completions()
    probes = [asyncio.ensure_future(probe(cluster, number, done)) for number in range(PROBES)]
    gaps: list[float] = []

    async def trial() -> float:
        await cluster.wait_settled([TOPIC, internal_topic])
        await asyncio.sleep(randomness.uniform(*CALM_S))
        led: dict[int, int] = {}
        for row in await cluster.known([internal_topic]):
            led[row.leader] = led.get(row.leader, 0) + 1
        victim = max(led, key=lambda node_id: led[node_id])
        done.forget()
        started = time.perf_counter()
        await asyncio.to_thread(cluster.kill, victim)
        await done.wait_all_since(time.perf_counter())
        gap = max(done.gap)
        print(
            f"   node {victim} (of {led[victim]} shards) killed: {gap:.3f} s, all again after "
            f"{time.perf_counter() - started:.3f} s",
            flush=True,
        )
        await asyncio.to_thread(cluster.revive, victim)
        return gap

    async def all_trials() -> None:
        await done.wait_all_since(0.0)
        for _ in range(count):
            gaps.append(await trial())

    running = asyncio.ensure_future(all_trials())
    try:
        # A probe ends with an error only.
        await asyncio.wait({running, *probes}, return_when=asyncio.FIRST_COMPLETED)
        for task in probes:
            if task.done():
                task.result()
        await running
    finally:
        await cancelled(running, *probes)
    return gaps
