"""The key-value store: in the primary's own process, and over HTTP beside etcd."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final

from raftlog_replicated import EVENTUAL, LEASE, LINEARIZABLE, Read, Replicated, Role, session
from raftlog_replicated.examples.kv import CODEC, KeyValues, Outcome, Put

from bench.cluster import Cluster, run_workload, running_cluster
from bench.node import data_directory
from bench.report import Options, Percentiles, Result, ratio
from bench.rest import drive
from bench.state import etcd
from bench.state.follower import role_is
from bench.state.processes import Store, running_store
from raftlog.workloads.latencies import Latencies

CLIENTS: Final = 256
VALUE: Final = "x" * 100
LONE_S: Final = 4.0
MANY_S: Final = 4.0
LOCAL_READS: Final = 200_000
WARM: Final = 200

InProcess = Replicated[KeyValues, Put, Outcome]


def key_values(servers: str, name: str, replica_id: str) -> InProcess:
    """A replica of the store in this process."""
    return Replicated(
        KeyValues(), codec=CODEC, name=name, replica_id=replica_id, bootstrap_servers=servers
    )


@asynccontextmanager
async def primary_in_process(servers: str, name: str) -> AsyncIterator[InProcess]:
    """A replica in this process that is the primary."""
    async with key_values(servers, name, "bench") as store:
        await role_is(store, Role.PRIMARY)
        for number in range(WARM):
            await store.submit(Put(f"k{number}", VALUE))
        yield store


async def lone(call: Callable[[], Awaitable[object]], seconds: float) -> Latencies:
    """Latencies of calls, one after the other."""
    found: list[float] = []
    deadline = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < deadline:
        await call()
        found.append(time.perf_counter() - begun)
    return Latencies.from_seconds(found)


async def many(
    call: Callable[[int], Awaitable[object]], seconds: float, clients: int = CLIENTS
) -> float:
    """Calls a second of so many clients."""
    calls = count()
    deadline = time.perf_counter() + seconds

    async def client(number: int) -> None:
        while time.perf_counter() < deadline:
            await call(number)
            next(calls)

    begun = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    return next(calls) / (time.perf_counter() - begun)


def in_process(options: Options) -> list[Result]:
    """Puts and gets in the process of the primary, without HTTP."""
    given = {"value_bytes": len(VALUE), "clients": CLIENTS}
    put = Percentiles("state: put, lone, {}", {"p50": 1.2, "p99": 4.0}, given)
    get = Percentiles("state: get LINEARIZABLE, lone, {}", {"p50": 1.0}, given)
    results = {
        "puts": Result("state: puts, 256 clients", "puts/s", goal=40_000, parameters=given),
        "gets": Result("state: gets LINEARIZABLE, 256", "gets/s", goal=40_000, parameters=given),
        "lease": Result("state: gets LEASE", "gets/s", goal=200_000, parameters=given),
        "session": Result("state: gets session", "gets/s", goal=200_000, parameters=given),
        "eventual": Result("state: gets EVENTUAL", "gets/s", goal=200_000, parameters=given),
    }

    async def run(cluster: Cluster, number: int) -> None:
        async with primary_in_process(cluster.servers, f"in-process-{number}") as store:
            put.note(await lone(lambda: store.submit(Put("lone", VALUE)), LONE_S * options.scale))
            seconds = MANY_S * options.scale
            results["puts"].runs.append(
                await many(lambda client: store.submit(Put(f"key{client}", VALUE)), seconds)
            )

            def query(state: KeyValues) -> str | None:
                return state.values.get("lone")

            get.note(await lone(lambda: store.read(query, LINEARIZABLE), seconds / 2))
            results["gets"].runs.append(
                await many(lambda _: store.read(query, LINEARIZABLE), seconds / 2)
            )
            for name, kind in (
                ("lease", LEASE),
                ("session", session(store.token)),
                ("eventual", EVENTUAL),
            ):
                results[name].runs.append(await _local_reads(store, kind))
            for result in (put.results[0], results["puts"], get.results[0], results["gets"]):
                print(f"   {result.name}: {result.runs[-1]:,.2f} {result.unit}", flush=True)

    with running_cluster(options.flush) as cluster:
        for number in range(options.runs):
            run_workload(run(cluster, number))
    puts, *gets = results.values()
    return [*put.results, puts, *get.results, *gets]


async def _local_reads(store: InProcess, kind: Read) -> float:
    """Reads a second that need no question to the log."""
    begun = time.perf_counter()
    for _ in range(LOCAL_READS):
        await store.read(lambda state: state.values.get("lone"), kind)
    return LOCAL_READS / (time.perf_counter() - begun)


class Beside:
    """A figure of the store over HTTP, the same of etcd, and the ratio."""

    def __init__(
        self, name: str, unit: str, goal: float | None, *, ratio_goal: float | None = None
    ) -> None:
        self.own = Result(f"state: {name}, HTTP", unit, goal=goal)
        self.peer = Result(f"etcd: {name}, HTTP", unit)
        self._name, self._ratio_goal = f"{name}, HTTP", ratio_goal

    def __str__(self) -> str:
        peer = f" (etcd {self.peer.runs[-1]:,.2f})" if self.peer.runs else ""
        return f"{self._name} {self.own.runs[-1]:,.2f}{peer}"

    def results(self) -> list[Result]:
        """The measured ones."""
        if not self.peer.runs:
            return [self.own]
        found = [self.own, self.peer]
        if self._ratio_goal is not None:
            name = f"state / etcd: {self._name}"
            found.append(ratio(name, self.own, self.peer, self._ratio_goal))
        return found


def over_http(options: Options) -> list[Result]:
    """Puts and gets over HTTP by the same client, in turn with etcd of three."""
    lone_put = Beside("put, lone, p50", "ms", 1.8)
    many_puts = Beside("puts, 256 connections", "puts/s", 6_000, ratio_goal=1.0)
    lone_get = Beside("get linearizable, lone, p50", "ms", None)
    local_get = Beside("get from the node's own state, lone, p50", "ms", None)
    figures = (lone_put, many_puts, lone_get, local_get)
    has_peer = shutil.which("etcd") is not None
    if not has_peer:
        print("   left out: etcd is not installed (Debian: apt-get install etcd-server)")
    with ExitStack() as stack:
        directory = stack.enter_context(data_directory()).parent
        cluster = stack.enter_context(running_cluster(options.flush))
        peer = stack.enter_context(etcd.running_etcd()) if has_peer else None
        for run in range(options.runs):

            async def measure_store(run: int = run) -> tuple[float, ...]:
                async with running_store(Store(cluster.servers, f"http-{run}", directory)) as store:
                    return await (await _side_of_store(store)).measure(options)

            for figure, value in zip(figures, run_workload(measure_store()), strict=True):
                figure.own.runs.append(value)
            if peer is not None:
                found = run_workload(_side_of_etcd(peer).measure(options))
                for figure, value in zip(figures, found, strict=True):
                    figure.peer.runs.append(value)
                    figure.peer.parameters = {"etcd": peer.version}
            print("   " + "; ".join(map(str, figures)), flush=True)
    return [result for figure in figures for result in figure.results()]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two systems, as the client's requests to it."""

    port: int
    puts: list[bytes]
    """Of as many keys as clients."""
    put_good: bytes
    linearizable: bytes
    local: bytes
    get_good: bytes

    async def measure(self, options: Options) -> tuple[float, float, float, float]:
        """Lone put p50 (ms), puts a second, lone linearizable and local get p50 (ms)."""
        seconds = LONE_S * options.scale
        await self._drive(self.puts[:1], seconds / 4, self.put_good)  # warm
        put_p50 = await self._p50(self.puts[0], seconds / 2, self.put_good)
        done = await self._drive(self.puts, seconds, self.put_good)
        return (
            put_p50,
            len(done) / seconds,
            await self._p50(self.linearizable, seconds / 2, self.get_good),
            await self._p50(self.local, seconds / 2, self.get_good),
        )

    async def _p50(self, request: bytes, seconds: float, good: bytes) -> float:
        found = Latencies.from_seconds(await self._drive([request], seconds, good))
        return found.percentiles["50pct"]

    async def _drive(self, requests: list[bytes], seconds: float, good: bytes) -> list[float]:
        """Latencies of all requests. Raises AssertionError for any that failed."""
        connections = await drive(self.port, requests, seconds, good)
        errors = sum(one.errors for one in connections)
        assert not errors, f"{errors} requests failed"
        return [latency for one in connections for latency in one.latencies]


async def _side_of_store(store: Store) -> Side:
    address = store.addresses[await store.primary()]
    head = f"HTTP/1.1\r\nHost: {address}\r\n"
    puts = [
        f"PUT /kv/key{number} {head}Content-Length: {len(VALUE)}\r\n\r\n{VALUE}".encode()
        for number in range(CLIENTS)
    ]
    linearizable, local = (
        f"GET /kv/key0?consistency={consistency} {head}\r\n".encode()
        for consistency in ("linearizable", "eventual")
    )
    return Side(
        port=int(address.rpartition(":")[2]),
        puts=puts,
        put_good=b'"done"',
        linearizable=linearizable,
        local=local,
        get_good=VALUE.encode(),
    )


def _side_of_etcd(peer: etcd.Etcd) -> Side:
    port = peer.leader_port
    puts = [etcd.put_request(port, f"key{number}", VALUE.encode()) for number in range(CLIENTS)]
    linearizable, local = (
        etcd.get_request(port, "key0", serializable=serializable) for serializable in (False, True)
    )
    return Side(
        port=port,
        puts=puts,
        put_good=etcd.PUT_GOOD,
        linearizable=linearizable,
        local=local,
        get_good=etcd.GET_GOOD,
    )
