"""Unclean elections: brokers are asked for the ends of their logs, and the longest one leads."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.controller import log_ends, partition_work
from raftlog.controller.log_ends import ANSWER_S
from raftlog.metadata.commands import AlterClusterSettings, ChangePartitions, encode_command
from raftlog.metadata.decisions.elections import LogEnd, PartitionKey
from raftlog.metadata.image import NO_LEADER_ID
from raftlog.record.errors import OVERLOADED, LogError
from raftlog.record.types import LeaderEpoch, Offset, PartitionId
from tests.controller.clock import settle
from tests.controller.cluster import Cluster
from tests.controller.running import running
from tests.controller.test_partition_work import alter_isr


def end(last_epoch: int, end_offset: int) -> LogEnd:
    return LogEnd(LeaderEpoch(last_epoch), Offset(end_offset))


async def alone_in_sync(cluster: Cluster, leader: int, *others: int, partitions: int = 1) -> None:
    """Topic t1: of its replicas only the leader is in sync, and unclean elections are allowed."""
    values = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    cluster.commit(encode_command(AlterClusterSettings(values=values))).check()
    cluster.create_topic(1, *[(leader, *others)] * partitions)
    for number in range(partitions):
        alter_isr(cluster, leader, partition=number)
    await settle()
    assert all(row.isr == (leader,) for row in cluster.image.topic("t1").partitions)


@pytest.mark.parametrize("longest", [1, 3])
@pytest.mark.parametrize("by", ["epoch", "end"])
async def test_longest_log_leads_after_the_last_member_in_sync(longest: int, by: str) -> None:
    """Broker 1 is the controller itself, and the one that any order without logs would take."""
    async with running() as cluster:
        await alone_in_sync(cluster, 2, 1, 3)
        other = 4 - longest
        ends = {longest: end(3, 7), other: end(2, 99)} if by == "epoch" else {}
        cluster.log_ends = ends or {longest: end(3, 99), other: end(3, 98)}
        await cluster.kill(2)
        await settle()
        row = cluster.row(1)
        assert (row.leader, row.isr) == (longest, (longest,))
        assert row.unclean_epoch == row.leader_epoch


async def test_single_candidate_leads_in_the_command_that_removes_the_old_leader() -> None:
    async with running() as cluster:
        await alone_in_sync(cluster, 2, 3)
        await cluster.kill(2)
        assert cluster.leaders(1) == [3]
        moves = [one for one in cluster.proposals if isinstance(one, ChangePartitions)]
        assert len(moves) == 1


async def test_silent_broker_is_waited_for_once_and_others_are_fenced_meanwhile() -> None:
    async with running(3, 4, 5) as cluster:
        await alone_in_sync(cluster, 2, 4, 3, 5)
        cluster.log_ends = {3: end(1, 5), 4: end(1, 6), 5: end(1, 90)}
        cluster.cut_off.add(5)
        await cluster.kill(2)
        assert cluster.leaders(1) == [NO_LEADER_ID]
        await cluster.kill(4)
        assert cluster.fenced() >= {2, 4}, "no fencing waits for an answer"
        await cluster.clock.advance(ANSWER_S + 0.01)
        # 4 has answered before its death.
        assert cluster.leaders(1) == [3]


async def test_without_any_answer_some_replica_leads_all_the_same() -> None:
    async with running(3, 4, 5) as cluster:
        await alone_in_sync(cluster, 2, 5, 4)
        cluster.cut_off |= {4, 5}
        await cluster.kill(2)
        assert cluster.leaders(1) == [NO_LEADER_ID]
        await cluster.clock.advance(ANSWER_S + 0.01)
        assert cluster.leaders(1) == [4]


async def test_many_partitions_are_elected_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_work, "PLANNED_CHANGES_MAX", 50)
    async with running() as cluster:
        await alone_in_sync(cluster, 2, 1, 3, partitions=120)
        cluster.log_ends = {1: end(0, 4), 3: end(0, 5)}
        await cluster.kill(2)
        for _ in range(20):
            await settle()
        assert set(cluster.leaders(1)) == {3}


async def test_next_controller_asks_again() -> None:
    async with running() as cluster:
        await alone_in_sync(cluster, 2, 3, 1)
        cluster.log_ends = {1: end(0, 4), 3: end(0, 5)}
        cluster.severed[frozenset((1, 3))] = cluster.clock.now
        await cluster.kill(2)
        assert cluster.leaders(1) == [NO_LEADER_ID]
        cluster.severed.clear()
        await cluster.elect(3)
        await settle()
        assert cluster.leaders(1) == [3]


async def test_node_without_a_vote_collects_by_way_of_the_controller() -> None:
    async with running(3, 4, 5) as cluster:
        cluster.create_topic(1, (2, 4, 5), (2, 3, 1))
        await settle()
        topic_id = cluster.image.topic("t1").topic_id
        keys: list[PartitionKey] = [(topic_id, PartitionId(number)) for number in range(2)]
        cluster.log_ends = {number: end(1, number) for number in range(1, 6)}
        asked = asyncio.ensure_future(cluster.nodes[4].service.log_ends(keys))
        await settle()
        assert asked.done(), "and waits for no broker in vain"
        assert asked.result() == {
            keys[0]: {2: end(1, 2), 4: end(1, 4), 5: end(1, 5)},
            keys[1]: {1: end(1, 1), 2: end(1, 2), 3: end(1, 3)},
        }


async def test_collecting_ends_without_the_brokers_that_do_not_answer() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (1, 2, 3))
        await settle()
        key: PartitionKey = (cluster.image.topic("t1").topic_id, PartitionId(0))
        gone: PartitionKey = (key[0], PartitionId(7))
        cluster.log_ends = {1: end(1, 1), 2: end(1, 2)}
        cluster.cut_off.add(3)
        asked = asyncio.ensure_future(cluster.nodes[1].service.log_ends([key, gone]))
        await settle()
        assert not asked.done()
        await cluster.clock.advance(ANSWER_S + 0.01)
        assert asked.result() == {key: {1: end(1, 1), 2: end(1, 2)}, gone: {}}


async def test_queries_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_ends, "QUERIES_MAX", 2)
    async with running() as cluster:
        cluster.create_topic(1, (1, 2, 3))
        await settle()
        key: PartitionKey = (cluster.image.topic("t1").topic_id, PartitionId(0))
        service = cluster.nodes[1].service
        cluster.cut_off.add(3)
        asked = [asyncio.ensure_future(service.log_ends([key])) for _ in range(2)]
        await settle()
        with pytest.raises(LogError) as raised:
            await service.log_ends([key])
        assert raised.value.entry is OVERLOADED
        await cluster.clock.advance(ANSWER_S + 0.01)
        assert all(one.done() for one in asked)
        cluster.cut_off.clear()
        assert set(await service.log_ends([key])) == {key}
