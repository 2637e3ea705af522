"""The scenarios of MIT's course 6.5840 (labs 3A to 3D) outside of every random schedule.

Left to the random schedules (`test_schedules.py`), which have these in every seed: agreement with
failing and returning members, restarts, unreliable links. Message by message (`CoreCluster`) where
the order matters, in the simulated world where time does.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from raftlog.raft import core
from raftlog.raft.interface import Applied
from raftlog.raft.messages import Append, AppendAnswer
from tests.simulation.quorum.core_cluster import CoreCluster
from tests.simulation.quorum.core_harness import TIMING
from tests.simulation.quorum.member_world import QUICK, SNAPSHOTS, MemberWorld
from tests.simulation.quorum.switches import older_terms_are_counted, violation
from tests.simulation.quorum.test_defects_messages import entries_sent
from tests.simulation.world import World, run

FIVE = (1, 2, 3, 4, 5)


async def passes(world: World, members: MemberWorld, seconds: float) -> None:
    end = world.loop.time() + seconds
    await members.until(lambda: world.loop.time() >= end, seconds + 1)


# 3A: elections


async def quiet(world: World) -> None:
    members = MemberWorld(world, 3, settings=QUICK)
    members.start_all()
    leader = await members.elected()
    term = members.members[leader].term
    counts = {"messages": 0}

    def on_message(_source: int, _target: int, _message: object) -> bool:
        counts["messages"] += 1
        return True

    members.on_message = on_message  # type: ignore[assignment]
    await passes(world, members, 5.0)
    assert members.leader() == leader
    assert members.members[leader].term == term
    # Two followers, a heartbeat and an answer each; a ping a second on six directions.
    assert counts["messages"] < 5.0 * (2 * 2 / TIMING.heartbeat_s + 6) * 1.1


def test_leader_stays_without_failures_and_sends_little() -> None:
    """3A "initial election": the term stays; 3B "RPC counts": an idle cluster says little."""
    run(1, quiet)


async def many_elections(world: World) -> None:
    members = MemberWorld(world, 7, settings=QUICK)
    chance = world.random("elections")
    members.start_all()
    await members.elected()
    for _ in range(8):
        away = chance.sample(members.node_ids, 3)
        others = [node_id for node_id in members.node_ids if node_id not in away]
        world.network.partition(away, others)
        # Either the leader stays, or the remaining members elect one.
        await members.until(lambda here=others: members.leader() in here, 4.0)  # type: ignore[misc]
        world.network.heal()
        await members.elected()
    await members.settle()


def test_seven_members_elect_a_leader_whichever_three_are_away() -> None:
    """3A "many elections"."""
    run(1, many_elections)


async def no_majority(world: World) -> None:
    members = MemberWorld(world, 3, settings=QUICK)
    members.start_all()
    leader = await members.elected()
    for node_id in members.node_ids:
        world.network.partition(
            [node_id], [other for other in members.node_ids if other != node_id]
        )
    await members.until(lambda: members.leader() is None)
    await passes(world, members, 3.0)
    assert members.leader() is None
    outcome = await members.propose(leader)
    assert not isinstance(outcome, Applied)
    world.network.heal()
    await members.settle()


def test_leader_needs_a_majority() -> None:
    """3A "re-election": no leader without a majority; 3B "no agreement if too many disconnect"."""
    run(1, no_majority)


# 3B: agreement


def test_each_entry_is_sent_to_each_member_once() -> None:
    """3B "RPC byte count": commands are not sent again and again."""
    cores = CoreCluster(FIVE)
    cores.elect(1, 2, 3, 4, 5)
    cores.settle(1)
    before = {peer: entries_sent(cores, peer) for peer in (2, 3, 4, 5)}
    for number in range(30):
        cores.propose(1, b"%d" % number)
        cores.exchange()
    assert all(entries_sent(cores, peer) - before[peer] == 30 for peer in (2, 3, 4, 5))


def test_many_proposals_take_few_messages() -> None:
    """3B "RPC counts": so many commands at once are one append and one answer for each member."""
    cores = CoreCluster((1, 2, 3))
    cores.elect(1, 2, 3)
    cores.settle(1)
    before = len(cores.delivered)
    for number in range(100):
        cores[1].core.append(0, b"%d" % number)
    cores.pump(1)
    cores.exchange()
    # The entries, the answer, the commit index, its answer.
    assert len(cores.delivered) - before <= 2 * 4
    kinds = {type(message) for _, _, message in cores.delivered[before:]}
    assert kinds == {Append, AppendAnswer}


async def concurrent_starts(world: World) -> None:
    members = MemberWorld(world, 3, 1, settings=QUICK)
    members.start_all()
    leader = await members.elected()
    await members.until(lambda: all(m.leader_id == leader for m in members.members.values()))
    outcomes = await asyncio.gather(
        *(members.propose(node_id) for node_id in members.node_ids for _ in range(5))
    )
    indexes = [outcome.index for outcome in outcomes if isinstance(outcome, Applied)]
    assert len(set(indexes)) == 20, "all applied, each at an index of its own"
    await members.settle()


def test_proposals_of_one_moment_get_an_index_each() -> None:
    """3B "concurrent Start()s", from every member at once."""
    run(1, concurrent_starts)


def test_deposed_leader_rejoins_while_the_next_one_is_deposed() -> None:
    """3B "rejoin of partitioned leader"."""
    cores = CoreCluster((1, 2, 3))
    cores.elect(1, 2, 3)
    cores.propose(1, b"101")
    cores.settle(1)
    # 1 is cut off and takes commands; 2 leads, commits one, and is cut off; 1 is back.
    cores.propose(1, b"102", b"103", b"104")
    cores.isolate(1)
    cores.elect(2, 3)
    cores.propose(2, b"105")
    cores.exchange(2, 3)
    cores.isolate(1)
    cores.propose(2, b"106")
    cores.isolate(2)
    cores.elect(3, 1)
    cores.propose(3, b"107")
    cores.settle(3)
    assert cores[1].ledger.commands == [b"101", b"105", b"107"]


def test_leaders_bring_long_wrong_logs_into_line_quickly() -> None:
    """3B "leader backs up quickly over incorrect follower logs"."""
    cores = CoreCluster(FIVE)
    cores.elect(1, 2, 3, 4, 5)
    cores.propose(1, b"first")
    cores.settle(1)
    # 50 commands on 1 and 2; 50 committed ones of 3, 4 and 5; 50 more on 3 and 4.
    cores.propose(1, *(b"lost %d" % number for number in range(50)))
    cores.exchange(1, 2)
    for node_id in (1, 2):
        cores.isolate(node_id)
    cores.elect(3, 4, 5)
    cores.propose(3, *(b"kept %d" % number for number in range(50)))
    cores.exchange(3, 4, 5)
    for node_id in (1, 2, 5):
        cores.isolate(node_id)
    cores.propose(3, *(b"lost too %d" % number for number in range(50)))
    cores.exchange(3, 4)
    for node_id in (3, 4):
        cores.isolate(node_id)
    # 5 is elected by 1 and 2, having the committed entries that these lack.
    count = len(cores.delivered)
    cores.elect(5, 1, 2)
    cores.settle(5)
    assert len(cores.delivered) - count < 70
    cores.propose(5, *(b"last %d" % number for number in range(50)))
    cores.settle(5)
    assert len(cores.commands(3)) == 1 + 50 + 50


# 3C: figure 8


def figure_8() -> None:
    """(a) to (d): a copy of an older term's entry on a majority does not commit the entry."""
    cores = CoreCluster(FIVE)
    # (a) 1 leads and replicates an entry to 2 only.
    cores.elect_briefly(1, 2, 3, 4, 5)
    cores.propose(1, b"two")
    cores.exchange(1, 2)
    cores.isolate(1)
    # (b) 5 is elected by 3 and 4, and takes another entry, for itself alone.
    cores.elect_briefly(5, 3, 4)
    cores.isolate(5)
    # (c) 1 starts again, is elected, and its old entry comes to a majority: no commit.
    cores.restart(1)
    cores.elect_briefly(1, 2, 3, 4)
    for peer in (4, 5):
        cores.isolate(peer)
    cores.exchange(1, 2)
    while cores[1].core.match_index(3) != 3:
        cores.deliver(1, 3)
        cores.deliver(3, 1, len(cores.on_way[3, 1]))
    assert [cores.terms(node) for node in FIVE] == [[1, 1, 3], [1, 1, 3], [1, 1], [], [2]]
    cores.isolate(1)
    # (d) 5 is elected by 3 and 4, and replaces the entry everywhere.
    cores.elect(5, 3, 4)
    cores.isolate(1)
    cores.settle(5)
    assert cores.terms(1) == [2, 4]


def test_entry_of_an_older_term_on_a_majority_is_replaced_as_in_figure_8(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """3C "figure 8", which is the paper's."""
    monkeypatch.setattr(core, "ENTRIES_PER_APPEND_MAX", 1)
    figure_8()


def test_entry_of_an_older_term_without_guard_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard is pysyncobj's own."""
    monkeypatch.setattr(core, "ENTRIES_PER_APPEND_MAX", 1)
    older_terms_are_counted(monkeypatch)
    with violation(match="leader 5 of term 4 lacks committed 2"):
        figure_8()


def test_entry_of_an_older_term_is_committed_with_a_newer_one_as_in_figure_8() -> None:
    """3C "figure 8", (e): with an entry of the new term on a majority, the old one is safe."""
    cores = CoreCluster(FIVE)
    cores.elect_briefly(1, 2, 3, 4, 5)
    cores.propose(1, b"two")
    cores.exchange(1, 2)
    cores.isolate(1)
    cores.elect_briefly(5, 3, 4)
    cores.propose(5, b"three")
    cores.isolate(5)
    cores.restart(1)
    cores.elect_briefly(1, 2, 3, 4)
    cores.isolate(4)
    cores.exchange(1, 2, 3)
    assert cores[1].ledger.commands == [b"two"]
    cores.isolate(1)
    # 5 requests votes of 2, 3 and 4; only 4 would grant one.
    cores.campaign(5, 2, 3, 4)
    cores.exchange(5, 2, 3, 4)
    assert not cores[5].core.is_leader
    cores.elect(2, 3, 4)
    cores.settle(2)
    assert cores[5].ledger.commands == [b"two"]


@pytest.mark.parametrize("seed", range(5))
def test_leaders_die_right_after_they_took_a_command(seed: int) -> None:
    """3C "figure 8 (unreliable)": leaders come and go, most messages are lost or late."""
    chance = random.Random(f"figure 8 {seed}")
    cores = CoreCluster(FIVE)
    for number in range(120):
        leaders = [node for node in FIVE if cores[node].core.is_leader]
        for leader in leaders:
            cores.propose(leader, b"%d of %d" % (number, leader))
        for pair in sorted(cores.on_way):
            for _ in range(len(cores.on_way[pair])):
                if cores.on_way[pair] and chance.random() < 0.6:
                    cores.deliver(*pair)
        if leaders and chance.random() < 0.5:
            dead = chance.choice(leaders)
            cores.restart(dead)
        if chance.random() < 0.5:
            cores.campaign(chance.choice(FIVE), *chance.sample(FIVE, 3))
    cores.exchange()
    for node in FIVE:
        if not any(seat.core.is_leader for seat in cores.seats.values()):
            cores.campaign(node, *(other for other in FIVE if other != node))
            cores.exchange()
    leader = max((cores[node].core.term, node) for node in FIVE if cores[node].core.is_leader)[1]
    cores.propose(leader, b"last")
    cores.settle(leader)
    assert cores[leader].ledger.commands[-1] == b"last"


async def churn(world: World, settings: object = QUICK) -> None:
    members = MemberWorld(world, 5, settings=settings)  # type: ignore[arg-type]
    chance = world.random("churn")
    members.start_all()
    await members.elected()
    end = world.loop.time() + 6.0

    async def client() -> None:
        while world.loop.time() < end:
            await members.propose(chance.choice(members.node_ids))
            await asyncio.sleep(chance.uniform(0.005, 0.05))

    async def nemesis() -> None:
        while world.loop.time() < end:
            node_id = chance.choice(members.node_ids)
            if world.is_up(node_id):
                world.crash(node_id, power=chance.random() < 0.5)
            await asyncio.sleep(chance.uniform(0.05, 0.3))
            for other in members.node_ids:
                if not world.is_up(other) and chance.random() < 0.6:
                    members.start(other)

    await asyncio.gather(nemesis(), *(client() for _ in range(3)))
    for node_id in members.node_ids:
        if not world.is_up(node_id):
            members.start(node_id)
    await members.until(lambda: len(members.members) == 5)
    await members.settle()
    assert len(members.checker.acknowledged) > 20


@pytest.mark.parametrize("settings", [QUICK, SNAPSHOTS], ids=["log", "snapshots"])
def test_members_come_and_go_under_load(settings: object) -> None:
    """3C "churn", and 3D "install snapshots (crash)" with snapshots."""
    run(1, lambda world: churn(world, settings))
