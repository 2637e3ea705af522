"""Many partitions: time until all write again after a node died, and the cost of idling."""

from __future__ import annotations

import asyncio
import os
import random
import time
from functools import partial
from typing import Any, Final

from raftlog_client import Producer

from bench.cluster import (
    NODES,
    PARTITIONS,
    Cluster,
    Meter,
    Row,
    leads_most,
    run_workload,
    running_cluster,
)
from bench.report import Options, Result
from raftlog.workloads.load import send_many

TOPICS: Final = 10
PARTITIONS_EACH: Final = 100
IDLE_S: Final = 30.0
SETTLE_S: Final = 5.0
LOAD_RECORDS: Final = 200_000
"""By topic, at scale 1."""
SEED: Final = 41


def partitions(options: Options) -> list[Result]:
    """1,000 partitions: failover, idle processor, memory."""
    count = TOPICS * PARTITIONS_EACH
    names = [f"many-{number}" for number in range(TOPICS)]
    parameters = {"topics": TOPICS, "partitions": count, "replicas": NODES}
    led = Result(f"cluster: {count:,} partitions, failover", "s", goal=2.0, parameters=parameters)
    every = Result(f"cluster: {count:,} partitions, all write again", "s")
    created = Result(f"cluster: {count:,} partitions, created and in sync", "s")
    with running_cluster(options.flush) as cluster:
        started = time.perf_counter()
        run_workload(_create(cluster, names))
        created.runs.append(time.perf_counter() - started)
        cost = _idle(cluster, f"{count:,} partitions", options)
        cost.append(_loaded(cluster, names, f"{count:,} partitions", LOAD_RECORDS * options.scale))
        randomness = random.Random(SEED)
        for run in range(options.runs):
            seconds, all_seconds, details = run_workload(_fail(cluster, names, randomness))
            print(f"   failover: led {seconds:.2f} s, all {all_seconds:.2f} s; {details}")
            led.runs.append(seconds)
            every.runs.append(all_seconds)
            led.details[f"run {run + 1}"] = details
    return [led, every, created, *cost]


def idle(options: Options) -> list[Result]:
    """16 partitions: idle processor, memory idle and after load."""
    with running_cluster(options.flush) as cluster:
        run_workload(_create(cluster, ["few"], PARTITIONS))
        cost = _idle(cluster, f"{PARTITIONS} partitions", options)
        return [*cost, _loaded(cluster, ["few"], f"{PARTITIONS} partitions", 1e6 * options.scale)]


async def _create(cluster: Cluster, names: list[str], each: int = PARTITIONS_EACH) -> None:
    for name in names:
        await cluster.create_topic(name, each)


def _loaded(cluster: Cluster, names: list[str], what: str, records: float) -> Result:
    """Memory of the largest node after so many records in each of the topics."""
    count = max(1_000, int(records))
    given = {"topics": len(names), "records of a topic": count, "replicas": NODES}

    async def load() -> None:
        for name in names:
            await send_many(cluster.servers, name, 100, count)
        await cluster.wait_in_sync(names)

    run_workload(load())
    found = Result(f"cluster: {what}, RSS after load", "MiB", goal=120, parameters=given)
    found.details["by node"] = cluster.rss_mib()
    found.runs.append(max(found.details["by node"].values()))
    return found


def _idle(cluster: Cluster, what: str, options: Options) -> list[Result]:
    """The processor time of all nodes together, and the memory of the largest."""
    seconds = IDLE_S if options.scale >= 1 else max(5.0, IDLE_S * options.scale)
    given = {"seconds": seconds}
    cpu = Result(f"cluster: {what}, idle CPU of 3 nodes", "% of a core", goal=5.0, parameters=given)
    rss = Result(f"cluster: {what}, idle RSS a node", "MiB", goal=120, parameters=given)
    time.sleep(SETTLE_S)
    for run in range(options.runs):
        meter = Meter(cluster)
        time.sleep(seconds)
        percent = meter.percent(seconds)
        cpu.runs.append(sum(percent.values()))
        cpu.details[f"run {run + 1}"] = {
            "percent": percent,
            "controller": cluster.leader(),
            "load average": os.getloadavg()[0],
        }
        rss.runs.append(max(cluster.rss_mib().values()))
        rss.details[f"run {run + 1}"] = cluster.rss_mib()
    return [cpu, rss]


async def _fail(
    cluster: Cluster, names: list[str], randomness: random.Random
) -> tuple[float, float, dict[str, object]]:
    """Seconds from a kill until the victim's partitions, and all partitions, have written.

    Each partition gets one record right after the kill, which the client repeats until
    acknowledged.
    """
    await cluster.wait_settled(names)
    rows = await cluster.known(names)
    victim = leads_most(rows, randomness)
    controller = await asyncio.to_thread(cluster.leader)
    done: dict[Row, float] = {}

    def acknowledged(row: Row, _future: asyncio.Future[Any]) -> None:
        done[row] = time.perf_counter() - started

    started = 0.0
    async with Producer(bootstrap_servers=cluster.servers) as producer:
        for row in rows:
            await producer.send(row.topic, b"before", partition=row.partition)
        await producer.flush()
        started = time.perf_counter()
        killing = asyncio.create_task(asyncio.to_thread(cluster.kill, victim))
        futures = []
        for row in rows:
            future = await producer.send(row.topic, b"after", partition=row.partition)
            future.add_done_callback(partial(acknowledged, row))
            futures.append(future)
        await asyncio.gather(killing, *futures)
    led = [seconds for row, seconds in done.items() if row.leader == victim]

    healed = time.perf_counter()
    await asyncio.to_thread(cluster.revive, victim)
    await cluster.wait_settled(names)
    return (
        max(led),
        max(done.values()),
        {
            "victim": victim,
            "led": len(led),
            "was controller": victim == controller,
            "whole after": time.perf_counter() - healed,
        },
    )
