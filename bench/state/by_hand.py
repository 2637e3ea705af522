"""The claims of the articles that replicated state began with: a log against replication by hand.

By hand, the primary changes its state and sends each command to every other replica over HTTP: in
turn, or side by side, and is done when all have answered. The other replicas do the least a server
can: read the body, and answer. Nothing is on a disk there, and a primary that dies leaves replicas
that differ; the log has every command on the disks of three nodes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from raftlog_replicated.topics import Layout

from bench.kept_connection import KeptConnection
from bench.replication.cluster import Cluster, Options, run_workload
from bench.report import Result
from bench.rest import bare_server
from bench.state.follower import Command, Shape, following
from bench.state.key_values import lone
from bench.state.replicas import PAYLOAD, puts_with, stage, timed_primary
from raftlog.workloads.latencies import Latencies

MOST: Final = 5
LONE_S: Final = 1.0
STOPS_S: Final = 4.0
STOP_S: Final = 0.2
PERIOD_S: Final = 1.0
PACED_RATE: Final = 100
"""Puts a second, which all ways take without a queue."""
TIMEOUT_S: Final = 30.0
SIZES: Final = (16, 1_024, 65_536)
BATCHES: Final = (1, 100, 1_000)
BATCH_BYTES_MAX: Final = 16 << 20
"""Of one measured batch: larger ones are left out."""
WAYS: Final = ("in turn", "side by side", "log")


class ByHand:
    """The other replicas, and the two ways to send them a command."""

    def __init__(self, ports: list[int]) -> None:
        self._connections = [KeptConnection(f"127.0.0.1:{port}") for port in ports]

    async def in_turn(self, body: bytes) -> None:
        """One replica after the other."""
        for one in self._connections:
            await one.request("POST", "/", body, timeout_s=TIMEOUT_S)

    async def side_by_side(self, body: bytes) -> None:
        """All at once."""
        await asyncio.gather(
            *(one.request("POST", "/", body, timeout_s=TIMEOUT_S) for one in self._connections)
        )

    def close(self) -> None:
        """End the connections."""
        for one in self._connections:
            one.close()


@contextmanager
def replicas_by_hand(count: int) -> Iterator[tuple[ByHand, list[int]]]:
    """So many other replicas, and their process ids."""
    with ExitStack() as stack:
        servers = [stack.enter_context(bare_server()) for _ in range(count)]
        by_hand = ByHand([port for port, _ in servers])
        stack.callback(by_hand.close)
        yield by_hand, [pid for _, pid in servers]


async def _each_way(
    cluster: Cluster,
    name: str,
    directory: Path,
    replicas: int,
    measure: Callable[[str, Callable[[bytes], Awaitable[object]]], Awaitable[None]],
    *,
    on_pids: Callable[[list[int]], asyncio.Task[None] | None] = lambda _: None,
) -> None:
    """Measure a put by hand in both ways, then by the log, with so many replicas."""
    with replicas_by_hand(replicas - 1) as (by_hand, pids):
        disturbing = on_pids(pids)
        await measure("in turn", by_hand.in_turn)
        await measure("side by side", by_hand.side_by_side)
        await _end(disturbing)
    async with (
        timed_primary(cluster.servers, name) as timed,
        following(cluster.servers, name, Shape(replicas), directory) as followers,
    ):
        disturbing = on_pids([one.pid for one in followers.processes])
        await measure("log", lambda body: timed.submit(Command(-1, body)))
        await _end(disturbing)


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def latencies(options: Options) -> list[Result]:
    """A lone put with 1 to 5 replicas, each way."""
    results = {
        (replicas, way): Result(
            f"sources: put, {replicas} replica{'s' if replicas > 1 else ''}, {way}, p50",
            "ms",
            [],
            None,
            True,
        )
        for replicas in range(1, MOST + 1)
        for way in WAYS
    }

    async def run(cluster: Cluster, directory: Path, replicas: int, number: int) -> None:
        async def measure(way: str, put: Callable[[bytes], Awaitable[object]]) -> None:
            found = await lone(lambda: put(PAYLOAD), LONE_S * options.scale)
            results[replicas, way].runs.append(found.percentiles["50pct"])

        await _each_way(cluster, f"lone-{replicas}-{number}", directory, replicas, measure)
        values = ", ".join(f"{way} {results[replicas, way].runs[-1]:.2f}" for way in WAYS)
        print(f"   {replicas} replicas: {values} ms", flush=True)

    with stage(options) as (cluster, directory):
        for number in range(options.runs):
            for replicas in range(1, MOST + 1):
                run_workload(run(cluster, directory, replicas, number))
    return list(results.values())


def stops(options: Options) -> list[Result]:
    """Puts at a fixed rate with three replicas, one of which stops 200 ms of every second."""
    results = {
        (way, what): Result(f"sources: put, a replica stops, {way}, {what}", "ms", [], None, True)
        for way in WAYS
        for what in ("mean", "p99")
    }

    def disturb(pids: list[int]) -> asyncio.Task[None]:
        return asyncio.ensure_future(_stop_now_and_then(pids[0]))

    async def run(cluster: Cluster, directory: Path, number: int) -> None:
        async def measure(way: str, put: Callable[[bytes], Awaitable[object]]) -> None:
            found = await _paced(lambda: put(PAYLOAD), STOPS_S * max(0.5, options.scale))
            results[way, "mean"].runs.append(found.avg)
            results[way, "p99"].runs.append(found.percentiles["99pct"])
            print(
                f"   {way}: mean {found.avg:.2f}, p99 {found.percentiles['99pct']:.1f} ms",
                flush=True,
            )

        await _each_way(cluster, f"stops-{number}", directory, 3, measure, on_pids=disturb)

    with stage(options) as (cluster, directory):
        for number in range(options.runs):
            run_workload(run(cluster, directory, number))
    return list(results.values())


async def _paced(call: Callable[[], Awaitable[object]], seconds: float) -> Latencies:
    """Latencies of calls in order, each from its time on a fixed schedule: waits count."""
    begun = time.perf_counter()
    found = []
    for number in range(int(seconds * PACED_RATE)):
        due = begun + number / PACED_RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await call()
        found.append(time.perf_counter() - due)
    return Latencies.from_seconds(found)


async def _stop_now_and_then(pid: int) -> None:
    try:
        while True:
            await asyncio.sleep(PERIOD_S - STOP_S)
            _signal(pid, signal.SIGSTOP)
            await asyncio.sleep(STOP_S)
            _signal(pid, signal.SIGCONT)
    finally:
        _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def sizes(options: Options) -> list[Result]:
    """Commands a second with three replicas, by size and batch: by hand a request for a batch."""
    results: dict[tuple[int, int, str], Result] = {}

    async def run(cluster: Cluster, directory: Path, size: int, batch: int, number: int) -> None:
        async def measure(way: str, put: Callable[[bytes], Awaitable[object]]) -> None:
            body = b"x" * size

            async def put_batch() -> None:
                if way == "log":
                    await asyncio.gather(*(put(body) for _ in range(batch)))
                else:
                    await put(body * batch)

            seconds = LONE_S * options.scale
            begun, done = time.perf_counter(), 0
            while time.perf_counter() - begun < seconds:
                await put_batch()
                done += batch
            name = f"sources: {size} B, batches of {batch}, {way}"
            result = results.setdefault((size, batch, way), Result(name, "commands/s", []))
            result.runs.append(done / (time.perf_counter() - begun))

        await _each_way(cluster, f"size-{size}-{batch}-{number}", directory, 3, measure)
        values = ", ".join(f"{way} {results[size, batch, way].runs[-1]:,.0f}" for way in WAYS)
        print(f"   {size} B, batches of {batch}: {values} commands/s", flush=True)

    with stage(options) as (cluster, directory):
        for number in range(options.runs):
            for size in SIZES:
                for batch in BATCHES:
                    if size * batch <= BATCH_BYTES_MAX:
                        run_workload(run(cluster, directory, size, batch, number))
    return list(results.values())


def partitions(options: Options) -> list[Result]:
    """N partitions, written together, against one that N replicas read: 1 to 5 replicas."""
    layouts: tuple[Layout, ...] = ("shared", "per-replica")
    rates: dict[Shape, Result] = {}
    p50s: dict[Shape, Result] = {}
    for replicas in range(1, MOST + 1):
        for layout in layouts:
            shape = Shape(replicas, layout)
            rates[shape] = Result(f"sources: {replicas} replicas, {layout}", "puts/s", [])
            name = f"sources: {replicas} replicas, {layout}, lone p50"
            p50s[shape] = Result(name, "ms", [], None, True)

    async def alone(cluster: Cluster, name: str, directory: Path, shape: Shape) -> Latencies:
        async with (
            timed_primary(cluster.servers, name, shape.layout) as timed,
            following(cluster.servers, name, shape, directory),
        ):
            return await lone(lambda: timed.submit(Command(-1, PAYLOAD)), LONE_S * options.scale)

    with stage(options) as (cluster, directory):
        for number in range(options.runs):
            for shape, rate in rates.items():
                name = f"{shape.layout}-{shape.replicas}-{number}"
                seconds = LONE_S * options.scale
                puts = run_workload(puts_with(cluster, f"many-{name}", directory, shape, seconds))
                found = run_workload(alone(cluster, f"lone-{name}", directory, shape))
                rate.runs.append(puts)
                p50s[shape].runs.append(found.percentiles["50pct"])
                print(
                    f"   {shape.replicas} replicas, {shape.layout}: {puts:,.0f} puts/s, "
                    f"lone p50 {found.percentiles['50pct']:.2f} ms",
                    flush=True,
                )
    return [*rates.values(), *p50s.values()]
