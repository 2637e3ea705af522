"""The scenarios of MIT's course 6.5840, lab 3D: snapshots in place of the log."""

from __future__ import annotations

import pytest

from tests.simulation.quorum.member_world import SNAPSHOTS, MemberWorld
from tests.simulation.world import World, run


async def snapshots(world: World, kind: str) -> None:
    members = MemberWorld(world, 3, settings=SNAPSHOTS)
    chance = world.random("snapshots")
    members.start_all()
    for turn in range(5):
        leader = await members.elected()
        victim = chance.choice(members.node_ids) if turn % 3 == 1 else leader % 3 + 1
        others = [node_id for node_id in members.node_ids if node_id != victim]
        if kind == "disconnect":
            world.network.partition([victim], others)
        elif kind == "crash":
            world.crash(victim, power=True)
        elif kind == "unreliable":
            for other in others:
                world.network.slow(other, victim, 0.02)
                world.network.reset(victim, other)
        leader = await members.until(lambda: members.leader() in others and members.leader())  # noqa: B023
        for _ in range(20):
            await members.propose(leader)
        if kind == "crash":
            members.start(victim)
            await members.until(lambda: victim in members.members)  # noqa: B023
        for other in others:
            world.network.reset(victim, other)
        world.network.heal()
        await members.settle()
        for member in members.members.values():
            # The log stays short: entries in snapshots go.
            assert member._log.last_index - member._log.first_index < 12 + 3 + 20
    assert min(member._log.first_index for member in members.members.values()) > 60


@pytest.mark.parametrize("kind", ["basic", "disconnect", "unreliable", "crash"])
def test_snapshots_replace_the_log(kind: str) -> None:
    """3D "snapshots basic", "install snapshots (disconnect)", "(unreliable)" and "(crash)"."""
    if kind == "basic":
        run(1, basic)
    else:
        run(1, lambda world: snapshots(world, kind))


async def basic(world: World) -> None:
    members = MemberWorld(world, 3, settings=SNAPSHOTS)
    members.start_all()
    leader = await members.elected()
    for _ in range(50):
        await members.propose(leader)
    await members.settle()
    for node_id in members.node_ids:
        status = members.members[node_id].status()
        assert status.snapshot_index >= 40
    # 3D "crash and restart all servers": all begin with the snapshot.
    for node_id in members.node_ids:
        world.crash(node_id, power=True)
    members.start_all()
    await members.until(lambda: len(members.members) == 3)
    assert all(len(ledger.commands) >= 35 for ledger in members.ledgers.values())
    await members.settle()
    assert len(members.ledgers[1].commands) == 50 + 2
