"""Rejections by either side, and their log lines."""

from __future__ import annotations

import asyncio
import logging

import pytest

from raftlog.raft.peers.peers import REJECTIONS_MAX, Rejections
from raftlog.raft.voters import VoterSet
from raftlog.world.network import RejectedError
from tests.raft.peers_world import Member, all_connected, cluster, play, voter, voter_set
from tests.simulation.world import World
from tests.waiting import until

SEEDS = range(25)


def test_a_reason_is_logged_once_until_the_node_has_been_connected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rejections = Rejections()
    for _ in range(3):
        # Two nodes behind one address.
        rejections.add("a:1", RejectedError(1, "one"))
        rejections.add("a:1", RejectedError(1, "other"))
    assert [record.getMessage() for record in caplog.records] == [
        "no connection with a:1: one",
        "no connection with a:1: other",
    ]
    rejections.clear("a:1")
    rejections.add("a:1", RejectedError(1, "other"))
    assert len(caplog.records) == 3


def test_only_the_newest_rejections_are_kept() -> None:
    rejections = Rejections()
    for number in range(REJECTIONS_MAX + 5):
        rejections.add(f"a:{number}", RejectedError(1, f"reason {number}"))
    assert len(rejections.by_address) == REJECTIONS_MAX
    assert "a:4" not in rejections.by_address
    assert "a:5" in rejections.by_address


def only_rejection(member: Member) -> str:
    (error,) = {error.message for error in member.live.rejections.values()}
    return error


@pytest.mark.parametrize("wiped", [1, 2])
def test_a_wiped_disk_is_refused_on_both_sides_until_it_is_forgotten(wiped: int) -> None:
    async def main(world: World) -> None:
        members = cluster(world, voters=2)
        await until(lambda: all_connected(members, 2), deadline_s=3)
        victim, other = members[wiped], members[3 - wiped]
        victim.crash()
        world.disk(wiped).remove("peers.json")
        victim.changes = {"directory_id": "new"}
        # Also over a restart of the other one: its pins are on its disk.
        other.crash(power=True)
        other.start()
        victim.start()
        await until(lambda: bool(other.peers and other.live.rejections), deadline_s=5)
        await asyncio.sleep(5)
        assert victim.connected == other.connected == []
        assert "another data directory than before" in only_rejection(other)
        context = world.processes[3 - wiped].context.copy()
        context.run(other.live.forget, wiped, unless=f"directory-{wiped}")
        await asyncio.sleep(5)
        assert victim.connected == other.connected == []
        context.run(other.live.forget, wiped, unless="new")
        await until(lambda: all_connected(members, 2), deadline_s=5)
        assert other.live.rejections == victim.live.rejections == {}

    for seed in SEEDS:
        play(seed, main)


def test_a_wiped_voter_that_only_is_called_is_told_by_the_voter_set() -> None:
    async def main(world: World) -> None:
        voters = VoterSet((voter(1, "directory-1"), voter(2, "directory-2")))
        one = Member(world, 1, voter_set(1, 2), is_voter=True, changes={"directory_id": "new"})
        two = Member(world, 2, voters, is_voter=True)
        one.start()
        two.start()
        await asyncio.sleep(3)
        assert one.connected == two.connected == []
        assert "The cluster knows node 1" in only_rejection(one)
        assert "The cluster knows node 1" in only_rejection(two)

    play(0, main)


def test_a_second_node_with_an_id_in_use_is_refused_and_the_first_stays() -> None:
    async def main(world: World) -> None:
        members = cluster(world, voters=1, observers=1)
        await until(lambda: all_connected(members, 1), deadline_s=3)
        twin = Member(
            world,
            2,
            voter_set(1),
            is_voter=False,
            machine_id=7,
            changes={"directory_id": "directory-7"},
        )
        twin.start()
        await asyncio.sleep(5)
        assert "Node id 2 is in use twice" in only_rejection(twin)
        assert "n7.test:8082" in members[1].live.rejections
        assert members[1].told(2) == ["up"]

    play(0, main)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster_id": "other"}, "belongs to cluster"),
        ({"protocol": 3}, "speaks protocol 3"),
        ({"cluster_id": None, "bootstrap_id": "b"}, "different lists of voters"),
    ],
)
def test_nodes_that_do_not_belong_together_are_told_why(
    changes: dict[str, object], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(world: World) -> None:
        one = Member(world, 1, voter_set(1), is_voter=True, changes={"bootstrap_id": "a"})
        two = Member(world, 2, voter_set(1), is_voter=False, changes=changes)
        one.start()
        two.start()
        await asyncio.sleep(20)
        assert one.connected == two.connected == []
        assert words in only_rejection(two)
        assert only_rejection(one)

    with caplog.at_level(logging.INFO, logger="raftlog"):
        play(0, main)
    told = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(told) == 2, "once on each side, however often it is tried"


def test_another_node_at_a_voters_address_is_not_taken_for_it() -> None:
    async def main(world: World) -> None:
        wrong = VoterSet((voter(1), voter(2)))
        five = Member(world, 5, voter_set(1), is_voter=True, machine_id=1)
        nine = Member(world, 9, wrong, is_voter=False)
        five.start()
        nine.start()
        await asyncio.sleep(3)
        assert "answers node 5, not node 1" in nine.live.rejections["n1.test:8082"].message
        assert nine.connected == []

    play(0, main)
