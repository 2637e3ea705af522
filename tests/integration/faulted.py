"""A load on a real cluster under a fault, with the history checked.

The clients are those of scripts/soak, in the test's own process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bench.cluster import LOOPBACK, Cluster, NotWholeError, Row, cancelled
from bench.node import MeasuredNode
from raftlog.cluster.manifest import directory_name
from tests.soak.clients import Task
from tests.soak.nemesis import Nemesis
from tests.soak.power import LoopDisk, NoDisksError
from tests.soak.records import CONFIGS, read_to_end
from tests.soak.verdict import compare_files, judge
from tests.soak.worker import Account, WorkerOrder, work
from tests.waiting import until

PARTITIONS = 6
RATE = 300.0
PROGRESS = 100
"""Acknowledgements that prove "writes go on"."""
UNTIL_S_MAX = 60.0
TEST_S_MAX = 240.0
"""Only a failing test reaches these deadlines, also on a busy machine."""
POLL_S = 0.02
NODES = (1, 2, 3)


class Load:
    """Clients at work, and conditions to wait for."""

    def __init__(self, cluster: Cluster, topic: str, history: Path) -> None:
        self.cluster = cluster
        self.topics = {topic: PARTITIONS}
        self.history = history
        self.nemesis = Nemesis(cluster, [topic], random.Random(topic), log=lambda _text: None)
        self.account = Account()
        self._tasks: list[Task] = []

    @property
    def acknowledged(self) -> int:
        """Sends acknowledged to the Python client; HTTP requests may fail."""
        return sum(task.acknowledged for task in self._tasks if "client-writer" in task.name)

    async def until(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the condition holds. AssertionError: not in time."""
        await until(
            condition,
            lambda: f"{what}\n{self.cluster.log_ends()}",
            deadline_s=UNTIL_S_MAX,
            poll_s=POLL_S,
        )

    async def progress(self) -> None:
        """Wait until more sends are acknowledged."""
        goal = self.acknowledged + PROGRESS

        async def reached() -> bool:
            return self.acknowledged >= goal

        await self.until("writes go on", reached)

    async def until_led_without(self, node_id: int) -> None:
        """Wait until other nodes lead all partitions that a node led."""

        async def moved() -> bool:
            rows = await self.rows()
            return bool(rows) and all(row.leader not in (-1, node_id) for row in rows)

        await self.until(f"others lead for node {node_id}", moved)

    async def until_out_of_sync(self, node_id: int) -> None:
        """Wait until no leader has a node in its ISR."""

        async def left() -> bool:
            rows = [row for row in await self.rows() if row.leader != node_id]
            return bool(rows) and not any(node_id in row.isr for row in rows)

        await self.until(f"node {node_id} is out of sync", left)

    async def back(self, *node_ids: int) -> None:
        """Start nodes again; wait until all replicas are in sync and writes go on."""
        await asyncio.to_thread(self.cluster.restart, *node_ids)
        await asyncio.to_thread(self.cluster.wait_answering)
        await self.whole()
        await self.progress()

    async def rows(self) -> list[Row]:
        """The partitions as the first running node that answers knows them; empty: none answers."""
        try:
            return await self.cluster.known(list(self.topics))
        except NotWholeError:
            return []

    async def whole(self) -> None:
        """Wait until every replica is in sync."""
        try:
            await self.cluster.wait_in_sync(list(self.topics), UNTIL_S_MAX)
        except NotWholeError as error:
            nodes = self.cluster.nodes
            ended = [node_id for node_id, node in nodes.items() if node.has_ended]
            raise AssertionError(f"not whole; ended by themselves: {ended}; {error}") from None

    async def work(self, act: Callable[[Load], Awaitable[None]]) -> None:
        """Run the clients while `act` runs."""
        stop = asyncio.Event()
        parts = ("client-writer", "http-writer", "client-reader", "replica-reader", "http-reader")
        order = WorkerOrder(
            "t",
            {part: {"client-writer": RATE, "http-writer": 20.0}.get(part, 0.0) for part in parts},
            self.cluster.addresses,
            self.topics,
            str(self.history),
        )
        working = asyncio.create_task(work(order, stop, self._tasks))
        try:
            await self.progress()
            await act(self)
        except BaseException:
            await cancelled(working)
            raise
        stop.set()
        self.account = await working


def hurt(
    cluster: Cluster,
    topic: str,
    directory: Path,
    act: Callable[[Load], Awaitable[None]],
    configs: Mapping[str, str] | None = None,
) -> Load:
    """Run `act` on a cluster under load, then check the history and the replicas' files.

    `act` leaves the cluster whole.
    """

    async def run() -> Load:
        await cluster.create_topic(topic, PARTITIONS, {**CONFIGS, **(configs or {})})
        load = Load(cluster, topic, directory / topic)
        await load.work(act)
        assert await read_to_end(cluster, load.topics, load.history) == [], cluster.log_ends()
        directories = {node_id: node.data_dir for node_id, node in cluster.nodes.items()}

        topic_id = await asyncio.to_thread(topic_id_of, cluster.nodes[1], topic)
        assert all((path / "replicas" / topic_id).is_dir() for path in directories.values())

        async def is_same() -> bool:
            return compare_files(directories, topic_id) == []

        # Late writes of requests given up by the clients may still go on.
        await load.until("the files are the same", is_same)
        verdict = judge(load.history, [])
        assert verdict.anomalies == [], cluster.log_ends()
        assert verdict.acknowledged > PROGRESS
        assert verdict.records_read >= len(NODES) * verdict.acknowledged
        return load

    async def bounded() -> Load:
        async with asyncio.timeout(TEST_S_MAX):
            return await run()

    return asyncio.run(bounded())


def topic_id_of(node: MeasuredNode, topic: str) -> str:
    """The topic's id, which names the directories of its replicas."""
    (found,) = node.request("GET", f"/v1/metadata?topics={topic}")["topics"]
    return str(found["topic_id"])


@contextmanager
def disks(directory: Path, node_ids: Sequence[int], *, mib: int) -> Iterator[dict[int, LoopDisk]]:
    """A disk for each of these nodes; skips the test if disks are not available."""
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
def cluster_on(directory: Path, own: Mapping[int, LoopDisk]) -> Iterator[Cluster]:
    """Three voters, some on disks of their own."""
    root = directory / "cluster"
    root.mkdir()
    for node_id, disk in own.items():
        (root / directory_name(node_id)).symlink_to(disk.data_dir)
    places = [own[n].place if n in own else LOOPBACK for n in NODES]
    with Cluster(root, len(NODES), places=places) as cluster:
        cluster.start()
        yield cluster
