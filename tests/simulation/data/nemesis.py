"""Faults of data only: beside the faults of `tests.simulation.faults`.

Faults of storage (bit rot, a failed fsync, a power cut with flush=async) come one at a time, and
only while every replica is in sync: promises 1 and 2 hold for `min.insync.replicas - 1` of them.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Final

from raftlog.record.errors import LogError
from raftlog.replication.partition import Acks
from tests.simulation.data.clients import ask
from tests.simulation.data.data_world import DataWorld, Part
from tests.simulation.data.recurring import Recurring
from tests.simulation.life import NodeDiedError

ALONE_S_MAX: Final = 4.0
ALONE_POLL_S: Final = 0.02
STRANDED_S: Final = 3.0
"""For a leader to be the only one in sync."""
STUTTERS: Final = (3, 8)
STUTTER_S_MAX: Final = 1.2
"""From a start of a stuttering node until its next death."""
FAILOVERS: Final = (4, 10)
FAILOVERS_S_MAX: Final = 0.6
"""Between the deaths of two leaders in a row."""
FAILOVER_S: Final = (0.2, 2.5)
"""Between the two deaths of a double failover."""
HURTS_MAX: Final = 3
"""Most storage faults of one partition: a replica with more failures is not repaired any more."""
ORDER_S: Final = 1.0
"""A sync still missing after this time does not fail any more."""
FULL_S_MAX: Final = 3.0
ROOMS: Final = (0, 0, 300, 3_000)
"""Bytes that fit on a full disk."""
POWERLESS_MAX: Final = 3
"""Most nodes checked for a power cut at once."""
STOP_S: Final = 3.0
"""A node that has not stopped by then is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRates:
    """How often things go wrong, in the whole cluster."""

    double_failover_per_s: float = 0.0
    alone_per_s: float = 0.0
    """A leader is cut off from all other nodes, not from its clients."""
    rot_per_s: float = 0.0
    failed_sync_per_s: float = 0.0
    async_power_per_s: float = 0.0
    full_disk_per_s: float = 0.0
    reassignment_per_s: float = 0.0
    stop_per_s: float = 0.0
    voters_per_s: float = 0.0
    """A node gets or loses its vote, or the quorum another leader."""
    stranded_per_s: float = 0.0
    """All followers of a partition die, and its leader after them. Not drawn: an ingredient."""
    stutter_per_s: float = 0.0
    failovers_per_s: float = 0.0
    lone_power_per_s: float = 0.0
    """Not drawn: ingredients."""

    @classmethod
    def draw(cls, chance: random.Random) -> DataRates:
        """Rates of one run: most runs know a few kinds of faults only."""
        pick = chance.choice
        return cls(
            double_failover_per_s=pick((0.0, 0.0, 0.15)),
            alone_per_s=pick((0.0, 0.0, 0.15)),
            rot_per_s=pick((0.0, 0.0, 0.2)),
            failed_sync_per_s=pick((0.0, 0.0, 0.2)),
            async_power_per_s=pick((0.0, 0.2)),
            full_disk_per_s=pick((0.0, 0.0, 0.0, 0.2)),
            reassignment_per_s=pick((0.0, 0.0, 0.2)),
            stop_per_s=pick((0.0, 0.0, 0.15)),
            voters_per_s=pick((0.0, 0.0, 0.0, 0.3)),
        )


class DataNemesis(Recurring):
    """Lets things go wrong until `stop`. Dead nodes are started again by the other nemesis."""

    def __init__(self, data: DataWorld, rates: DataRates) -> None:
        super().__init__(data, "data nemesis")
        self.rates = rates
        self._rotten: dict[Part, list[tuple[int, str, bytes]]] = {}
        """Damaged segments of replicas, and their bytes since."""
        self._writers = 0
        self._hurts: dict[Part, int] = {}

    def start(self) -> None:
        """Begin."""
        rates = self.rates
        self.data.world.trace(rates)
        self.begin(
            (
                (rates.double_failover_per_s, self._double_failover),
                (rates.alone_per_s, self._alone),
                (rates.rot_per_s, self._rot),
                (rates.failed_sync_per_s, self._failed_sync),
                (rates.async_power_per_s, self._async_power),
                (rates.full_disk_per_s, self._full_disk),
                (rates.reassignment_per_s, self._reassign),
                (rates.stop_per_s, self._stop),
                (rates.voters_per_s, self._change_voters),
                (rates.stranded_per_s, self._strand),
                (rates.stutter_per_s, self._stutter),
                (rates.failovers_per_s, self._failovers),
                (rates.lone_power_per_s, self._lone_power),
            )
        )

    def stop(self) -> None:
        super().stop()
        for node_id in self.data.nodes.node_ids:
            self.data.world.disk(node_id).capacity_bytes = None

    def may_lose_one(self, part: Part) -> bool:
        """Whether a replica may lose its storage: no other one has, not even unnoticed."""
        if not self.is_calm() or len(self.data.row(part).replicas) < 3:
            return False
        return not any(self._is_still_there(*each) for each in self._rotten.get(part, ()))

    def _is_still_there(self, node_id: int, path: str, content: bytes) -> bool:
        disk = self.data.world.disk(node_id)
        return path in disk.paths() and disk.contents(path) == content

    def may_hurt(self, part: Part) -> bool:
        """Whether a replica may be damaged, and has a failure left."""
        return self._hurts.get(part, 0) < HURTS_MAX and self.may_lose_one(part)

    def hurt(self, part: Part) -> None:
        """Some replica was damaged."""
        self._hurts[part] = self._hurts.get(part, 0) + 1

    def rotten(self, part: Part, node_id: int, path: str) -> None:
        """A segment was damaged: until it is replaced, no other replica may lose anything."""
        content = self.data.world.disk(node_id).contents(path)
        self._rotten.setdefault(part, []).append((node_id, path, content))

    # The faults

    async def _double_failover(self) -> bool:
        part = self.part()
        first = self.data.leader(part)
        if first is None or not self.data.world.is_up(first):
            return False
        self.data.world.crash(first, power=self._may_cut_power())
        await asyncio.sleep(self.random.uniform(*FAILOVER_S))
        second = self.data.leader(part)
        if second is not None and self.data.world.is_up(second):
            self.data.world.crash(second, power=self._may_cut_power())
        return True

    def _may_cut_power(self) -> bool:
        return self.random.random() < 0.5 and not self.data.has_async

    async def _alone(self) -> bool:
        leader = self.data.leader(self.part())
        if leader is None:
            return False
        network, others = self.data.world.network, self.data.nodes.others(leader)
        self.data.nodes.cut_off(leader)
        await asyncio.sleep(self.random.uniform(0.5, ALONE_S_MAX))
        for other in others:
            network.unblock(leader, other)
            network.unblock(other, leader)
        return True

    async def _rot(self) -> bool:
        part = self.part()
        if not self.may_hurt(part):
            return False
        victim = int(self.random.choice(self.data.row(part).replicas))
        segments = self.data.paths(victim, part)
        if len(segments) < 2:
            return False
        number = self.random.randrange(len(segments) - 1)
        self.hurt(part)
        path = self.data.rot(victim, part, segment=number, at=self.random.random())
        self.rotten(part, victim, path)
        return True

    async def _failed_sync(self) -> bool:
        part = self.part()
        if not self.may_hurt(part):
            return False
        victim = int(self.random.choice(self.data.row(part).replicas))
        self.hurt(part)
        path = self.data.paths(victim, part)[-1]
        self.data.world.trace(f"disk {victim} fails its next sync of {path}")
        disk = self.data.world.disk(victim)
        disk.fail_next("sync", path)
        self.data.replicas.damaged(victim, self.data.key(part))
        await asyncio.sleep(ORDER_S)
        disk.forget_orders()
        return True

    async def _async_power(self) -> bool:
        if not self.data.has_async or not self.is_calm():
            return False
        # Of no partition as many at once as its writers count on (promise 2).
        victims: list[int] = []
        for node_id in self.random.sample(self.data.nodes.node_ids, POWERLESS_MAX):
            wanted = {*victims, node_id}
            if all(
                len(wanted.intersection(map(int, self.data.row(part).replicas)))
                < self.data.min_insync_replicas(part)
                for part in self.data.parts
            ):
                victims.append(node_id)
        self.data.cut_power(*victims)
        return bool(victims)

    async def _lone_power(self) -> bool:
        """The only replica of a topic with flush=async may lose its newest records."""
        (part,) = (each for each in self.data.parts if each.topic == "lone")
        (victim, *_others) = self.data.row(part).replicas
        if not self.data.world.is_up(int(victim)):
            return False
        self.data.cut_power(int(victim))
        return True

    async def _full_disk(self) -> bool:
        victim = self.data.leader(self.part()) if self.random.random() < 0.5 else None
        disk = self.data.world.disk(victim or self.random.choice(self.data.nodes.node_ids))
        disk.capacity_bytes = disk.used_bytes() + self.random.choice(ROOMS)
        self.data.world.trace(f"disk {victim} has room for {disk.free_bytes()}")
        await asyncio.sleep(self.random.uniform(0.3, FULL_S_MAX))
        disk.capacity_bytes = None
        return True

    async def _reassign(self) -> bool:
        part = self.part()
        row = self.data.row(part)
        count = len(set(row.replicas) - set(row.adding))
        replicas = self.random.sample(self.data.nodes.node_ids, count)
        try:
            async with asyncio.timeout(STOP_S):
                await self.data.reassign(part, replicas)
        except (LogError, NodeDiedError, TimeoutError):
            return False
        return True

    async def _stop(self) -> bool:
        node_id = self.random.choice(self.data.nodes.node_ids)
        if not self.data.nodes.is_ready(node_id):
            return False
        process = self.data.world.processes[node_id]
        try:
            async with asyncio.timeout(STOP_S):
                await self.data.nodes.stop(node_id)
        except (NodeDiedError, TimeoutError):
            return False
        finally:
            # Also for a hanging node, or without a waiting caller: the node does not serve.
            process.kill()
        return True

    async def _change_voters(self) -> bool:
        asked, node_id = (self.random.choice(self.data.nodes.node_ids) for _ in range(2))
        kind = self.random.choice(("add_voter", "add_voter", "remove_voter", "transfer_leadership"))
        try:
            await ask(self.data, asked, lambda core: getattr(core.quorum, kind)(node_id))
        except (LogError, NodeDiedError, TimeoutError):
            return False
        return True

    async def _stutter(self) -> bool:
        part = self.part()
        leader = self.data.leader(part)
        followers = [int(each) for each in self.data.row(part).replicas if each != leader]
        if leader is None or not followers:
            return False
        victim = self.random.choice(followers)
        network = self.data.world.network
        kind = self.random.choice(("to the leader", "from the leader", "both"))
        slowed = []
        if kind != "from the leader":
            slowed.append((victim, leader, self.random.uniform(0.3, 2.0)))
        if kind != "to the leader":
            slowed += [
                (leader, other, self.random.uniform(0.4, 1.2))
                for other in self.data.nodes.others(leader)
                if other != victim
            ]
        for source, target, extra_s in slowed:
            network.slow(source, target, extra_s)
        try:
            for _ in range(self.random.randint(*STUTTERS)):
                if self.data.world.is_up(victim):
                    self.data.world.crash(victim, power=self._may_cut_power())
                await asyncio.sleep(self.random.uniform(0.0, 0.1))
                if not self.data.world.is_up(victim):
                    self.data.nodes.start(victim)
                await asyncio.sleep(self.random.uniform(0.1, STUTTER_S_MAX))
        finally:
            for source, target, _ in slowed:
                network.slow(source, target, 0.0)
        return True

    async def _failovers(self) -> bool:
        """Leaders that die before they are followed leave logs that differ epoch by epoch."""
        part = self.part()
        self._writers += 1
        writer = self.data.producer(
            f"failovers-{self._writers}", acks=Acks.LEADER, idempotent=False, repeats=False
        )
        for _ in range(self.random.randint(*FAILOVERS)):
            leader = self.data.leader(part)
            if leader is not None and self.data.world.is_up(leader):
                for _ in range(self.random.randint(1, 3)):
                    await writer.send(part, self.random.randint(1, 3), node=leader, within_s=0.1)
                if self.data.world.is_up(leader):
                    self.data.world.crash(leader)
            await asyncio.sleep(self.random.uniform(0.02, FAILOVERS_S_MAX))
        return True

    async def _strand(self) -> bool:
        """The last replica in sync dies with records that no other replica has."""
        part = self.part()
        leader = self.data.leader(part)
        if leader is None:
            return False
        for node_id in self.data.row(part).replicas:
            if node_id != leader and self.data.world.is_up(node_id):
                self.data.world.crash(node_id)
        deadline = self.data.world.loop.now + STRANDED_S
        while set(self.data.row(part).isr) != {leader}:
            if self.data.world.loop.now > deadline:
                return False
            await asyncio.sleep(ALONE_POLL_S)
        await asyncio.sleep(self.random.uniform(0.0, 0.5))
        if self.data.world.is_up(leader):
            self.data.world.crash(leader)
        return True
