"""Barriers of members: fresh on every member, at the price of a heartbeat."""

from __future__ import annotations

import asyncio

from raftlog.raft.interface import Applied, Refused
from raftlog.raft.messages import Append, AppendAnswer, Message
from raftlog.record.errors import DISK_FULL
from tests.raft.test_member_cluster import in_cluster, others
from tests.simulation.quorum.member_world import SNAPSHOTS, MemberWorld


async def barrier(members: MemberWorld, node_id: int) -> int:
    return await members.world.processes[node_id].run(members.members[node_id].read_barrier())


def last_indexes(members: MemberWorld) -> set[int]:
    return {member.status().last_index for member in members.members.values()}


def test_barriers_of_any_member_are_fresh_and_write_nothing() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        for node_id in members.node_ids:
            acknowledged = await members.propose(leader)
            assert isinstance(acknowledged, Applied)
            assert await barrier(members, node_id) == acknowledged.index
        await members.settle()
        before = last_indexes(members)
        for node_id in members.node_ids:
            await barrier(members, node_id)
        assert last_indexes(members) == before

    in_cluster(work, observers=1)


def test_barriers_of_one_moment_and_of_many_share_rounds() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        follower = others(members, leader)[0]
        appends: list[int] = []

        def look(source: int, target: int, message: Message) -> bool:
            if isinstance(message, Append) and (source, target) == (leader, follower):
                appends.append(message.sequence)
            return True

        members.on_message = look
        under_way = 0
        most = 0

        async def one(node_id: int) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await barrier(members, node_id)
            under_way -= 1

        works = []
        for number in range(600):
            works.append(asyncio.ensure_future(one(number % 3 + 1)))
            if number % 10 == 0:
                await asyncio.sleep(0.0001)
        await asyncio.gather(*works)
        assert most > 10
        assert len(appends) < 60, "each took a round of its own"

    in_cluster(work)


def test_full_disks_refuse_no_barriers() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        acknowledged = await members.propose(leader)
        assert isinstance(acknowledged, Applied)
        for node_id in members.node_ids:
            disk = members.world.disk(node_id)
            disk.capacity_bytes = disk.used_bytes() + 64 * 1024
        refused = await members.propose(leader)
        assert isinstance(refused, Refused)
        assert refused.entry is DISK_FULL
        # Long enough for leaders without room to resign in turns.
        for _ in range(12):
            for node_id in members.node_ids:
                assert await barrier(members, node_id) >= acknowledged.index
            await asyncio.sleep(1.0)

    in_cluster(work, observers=1)


def test_a_barrier_outlives_the_leader_that_was_asked() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        follower, other = others(members, leader)
        # The leader cannot be sure of anything, and then dies.
        members.on_message = lambda _, target, message: (
            target != leader or not isinstance(message, AppendAnswer)
        )
        waiting = [asyncio.ensure_future(barrier(members, each)) for each in (follower, other)]
        await asyncio.sleep(0.1)
        assert not any(each.done() for each in waiting)
        members.world.crash(leader)
        members.on_message = None
        await asyncio.gather(*waiting)
        assert members.leader() in (follower, other)

    in_cluster(work)


def test_a_barrier_of_a_member_that_gets_a_snapshot_waits_for_it() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        away = others(members, leader)[0]
        members.world.crash(away, power=True)
        for _ in range(40):
            newest = await members.propose(leader)
        assert isinstance(newest, Applied)
        members.start(away)
        await members.until(lambda: away in members.members)
        assert members.members[away].applied_index < newest.index
        assert await barrier(members, away) >= newest.index

    in_cluster(work, config=SNAPSHOTS)
