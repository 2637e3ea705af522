"""The session timeout changes while nodes hang, are cut off and write (promise 7).

The checker of the simulator looks after every event that no fenced node may act as a leader.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from raftlog.metadata.configs.broker import LEASE_BOUND, SESSION_TIMEOUT
from raftlog.node.assembly import NodeCore
from raftlog.record.errors import LogError
from raftlog.replication.partition import Acks
from tests.simulation.node_world import NodeDiedError, NodeWorld, simulate_cluster
from tests.simulation.records import Ledger

TIMEOUTS_MS = (1000, 1500, 3000, 8000)
LOAD_S = 60.0


async def set_timeout(nodes: NodeWorld, node_id: int, timeout_ms: int | None) -> None:
    """Change the timeout by way of a node; None: back to the default. May fail."""
    values = {} if timeout_ms is None else {SESSION_TIMEOUT: str(timeout_ms)}
    removals = [SESSION_TIMEOUT] if timeout_ms is None else []
    with contextlib.suppress(LogError, NodeDiedError):
        await nodes.call(
            node_id, lambda core: core.services.metadata.alter_cluster_settings(values, removals)
        )


async def settings(nodes: NodeWorld) -> dict[str, str]:
    controller = await nodes.ready()
    return dict(nodes.image(controller).cluster_settings)


async def under_load(nodes: NodeWorld) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + LOAD_S

    async def change() -> None:
        chance = nodes.world.random("timeouts")
        while loop.time() < end:
            await asyncio.sleep(chance.expovariate(1 / 3.0))
            timeout_ms = chance.choice((*TIMEOUTS_MS, None))
            await set_timeout(nodes, chance.choice(nodes.node_ids), timeout_ms)

    async def disturb() -> None:
        chance = nodes.world.random("disturbances")
        while loop.time() < end:
            await asyncio.sleep(chance.uniform(0.5, 4.0))
            victim = chance.choice([nodes.controller() or 1, *nodes.node_ids])
            kind = chance.choice(["cut", "pause", "kill"])
            if kind == "cut":
                nodes.cut_off(victim)
            elif kind == "pause":
                nodes.world.pause(victim)
            else:
                nodes.kill(victim)
            await asyncio.sleep(chance.uniform(0.2, 10.0))
            nodes.world.network.heal()
            nodes.world.resume(victim)
            if kind == "kill":
                nodes.start(victim)

    async def write() -> None:
        chance = nodes.world.random("append")

        async def append(core: NodeCore) -> None:
            partition = core.services.replicas.partition("t", 0)
            await Ledger().append(partition, Acks.ALL, chance)

        while loop.time() < end:
            await asyncio.sleep(0.1)
            node_id = nodes.leader("t") or 1
            with contextlib.suppress(LogError, NodeDiedError):
                await nodes.call(node_id, append)

    await asyncio.gather(change(), disturb(), write())


@pytest.mark.parametrize("seed", range(6))
def test_no_fenced_node_leads_while_the_session_timeout_changes(seed: int) -> None:
    async def test(nodes: NodeWorld) -> None:
        await nodes.call(1, lambda core: core.services.metadata.create_topic("t", partitions=1))
        await under_load(nodes)
        await nodes.ready()
        await set_timeout(nodes, 1, None)
        # The controller keeps the bound for as long as a longer lease may last.
        await asyncio.sleep(max(TIMEOUTS_MS) / 1000 + 5.0)
        assert await settings(nodes) == {}

    simulate_cluster(test, seed)


def test_change_of_the_timeout_takes_effect_without_a_restart() -> None:
    async def test(nodes: NodeWorld) -> None:
        loop = asyncio.get_running_loop()
        for timeout_ms in (4000, 1000):
            await set_timeout(nodes, 1, timeout_ms)
            # Leases of the timeout before have ended by then.
            await asyncio.sleep(5.0)
            expected = {SESSION_TIMEOUT: str(timeout_ms), LEASE_BOUND: str(timeout_ms)}
            assert await settings(nodes) == expected
            victim = nodes.others(nodes.controller())[0]
            cut_at = loop.time()
            nodes.cut_off(victim)
            core = nodes.cores[victim]
            await nodes.until(lambda c=core: c.permit.is_cut_off)  # type: ignore[misc]
            assert 0.9 * timeout_ms / 1000 - 0.5 < loop.time() - cut_at < timeout_ms / 1000
            await nodes.until(lambda v=victim: nodes.is_fenced(v))  # type: ignore[misc]
            assert timeout_ms / 1000 - 0.5 < loop.time() - cut_at < timeout_ms / 1000 + 0.5
            nodes.world.network.heal()
            await nodes.ready()

    simulate_cluster(test)
