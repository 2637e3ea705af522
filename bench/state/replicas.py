"""Replicas: how far they are behind, what many of them cost, how fast a new one is there."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from raftlog_replicated import Role
from raftlog_replicated.examples.kv import Put
from raftlog_replicated.logs.topics import Layout

from bench.cluster import Cluster, run_workload, running_cluster
from bench.report import Options, Percentiles, Result, ratio
from bench.state.follower import Command, Shape, Timed, following, replica, role_is
from bench.state.key_values import CLIENTS, key_values, lone, many
from raftlog.workloads.latencies import Latencies

RATE: Final = 10_000
TICK_S: Final = 0.005
LAG_S: Final = 5.0
STOPPED_S: Final = 3.0
MANY_S: Final = 4.0
PAYLOAD: Final = b"x" * 100
MOST: Final = 5
SETTLE_S: Final = 1.0
VALUE_BYTES: Final = 100_000
AT_ONCE: Final = 20


@asynccontextmanager
async def timed_primary(servers: str, name: str, layout: Layout = "shared") -> AsyncIterator[Timed]:
    """The primary of a timed state, in this process."""
    async with replica(servers, name, "primary", layout) as timed:
        await role_is(timed, Role.PRIMARY)
        yield timed


def lag(options: Options) -> list[Result]:
    """How long after the primary two replicas have applied commands, at 10,000 a second."""
    given = {"rate": RATE, "replicas": 3}
    behind = Percentiles(
        "state: replica behind at 10,000 puts/s, {}", {"p50": 5.0, "p99": 20.0}, given
    )
    with running_cluster(options.flush) as cluster:
        for run in range(options.runs):
            found = run_workload(_lag(cluster, f"lag-{run}", LAG_S * options.scale))
            behind.note(found)
            p50, p99 = (result.runs[-1] for result in behind.results)
            print(f"   behind: p50 {p50:.1f}, p99 {p99:.1f} ms", flush=True)
    return behind.results


async def _lag(cluster: Cluster, name: str, seconds: float) -> Latencies:
    async with (
        timed_primary(cluster.servers, name) as timed,
        following(cluster.servers, name, Shape(3)) as followers,
    ):
        sent = 0
        tasks = set[asyncio.Task[object]]()
        begun = time.monotonic()
        while (now := time.monotonic() - begun) < seconds:
            for number in range(sent, int(now * RATE)):
                task = asyncio.ensure_future(timed.submit(Command(number, PAYLOAD)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                sent += 1
            await asyncio.sleep(TICK_S)
        await asyncio.gather(*tasks)
        await asyncio.sleep(SETTLE_S)
        own = timed.machine.times
        behind = [
            max(0.0, there - here)
            for times in await asyncio.to_thread(followers.end)
            for here, there in zip(own, times, strict=True)
        ]
    return Latencies.from_seconds(behind)


def stopped(options: Options) -> list[Result]:
    """Latency of puts with one of two other replicas stopped, by that with none stopped."""
    whole = Result("state: put p99, no replica stopped", "ms")
    halted = Result("state: put p99, one replica stopped", "ms")
    share = Result("state: put p99, one replica stopped / none", "latency ratio", goal=1.2)

    async def measure(cluster: Cluster, name: str) -> None:
        async with (
            timed_primary(cluster.servers, name) as timed,
            following(cluster.servers, name, Shape(3)) as followers,
        ):
            victim = followers.processes[0]
            samples: dict[bool, list[float]] = {False: [], True: []}
            # In short turns: the machine's own noise then falls on both.
            for turn in range(6):
                is_stopped = turn % 2 == 1
                victim.send_signal(signal.SIGSTOP if is_stopped else signal.SIGCONT)
                found = await lone(
                    lambda: timed.submit(Command(-1, PAYLOAD)), STOPPED_S * options.scale / 3
                )
                samples[is_stopped].append(found.percentiles["99pct"])
            whole.runs.append(sorted(samples[False])[1])
            halted.runs.append(sorted(samples[True])[1])
        share.runs.append(halted.runs[-1] / whole.runs[-1])
        print(
            f"   put p99 {whole.runs[-1]:.2f} ms, one stopped {halted.runs[-1]:.2f} ms", flush=True
        )

    with running_cluster(options.flush) as cluster:
        for run in range(options.runs):
            run_workload(measure(cluster, f"stopped-{run}"))
    return [whole, halted, share]


def many_replicas(options: Options) -> list[Result]:
    """Puts a second of 256 clients with one replica and with five, in both layouts."""
    layouts: tuple[Layout, ...] = ("shared", "per-replica")
    results: dict[Shape, Result] = {}
    for layout in layouts:
        for count in (1, MOST):
            name = f"state: puts, {count} replica{'s' if count > 1 else ''}, {layout}"
            results[Shape(count, layout)] = Result(name, "puts/s")
    with running_cluster(options.flush) as cluster:
        for run in range(options.runs):
            for shape, result in results.items():
                name = f"many-{shape.layout}-{shape.replicas}-{run}"
                seconds = MANY_S * options.scale
                rate = run_workload(puts_with(cluster, name, shape, seconds))
                result.runs.append(rate)
                print(f"   {shape.layout}, {shape.replicas}: {rate:,.0f} puts/s", flush=True)
    shares = []
    for layout, goal in zip(layouts, (0.9, None), strict=True):
        one, five = (results[Shape(count, layout)] for count in (1, MOST))
        shares.append(ratio(f"state: puts, 5 replicas / 1, {layout}", five, one, goal))
    return [*results.values(), *shares]


async def puts_with(cluster: Cluster, name: str, shape: Shape, seconds: float) -> float:
    """Puts a second of 256 clients, the primary in this process."""
    async with (
        timed_primary(cluster.servers, name, shape.layout) as timed,
        following(cluster.servers, name, shape),
    ):
        return await many(lambda _: timed.submit(Command(-1, PAYLOAD)), seconds, CLIENTS)


def new_replica(options: Options) -> list[Result]:
    """A replica of a large state that starts on an empty machine: state bytes by its time."""
    size = int(options.gigabytes * 1e9)
    given = {"bytes": size, "value_bytes": VALUE_BYTES}
    result = Result("state: new replica", "MB/s", goal=100, parameters=given)

    async def fill(cluster: Cluster, name: str) -> None:
        async with key_values(cluster.servers, name, "a") as store:
            await role_is(store, Role.PRIMARY)
            value = "x" * VALUE_BYTES
            for begin in range(0, size // VALUE_BYTES, AT_ONCE):
                await asyncio.gather(
                    *(store.submit(Put(f"{begin + n}", value)) for n in range(AT_ONCE))
                )
            # The only replica takes the snapshot, if the log is long enough; else it is replayed.
            await asyncio.sleep(SETTLE_S)

    async def join(cluster: Cluster, name: str, replica_id: str) -> float:
        begun = time.perf_counter()
        async with key_values(cluster.servers, name, replica_id) as store:
            await role_is(store, Role.REPLICA, Role.PRIMARY)
            found = time.perf_counter() - begun
            count = await store.read(lambda state: sum(1 for _ in state.values.items()))
            assert count >= size // VALUE_BYTES, f"{count} keys"
            return found

    with running_cluster(options.flush) as cluster:
        run_workload(fill(cluster, "large"), 1_800)
        for run in range(options.runs):
            seconds = run_workload(join(cluster, "large", f"new{run}"), 600)
            result.runs.append(size / seconds / 1e6)
            print(f"   {size / 1e6:,.0f} MB in {seconds:.1f} s", flush=True)
    return [result]
