"""Controlled shutdown: a node hands over its leaderships, and does not wait in vain."""

from __future__ import annotations

import asyncio
from collections import deque

from raftlog.metadata.commands import ChangePartitions, Command
from raftlog.record.types import BrokerId
from tests.controller.clock import settle
from tests.controller.running import running


async def test_controlled_shutdown_leaves_nothing_to_lead() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3), (2, 1), (3, 2))
        await cluster.clock.advance(5.0)
        stopping = asyncio.create_task(cluster.nodes[2].service.shut_down(10.0))
        await cluster.clock.advance(0.1)
        assert stopping.done() and await stopping
        assert cluster.leaders(1) == [3, 1, 3]
        assert cluster.nodes[2].image.brokers[BrokerId(2)].controlled_shutdown
        assert cluster.fenced() == set()


async def test_controlled_shutdown_does_not_wait_for_partitions_without_a_successor() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2,))
        stopping = asyncio.create_task(cluster.nodes[2].service.shut_down(10.0))
        await cluster.clock.advance(0.1)
        assert stopping.done() and await stopping


async def test_controlled_shutdown_ends_when_the_node_itself_knows_what_it_lost() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3))
        await settle()
        cluster.lagging.add(2)
        stopping = asyncio.create_task(cluster.nodes[2].service.shut_down(10.0))
        await cluster.clock.advance(1.0)
        assert cluster.leaders(1) == [3]
        assert not stopping.done()
        cluster.nodes[2].quorum.catch_up()
        await cluster.clock.advance(0.1)
        assert stopping.done() and await stopping


async def test_node_that_learns_late_what_it_lost_stops_at_once_then() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3))
        await settle()

        def lags(command: Command) -> None:
            if isinstance(command, ChangePartitions):
                cluster.lagging.add(2)

        cluster.before_commit = lags
        stopping = asyncio.create_task(cluster.nodes[2].service.shut_down(10.0))
        await cluster.clock.advance(0.5)
        assert cluster.leaders(1) == [3] and not stopping.done()
        cluster.nodes[2].quorum.catch_up()
        await cluster.clock.advance(0.011)
        assert stopping.done() and await stopping


async def test_controlled_shutdown_does_not_wait_for_the_next_ordinary_heartbeat() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3))
        cluster.outcomes.extend(["applied", "refused"])
        stopping = asyncio.create_task(cluster.nodes[2].service.shut_down(10.0))
        # A pause of 37.5 ms after the rejection, then at most 10 until the answer.
        await cluster.clock.advance(0.048)
        assert cluster.outcomes == deque()
        assert stopping.done() and await stopping


async def test_controlled_shutdown_gives_up_in_time_without_a_controller() -> None:
    async with running() as cluster:
        await cluster.depose()
        stopping = asyncio.create_task(cluster.nodes[2].service.shut_down(2.0))
        await cluster.clock.advance(1.9)
        assert not stopping.done()
        await cluster.clock.advance(0.2)
        assert await stopping is False


async def test_controller_itself_can_be_shut_down() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (1, 2))
        stopping = asyncio.create_task(cluster.nodes[1].service.shut_down(10.0))
        await cluster.clock.advance(0.1)
        assert stopping.done() and await stopping
        assert cluster.leaders(1) == [2]


async def test_node_with_three_replicas_of_all_is_relieved_in_one_round() -> None:
    async with running() as cluster:
        cluster.create_topic(1, *[(2, 3, 1), (3, 1, 2), (1, 2, 3)] * 1_000)
        await cluster.clock.advance(5.0)
        begun = cluster.clock.now
        stopping = asyncio.create_task(cluster.nodes[2].service.shut_down(10.0))
        while not stopping.done():
            await cluster.clock.advance(0.001)
        assert await stopping
        assert cluster.clock.now - begun <= 0.011
        rows = cluster.image.topic("t1").partitions
        assert all(row.leader != 2 and 2 not in row.isr and len(row.isr) == 2 for row in rows)
        assert not any(row.elr for row in rows), "enough are left"
        kept = [row for row in rows if row.replicas[0] != 2]
        assert all(row.leader == row.replicas[0] and row.leader_epoch == 0 for row in kept)


async def test_node_that_stops_leaves_what_it_led_to_others_evenly() -> None:
    async with running() as cluster:
        cluster.create_topic(1, *[(2, 3, 1), (2, 1, 3)] * 10)
        await cluster.clock.advance(5.0)
        stopping = asyncio.create_task(cluster.nodes[2].service.shut_down(10.0))
        await cluster.clock.advance(0.1)
        assert await stopping
        leaders = cluster.leaders(1)
        assert (leaders.count(1), leaders.count(3)) == (10, 10)
