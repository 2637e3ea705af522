"""Logs failed or damaged under load: repaired from the others, without loss."""

from __future__ import annotations

import asyncio
import random

import pytest

from raftlog.record.errors import LogError
from raftlog.record.types import PartitionId
from raftlog.replication.partition import Acks, Partition
from raftlog.world import DiskError
from tests.simulation.node_world import NodeCore, NodeDiedError, NodeWorld, simulate_cluster
from tests.simulation.records import Ledger

HURTS = 3
PAUSE_S_MAX = 0.02
WRITE_S_MAX = 5.0


def hurt(partition: Partition, chance: random.Random) -> None:
    """In one of the ways in which a disk does."""
    match chance.randrange(3):
        case 0:
            partition.log.fail(DiskError("a sync has failed"))
        case 1:
            partition.log.declare_damaged("a bit has flipped")
        case _:
            partition.log.report_damage("a bit has flipped")


@pytest.mark.parametrize("seed", range(5))
def test_logs_that_fail_are_repaired_and_nothing_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    ledger = Ledger()

    async def append(core: NodeCore) -> None:
        await ledger.append(core.services.replicas.partition("t", 0), Acks.ALL, chance)

    async def write_on(nodes: NodeWorld) -> None:
        while True:
            leader = nodes.leader("t")
            if leader is not None and nodes.takes_writes(leader, "t"):
                try:
                    async with asyncio.timeout(WRITE_S_MAX):
                        await nodes.call(leader, append)
                except (LogError, NodeDiedError, TimeoutError):
                    pass
            await asyncio.sleep(chance.uniform(0, PAUSE_S_MAX))

    def replica(nodes: NodeWorld, node_id: int) -> Partition | None:
        core = nodes.cores[node_id]
        topic = core.services.metadata.image.topics_by_name.get("t")
        if topic is None:
            return None
        return core.services.replicas.replica(topic.topic_id, PartitionId(0))

    def is_whole(nodes: NodeWorld) -> bool:
        controller = nodes.controller()
        if controller is None or nodes.leader("t") is None:
            return False
        found = [replica(nodes, node_id) for node_id in nodes.node_ids]
        return len(nodes.image(controller).partition("t", 0).isr) == len(found) and all(
            one is not None and not one.is_closed and one.log.damage_found is None for one in found
        )

    async def test(nodes: NodeWorld) -> None:
        await nodes.create_topic(await nodes.until(nodes.controller), "t", partitions=1)
        await nodes.until(lambda: is_whole(nodes))
        writing = asyncio.ensure_future(write_on(nodes))
        for _ in range(HURTS):
            await asyncio.sleep(chance.uniform(0.5, 2.0))
            target = chance.choice([nodes.leader("t") or 1, *nodes.node_ids])

            async def strike(core: NodeCore, target: int = target) -> None:
                partition = replica(nodes, target)
                if partition is not None and not partition.is_closed:
                    hurt(partition, chance)

            await nodes.call(target, strike)
        await nodes.until(lambda: is_whole(nodes))
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        leader = await nodes.until(lambda: nodes.leader("t"))

        async def check(core: NodeCore) -> None:
            partition = core.services.replicas.partition("t", 0)
            await ledger.append(partition, Acks.ALL, chance)
            await ledger.check(partition)

        await nodes.call(leader, check)

    simulate_cluster(test, seed)
