"""Plans and proposals of the active controller, and its reaction to failed proposals."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from raftlog.controller.messages import HEARTBEAT_S
from raftlog.metadata.commands import (
    ChangePartitions,
    Command,
    FenceBroker,
    PartitionChange,
    UnfenceBroker,
    encode_command,
)
from raftlog.metadata.decisions.elections import PLANNED_CHANGES_MAX
from raftlog.raft import ConnectionEvent
from raftlog.record.types import BrokerId
from tests.controller.clock import settle
from tests.controller.cluster import Cluster
from tests.controller.running import past_grace, running


async def move(cluster: Cluster, leader: int) -> None:
    """Let another replica lead t1."""
    commit_change(cluster, leader=BrokerId(leader))
    await settle()


def commit_change(
    cluster: Cluster, *, leader: BrokerId | None = None, isr: tuple[BrokerId, ...] | None = None
) -> None:
    """Change the partition t1-0."""
    row = cluster.row(1)
    change = PartitionChange(
        topic_id=cluster.image.topic("t1").topic_id,
        partition=row.partition,
        partition_epoch=row.partition_epoch,
        leader=leader,
        isr=isr,
    )
    assert cluster.commit(encode_command(ChangePartitions(changes=(change,)))).delta


def move_all(cluster: Cluster, leader: BrokerId) -> None:
    """Let another replica lead all of t1."""
    topic = cluster.image.topic("t1")
    changes = [
        PartitionChange(
            topic_id=topic.topic_id,
            partition=row.partition,
            partition_epoch=row.partition_epoch,
            leader=leader,
        )
        for row in topic.partitions
    ]
    while changes:
        batch = tuple(changes[:PLANNED_CHANGES_MAX])
        del changes[:PLANNED_CHANGES_MAX]
        assert cluster.commit(encode_command(ChangePartitions(changes=batch))).delta


async def test_preferred_leaders_get_their_leadership_back() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3))
        row = cluster.row(1)
        await move(cluster, 3)
        assert cluster.leaders(1) == [3]
        await cluster.clock.advance(29.0)
        assert cluster.leaders(1) == [3]
        await cluster.clock.advance(2.0)
        assert cluster.leaders(1) == [2]
        assert cluster.row(1).leader_epoch == row.leader_epoch + 2


async def test_preferred_leaders_can_be_left_alone() -> None:
    async with running() as cluster:
        cluster.configure(leader_rebalance_delay_ms="-1")
        cluster.create_topic(1, (2, 3))
        await move(cluster, 3)
        await cluster.clock.advance(120.0)
        assert cluster.leaders(1) == [3]


async def test_many_partitions_are_moved_in_bounded_commands() -> None:
    async with running() as cluster:
        count = 2 * PLANNED_CHANGES_MAX + 1
        cluster.create_topic(1, *([(2, 3)] * count))
        del cluster.proposals[:]
        await cluster.kill(2)
        await settle()
        assert cluster.leaders(1) == [3] * count
        sizes = [len(c.changes) for c in cluster.proposals if isinstance(c, ChangePartitions)]
        assert max(sizes) <= PLANNED_CHANGES_MAX
        assert sum(sizes) == count


@pytest.mark.parametrize("outcome", ["refused", "lost", "unknown"])
@pytest.mark.parametrize("position", [0, 1, 2])
async def test_failed_proposals_are_repeated_with_growing_pauses(
    outcome: str, position: int
) -> None:
    async with running() as cluster:
        cluster.create_topic(1, *([(2, 3)] * (PLANNED_CHANGES_MAX + 1)))
        del cluster.proposals[:]
        cluster.outcomes.extend(["applied"] * position + [outcome] * 6)
        await cluster.kill(2)
        await cluster.clock.advance(0.01)
        assert len(cluster.proposals) == position + 1
        await cluster.clock.advance(1.0)
        assert cluster.outcomes
        await cluster.clock.advance(10.0)
        assert len(cluster.proposals) < 12
        assert cluster.fenced() == {2}
        assert set(cluster.leaders(1)) == {3}


async def test_stale_change_is_planned_again() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3, 1))

        def leader_shrinks_isr(command: Command) -> None:
            if isinstance(command, ChangePartitions):
                cluster.before_commit = None
                commit_change(cluster, isr=(BrokerId(2), BrokerId(3)))

        cluster.before_commit = leader_shrinks_isr
        await cluster.kill(2)
        assert sum(isinstance(c, ChangePartitions) for c in cluster.proposals) == 2
        assert cluster.leaders(1) == [3]
        assert cluster.row(1).isr == (3,)


async def test_dead_broker_does_not_wait_for_the_return_of_many_leaders() -> None:
    async with running() as cluster:
        count = 3 * PLANNED_CHANGES_MAX
        cluster.create_topic(1, *([(2, 1)] * count))
        cluster.create_topic(2, (3, 1))
        move_all(cluster, BrokerId(1))
        assert set(cluster.leaders(1)) == {1}
        del cluster.proposals[:]

        def broker_dies(command: Command) -> None:
            cluster.before_commit = None
            assert isinstance(command, ChangePartitions)
            cluster.cut_off.add(3)
            for handler in cluster.nodes[1].quorum.connection_handlers:
                handler(3, ConnectionEvent.REFUSED)

        cluster.before_commit = broker_dies
        await cluster.clock.advance(31.0)
        assert isinstance(cluster.proposals[1], FenceBroker)
        assert cluster.leaders(2) == [1]
        assert set(cluster.leaders(1)) == {2}


async def test_elections_that_were_interrupted_are_held_after_what_was_more_urgent() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2,))
        cluster.cut_off.add(2)
        await past_grace(cluster)
        cluster.cut_off.clear()
        cluster.nodes[2].quorum.catch_up()
        del cluster.proposals[:]

        def broker_dies(command: Command) -> None:
            cluster.before_commit = None
            assert isinstance(command, UnfenceBroker)
            cluster.cut_off.add(3)
            for handler in cluster.nodes[1].quorum.connection_handlers:
                handler(3, ConnectionEvent.REFUSED)

        cluster.before_commit = broker_dies
        await cluster.clock.advance(HEARTBEAT_S)
        assert isinstance(cluster.proposals[1], FenceBroker)
        assert cluster.leaders(1) == [2]


async def test_rest_of_a_plan_does_not_follow_a_command_that_was_refused() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2,))
        cluster.cut_off.add(2)
        await past_grace(cluster)
        cluster.cut_off.clear()
        cluster.nodes[2].quorum.catch_up()
        del cluster.proposals[:]

        def broker_is_started_again(command: Command) -> None:
            cluster.before_commit = None
            assert isinstance(command, UnfenceBroker)
            cluster.commit_registration(2)

        cluster.before_commit = broker_is_started_again
        await cluster.clock.advance(HEARTBEAT_S)
        assert [type(command) for command in cluster.proposals] == [UnfenceBroker]
        assert cluster.fenced() == {2}


async def test_elections_are_held_although_they_failed_at_first() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2,))
        cluster.cut_off.add(2)
        await past_grace(cluster)
        cluster.cut_off.clear()
        cluster.nodes[2].quorum.catch_up()
        cluster.outcomes.extend(["applied", "refused"])
        await cluster.clock.advance(HEARTBEAT_S)
        assert cluster.outcomes == deque()
        await cluster.clock.advance(1.0)
        assert cluster.leaders(1) == [2]


async def test_fenced_broker_counts_as_fenced_while_the_outcome_is_unknown() -> None:
    async with running() as cluster:
        await past_grace(cluster)
        cluster.outcomes.append("lost")
        cluster.cut_off.add(2)
        while not cluster.nodes[2].service.permit.is_cut_off or cluster.outcomes:
            await cluster.clock.advance(0.01)
        cluster.cut_off.clear()
        cluster.nodes[2].service.registered(cluster.image.brokers[BrokerId(2)].broker_epoch)
        await settle()
        assert cluster.fenced() == set()
        assert 2 not in cluster.holders()
        await cluster.clock.advance(1.0)
        assert cluster.fenced() == set()
        assert 2 in cluster.holders()
        assert sum(isinstance(c, FenceBroker) for c in cluster.proposals) == 2


async def test_controller_that_is_replaced_proposes_nothing_more() -> None:
    async with running() as cluster:
        cluster.create_topic(1, *([(2, 3)] * (2 * PLANNED_CHANGES_MAX)))
        cluster.dead.add(2)
        del cluster.proposals[:]
        for handler in cluster.nodes[1].quorum.connection_handlers:
            handler(2, ConnectionEvent.REFUSED)
        while len(cluster.proposals) < 2:  # noqa: ASYNC110 - turns of the loop, not time
            await asyncio.sleep(0)
        # Its member has learned of the change; its controller has no notification yet.
        cluster.nodes[1].quorum.claims_activity = False
        await cluster.clock.advance(10.0)
        assert len(cluster.proposals) == 2


async def test_controller_that_was_replaced_in_between_begins_again() -> None:
    async with running() as cluster:
        await past_grace(cluster)
        cluster.cut_off.add(2)
        await cluster.clock.advance(1.4)
        cluster.nodes[1].quorum.term += 2
        await cluster.clock.advance(1.4)
        assert cluster.fenced() == set()
        await cluster.clock.advance(0.5)
        assert cluster.fenced() == {2}
