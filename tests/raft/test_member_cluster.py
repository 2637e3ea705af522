"""Three voters and their connections: a member's part in elections, reads and changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.raft.interface import Applied, ConnectionEvent, MemberSettings, Role
from raftlog.raft.messages import (
    Control,
    Message,
    SnapshotChunk,
    encode_message,
)
from raftlog.raft.rules import Timing
from raftlog.record.errors import ILLEGAL_STATE, LogError
from tests.examples import examples
from tests.simulation.quorum.member_world import QUICK, SNAPSHOTS, MemberWorld
from tests.simulation.world import World, run

SILENCE_S = 4.0
"""After which a connection is ended."""


def in_cluster(
    work: Callable[[MemberWorld, int], Coroutine[Any, Any, None]],
    *,
    voters: int = 3,
    observers: int = 0,
    config: Any = QUICK,
    seed: int = 1,
) -> None:
    async def main(world: World) -> None:
        members = MemberWorld(world, voters, observers, settings=config)
        members.start_all()
        leader = await members.elected()
        await members.until(lambda: len(members.members[leader].peers()) == voters + observers - 1)
        # Until all know the voters' directories, so that nothing changes by itself.
        await asyncio.sleep(1.5)
        await work(members, members.leader() or leader)
        members.check_failures()

    run(seed, main)


def others(members: MemberWorld, leader: int) -> list[int]:
    return [node_id for node_id in members.node_ids if node_id != leader]


def inside(members: MemberWorld, node_id: int, work: Callable[[], Any]) -> Any:
    """Run code as a part of that node."""
    return members.world.processes[node_id].context.copy().run(work)


def hear(members: MemberWorld, node_id: int, peer: int, frame: bytes) -> None:
    inside(members, node_id, lambda: members.members[node_id].received(peer, frame))


def test_a_command_may_be_proposed_anywhere() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        for node_id in members.node_ids:
            outcome = await members.propose(node_id)
            assert isinstance(outcome, Applied)
            assert members.members[node_id].applied_index >= outcome.index
        assert members.members[4].status().role is Role.OBSERVER
        assert members.members[leader].status().role is Role.LEADER

    in_cluster(work, observers=1)


def test_commands_in_the_middle_of_a_reconnection_wait_for_it() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        follower = others(members, leader)[0]
        downs: list[int] = []

        def look(node_id: int, event: ConnectionEvent) -> None:
            if node_id == leader and event is ConnectionEvent.DOWN:
                downs.append(node_id)

        members.members[follower].on_connection(look)
        members.world.network.reset(leader, follower)
        await members.until(lambda: downs)
        begun = asyncio.get_running_loop().time()
        outcome = await members.propose(follower)
        assert isinstance(outcome, Applied), "it never left, so its outcome is known"
        assert asyncio.get_running_loop().time() - begun < 1.0

    in_cluster(work)


def test_barriers_of_a_follower_see_commands_acknowledged_by_the_leader() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        follower = others(members, leader)[0]
        acknowledged = await members.propose(leader)
        assert isinstance(acknowledged, Applied)
        process = members.world.processes[follower]
        assert await process.run(members.members[follower].read_barrier()) >= acknowledged.index

    in_cluster(work)


def test_a_member_applies_only_what_its_own_disk_has() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        follower = others(members, leader)[0]
        members.world.times(follower).stick(0.3)
        outcome = await members.propose(leader, b"committed")
        assert isinstance(outcome, Applied)
        await asyncio.sleep(0.2)
        member = members.members[follower]
        assert member._core.commit_index >= outcome.index
        assert member.applied_index < outcome.index
        assert member.status().commit_index < outcome.index, "of what it can serve"
        await members.until(lambda: b"committed" in members.ledgers[follower].commands)

    in_cluster(work)


def test_peers_are_described() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        peers = members.members[leader].peers()
        assert sorted(peers) == others(members, leader)
        last_index = members.members[leader].status().last_index
        for node_id, peer in peers.items():
            assert peer.address == members.world.address(node_id)
            assert peer.is_voter == (node_id <= 3)
            assert peer.match_index == last_index
            assert 0 <= peer.last_heard_s < 1.5
        follower = others(members, leader)[0]
        assert members.members[follower].peers()[leader].match_index is None

    in_cluster(work, observers=1)


def test_what_was_long_on_its_way_confirms_nothing_new() -> None:
    late_s = 0.25

    async def work(members: MemberWorld, leader: int) -> None:
        peers = members.members[leader].peers()
        assert all(0 < peer.confirmed_age_s < late_s for peer in peers.values())
        for follower in others(members, leader):
            members.world.network.slow(follower, leader, late_s)
        await asyncio.sleep(2 * late_s)
        for _ in range(10):
            await asyncio.sleep(0.07)
            peers = members.members[leader].peers()
            assert all(peer.confirmed_age_s >= late_s for peer in peers.values())
            assert all(peer.last_heard_s < late_s for peer in peers.values())

    in_cluster(work)


def test_the_directories_and_addresses_of_voters_come_into_the_log() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        del leader
        for member in members.members.values():
            ids = [voter.directory_id for voter in member.voters.voters]
            assert ids == ["directory-1", "directory-2", "directory-3"]

    in_cluster(work)


# Control messages


def test_control_messages_arrive_with_their_senders_name() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        heard: list[tuple[int, bytes]] = []
        follower = others(members, leader)[0]
        for _ in range(2):
            members.members[leader].on_message(lambda peer, message: heard.append((peer, message)))
        member = members.members[follower]
        assert inside(members, follower, lambda: member.send(leader, b"beat"))
        await members.until(lambda: heard)
        assert heard == [(follower, b"beat")] * 2, "each handler is told"

    in_cluster(work)


def test_control_messages_do_not_wait_for_the_disk() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        heard: list[bytes] = []
        follower = others(members, leader)[0]
        members.members[leader].on_message(lambda _, message: heard.append(message))
        members.world.times(follower).stick(0.5)
        await members.propose(leader)
        member = members.members[follower]
        inside(members, follower, lambda: member.send(leader, b"beat"))
        await asyncio.sleep(0.1)
        assert heard == [b"beat"]

    in_cluster(work)


def test_an_exception_in_a_handler_stops_the_member() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        follower = others(members, leader)[0]
        member = members.members[follower]
        member.on_message(lambda _peer, _message: 1 // 0)  # type: ignore[arg-type]
        hear(members, follower, leader, encode_message(Control(1, b"x")))
        (reason,) = members.failures
        assert "ZeroDivisionError" in reason
        members.failures.clear()
        assert member.send(leader, b"x") is False
        sent: list[Message] = []
        member._outbox._transmit = lambda _, message: sent.append(message)
        await asyncio.sleep(1.0)
        assert not sent, "it says nothing any more"

    in_cluster(work)


# Connections


def test_a_connection_on_which_nothing_comes_is_ended() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        follower = others(members, leader)[0]
        events: list[tuple[float, ConnectionEvent]] = []
        loop = asyncio.get_running_loop()

        def note(node_id: int, event: ConnectionEvent) -> None:
            if node_id == follower:
                events.append((loop.time(), event))

        members.members[leader].on_connection(note)
        begun = loop.time()
        members.world.pause(follower)
        await members.until(lambda: events)
        assert events[0][1] is ConnectionEvent.DOWN
        assert SILENCE_S <= events[0][0] - begun < SILENCE_S + 2.0
        members.world.resume(follower)
        await members.until(lambda: events[-1][1] is ConnectionEvent.UP)

    in_cluster(work)


def test_quiet_connections_of_followers_stay() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        events: list[ConnectionEvent] = []
        one, other = others(members, leader)
        members.members[one].on_connection(lambda _, event: events.append(event))
        await asyncio.sleep(4 * SILENCE_S)
        assert not events
        assert members.members[one].peers()[other].last_heard_s < 1.5

    in_cluster(work)


def test_dead_process_differs_from_a_broken_connection() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        follower = others(members, leader)[0]
        events: list[tuple[int, ConnectionEvent]] = []
        members.members[leader].on_connection(lambda *event: events.append(event))
        members.world.crash(follower)
        await members.until(lambda: (follower, ConnectionEvent.REFUSED) in events)
        assert events[0] == (follower, ConnectionEvent.DOWN)

    in_cluster(work)


def test_the_followers_of_a_dead_leader_do_not_split_the_votes() -> None:
    """Both learn of the leader's death together, and would else wait for an election timeout."""

    async def work(members: MemberWorld, leader: int) -> None:
        told: dict[int, ConnectionEvent] = {}

        def note(follower: int) -> None:
            def heard(node_id: int, event: ConnectionEvent) -> None:
                if node_id == leader:
                    told[follower] = event

            members.members[follower].on_connection(heard)

        followers = others(members, leader)
        for follower in followers:
            note(follower)
        members.world.crash(leader)
        dead = dict.fromkeys(followers, ConnectionEvent.REFUSED)
        await members.until(lambda: told == dead)
        begun = asyncio.get_running_loop().time()
        await members.until(lambda: members.leader() not in (None, leader))
        assert asyncio.get_running_loop().time() - begun < Timing().election_min_s

    for seed in range(20):
        in_cluster(work, config=MemberSettings(), seed=seed)


def test_the_followers_of_a_silent_leader_do_not_split_the_votes() -> None:
    timing = Timing()

    async def work(members: MemberWorld, leader: int) -> None:
        begun = asyncio.get_running_loop().time()
        members.world.pause(leader)
        running = [members.members[node_id] for node_id in others(members, leader)]
        await members.until(lambda: any(member.is_active for member in running))
        taken_s = asyncio.get_running_loop().time() - begun
        # A heartbeat may just have come; and the time is looked at once in a tick.
        ticks_s = timing.heartbeat_s + 3 * timing.tick_s
        assert taken_s < (timing.election_min_s + timing.election_max_s) / 2 + ticks_s

    for seed in range(20):
        in_cluster(work, config=MemberSettings(), seed=seed)


# Leading


def test_a_leader_that_steps_aside_is_followed_without_an_election_timeout() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        changes: list[tuple[int | None, bool]] = []
        member = members.members[leader]
        member.on_role_changed(lambda: changes.append((member.leader_id, member.is_active)))
        begun = asyncio.get_running_loop().time()
        await members.world.processes[leader].run(member.resign_leadership())
        assert not member.is_active
        successor = await members.until(lambda: members.leader() not in (None, leader))
        assert successor
        assert asyncio.get_running_loop().time() - begun < 0.25
        await members.until(lambda: changes and changes[-1] == (members.leader(), False))
        assert isinstance(await members.propose(leader), Applied)

    in_cluster(work)


def test_without_anybody_to_follow_stepping_aside_ends_by_itself() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        for node_id in others(members, leader):
            members.world.pause(node_id)
        await asyncio.sleep(0.1)
        begun = asyncio.get_running_loop().time()
        await members.world.processes[leader].run(members.members[leader].resign_leadership())
        assert asyncio.get_running_loop().time() - begun < 1.0

    in_cluster(work)


def test_leadership_is_transferred_from_any_member() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        target, asking = others(members, leader)
        process = members.world.processes[asking]
        await process.run(members.members[asking].transfer_leadership(target))
        assert members.members[asking].leader_id == target
        with pytest.raises(LogError, match="Node 9 is not a voter") as raised:
            await process.run(members.members[asking].transfer_leadership(9))
        assert raised.value.entry is ILLEGAL_STATE

    in_cluster(work)


def test_a_leader_that_is_removed_ends_as_an_observer() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        process = members.world.processes[leader]
        await process.run(members.members[leader].remove_voter(leader))
        assert members.members[leader].status().role is Role.OBSERVER
        assert leader not in members.members[leader].voters.ids
        await members.elected()
        assert isinstance(await members.propose(leader), Applied)

    in_cluster(work)


def test_a_leader_without_a_majority_is_not_active() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        members.world.network.partition([leader], others(members, leader))
        begun = asyncio.get_running_loop().time()
        member = members.members[leader]
        await members.until(lambda: not member.is_active)
        assert asyncio.get_running_loop().time() - begun < 2 * QUICK.timing.fallback_s
        await members.until(lambda: members.leader() in others(members, leader))

    in_cluster(work)


# Snapshots and the whole


def test_a_member_that_was_away_gets_a_snapshot_and_goes_on() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        away = others(members, leader)[0]
        chunks: list[Message] = []

        def look(_source: int, _target: int, message: Message) -> bool:
            if isinstance(message, SnapshotChunk) and message.data:
                chunks.append(message)
            return True

        members.on_message = look
        members.world.crash(away, power=True)
        for _ in range(40):
            assert isinstance(await members.propose(leader), Applied)
        members.start(away)
        await members.settle()
        assert len(chunks) > 3
        assert isinstance(await members.propose(away), Applied)

    in_cluster(work, config=SNAPSHOTS)


COMMANDS = st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=20)


@settings(max_examples=examples(8), deadline=None)
@given(COMMANDS, st.integers(0, 2**16))
def test_any_commands_proposed_anywhere_give_the_state_of_applying_them_in_order(
    commands: list[tuple[int, bool]], seed: int
) -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        del leader
        answered: list[tuple[int, bytes]] = []

        async def propose(node_id: int, command: bytes) -> None:
            outcome = await members.propose(node_id, command)
            assert isinstance(outcome, Applied)
            answered.append((outcome.index, command))

        together: list[Coroutine[Any, Any, None]] = []
        for number, (node_id, waits) in enumerate(commands):
            together.append(propose(node_id, b"command %d" % number))
            if waits:
                await asyncio.gather(*together)
                together.clear()
        await asyncio.gather(*together)
        await members.until(members._agree)
        expected = [command for _, command in sorted(answered)]
        for ledger in members.ledgers.values():
            assert ledger.commands == expected

    in_cluster(work, config=replace(SNAPSHOTS, entries_kept=2), seed=seed)
