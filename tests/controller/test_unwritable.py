"""Brokers with disks that take no writes: their successors, and their return."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.controller.messages import HEARTBEAT_S
from raftlog.controller.partition_work import PREFERRED_CHECK_S_MAX
from raftlog.metadata.commands import encode_command
from raftlog.metadata.decisions.decommission import plan_decommission
from raftlog.metadata.image import NO_EPOCH
from raftlog.record.types import BrokerId
from tests.controller.clock import settle
from tests.controller.running import past_grace, running
from tests.controller.test_partition_work import alter_isr

ONE_HEARTBEAT_S = HEARTBEAT_S + 0.01


@pytest.mark.parametrize("victim", [1, 2])
async def test_others_lead_what_a_broker_cannot_write_and_its_isr_stays(victim: int) -> None:
    """Broker 1 is the controller itself."""
    others = [number for number in (1, 2, 3) if number != victim]
    async with running() as cluster:
        cluster.create_topic(1, (victim, *others), (victim, *others))
        await past_grace(cluster)
        cluster.unwritable.add(victim)
        await cluster.clock.advance(ONE_HEARTBEAT_S)
        assert sorted(cluster.leaders(1)) == others
        assert all(set(row.isr) == {1, 2, 3} for row in cluster.image.topic("t1").partitions)
        assert cluster.fenced() == set()
        assert cluster.nodes[victim].service.permit.has_lease(cluster.clock.now)
        await cluster.clock.advance(HEARTBEAT_S)
        assert all(node.service.unwritable == {victim} for node in cluster.nodes.values())


async def test_leadership_stays_without_another_writable_member_in_sync() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3))
        cluster.create_topic(2, (2, 3))
        await past_grace(cluster)
        alter_isr(cluster, 2)
        cluster.unwritable.add(3)
        await cluster.clock.advance(ONE_HEARTBEAT_S)
        cluster.unwritable.add(2)
        await cluster.clock.advance(2.0)
        assert [cluster.leaders(number) for number in (1, 2)] == [[2], [2]]
        row = cluster.row(1)
        assert (row.isr, row.unclean_epoch) == ((2,), NO_EPOCH)
        # As soon as one of them can.
        cluster.unwritable.remove(3)
        await cluster.clock.advance(ONE_HEARTBEAT_S)
        assert [cluster.leaders(number) for number in (1, 2)] == [[2], [3]]
        alter_isr(cluster, 2, 3)
        await settle()
        assert cluster.leaders(1) == [3], "as soon as one is in sync"


async def test_leaders_return_once_their_broker_has_taken_writes_for_a_while() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3))
        await cluster.clock.advance(60.0)
        cluster.unwritable.add(2)
        await cluster.clock.advance(ONE_HEARTBEAT_S)
        epoch = cluster.row(1).leader_epoch
        await cluster.clock.advance(60.0)
        assert cluster.leaders(1) == [3]
        assert cluster.row(1).leader_epoch == epoch, "it was not tried in vain"
        cluster.unwritable.clear()
        await cluster.clock.advance(30.0)
        assert cluster.leaders(1) == [3]
        await cluster.clock.advance(PREFERRED_CHECK_S_MAX + 1.0)
        assert cluster.leaders(1) == [2]


async def test_a_new_controller_learns_of_it_by_the_next_heartbeats() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3, 1))
        await past_grace(cluster)
        await cluster.elect(3)
        await past_grace(cluster)
        cluster.unwritable.add(2)
        cluster.outcomes.extend(["lost"] * 3)
        await cluster.clock.advance(ONE_HEARTBEAT_S)
        await cluster.elect(1)
        cluster.outcomes.clear()
        await cluster.clock.advance(ONE_HEARTBEAT_S)
        assert cluster.leaders(1) != [2]


async def test_a_broker_that_dies_is_succeeded_by_one_that_can_write() -> None:
    async with running(3, 4) as cluster:
        cluster.create_topic(1, (4, 1, 2, 3))
        cluster.unwritable |= {1, 2}
        await past_grace(cluster)
        row = cluster.row(1)
        await cluster.kill(4)
        assert cluster.leaders(1) == [3]
        assert cluster.row(1).leader_epoch == row.leader_epoch + 1, "at the first attempt"


async def test_restarted_broker_reports_its_disk_again() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3))
        cluster.unwritable.add(2)
        await past_grace(cluster)
        await cluster.kill(2)
        cluster.unwritable.clear()
        cluster.boot(2)
        await cluster.register(2)
        await cluster.clock.advance(ONE_HEARTBEAT_S)
        assert all(node.service.unwritable == set() for node in cluster.nodes.values())


async def test_a_topic_that_was_placed_without_knowing_is_led_by_another() -> None:
    async with running() as cluster:
        await past_grace(cluster)
        cluster.unwritable.add(2)
        await cluster.clock.advance(ONE_HEARTBEAT_S)
        cluster.create_topic(1, (2, 3))
        await settle()
        assert cluster.leaders(1) == [3]


async def test_replicas_move_to_brokers_that_can_write() -> None:
    async with running(3, 4) as cluster:
        cluster.create_topic(1, (2, 1))
        cluster.unwritable.add(3)
        await past_grace(cluster)
        cluster.commit(encode_command(plan_decommission(cluster.image, BrokerId(2))))
        await settle()
        assert cluster.row(1).adding == (4,)


async def test_stopping_broker_hands_over_to_writable_brokers() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 1, 3))
        cluster.unwritable.add(1)
        await past_grace(cluster)
        epoch = cluster.row(1).leader_epoch
        stopping = asyncio.create_task(cluster.nodes[2].service.shut_down(10.0))
        await cluster.clock.advance(0.1)
        assert stopping.done()
        assert cluster.leaders(1) == [3]
        assert cluster.row(1).leader_epoch == epoch + 1, "at the first attempt"
