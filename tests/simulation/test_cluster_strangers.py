"""Nodes that must stay outside: another cluster's, a second of one id, one with a wiped disk.

Each gets the reason and the next step, ends, and never serves.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.simulation.life import Life
from tests.simulation.node_world import SNAPSHOTS, NodeWorld, simulate


def never_serves(nodes: NodeWorld, *strangers: int) -> None:
    """Look after every event from now on."""
    before = nodes.world.loop.after_event

    def look(life: Life) -> None:
        assert life.node_id not in strangers or not nodes.is_ready(life.node_id)
        if before is not None:
            before(life)

    nodes.world.loop.after_event = look


async def begin(nodes: NodeWorld) -> None:
    """Nodes 1 to 3 are a cluster with a topic on each."""
    for node_id in (1, 2, 3):
        nodes.start(node_id)
    controller = await nodes.ready(1, 2, 3)
    await nodes.create_topic(controller, "t", partitions=3)


async def still_there(nodes: NodeWorld, *node_ids: int) -> None:
    """The cluster goes on as if nothing had been."""
    controller = await nodes.ready(*node_ids)
    await nodes.create_topic(controller, "after", partitions=len(node_ids))
    assert {ending.node_id for ending in nodes.endings} <= {4, 5}.union({1, 2, 3} - {*node_ids})


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("wiped", [1, 2, 3])
def test_a_voter_with_a_wiped_disk_is_refused(wiped: int, power: bool) -> None:
    async def test(nodes: NodeWorld) -> None:
        await begin(nodes)
        # The voters' directories are known to all soon after the voters have connected.
        await nodes.until(
            lambda: all(voter.directory_id for voter in nodes.cores[wiped].quorum.voters.voters)
        )
        nodes.kill(wiped, power=power)
        nodes.world.wipe(wiped)
        never_serves(nodes, wiped)
        nodes.start(wiped)
        assert "another data directory" in await nodes.ended(wiped)
        await still_there(nodes, *sorted({1, 2, 3} - {wiped}))

    simulate(test)


def test_a_voter_with_a_wiped_disk_is_refused_when_it_joins() -> None:
    async def test(nodes: NodeWorld) -> None:
        await begin(nodes)
        nodes.kill(3)
        nodes.world.wipe(3)
        never_serves(nodes, 3)
        nodes.overrides[3] = {"voters": None, "join": nodes.world.address(1)}
        nodes.start(3)
        assert "another data directory" in await nodes.ended(3)
        await still_there(nodes, 1, 2)

    simulate(test)


def test_an_observer_with_a_wiped_disk_is_refused() -> None:
    async def test(nodes: NodeWorld) -> None:
        await begin(nodes)
        nodes.start(4)
        await nodes.ready(4)
        nodes.kill(4)
        nodes.world.wipe(4)
        never_serves(nodes, 4)
        nodes.start(4)
        assert "another data directory" in await nodes.ended(4)
        await still_there(nodes, 1, 2, 3)

    simulate(test, node_count=4)


@pytest.mark.parametrize("asked", [1, 2, 3])
@pytest.mark.parametrize("taken", [2, 4])
def test_a_second_node_of_one_id_is_refused(taken: int, asked: int) -> None:
    async def test(nodes: NodeWorld) -> None:
        await begin(nodes)
        nodes.start(4)
        await nodes.ready(4)
        nodes.overrides[5] = {"node_id": taken, "join": nodes.world.address(asked)}
        never_serves(nodes, 5)
        nodes.start(5)
        reason = await nodes.ended(5)
        assert "in use twice" in reason or "another data directory" in reason
        await still_there(nodes, 1, 2, 3, 4)

    simulate(test, node_count=5)


def test_voters_that_were_given_different_lists_do_not_begin_a_cluster() -> None:
    async def test(nodes: NodeWorld) -> None:
        nodes.overrides[3] = {"voters": f"{nodes.voters},4@{nodes.world.address(4)}"}
        never_serves(nodes, 3)
        for node_id in (1, 2, 3):
            nodes.start(node_id)
        assert "different lists of voters" in await nodes.ended(3)
        await nodes.ready(1, 2)

    simulate(test, node_count=4)


@pytest.mark.parametrize("knows", [True, False], ids=["of-old", "of-late"])
def test_a_node_of_another_cluster_is_refused(knows: bool) -> None:
    async def test(nodes: NodeWorld) -> None:
        world = nodes.world
        nodes.checker.is_off = True
        voters = f"4@{world.address(4)},5@{world.address(5)}"
        nodes.overrides = {node_id: {"voters": voters, "join": None} for node_id in (4, 5)}
        await begin(nodes)
        for node_id in (4, 5):
            nodes.start(node_id)
        await nodes.until(lambda: nodes.is_ready(4) and nodes.is_ready(5))
        assert nodes.image(4).cluster_id != nodes.image(1).cluster_id
        # A voter's journal alone does not show committed entries: a snapshot does.
        for number in range(30 * knows):
            await nodes.create_topic(5, f"t-{number}")
        for node_id in (3, 4, 5):
            nodes.kill(node_id)
        # Where node 5 is looked for, a node of the first cluster is found now.
        address = world.address(4)
        world.network.move(4, "elsewhere.test:8082")
        world.network.move(3, address)
        nodes.overrides[3] = {"voters": None}
        never_serves(nodes, 5)
        nodes.start(3)
        nodes.start(5)
        expected = "belongs to cluster" if knows else "different lists of voters"
        assert expected in await nodes.ended(5)
        await still_there(nodes, 1, 2, 3)

    simulate(test, node_count=5, member_settings=SNAPSHOTS)


def test_a_data_directory_is_not_served_under_another_id() -> None:
    async def test(nodes: NodeWorld) -> None:
        await begin(nodes)
        nodes.kill(3)
        nodes.overrides[3] = {"node_id": 9, "voters": None}
        never_serves(nodes, 3)
        nodes.start(3)
        assert "belongs to node 3" in await nodes.ended(3)
        await still_there(nodes, 1, 2)

    simulate(test)


def test_a_node_without_a_cluster_to_join_reports_and_ends() -> None:
    async def test(nodes: NodeWorld) -> None:
        never_serves(nodes, 4)
        nodes.start(4)
        await asyncio.sleep(20)
        assert nodes.world.is_up(4)
        assert "No node of the cluster answered" in await nodes.ended(4)

    simulate(test, node_count=4)
