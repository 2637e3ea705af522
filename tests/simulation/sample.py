"""A small cluster for the simulator's own tests, using all of the world.

Each node appends numbers to a file of its own, syncs, and only then sends the number to the others,
which remember the highest received. The promise to check: after a crash a node has every number
received from it.

`python -m tests.simulation.sample SEED...` prints the digest of each run.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field

from raftlog.world import DiskError
from raftlog.world.network import Connection, NetworkError, RejectedError
from tests.simulation.faults import FaultRates, Nemesis
from tests.simulation.world import Process, World, run

NODES = (1, 2, 3)
PATH = "numbers"


@dataclass
class Cluster:
    """The checker's view of the nodes."""

    world: World
    tells_unsynced: bool = False
    """The planted mistake."""
    heard: dict[int, int] = field(default_factory=lambda: dict.fromkeys(NODES, 0))
    """The highest number of each node received by another."""
    losses: list[str] = field(default_factory=list)
    received: int = 0
    starts: int = 0

    def start(self, node_id: int) -> Process:
        return self.world.start(node_id, lambda process: Node(self, process).main())


class Node:
    """One process."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        self.cluster = cluster
        self.process = process
        self.connections: set[Connection] = set()

    async def main(self) -> None:
        process = self.process
        self.cluster.starts += 1
        process.network.accept("numbers", self)
        file = process.disk.open(PATH, create=True)
        await process.disk.run(file.sync)
        await process.disk.run(lambda: process.disk.sync_directory(""))
        number = len(file.read_cached(0, file.size) or b"")
        if number < self.cluster.heard[process.node_id]:
            self.cluster.losses.append(f"{process} at {number}")
        async with asyncio.TaskGroup() as group:
            for other in NODES:
                if other < process.node_id:
                    group.create_task(self.keep_connected(other))
            while True:
                await process.clock.sleep(process.randomness.uniform(0.0, 0.02))
                file.append([b"x"])
                number = file.size
                if not self.cluster.tells_unsynced:
                    try:
                        await process.disk.run(file.sync)
                    except DiskError:
                        raise SystemError(f"{process} must not fail: nobody ordered it") from None
                for connection in sorted(self.connections, key=lambda each: each.address):
                    connection.send(b"%d" % number)

    async def keep_connected(self, other: int) -> None:
        world = self.process.world
        while True:
            try:
                await self.process.network.connect(
                    world.address(other), "numbers", b"%d" % self.process.node_id, self.opened,
                    timeout_s=1.0,
                )  # fmt: skip
            except (NetworkError, RejectedError):
                await self.process.clock.sleep(0.1)
                continue
            while any(each.address == world.address(other) for each in self.connections):
                await self.process.clock.sleep(0.05)

    def hello(self, hello: bytes) -> bytes:
        return b"%d" % self.process.node_id

    def opened(self, connection: Connection) -> Peer:
        self.connections.add(connection)
        return Peer(self, connection)


class Peer:
    """The other side of a connection."""

    def __init__(self, node: Node, connection: Connection) -> None:
        self.node = node
        self.connection = connection
        self.newest = 0

    def received(self, message: bytes) -> None:
        number, owner = int(message), int(self.connection.hello)
        assert number > self.newest, "out of order"
        self.newest = number
        cluster = self.node.cluster
        cluster.received += 1
        cluster.heard[owner] = max(cluster.heard[owner], number)

    def closed(self) -> None:
        self.node.connections.discard(self.connection)


async def history(
    world: World, seconds: float = 5.0, *, tells_unsynced: bool = False, **fixed: float
) -> Cluster:
    """Faults for so long, then none; every node must receive from every other again."""
    cluster = Cluster(world, tells_unsynced)
    rates = FaultRates.draw(world.random("rates"), **fixed)
    nemesis = Nemesis(world, NODES, cluster.start, rates, focus=lambda: 1)
    nemesis.start()
    for node_id in NODES:
        cluster.start(node_id)
    await asyncio.sleep(seconds)
    nemesis.heal_all()
    await asyncio.sleep(5.0)
    before = dict(cluster.heard)
    await asyncio.sleep(5.0)
    for node_id in NODES:
        assert world.is_up(node_id)
        assert cluster.heard[node_id] > before[node_id], f"node {node_id} is not heard of"
    return cluster


def digest(seed: int) -> str:
    """Of one run with all kinds of faults."""
    world = World(seed)
    world.run(lambda world: history(world, crash_per_s=0.5, half_open=0.3, pause_per_s=0.2))
    return world.digest()


def losses(seed: int, **fixed: float) -> list[str]:
    """Numbers lost by one run."""

    async def main(world: World) -> list[str]:
        return (await history(world, tells_unsynced=True, **fixed)).losses

    return run(seed, main)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        sys.stdout.write(digest(int(argument)) + "\n")
