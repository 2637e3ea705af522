"""Whole nodes get votes, lose votes, and transfer leadership, while the cluster goes on."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.record.errors import ILLEGAL_STATE, LogError
from raftlog.record.types import BrokerId
from tests.simulation.node_world import SNAPSHOTS, NodeWorld, simulate_cluster


async def voters_are(nodes: NodeWorld, *expected: int) -> None:
    """Wait until all running nodes know these voters."""
    await nodes.until(
        lambda: all(core.quorum.voters.ids == {*expected} for core in nodes.cores.values())
    )


async def add(nodes: NodeWorld, asked: int, node_id: int) -> None:
    await nodes.call(asked, lambda core: core.quorum.add_voter(node_id))


async def remove(nodes: NodeWorld, asked: int, node_id: int) -> None:
    await nodes.call(asked, lambda core: core.quorum.remove_voter(node_id))


@pytest.mark.parametrize("asked", [1, 2, 3, 4])
def test_a_fourth_node_gets_a_vote_and_it_counts(asked: int) -> None:
    async def test(nodes: NodeWorld) -> None:
        await add(nodes, asked, 4)
        await voters_are(nodes, 1, 2, 3, 4)
        # Three of four are a majority, and two are none.
        first = nodes.controller()
        assert first is not None
        nodes.kill(first)
        rest = [node_id for node_id in nodes.node_ids if node_id != first]
        await nodes.ready(*rest)
        second = await nodes.until(nodes.controller)
        nodes.kill(second)
        await asyncio.sleep(3)
        assert nodes.controller() is None

    simulate_cluster(test, node_count=4)


@pytest.mark.parametrize("seed", range(3))
def test_all_voters_are_replaced_one_by_one(seed: int) -> None:
    async def test(nodes: NodeWorld) -> None:
        await nodes.create_topic(1, "t", partitions=6)
        for old, new in ((1, 4), (2, 5), (3, 6)):
            controller = await nodes.until(nodes.controller)
            await add(nodes, controller, new)
            await remove(nodes, old, old)
        await voters_are(nodes, 4, 5, 6)
        for node_id in (1, 2, 3):
            nodes.kill(node_id, power=True)
        await nodes.ready(4, 5, 6)
        # These nodes know the cluster from nodes now gone, and find the cluster all the same.
        for node_id in (1, 2, 3):
            nodes.start(node_id)
        await nodes.ready()
        await nodes.agreed()
        assert nodes.cores[1].quorum.voters.ids == {4, 5, 6}
        number = next(
            row.partition for row in nodes.image(1).topic("t").partitions if row.leader == 1
        )
        await nodes.until(lambda: nodes.takes_writes(1, "t", number))

    simulate_cluster(test, seed, node_count=6, member_settings=SNAPSHOTS)


def test_a_removed_voter_goes_on_as_a_node_without_a_vote() -> None:
    async def test(nodes: NodeWorld) -> None:
        controller = nodes.controller()
        assert controller is not None
        await remove(nodes, controller, controller)
        rest = sorted({1, 2, 3} - {controller})
        await voters_are(nodes, *rest)
        assert await nodes.until(nodes.controller) in rest
        number = await nodes.create_led_by(controller, "t")
        await nodes.until(lambda: nodes.takes_writes(controller, "t", number))
        nodes.kill(controller)
        nodes.start(controller)
        await nodes.ready()

    simulate_cluster(test)


def test_a_removed_and_unregistered_voter_may_come_back_with_an_empty_disk() -> None:
    async def test(nodes: NodeWorld) -> None:
        nodes.kill(3)
        await nodes.until(lambda: nodes.is_fenced(3))
        await remove(nodes, 1, 3)
        nodes.world.wipe(3)
        nodes.overrides[3] = {"voters": None, "join": nodes.world.address(1)}
        nodes.start(3)
        # Without its vote the node is accepted; as a broker it is still that of the old disk.
        assert "registered with another data directory" in await nodes.ended(3)
        nodes.endings.clear()
        await nodes.call(2, lambda core: core.services.metadata.unregister_broker(BrokerId(3)))
        nodes.start(3)
        await nodes.ready()
        await add(nodes, 3, 3)
        await voters_are(nodes, 1, 2, 3)

    simulate_cluster(test)


def test_an_unregistered_observer_may_come_back_with_an_empty_disk() -> None:
    async def test(nodes: NodeWorld) -> None:
        nodes.kill(4)
        nodes.world.wipe(4)
        nodes.start(4)
        assert "another data directory" in await nodes.ended(4)
        nodes.endings.clear()
        await nodes.until(lambda: nodes.is_fenced(4))
        await nodes.call(1, lambda core: core.services.metadata.unregister_broker(BrokerId(4)))
        nodes.start(4)
        await nodes.ready()

    simulate_cluster(test, node_count=4)


@pytest.mark.parametrize("away_for", [1, 30], ids=["log", "snapshot"])
def test_a_voter_that_was_away_lets_in_who_was_unregistered_meanwhile(away_for: int) -> None:
    async def test(nodes: NodeWorld) -> None:
        nodes.kill(2)
        nodes.kill(4)
        nodes.world.wipe(4)
        await nodes.until(lambda: nodes.is_fenced(4, seen_by=1))
        await nodes.call(1, lambda core: core.services.metadata.unregister_broker(BrokerId(4)))
        nodes.start(4)
        controller = await nodes.ready(1, 3, 4)
        for number in range(away_for):
            await nodes.create_topic(controller, f"t-{number}")
        nodes.start(2)
        await nodes.ready()
        await nodes.until(lambda: 4 in nodes.cores[2].quorum.peers())

    simulate_cluster(test, node_count=4, member_settings=SNAPSHOTS)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("named", [False, True])
def test_the_lead_is_handed_over_without_a_gap(named: bool, seed: int) -> None:
    async def test(nodes: NodeWorld) -> None:
        first = nodes.controller()
        fenced: list[int] = []
        nodes.checker.on_fenced = fenced.append
        target = max(node_id for node_id in (1, 2, 3) if node_id != first) if named else None
        began_at = nodes.world.loop.now
        await nodes.call(4, lambda core: core.quorum.transfer_leadership(target))
        second = await nodes.until(nodes.controller)
        assert nodes.world.loop.now - began_at < 0.2
        assert second != first
        assert target in (None, second)
        await asyncio.sleep(4)
        assert not fenced
        assert nodes.controller() == second

    simulate_cluster(test, seed, node_count=4)


def test_a_change_that_could_not_be_committed_is_refused() -> None:
    async def test(nodes: NodeWorld) -> None:
        controller = nodes.controller()
        assert controller is not None
        dead, alive = sorted({1, 2, 3} - {controller})
        nodes.kill(dead)
        await nodes.until(lambda: nodes.is_fenced(dead))
        with pytest.raises(LogError, match="only 1 answer") as caught:
            await remove(nodes, controller, alive)
        assert caught.value.entry is ILLEGAL_STATE
        with pytest.raises(LogError, match="not connected"):
            await add(nodes, alive, 9)
        await nodes.ready(controller, alive)

    simulate_cluster(test)
