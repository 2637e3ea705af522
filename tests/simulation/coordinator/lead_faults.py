"""Faults aimed at coordinators: leads that move, leaders alone, nodes that stop, failed appends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from raftlog.coordinator.shard.service import AnyShard
from raftlog.node.assembly import NodeCore
from raftlog.record.errors import DISK_FULL, RETRIABLE, LogError
from tests.simulation.life import NodeDiedError
from tests.simulation.node_world import NodeWorld
from tests.simulation.world import World

PATIENCE_S: Final = 3.0
"""Time limit of an operator's request."""
MOVE_S_MEAN: Final = 1.5
STOP_S_MEAN: Final = 6.0
STOP_S_MAX: Final = 3.0
"""A node that has not stopped by then is killed."""
ALONE_S_MEAN: Final = 4.0
ALONE_S_MAX: Final = 3.0
APPEND_FAULTS: Final = 0.01
"""Share of appends that are refused; as many are written with an unknown outcome, as many late."""
LATE_S_MAX: Final = 0.05
SUPERVISION_S: Final = 0.1


@dataclass
class LeadFaults:
    """Faults of the coordinators of one internal topic, until `stop`."""

    world: World
    nodes: NodeWorld
    topic: str
    partitions: int
    is_active: bool = False
    _count: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> None:
        """Begin."""
        self.is_active = True
        for fault in (self._move_leads, self._isolate, self._stop_nodes):
            self._tasks.append(self.world.loop.create_task(fault()))

    def stop(self) -> None:
        """No more of these faults. Dead nodes and cut links are left to the caller."""
        self.is_active = False
        for task in self._tasks:
            task.cancel()

    def leader(self) -> int | None:
        """The leader of some partition."""
        self._count += 1
        number = self.world.random(f"focus {self._count}").randrange(self.partitions)
        try:
            return self.nodes.leader(self.topic, number)
        except LogError:
            return None

    async def supervise(self) -> None:
        """Start dead nodes again, until cancelled."""
        while True:
            for node_id in self.nodes.node_ids:
                if not self.world.is_up(node_id):
                    self.nodes.start(node_id)
            await asyncio.sleep(SUPERVISION_S)

    def serving(self) -> list[AnyShard] | None:
        """The shards of all partitions, each at its leader; None unless all serve."""
        found = []
        for number in range(self.partitions):
            try:
                leader = self.nodes.leader(self.topic, number)
            except LogError:
                return None
            core = self.nodes.cores.get(leader or 0)
            if core is None:
                return None
            here = [
                shard
                for shard in core.coordinators.shards()
                if shard.partition.topic == self.topic
                and shard.partition.partition == number
                and shard.ended is None
            ]
            if len(here) != 1 or not here[0].partition.is_leader:
                return None
            found.append(here[0])
        return found

    def flaky(self, append: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """`Shard._append` that fails, or lets later appends overtake it."""
        chance = self.world.random("appends")

        async def fail(shard: AnyShard, *arguments: Any) -> None:
            kind = int(chance.random() / APPEND_FAULTS) if self.is_active else -1
            if kind in {0, 1}:
                await asyncio.sleep(chance.uniform(0.0, LATE_S_MAX))
            if kind == 0:
                raise LogError(DISK_FULL, "The disk is full for once.")
            await append(shard, *arguments)
            if kind == 2:
                raise LogError(RETRIABLE, "The outcome is unknown for once.")

        return fail

    async def _move_leads(self) -> None:
        chance = self.world.random("moves")
        while True:
            await asyncio.sleep(chance.expovariate(1 / MOVE_S_MEAN))
            number, node_id = chance.randrange(self.partitions), chance.choice(self.nodes.node_ids)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self.nodes.call(node_id, _Move(self.topic, number))
            except (LogError, NodeDiedError, TimeoutError):
                pass

    async def _isolate(self) -> None:
        """Cut a leader off from all other nodes, not from its clients."""
        chance, network = self.world.random("isolation"), self.world.network
        while True:
            await asyncio.sleep(chance.expovariate(1 / ALONE_S_MEAN))
            leader = self.leader()
            if leader is not None:
                self.nodes.cut_off(leader)
                await asyncio.sleep(chance.uniform(0.2, ALONE_S_MAX))
                for other in self.nodes.others(leader):
                    network.unblock(leader, other)
                    network.unblock(other, leader)

    async def _stop_nodes(self) -> None:
        """Stop a node like SIGTERM; the nemesis starts it again."""
        chance = self.world.random("stops")
        while True:
            await asyncio.sleep(chance.expovariate(1 / STOP_S_MEAN))
            node_id = chance.choice(self.nodes.node_ids)
            if not self.nodes.is_ready(node_id):
                continue
            process = self.world.processes[node_id]
            try:
                async with asyncio.timeout(STOP_S_MAX):
                    await self.nodes.stop(node_id)
            except (NodeDiedError, TimeoutError):
                pass
            finally:
                process.kill()


@dataclass
class _Move:
    """An operator's request to move the lead of a partition."""

    topic: str
    number: int

    async def __call__(self, core: NodeCore) -> None:
        await core.services.metadata.operations.transfer_leader(self.topic, self.number, None)
