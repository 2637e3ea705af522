"""A load on a real cluster while something bad happens to it, judged by the checker.

The clients are those of scripts/soak, in the test's own process.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bench.cluster_processes import LOOPBACK, ClusterProcesses, Place
from bench.node import NodeProcess
from bench.replication.cluster import Cluster, NotWholeError, Row, cancelled
from bench.soak.clients import Task
from bench.soak.cuts import Cuts
from bench.soak.faults import Nemesis
from bench.soak.power import LoopDisk, NoDisksError
from bench.soak.run import CONFIGS, ending
from bench.soak.verdict import compare_files, judge
from bench.soak.worker import Account, Orders, work

PARTITIONS = 6
RATE = 300.0
PROGRESS = 100
"""Acknowledgements that count as "writes go on"."""
UNTIL_S_MAX = 20.0
TEST_S_MAX = 60.0
POLL_S = 0.02
NODES = (1, 2, 3)


class Load:
    """Clients at work."""

    def __init__(self, cluster: Cluster, topic: str, history: Path) -> None:
        self.cluster = cluster
        self.topics = {topic: PARTITIONS}
        self.history = history
        self.nemesis = Nemesis(cluster, [topic], random.Random(topic), say=lambda _text: None)
        self.account = Account()
        self._tasks: list[Task] = []

    @property
    def processes(self) -> ClusterProcesses:
        return self.cluster.processes

    @property
    def acknowledged(self) -> int:
        """By the client: what `curl` is answered may be an error."""
        return sum(task.acknowledged for task in self._tasks if "client-writer" in task.name)

    async def until(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        """Return once it is so; not in time is an AssertionError."""
        deadline = time.monotonic() + UNTIL_S_MAX
        while not await condition():
            assert time.monotonic() < deadline, f"not in time: {what}\n{self.processes.log_ends()}"
            await asyncio.sleep(POLL_S)

    async def progress(self) -> None:
        """Return once writes were acknowledged from now on."""
        goal = self.acknowledged + PROGRESS

        async def reached() -> bool:
            return self.acknowledged >= goal

        await self.until("writes go on", reached)

    async def until_led_without(self, node_id: int) -> None:
        """Return once others lead all that a node led."""

        async def moved() -> bool:
            rows = await self.rows()
            return bool(rows) and all(row.leader not in (-1, node_id) for row in rows)

        await self.until(f"others lead for node {node_id}", moved)

    async def until_out_of_sync(self, node_id: int) -> None:
        """Return once nobody who leads counts on a node any more."""

        async def left() -> bool:
            rows = [row for row in await self.rows() if row.leader != node_id]
            return bool(rows) and not any(node_id in row.isr for row in rows)

        await self.until(f"node {node_id} is out of sync", left)

    async def back(self, *node_ids: int) -> None:
        """Start nodes again; return when all is whole, and writes go on."""
        self.processes.restart(*node_ids)
        await asyncio.to_thread(self.processes.wait_answering)
        await self.whole()
        await self.progress()

    async def rows(self) -> list[Row]:
        """The partitions as a node knows them that runs; none if none tells."""
        try:
            return await self.cluster.known(list(self.topics))
        except NotWholeError:
            return []

    async def whole(self) -> None:
        """Return once every replica is in sync."""
        try:
            await self.cluster.wait_in_sync(list(self.topics), UNTIL_S_MAX)
        except NotWholeError as error:
            nodes = self.processes.nodes
            ended = {n: nodes[n].process.returncode for n in nodes if nodes[n].has_ended}
            raise AssertionError(f"not whole; ended by themselves: {ended}; {error}") from None

    async def work(self, act: Callable[[Load], Awaitable[None]]) -> None:
        """Let the clients work while something happens."""
        stop = asyncio.Event()
        parts = ("client-writer", "http-writer", "client-reader", "replica-reader", "http-reader")
        orders = Orders(
            "t",
            {part: {"client-writer": RATE, "http-writer": 20.0}.get(part, 0.0) for part in parts},
            self.cluster.addresses,
            self.topics,
            str(self.history),
        )
        working = asyncio.create_task(work(orders, stop, self._tasks))
        try:
            await self.progress()
            await act(self)
        except BaseException:
            await cancelled(working)
            raise
        stop.set()
        self.account = await working


def hurt(
    processes: ClusterProcesses,
    topic: str,
    directory: Path,
    act: Callable[[Load], Awaitable[None]],
    configs: Mapping[str, str] | None = None,
) -> Load:
    """Do something to a cluster under load, and leave it whole.

    Nothing that its clients saw may be wrong, and the replicas' files must be the same.
    """

    async def run() -> Load:
        cluster = Cluster(processes)
        await cluster.create_topic(topic, PARTITIONS, {**CONFIGS, **(configs or {})})
        load = Load(cluster, topic, directory / topic)
        await load.work(act)
        assert await ending(cluster, load.topics, load.history) == [], processes.log_ends()
        directories = {node_id: node.data_dir for node_id, node in processes.nodes.items()}

        topic_id = await asyncio.to_thread(topic_id_of, processes.nodes[1], topic)
        assert all((path / "replicas" / topic_id).is_dir() for path in directories.values())

        async def is_same() -> bool:
            return compare_files(directories, topic_id) == []

        # What nobody waits for any more may be written for a moment.
        await load.until("the files are the same", is_same)
        verdict = judge(load.history, [])
        assert verdict.anomalies == [], processes.log_ends()
        assert verdict.acknowledged > PROGRESS
        assert verdict.records_read >= len(NODES) * verdict.acknowledged
        return load

    async def bounded() -> Load:
        async with asyncio.timeout(TEST_S_MAX):
            return await run()

    return asyncio.run(bounded())


def topic_id_of(node: NodeProcess, topic: str) -> str:
    """As the directories of its replicas are named."""
    (found,) = node.request("GET", f"/v1/metadata?topics={topic}")["topics"]
    return str(found["topic_id"])


@contextmanager
def disks(directory: Path, node_ids: Sequence[int], *, mib: int) -> Iterator[dict[int, LoopDisk]]:
    """A disk of its own for each of these nodes; skips the test, with the reason, without them."""
    with ExitStack() as stack:
        found: dict[int, LoopDisk] = {}
        for node_id in node_ids:
            disk = LoopDisk(
                directory / f"disk{node_id}.img", directory / "mounted" / str(node_id), mib=mib
            )
            try:
                found[node_id] = stack.enter_context(disk)
            except NoDisksError as error:
                pytest.skip(f"no disks that lose their power: {error}")
        yield found


@contextmanager
def cluster_on(directory: Path, own: Mapping[int, LoopDisk]) -> Iterator[ClusterProcesses]:
    """Three voters, some of them on disks of their own."""
    root = directory / "cluster"
    root.mkdir()
    for node_id, disk in own.items():
        (root / f"node{node_id}").symlink_to(disk.data_dir)
    places = [own[n].place if n in own else LOOPBACK for n in NODES]
    with ClusterProcesses(root, len(NODES), places=places) as processes:
        processes.start()
        yield processes


def cuts_of(places: Sequence[Place]) -> Cuts:
    return Cuts(dict(enumerate(places, start=1)))
