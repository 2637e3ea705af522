"""Members that find each other again by the voter lists of their peers only."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.raft.peers.keep_alive import KeepAlive
from tests.simulation.quorum.member_world import QUICK, MemberWorld
from tests.simulation.world import World, run

SETTLE_S = 12.0
QUIET_S = 3.0
"""Virtual seconds."""


async def a_voter_does_not_know_its_leader_for_one(world: World) -> None:
    """Node 2 led, and died over removing node 1, which no other node knows of.

    Node 1 leads now. By the log of node 2 the voters are 2 and 3: node 2 has no peer to call, and
    node 1, of the lowest id, waits for calls.
    """
    members = MemberWorld(world, 3, settings=QUICK)
    members.start_all()
    await members.elected()
    # The leader appends the voters' directories, and no member doubts the leader.
    await asyncio.sleep(QUIET_S)
    await lead(members, 2)
    world.network.partition([2], [1, 3])
    removal = asyncio.ensure_future(members.ask(2, lambda member: member.remove_voter(1)))
    log = members.members[2]._log
    await members.until(lambda: log.voters.ids == {2, 3} and log.lsn == log.durable_lsn)
    world.crash(2)
    assert not await removal
    await lead(members, 1)
    # Until a member is sure of its leader again, it calls all peers.
    await asyncio.sleep(QUIET_S)
    world.network.heal()
    members.start(2)
    await members.until(lambda: 2 in members.members)
    assert members.members[2].voters.ids == {2, 3}
    await members.settle(SETTLE_S)
    assert members.members[2].voters.ids == {1, 2, 3}


async def lead(members: MemberWorld, node_id: int) -> None:
    """Make that node the leader."""
    while (leader := await members.elected()) != node_id:
        await members.ask(leader, lambda member: member.transfer_leadership(node_id))


def test_a_leader_calls_a_voter_that_does_not_know_it_for_one() -> None:
    run(1, a_voter_does_not_know_its_leader_for_one)


def test_a_voter_without_a_leader_calls_those_it_hears_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeepAlive, "_lacks_voters", lambda _: False)
    run(1, a_voter_does_not_know_its_leader_for_one)


def test_without_either_the_voter_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeepAlive, "_lacks_voters", lambda _: False)
    monkeypatch.setattr(KeepAlive, "learn_voters", lambda *_: None)
    with pytest.raises(AssertionError, match="not within"):
        run(1, a_voter_does_not_know_its_leader_for_one)
