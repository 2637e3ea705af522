"""The claims of Verma's "Building Replicated Stateful Systems using Kafka as a Commit Log" (2018).

| claim | part |
|---|---|
| calls to each replica cost the sum of their times; a log costs one write | claim-replicas |
| one partition read by all replicas writes faster than a partition each | claim-replicas |
| small payloads pay most for the hop to the log; batches take that away | claim-payloads |
| a replica with pauses slows all writes by hand, and none through the log | claim-pauses |

The primary is in the process of its callers in all ways, so a put by a client is not counted.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final, TypeAlias

import msgspec
from raftlog_client import Producer

from bench.cluster import Cluster, cancelled, run_workload, running_cluster
from bench.node import data_directory
from bench.report import Options, Percentiles, Result
from bench.sources.curves import Curves, Panel
from bench.sources.hand_replicas import ByHand, HandReplica, running_replicas
from bench.state.follower import Command, Shape, following
from bench.state.key_values import lone, many
from bench.state.replicas import timed_primary
from raftlog.workloads.latencies import Latencies
from raftlog.workloads.load import payload

Put: TypeAlias = Callable[[Sequence[bytes]], Awaitable[object]]
"""Returns once the commands are on all replicas, or in the log."""

REPLICAS: Final = (1, 2, 3, 4, 5)
"""Beside the primary."""
SOME: Final = 3
"""Replicas where their number does not vary."""
WRITERS: Final = 64
SIZES: Final = (16, 256, 4_096, 65_536)
BATCHES: Final = (1, 10, 100, 1_000)
PAYLOAD_BYTES: Final = 100
LONE_S: Final = 1.2
MANY_S: Final = 1.2
PAUSES_S: Final = 5.0
PAUSED_S: Final = 0.2
PERIOD_S: Final = 1.0
RATE: Final = 200

FLUSHED: Final = {"by hand, in turn": False, "by hand, side by side": True}
IN_MEMORY: Final = {
    "by hand, in turn, not flushed": False,
    "by hand, side by side, not flushed": True,
}
"""Way → side by side. Without a flush a power cut loses acknowledged commands."""
LOG: Final = "the log, one partition"
ATOMIC: Final = "plain producer, a partition each, in a transaction"
PLAIN: Final = "plain producer, one partition"
WAYS: Final = (*FLUSHED, *IN_MEMORY, LOG, ATOMIC, PLAIN)
DURABLE: Final = (*FLUSHED, LOG, ATOMIC, PLAIN)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to replicate, ready for puts."""

    put: Put
    replicas: Sequence[subprocess.Popen[bytes]] = ()
    """Their processes; none where a producer alone is measured."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A cluster, and replicas by hand that all measurements use."""

    cluster: Cluster
    flushed: list[HandReplica]
    in_memory: list[HandReplica]
    names: Iterator[int] = field(default_factory=count)

    @asynccontextmanager
    async def way(self, name: str, replicas: int) -> AsyncIterator[Way]:
        """One of WAYS, with so many replicas."""
        cluster, topic = self.cluster, f"claim-{next(self.names)}"
        if name in FLUSHED or name in IN_MEMORY:
            chosen = (self.flushed if name in FLUSHED else self.in_memory)[:replicas]
            primary = ByHand(
                [one.address for one in chosen], is_side_by_side={**FLUSHED, **IN_MEMORY}[name]
            )
            try:
                yield Way(primary.put, [one.process for one in chosen])
            finally:
                primary.close()
            return
        if name != LOG:
            partitions = 1 if name == PLAIN else replicas
            async with writing(cluster, topic, partitions, is_atomic=name == ATOMIC) as writer:
                yield Way(writer.put)
            return
        async with AsyncExitStack() as stack:
            timed = await stack.enter_async_context(timed_primary(cluster.servers, topic))
            followers = await stack.enter_async_context(
                following(cluster.servers, topic, Shape(replicas + 1))
            )

            async def put(payloads: Sequence[bytes]) -> None:
                if len(payloads) == 1:
                    await timed.submit(Command(-1, payloads[0]))
                else:
                    await asyncio.gather(*(timed.submit(Command(-1, one)) for one in payloads))

            yield Way(put, followers.processes)


def claim_replicas(options: Options) -> list[Result]:
    """A lone put, and puts of 64 writers, with 1 to 5 replicas."""
    alone = Curves(Panel("put, lone, p50", "replicas", "ms"))
    together = Curves(Panel(f"puts, {WRITERS} writers", "replicas", "puts/s"))
    value = [payload(PAYLOAD_BYTES)]

    async def measure(stage: Stage, name: str, replicas: int) -> None:
        async with stage.way(name, replicas) as way:
            found = await lone(lambda: way.put(value), LONE_S * options.scale)
            alone.add(name, replicas, found.percentiles["50pct"])
            rate = await many(lambda _: way.put(value), MANY_S * options.scale, WRITERS)
            together.add(name, replicas, rate)

    with _stage(options) as stage:
        for _ in range(options.runs):
            for replicas in REPLICAS:
                for name in WAYS:
                    run_workload(measure(stage, name, replicas))
    return [*alone.results(), *together.results()]


def claim_payloads(options: Options) -> list[Result]:
    """A lone put of 16 B to 64 KB."""
    alone = Curves(Panel(f"put, lone, p50, {SOME} replicas", "bytes", "ms", is_log_x=True))

    async def measure(name: str, way: Way) -> None:
        for size in SIZES:
            found = await lone(partial(way.put, [payload(size)]), LONE_S * options.scale)
            alone.add(name, size, found.percentiles["50pct"])

    _in_turn(options, DURABLE, measure)
    return alone.results()


def claim_batches(options: Options) -> list[Result]:
    """Commands a second of one caller that puts batches of 1 to 1,000, one after the other."""
    rates = Curves(
        Panel(
            f"one caller, {PAYLOAD_BYTES} B, {SOME} replicas",
            "commands in a batch",
            "commands/s",
            is_log_x=True,
        )
    )

    async def measure(name: str, way: Way) -> None:
        for size in BATCHES:
            values = [payload(PAYLOAD_BYTES)] * size

            async def put(_: int, values: list[bytes] = values) -> None:
                await way.put(values)

            rates.add(name, size, size * await many(put, MANY_S * options.scale, 1))

    _in_turn(options, DURABLE, measure)
    return rates.results()


def claim_pauses(options: Options) -> list[Result]:
    """200 puts a second, while a replica of three stops for 200 ms of every second."""
    seconds = max(2 * PERIOD_S, PAUSES_S * options.scale)
    given = {"rate": RATE, "replicas": SOME, "paused_s": PAUSED_S, "period_s": PERIOD_S}
    names = (*FLUSHED, LOG)
    when = ("no pauses", "a replica pauses")
    ranks = dict.fromkeys(("p50", "p95", "p99"))
    figures = {
        (name, pauses): Percentiles(f"claim: put {{}}, {pauses}, {name}", ranks, given)
        for name in names
        for pauses in when
    }

    async def measure(name: str, way: Way) -> None:
        put = partial(way.put, [payload(PAYLOAD_BYTES)])
        await lone(put, PAUSED_S)  # connections, and the first batches
        for pauses in when:
            pausing = asyncio.create_task(_pause(way.replicas[0])) if pauses == when[1] else None
            try:
                found = await at_rate(put, RATE, seconds)
            finally:
                if pausing is not None:
                    await cancelled(pausing)
                    way.replicas[0].send_signal(signal.SIGCONT)
            figures[name, pauses].note(found)
            print(
                f"   {name}, {pauses}: p50 {found.percentiles['50pct']:.2f}, "
                f"p99 {found.percentiles['99pct']:.2f}, max {found.max:.1f} ms",
                flush=True,
            )

    _in_turn(options, names, measure)
    return [result for each in figures.values() for result in each.results]


def _in_turn(
    options: Options, names: Sequence[str], measure: Callable[[str, Way], Awaitable[None]]
) -> None:
    """Measure each of these ways in each run."""

    async def all_ways(stage: Stage) -> None:
        for name in names:
            async with stage.way(name, SOME) as way:
                await measure(name, way)

    with _stage(options) as stage:
        for _ in range(options.runs):
            run_workload(all_ways(stage))


async def _pause(process: subprocess.Popen[bytes]) -> None:
    """Stop a process for a part of each second, until cancelled."""
    while True:
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(PAUSED_S)
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(PERIOD_S - PAUSED_S)


async def at_rate(call: Callable[[], Awaitable[object]], rate: int, seconds: float) -> Latencies:
    """Latencies of calls on a schedule that never waits, each from its due time."""
    taken: list[float] = []

    async def one(due: float) -> None:
        await call()
        taken.append(time.perf_counter() - due)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(rate * seconds)):
            due = started + number / rate
            if (early := due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            group.create_task(one(due))
    return Latencies.from_seconds(taken)


@contextmanager
def _stage(options: Options) -> Iterator[Stage]:
    with ExitStack() as stack:
        directory = stack.enter_context(data_directory()).parent
        flushed, in_memory = (
            stack.enter_context(running_replicas(directory, max(REPLICAS), is_flushed=is_flushed))
            for is_flushed in (True, False)
        )
        cluster = stack.enter_context(running_cluster(options.flush))
        yield Stage(cluster, flushed, in_memory)


_encode: Final = msgspec.msgpack.Encoder().encode


class PartitionWriter:
    """A writer of whole batches to all partitions of a topic."""

    def __init__(self, producer: Producer, topic: str, partitions: int, *, is_atomic: bool) -> None:
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._is_atomic = is_atomic
        self._queue: list[tuple[bytes, asyncio.Future[None]]] = []
        self._given = asyncio.Event()

    async def put(self, payloads: Sequence[bytes]) -> None:
        """Return once the commands are committed in all partitions."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((_encode(payloads), done))
        self._given.set()
        await done

    async def run(self) -> None:
        """Write until cancelled. The first error fails all callers, and is raised."""
        batch: list[tuple[bytes, asyncio.Future[None]]] = []
        try:
            while True:
                await self._given.wait()
                self._given.clear()
                batch, self._queue = self._queue, []
                if self._is_atomic:
                    async with self._producer.transaction():
                        await self._send([value for value, _ in batch])
                else:
                    await self._send([value for value, _ in batch])
                for _, done in batch:
                    if not done.done():
                        done.set_result(None)
        except Exception as error:
            for _, done in [*batch, *self._queue]:
                if not done.done():
                    done.set_exception(error)
            raise

    async def _send(self, values: list[bytes]) -> None:
        sent = [
            await self._producer.send(self._topic, value, partition=partition)
            for partition in range(self._partitions)
            for value in values
        ]
        await asyncio.gather(*sent)


@asynccontextmanager
async def writing(
    cluster: Cluster, topic: str, partitions: int, *, is_atomic: bool
) -> AsyncIterator[PartitionWriter]:
    """A writer to a new topic; `is_atomic`: each batch is a transaction."""
    await cluster.create_topic(topic, partitions)
    producer: Producer = Producer(
        bootstrap_servers=cluster.servers, transactional_id=topic if is_atomic else None
    )
    async with producer:
        writer = PartitionWriter(producer, topic, partitions, is_atomic=is_atomic)
        running = asyncio.create_task(writer.run())
        try:
            yield writer
        finally:
            await cancelled(running)
