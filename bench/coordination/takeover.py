"""Coordinators that move: a million committed offsets, and the death of the coordinator's node."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from raftlog_client import Admin, Consumer, Producer, TopicPartition

from bench.cluster import (
    NODES,
    PARTITIONS,
    Cluster,
    Meter,
    cancelled,
    leads_most,
    run_workload,
    running_cluster,
)
from bench.replication.probes import (
    RECOVERY_S_MAX,
    Acknowledgements,
    wait_all_since,
    while_probing,
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
CALM_S: Final = (0.3, 0.9)
SEED: Final = 13

Probe = Callable[[Cluster, int, Acknowledgements], Awaitable[None]]
"""Completes operations with a coordinator, one after the other, until cancelled."""


def million_offsets(options: Options) -> list[Result]:
    """A node that coordinates all groups, with 1,000,000 committed offsets."""
    groups = max(32, int(OFFSETS * options.scale) // OFFSETS_EACH)
    given = {"offsets": groups * OFFSETS_EACH, "groups": groups}
    what = f"{groups * OFFSETS_EACH:,} committed offsets"
    rss = Result(f"groups: {what}, RSS of their node", "MiB", goal=250e6 / 2**20, parameters=given)
    move = Result(f"groups: {what}, another node takes over", "s", goal=3.0, parameters=given)
    rate = Result(f"groups: {what}, committed", "offsets/s", parameters=given)
    with running_cluster(options.flush) as cluster:
        run_workload(_create(cluster))
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


async def _create(cluster: Cluster) -> None:
    async with Admin(bootstrap_servers=cluster.servers) as admin:
        # Leaders stay where they are moved to.
        await admin.alter_cluster_settings({"leader.rebalance.delay.ms": -1})
    # One replica: the partitions themselves are not what is measured.
    await cluster.create_topic(TOPIC, OFFSETS_EACH, {"min.insync.replicas": "1"}, replicas=1)
    async with _group_client(cluster, "first") as consumer:
        await consumer.commit({TopicPartition(TOPIC, 0): 0})
    await cluster.wait_in_sync([OFFSETS_TOPIC])


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
            while True:
                rows = await cluster.rows(node_id, [OFFSETS_TOPIC]) or ()
                if {row.leader for row in rows} == {node_id}:
                    break
                await asyncio.sleep(0.02)
        await asyncio.gather(*(client.committed([TopicPartition(TOPIC, 0)]) for client in clients))
        return time.perf_counter() - started
    finally:
        await asyncio.gather(*(client.close() for client in clients))


async def _commits(cluster: Cluster, number: int, seen: Acknowledgements) -> None:
    place = TopicPartition(TOPIC, number)
    async with _group_client(cluster, f"probe-{number}") as consumer:
        offset = 0
        while True:
            started = time.perf_counter()
            offset += 1
            await consumer.commit({place: offset})
            seen.note(number, started, time.perf_counter())
            await asyncio.sleep(0.01)


async def _transactions(cluster: Cluster, number: int, seen: Acknowledgements) -> None:
    async with Producer(
        bootstrap_servers=cluster.servers, transactional_id=f"probe-{number}"
    ) as producer:
        while True:
            started = time.perf_counter()
            async with producer.transaction():
                await producer.send_and_wait(TOPIC, b"x", partition=number)
            seen.note(number, started, time.perf_counter())
            await asyncio.sleep(0.02)


async def _trial(
    cluster: Cluster, internal_topic: str, seen: Acknowledgements, randomness: random.Random
) -> float:
    await cluster.wait_settled([TOPIC, internal_topic])
    await asyncio.sleep(randomness.uniform(*CALM_S))
    rows = await cluster.known([internal_topic])
    victim = leads_most(rows, randomness)
    seen.clear()
    started = time.perf_counter()
    await asyncio.to_thread(cluster.kill, victim)
    await wait_all_since(seen, time.perf_counter())
    ended = time.perf_counter()
    gap = max(seen.gaps(started, ended))
    print(
        f"   node {victim} (of {sum(row.leader == victim for row in rows)} shards) killed: "
        f"{gap:.3f} s, all again after {ended - started:.3f} s",
        flush=True,
    )
    await asyncio.to_thread(cluster.revive, victim)
    return gap


async def _trials(cluster: Cluster, internal_topic: str, probe: Probe, count: int) -> list[float]:
    randomness, seen = random.Random(SEED), Acknowledgements(PROBES)
    probing = asyncio.gather(*(probe(cluster, number, seen) for number in range(PROBES)))
    try:
        await while_probing(probing, wait_all_since(seen, 0.0))
        return [
            await while_probing(probing, _trial(cluster, internal_topic, seen, randomness))
            for _ in range(count)
        ]
    finally:
        await cancelled(probing)


def _killed(what: str, internal_topic: str, probe: Probe, options: Options) -> list[Result]:
    with running_cluster(options.flush) as cluster:
        run_workload(cluster.create_topic(TOPIC, PARTITIONS))
        gaps = run_workload(_trials(cluster, internal_topic, probe, options.trials), 3_600)
    name = f"{what}: coordinator's node killed, gap"
    return distribution(name, gaps, {"p50": None, "p99": 0.6}, {"probes": PROBES})


groups_killed: Final = partial(_killed, "groups", OFFSETS_TOPIC, _commits)
"""SIGKILL of the node that coordinates most groups: the longest gap of commits."""
transactions_killed: Final = partial(_killed, "transactions", TRANSACTIONS_TOPIC, _transactions)
"""SIGKILL of the node that coordinates most transactional ids: the longest gap of commits."""
