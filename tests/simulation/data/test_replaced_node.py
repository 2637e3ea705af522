"""A node with a lost disk: an empty one takes its number, its vote and its replicas."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from raftlog.node.assembly import NodeCore
from raftlog.node.quorum_recovery import describe_survivor, make_sole_voter
from raftlog.node.replacement import REPLACEMENT_FILE
from tests.simulation.data.data_world import DataWorld, Part, simulate_data

T = Part("t", 0)
U = Part("u", 0)
LOST = 3


def lose_disk(data: DataWorld, node_id: int) -> None:
    """Kill a node and empty its disk; its next start takes the lost one's place."""
    data.nodes.kill(node_id, power=True)
    data.world.wipe(node_id)
    for part in (T, U):
        data.replicas.damaged(node_id, data.key(part))
    others = ",".join(map(data.world.address, data.nodes.others(node_id)))
    data.nodes.overrides[node_id] = {"voters": None, "join": others, "replace": node_id}


def is_whole(data: DataWorld, node_id: int, *, has_vote: bool = True) -> bool:
    """Whether the node is ready by the rule of /ready, with its vote."""
    core = data.nodes.cores.get(node_id)
    if core is None or core.not_ready is not None:
        return False
    if core.services.catching_up() is not None:
        return False
    for part in (T, U):
        assert node_id in data.row(part).isr, "ready before its replicas were in sync"
    assert (node_id in core.quorum.voters.ids) == has_vote, "ready before it had its vote"
    return True


async def add_voter(node_id: int, core: NodeCore) -> None:
    await core.quorum.add_voter(node_id)


async def written(data: DataWorld) -> None:
    await data.create("t", [[LOST, 1, 2]])
    await data.create("u", [[1, LOST, 2]])
    for _ in range(10):
        await data.write(T, 2)
        await data.write(U, 2)
    await data.in_sync()


@pytest.mark.parametrize("seed", range(5))
def test_replacement_has_number_vote_and_replicas(seed: int) -> None:
    async def test(data: DataWorld) -> None:
        await written(data)
        lose_disk(data, LOST)
        data.nodes.start(LOST)
        await data.write(T, 2)
        await data.nodes.until(lambda: is_whole(data, LOST))
        disk = data.world.disk(LOST)
        assert not disk.exists(REPLACEMENT_FILE)
        # Its vote counts: with one of the others gone there is a majority.
        data.nodes.kill(1, power=True)
        await data.nodes.ready(2, LOST)
        await data.write(T, 2)
        await data.write(U, 2)
        data.nodes.start(1)
        # The option may stay in the command line.
        data.nodes.kill(LOST)
        data.nodes.start(LOST)
        await data.nodes.until(lambda: is_whole(data, LOST))
        assert data.row(T).unclean_epoch == -1

    simulate_data(test, seed)


@pytest.mark.parametrize("seed", range(12))
def test_replacement_killed_at_any_moment_is_whole_after_the_next_start(seed: int) -> None:
    async def test(data: DataWorld) -> None:
        await written(data)
        lose_disk(data, LOST)
        random = data.world.random("kills")
        for _ in range(4):
            data.nodes.start(LOST)
            await asyncio.sleep(random.choice([0.02, 0.1, 0.3, 1.0, 3.0]))
            data.nodes.kill(LOST, power=random.random() < 0.5)
            if random.random() < 0.5:
                # The first start's options are remembered.
                data.nodes.overrides[LOST] = {"voters": None, "join": None}
                if not data.world.disk(LOST).exists("directory.json"):
                    lose_disk(data, LOST)
        data.nodes.start(LOST)
        await data.nodes.until(lambda: is_whole(data, LOST))
        await data.write(T, 2)
        assert data.row(T).unclean_epoch == -1

    simulate_data(test, seed)


def test_lost_disk_that_comes_back_is_refused() -> None:
    async def test(data: DataWorld) -> None:
        await written(data)
        lost = data.world.disk(LOST).contents("directory.json")
        lose_disk(data, LOST)
        data.nodes.start(LOST)
        await data.nodes.until(lambda: is_whole(data, LOST))
        data.nodes.kill(LOST, power=True)
        disk = data.world.disk(LOST)
        new = disk.contents("directory.json")
        disk.replace("directory.json", lost)
        data.nodes.start(LOST)
        await data.nodes.until(
            lambda: data.nodes.cores.get(LOST) and data.nodes.cores[LOST].quorum.rejected_by
        )
        await asyncio.sleep(2.0)
        assert not data.nodes.is_ready(LOST)
        data.nodes.kill(LOST, power=True)
        disk.replace("directory.json", new)
        data.nodes.start(LOST)
        await data.nodes.until(lambda: is_whole(data, LOST))

    simulate_data(test)


@pytest.mark.parametrize("seed", range(5))
def test_lost_majority_is_recovered_from_one_survivor(seed: int) -> None:
    """Two of three disks are lost for good: the survivor becomes the only voter."""

    async def test(data: DataWorld) -> None:
        await written(data)
        survivor = 1
        for lost in (2, 3):
            lose_disk(data, lost)
        await asyncio.sleep(3.0)
        assert data.nodes.controller() is None
        data.nodes.kill(survivor)
        disk = data.world.disk(survivor)
        before = describe_survivor(disk)
        assert before.voters.ids == {1, 2, 3}
        make_sole_voter(disk)
        assert describe_survivor(disk).voters.ids == {survivor}
        length = describe_survivor(disk).last_index
        make_sole_voter(disk)
        assert describe_survivor(disk).last_index == length == before.last_index + 1
        data.nodes.start(survivor)
        await data.nodes.until(lambda: data.nodes.controller() == survivor)
        for lost in (2, 3):
            others = [each for each in data.nodes.others(lost) if each in data.nodes.cores]
            data.nodes.overrides[lost]["join"] = ",".join(map(data.world.address, others))
            data.nodes.start(lost)
            await data.nodes.until(partial(is_whole, data, lost, has_vote=False))
            # Its vote is gone with the old voter set.
            await data.nodes.call(survivor, partial(add_voter, lost))
        data.nodes.kill(survivor, power=True)
        await data.nodes.ready(2, 3)
        await data.write(T, 2)
        await data.write(U, 2)
        assert data.row(T).unclean_epoch == -1
        data.nodes.start(survivor)

    simulate_data(test, seed)
