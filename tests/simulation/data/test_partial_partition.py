"""Links that are cut between some nodes only: the lead moves to where the minimum can be met."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.metadata.image import NO_LEADER_ID
from tests.simulation.data.data_world import DataWorld, Part, simulate_data

T = Part("t", 0)


@pytest.mark.parametrize("seed", range(3))
def test_leader_cut_off_from_its_followers_hands_over(seed: int) -> None:
    """The leader reaches the controller; the followers reach all but the leader."""

    async def test(data: DataWorld) -> None:
        _, leader, one, two = await data.beside_controller()
        data.world.network.partition([leader], [one, two])
        producer = data.producer("p")
        began = data.world.loop.now
        while (send := await producer.send(T, 1)) is None or send.outcome != "ok":
            assert data.world.loop.now - began < 20.0, f"no write: {data.row(T)}"
        assert data.row(T).leader in {one, two}
        assert data.row(T).unclean_epoch == -1
        data.world.network.heal()
        await data.nodes.until(lambda: data.is_in_sync(T))

    simulate_data(test, seed, node_count=5, voter_count=5)


@pytest.mark.parametrize("good", [1, 2])
def test_replica_that_reaches_another_one_is_found(good: int) -> None:
    """Of three links between the replicas one works: between two replicas other than the leader."""

    async def test(data: DataWorld) -> None:
        controller = await data.nodes.until(data.nodes.controller)
        leader, *others = data.nodes.others(controller)
        await data.create("t", [[leader, *others[:3]]], {"min.insync.replicas": "2"})
        await data.write(T, 3)
        await data.in_sync()
        reached = {1: (others[0], others[1]), 2: (others[1], others[2])}[good]
        for a in (leader, *others[:3]):
            for b in (leader, *others[:3]):
                if a < b and {a, b} != set(reached):
                    data.world.network.partition([a], [b])
        producer = data.producer("p")
        began = data.world.loop.now
        while (send := await producer.send(T, 1)) is None or send.outcome != "ok":
            assert data.world.loop.now - began < 90.0, f"no write: {data.row(T)}"
        assert set(data.row(T).isr) <= set(reached)
        data.world.network.heal()
        await data.nodes.until(lambda: data.is_in_sync(T))

    simulate_data(test, node_count=5, voter_count=5)


def test_replicas_that_do_not_reach_each_other_change_seldom() -> None:
    async def test(data: DataWorld) -> None:
        _, *members = await data.beside_controller()
        for number, node_id in enumerate(members):
            data.world.network.partition([node_id], members[number + 1 :])
        producer = data.producer("p", idempotent=False, repeats=False)
        await producer.send(T, 1, node=members[0], within_s=1.6)
        await asyncio.sleep(10.0)
        before = data.row(T)
        assert before.leader != NO_LEADER_ID
        for seconds, changes in [(60.0, 16), (240.0, 16), (240.0, 6)]:
            before = data.row(T)
            await asyncio.sleep(seconds)
            assert data.row(T).leader_epoch - before.leader_epoch <= changes
        data.world.network.heal()
        await data.nodes.until(lambda: data.is_in_sync(T))

    simulate_data(test, node_count=5, voter_count=5)


def test_leader_stays_where_its_followers_are_dead_or_slow() -> None:
    async def test(data: DataWorld) -> None:
        _, leader, one, two = await data.beside_controller()
        epoch = data.row(T).leader_epoch
        data.nodes.kill(one)
        data.world.times(two).stick(8.0)
        producer = data.producer("p", idempotent=False, repeats=False)
        await producer.send(T, 1, node=leader, within_s=1.6)
        await asyncio.sleep(10.0)
        assert (data.row(T).leader, data.row(T).leader_epoch) == (leader, epoch)
        data.nodes.start(one)
        await data.nodes.until(lambda: data.is_in_sync(T))

    simulate_data(test, node_count=5, voter_count=1)
