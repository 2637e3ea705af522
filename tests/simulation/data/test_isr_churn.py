"""Followers that are silent or slow change the ISR seldom, and no ELR outlives its reason."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.metadata.commands import ChangePartitions, PartitionChange
from raftlog.record.types import BrokerId
from tests.simulation.data.data_world import DataWorld, Part, simulate_data

T = Part("t", 0)
CHANGES_MAX = 8
"""Of one partition in each of these scenarios."""


def applied_index(data: DataWorld, node_id: int) -> int:
    return data.nodes.cores[node_id].quorum.applied_index


@pytest.mark.parametrize("partitions", [1, 20])
def test_silent_followers_leave_and_stay_out(partitions: int) -> None:
    """The leader reaches the controller, and neither of its followers."""

    async def test(data: DataWorld) -> None:
        controller = await data.nodes.until(data.nodes.controller)
        leader, one, two, _ = data.nodes.others(controller)
        await data.create("t", [[leader, one, two]] * partitions, {"min.insync.replicas": "3"})
        for part in data.parts:
            await data.write(part, 3)
        await data.in_sync()
        data.world.network.partition([leader], [one, two])
        producer = data.producer("p", idempotent=False, repeats=False)
        for part in data.parts:
            await producer.send(part, 1, node=leader, within_s=1.6)
        index = applied_index(data, controller)
        await asyncio.sleep(20.0)
        assert applied_index(data, controller) - index < CHANGES_MAX * partitions
        data.world.network.heal()
        await data.nodes.until(lambda: all(map(data.is_in_sync, data.parts)))

    simulate_data(test, node_count=5, voter_count=5)


def test_slow_disks_of_both_followers() -> None:
    """The disks of both followers hang for 4 s; nodes and links are well."""

    async def test(data: DataWorld) -> None:
        controller, leader, one, two = await data.beside_controller()
        index = applied_index(data, controller)
        data.world.times(one).stick(4.0)
        data.world.times(two).stick(4.0)
        producer = data.producer("p", idempotent=False, repeats=False)
        send = asyncio.ensure_future(producer.send(T, 1, node=leader, within_s=1.6))
        await asyncio.sleep(4.5)
        assert applied_index(data, controller) - index < CHANGES_MAX
        await send
        await data.nodes.until(lambda: data.is_in_sync(T))

    # Only the controller votes, so no disk of a voter hangs.
    simulate_data(test, node_count=5, voter_count=1)


def test_disk_that_hangs_again_and_again_makes_its_replica_wait_longer() -> None:
    """Each hang costs a removal and, once over, an entry; the entries come ever later."""

    async def test(data: DataWorld) -> None:
        controller, _, one, _ = await data.beside_controller()
        index = applied_index(data, controller)
        for _ in range(20):
            data.world.times(one).stick(2.6)
            await data.write(T, 1)
            await asyncio.sleep(3.0)
        assert applied_index(data, controller) - index < 20
        await data.nodes.until(lambda: data.is_in_sync(T), seconds=60.0)

    simulate_data(test, node_count=5, voter_count=1)


def test_no_record_is_committed_without_an_eligible_member() -> None:
    """A change planned with replication factor 3 is applied after the factor is 2 (seed 200054).

    It brings a min.insync.replicas of 2, by which the member that leaves stays eligible. The leader
    alone would commit by its own minimum of 1.
    """

    async def test(data: DataWorld) -> None:
        topic = await data.create("t", [[2, 3]])
        await data.write(T, 3)
        await data.in_sync()
        row = data.row(T)
        change = PartitionChange(
            topic_id=topic.topic_id,
            partition=row.partition,
            partition_epoch=row.partition_epoch,
            isr=(BrokerId(2),),
            min_isr_default=2,
        )
        # The change comes before the controller's own one.
        data.nodes.kill(3)
        await data.propose(ChangePartitions(v=3, changes=(change,)))
        assert (data.row(T).isr, data.row(T).elr) == ((2,), (3,))
        await data.write(T)
        assert (data.row(T).isr, data.row(T).elr) == ((2,), ())
        data.nodes.kill(2)
        data.nodes.start(3)
        await data.nodes.until(lambda: data.replica(3, T) is not None)
        await asyncio.sleep(3.0)
        assert data.leader(T) is None
        data.nodes.start(2)

    # Node 1 is the only voter: the metadata does not wait for the leader's disk.
    simulate_data(test, voter_count=1)
