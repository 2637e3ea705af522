"""Leadership and its end: needless elections, and leaders that were deposed.

Each defect has a trace, run with the shipped code and with its guard switched off.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftlog.raft.interface import MemberSettings
from raftlog.raft.messages import PreVoteGranted
from raftlog.raft.rules import Timing
from tests.simulation.quorum.core_cluster import CoreCluster
from tests.simulation.quorum.member_world import QUICK, MemberWorld
from tests.simulation.quorum.switches import higher_terms_are_ignored, prevote_off
from tests.simulation.world import World, run

Patch = pytest.MonkeyPatch
AWAY_S = 1.5
SEEDS = range(1, 4)


async def a_follower_returns(world: World) -> int:
    """Terms burnt by a follower that was cut off from a leader with a majority."""
    members = MemberWorld(world, 3, settings=QUICK)
    members.start_all()
    leader = await members.elected()
    follower = leader % 3 + 1
    others = [node_id for node_id in members.node_ids if node_id != follower]
    term = members.members[leader].term
    world.network.partition([follower], others)
    end = world.loop.time() + AWAY_S
    await members.until(lambda: world.loop.time() > end)
    world.network.heal()
    await members.propose(leader, b"after")
    await members.settle()
    end = world.loop.time() + AWAY_S
    await members.until(lambda: world.loop.time() > end)
    return max(member.term for member in members.members.values()) - term


@pytest.mark.parametrize("seed", SEEDS)
def test_follower_that_was_cut_off_and_returns_holds(seed: int) -> None:
    """A follower without a leader begins elections; its term deposes the leader when it is back.

    Source: Ongaro 2014, section 9.6.
    """
    assert run(seed, a_follower_returns) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_follower_that_was_cut_off_and_returns_without_guard_fails(
    monkeypatch: Patch, seed: int
) -> None:
    prevote_off(monkeypatch)
    assert run(seed, a_follower_returns) > 1


def test_late_grants_of_a_pre_vote_that_was_won_count_for_nothing() -> None:
    """A leader that steps down requests new pre-votes before it raises its term.

    Regression: of three members, the grant of the third arrived when the election had begun, was
    kept, and let the leader begin another one as soon as it had stepped down.
    """
    cores = CoreCluster((1, 2, 3))
    cores.campaign(1, 2, 3)
    cores.exchange()
    assert cores[1].core.is_leader
    # Isolated by now, it reaches its election timeout after it has stepped down.
    cores.isolate(1)
    cores.campaign(1)
    assert not cores[1].core.is_leader
    assert cores[1].core.term == 1


def test_grants_of_a_pre_vote_before_a_leaders_snapshot_count_for_nothing() -> None:
    """A member that heard of a leader, by a snapshot, requests new pre-votes after its death.

    Regression: the grants of an earlier round were kept for the next time.
    """
    cores = CoreCluster((1, 2, 3))
    cores.elect(1, 2, 3)
    cores.settle(1)
    seat = cores[3]
    cores.expire_election_timeout(3)
    cores.take(2, 3, PreVoteGranted(1, seat.core._prevotes._round))
    seat.disable_election()
    assert seat.core.heard_leader(1, 1)
    cores.isolate(3)
    cores.campaign(3)
    assert seat.core.term == 1


async def a_leader_loses_the_others(world: World, settings: MemberSettings) -> tuple[float, float]:
    """How long an isolated leader stays leader, and active."""
    members = MemberWorld(world, 3, settings=settings)
    members.start_all()
    leader = await members.elected()
    others = [node_id for node_id in members.node_ids if node_id != leader]
    world.network.partition([leader], others)
    start = world.loop.time()
    member = members.members[leader]
    await members.until(lambda: not member.is_active or world.loop.time() > start + 10)
    active_s = world.loop.time() - start
    await members.until(lambda: not member._core.is_leader or world.loop.time() > start + 10)
    return active_s, world.loop.time() - start


def test_isolated_leader_holds() -> None:
    """pysyncobj's leader claims to lead for 30 s after losing its majority.

    Source: the quorum's design; Ongaro 2014, section 6.2 ("a leader in Raft steps down").
    """
    active_s, leading_s = run(1, lambda world: a_leader_loses_the_others(world, QUICK))
    assert active_s < 1.0
    assert leading_s < 1.0


def test_isolated_leader_without_guard_fails() -> None:
    stock = replace(QUICK, timing=Timing(fallback_s=30.0))
    active_s, leading_s = run(1, lambda world: a_leader_loses_the_others(world, stock))
    assert active_s > 3.0
    assert leading_s > 9.0


async def a_follower_is_ahead_by_a_term(world: World) -> None:
    """A candidate has raised its term when all its requests for votes are lost."""
    members = MemberWorld(world, 3, settings=QUICK)
    members.start_all()
    leader = await members.elected()
    follower = leader % 3 + 1
    core = members.core(follower)
    # It had won a pre-vote, at a moment without heartbeats.
    core._enter_term(core.term + 1, follower)
    await members.until(lambda: members.leader() is not None, 5.0)
    await members.propose(await members.elected(), b"after")
    await members.until(lambda: members.ledgers[follower].commands == [b"after"], 5.0)


def test_follower_ahead_by_a_term_holds() -> None:
    """With pre-votes, a follower of a higher term is denied an election while a leader lives.

    It refuses that leader's appends for ever, unless the leader takes note of its term, which
    pysyncobj does not do with answers. Source: the Raft
    paper, figure 2, "Rules for servers".
    """
    run(1, a_follower_is_ahead_by_a_term)


def test_follower_ahead_by_a_term_without_guard_fails(monkeypatch: Patch) -> None:
    higher_terms_are_ignored(monkeypatch)
    with pytest.raises(AssertionError, match="not within"):
        run(1, a_follower_is_ahead_by_a_term)
