"""Rows of FAULTS.md: processes that die, stop, and hang; clients with old metadata."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.record.errors import NO_LEADER, LogError
from raftlog.record.types import BrokerId
from raftlog.replication.partition import Acks
from tests.simulation.data.clients import APPEND_S, encode
from tests.simulation.data.consumers import Consumer
from tests.simulation.data.data_world import DataWorld, Part, ask, simulate_data

T = Part("t", 0)
SESSION_S = 1.5


async def written(data: DataWorld, seconds: float) -> asyncio.Task[None]:
    """Two producers and a consumer, for that long."""
    loop = data.world.loop
    end_s = loop.now + seconds
    works = [
        data.producer("a").run(end_s, 0.02),
        data.producer("b", idempotent=False).run(end_s, 0.02),
        Consumer(data, "c", data.parts[0]).run(end_s, 0.05),
    ]

    async def all_of_them() -> None:
        await asyncio.gather(*works)

    return loop.create_task(all_of_them())


@pytest.mark.parametrize("victim", ["leader", "follower", "controller", "all"])
@pytest.mark.parametrize("power", [False, True])
def test_row_01_kill(victim: str, power: bool) -> None:
    async def test(data: DataWorld) -> None:
        controller = await data.nodes.until(data.nodes.controller)
        first = data.nodes.others(controller)[0]
        await data.create("t", [[first, *data.nodes.others(first)]])
        clients = await written(data, 6.0)
        await asyncio.sleep(0.5)
        victims = {
            "leader": [first],
            "follower": [data.nodes.others(first)[0]],
            "controller": [controller],
            "all": data.nodes.node_ids,
        }[victim]
        for node_id in victims:
            data.nodes.kill(node_id, power=power)
        if victim == "leader":
            await data.led(T, *data.nodes.others(first))
            await data.write(T)
        await asyncio.sleep(2.5)
        for node_id in victims:
            data.nodes.start(node_id)
        await clients

    simulate_data(test)


def test_row_02_rolling_restart_under_load() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3], [2, 3, 1]])
        producer = data.producer("p")
        work = data.world.loop.create_task(producer.run(data.world.loop.now + 6.0, 0.02))
        for node_id in data.nodes.node_ids:
            await asyncio.sleep(0.3)
            await data.nodes.stop(node_id)
            await asyncio.sleep(0.3)
            data.nodes.start(node_id)
            await data.nodes.ready()
            await data.nodes.until(lambda: all(map(data.is_in_sync, data.parts)))
        await work
        # No error after retries: every one of its batches was acknowledged, in one session.
        assert {each.outcome for each in data.history} == {"ok"}  # type: ignore[union-attr]
        assert len({each.producer for each in data.history}) == 1  # type: ignore[union-attr]

    simulate_data(test)


def test_row_03_a_paused_leader_is_fenced() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        await data.write(T, 3)
        data.world.pause(1)
        begun = data.world.loop.now
        successor = await data.led(T, 2, 3)
        assert data.world.loop.now - begun < 2.5
        await data.write(T, 3)
        data.world.resume(1)
        # The first message to the old leader is a write.
        refused = await data.producer("p", idempotent=False).send(T, node=1, within_s=0.01)
        assert refused is not None and refused.outcome == "refused"
        assert data.leader(T) == successor

    simulate_data(test)


def test_row_03_a_paused_leader_does_not_tell_an_old_end() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        await data.write(T, 3)
        data.world.pause(1)
        await data.led(T, 2, 3)
        await data.write(T, 3)
        data.world.resume(1)
        await Consumer(data, "c", T).ask_end(1)

    simulate_data(test)


def test_row_06_stale_metadata_of_a_client() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        await data.write(T)
        data.nodes.kill(1)
        await data.led(T, 2, 3)
        data.nodes.start(1)
        await data.nodes.ready()
        pinned = await data.producer("pinned").send(T, node=1, within_s=1.0)
        assert pinned is not None and pinned.outcome == "refused"
        with pytest.raises(LogError) as refusal:
            await ask(
                data,
                1,
                lambda core: core.services.replicas.partition("t", 0).append(
                    encode(["x"]), acks=Acks.ALL, timeout_s=APPEND_S
                ),
            )
        assert refusal.value.entry is NO_LEADER
        # A client that lets the node forward, or looks up the leader, is served.
        sent = await data.producer("retrying", routed=1.0).send(T)
        assert sent is not None and sent.outcome == "ok"

    simulate_data(test)


def test_row_06_a_node_with_old_metadata_passes_writes_on() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[2, 3, 1]])
        await data.write(T)
        controller = await data.nodes.until(data.nodes.controller)
        stale = next(node_id for node_id in (1, 3) if node_id != controller)
        if controller == 2:
            await data.nodes.call(2, lambda core: core.quorum.transfer_leadership(4 - stale))
        data.world.network.block(await data.nodes.until(data.nodes.controller), stale)
        await data.nodes.call(
            await data.nodes.until(data.nodes.controller),
            lambda core: core.services.metadata.operations.transfer_leader(
                "t", 0, BrokerId(4 - stale)
            ),
        )
        sends = [
            await data.producer("p", routed=1.0).send(T, within_s=2.0),
            await data.producer("q", stale=1.0, routed=0.0).send(T, within_s=2.0),
        ]
        assert any(each is not None and each.outcome == "ok" for each in sends)

    simulate_data(test)
