"""Rows of FAULTS.md: failovers in a row, and elections (KIP-101, 279, 966)."""

from __future__ import annotations

import asyncio

from raftlog.record.errors import LogError
from raftlog.replication.partition import Acks
from tests.simulation.data.data_world import DataWorld, Part, simulate_data

T = Part("t", 0)


async def lone_write(data: DataWorld, name: str, node_id: int, count: int) -> None:
    """Let a leader append records that reach no other replica."""
    send = await data.producer(name, acks=Acks.LEADER, idempotent=False).send(
        T, count, node=node_id
    )
    assert send is not None and send.outcome == "ok", send


def test_row_08_kip_279_logs_converge_after_fast_failovers() -> None:
    """Each of three leaders has written records of its own at the same offsets."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]], {"min.insync.replicas": "1"})
        await data.write(T, 5)
        await data.in_sync()
        data.nodes.cut_off(1)
        await lone_write(data, "first", 1, 4)
        second = await data.led(T, 2, 3)
        third = 5 - second
        # The second leader does not know the first one's tail, nor the third the second one's.
        data.world.network.partition([second], [third])
        await lone_write(data, "second", second, 2)
        await lone_write(data, "second-again", second, 1)
        data.nodes.kill(second)
        data.nodes.kill(1)
        data.world.network.heal()
        data.nodes.start(1)
        await data.led(T, third)
        await lone_write(data, "third", third, 1)
        data.nodes.kill(third)
        data.nodes.start(second)
        await asyncio.sleep(0.4)
        data.nodes.start(third)
        await data.in_sync()
        # All three wrote at offset 5, and two of them had to truncate.
        written = {place[1] for place in data.replicas.links if place[2] == 5}
        assert len(written) == 3, written

    simulate_data(test)


def test_row_09_kip_101_a_restart_before_the_high_watermark_spreads() -> None:
    """The follower has the acknowledged records, but no high watermark above them yet."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2]])
        leader = 1
        await data.write(T, 3)
        follower = data.replica(2, T)
        assert follower is not None and follower.high_watermark < follower.log_end_offset
        for node_id in (leader, 2):
            data.nodes.kill(node_id)
        data.nodes.start(2)
        await data.led(T, 2)
        assert data.replica(2, T).log_end_offset == 3  # type: ignore[union-attr]
        await data.write(T, 2)
        data.nodes.start(leader)

    simulate_data(test)


def test_row_09_kip_101_a_follower_restarts_and_its_leader_dies() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        for _ in range(5):
            await data.write(T, 2)
            first = await data.led(T)
            second = data.nodes.others(first)[0]
            data.nodes.kill(second)
            data.nodes.start(second)
            await data.nodes.ready()
            data.nodes.kill(first)
            await data.led(T, *data.nodes.others(first))
            data.nodes.start(first)
            await data.in_sync()

    simulate_data(test)


def test_row_10_kip_966_the_last_replica_standing_loses_power() -> None:
    """Unflushed records are gone: the replica must not be elected before it has caught up."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]], {"flush": "async"})
        await data.write(T, 4)
        await data.in_sync()
        data.nodes.kill(2)
        await data.isr(T, 1, 3)
        await data.write(T, 4)
        data.nodes.kill(3)
        # Without node 3 there is no majority: later changes are committed only once it is back.
        data.cut_power(1)
        data.nodes.start(1)
        data.nodes.start(2)
        await data.nodes.until(lambda: data.nodes.is_ready(1))
        await asyncio.sleep(3.0)
        assert data.leader(T) in (None, 3), data.describe()
        assert 1 not in (*data.row(T).isr, *data.row(T).elr), data.describe()
        data.nodes.start(3)
        assert await data.led(T) == 3
        assert data.replica(3, T).log_end_offset >= 8  # type: ignore[union-attr]

    simulate_data(test)


def test_row_10_kip_966_an_eligible_replica_leads_again() -> None:
    """A replica that left an ISR below the minimum has all records, and may lead."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[4, 5, 1]])
        await data.write(T, 4)
        await data.in_sync()
        data.nodes.kill(1)
        await data.isr(T, 4, 5)
        await data.write(T, 2)
        data.nodes.kill(5)
        await data.isr(T, 4)
        assert 5 in data.row(T).elr, data.row(T)
        await data.nodes.until(lambda: data.replica(4, T).image == data.row(T))  # type: ignore[union-attr]
        # Below the minimum nothing is acknowledged.
        send = await data.producer("p", idempotent=False).send(T, within_s=0.5)
        assert send is not None and send.outcome == "refused"
        data.nodes.kill(4)
        data.nodes.start(1)
        await data.nodes.ready(1, 2, 3)
        await asyncio.sleep(2.0)
        assert data.leader(T) is None, data.describe()
        data.nodes.start(5)
        assert await data.led(T) == 5

    simulate_data(test, node_count=5)


def test_row_11_without_a_replica_in_sync_the_partition_is_offline() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[4, 5, 1]], {"min.insync.replicas": "1"})
        await data.write(T, 4)
        await data.in_sync()
        for node_id in (1, 5):
            data.nodes.kill(node_id)
        await data.isr(T, 4)
        await data.write(T, 4)
        data.nodes.kill(4)
        for node_id in (1, 5):
            data.nodes.start(node_id)
        await data.nodes.ready(1, 2, 3, 5)
        await asyncio.sleep(3.0)
        assert data.leader(T) is None, data.describe()
        data.nodes.start(4)
        assert await data.led(T) == 4

    simulate_data(test, node_count=5)


def test_row_22_membership_change_kill_and_partition() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3], [3, 4, 5]])
        loop = data.world.loop
        producer = data.producer("p")
        work = loop.create_task(producer.run(loop.now + 8.0, 0.02))
        await asyncio.sleep(0.3)
        controller = await data.nodes.until(data.nodes.controller)

        async def change(kind: str, node_id: int) -> None:
            try:
                asked = await data.nodes.until(data.nodes.controller)
                await data.nodes.call(asked, lambda core: getattr(core.quorum, kind)(node_id))
            except LogError as error:
                assert error.entry.retriable, error

        await change("add_voter", 4)
        data.nodes.kill(controller)
        await change("add_voter", 5)
        data.nodes.start(controller)
        await data.nodes.ready()
        # Call a node on the side with a quorum: else the cut lasts as long as the call.
        leader = await data.nodes.until(data.nodes.controller)
        first, second, *rest = data.nodes.others(leader)
        data.world.network.partition([first, second], [leader, *rest])
        await change("remove_voter", first)
        await asyncio.sleep(2.0)
        data.world.network.heal()
        await change("remove_voter", second)
        await work
        assert producer.acknowledged > 20

    simulate_data(test, node_count=5)


def test_row_22_a_partition_moves_while_its_leader_dies() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        loop = data.world.loop
        work = loop.create_task(data.producer("p").run(loop.now + 6.0, 0.02))
        await asyncio.sleep(0.5)
        await data.reassign(T, [3, 4, 5])
        await asyncio.sleep(0.02)
        data.nodes.kill(1)
        await asyncio.sleep(1.0)
        data.nodes.start(1)
        await data.nodes.until(lambda: data.row(T).replicas == (3, 4, 5))
        data.nodes.kill(3)
        await data.led(T, 4, 5)
        data.nodes.start(3)
        await work

    simulate_data(test, node_count=5)


def test_a_replica_given_again_is_not_taken_for_the_one_that_was_taken_away() -> None:
    """The broker applies both changes late, and acknowledges by its first replica until then."""

    async def test(data: DataWorld) -> None:
        controller = await data.nodes.until(data.nodes.controller)
        leader, other, late, spare = data.nodes.others(controller)
        await data.create("t", [[leader, other, late]])
        await data.write(T, 5)
        await data.in_sync()
        data.world.network.slow(controller, late, 0.6)
        # A broker that takes the spare's place at once, so that the late one is not needed.
        await data.reassign(T, [leader, other, late, spare])
        await data.isr(T, leader, other, late, spare)
        await data.reassign(T, [leader, other, spare])
        await data.nodes.until(lambda: late not in data.row(T).replicas)
        await data.reassign(T, [leader, other, spare, late])
        await data.write(T, 5)
        data.world.network.slow(controller, late, 0.0)
        await data.in_sync()

    simulate_data(test, node_count=5)
