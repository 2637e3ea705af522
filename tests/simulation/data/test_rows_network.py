"""Rows of FAULTS.md: network cuts, delays, leaders that are cut off."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.replication.partition import Acks
from tests.simulation.data.consumers import Consumer
from tests.simulation.data.data_world import DataWorld, Part, simulate_data
from tests.simulation.data.test_rows_processes import SESSION_S, written

T = Part("t", 0)


@pytest.mark.parametrize("kind", ["symmetric", "cannot hear", "cannot speak"])
def test_row_04_a_leader_is_cut_off(kind: str) -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        clients = await written(data, 6.0)
        await asyncio.sleep(0.5)
        network = data.world.network
        if kind == "cannot hear":
            network.partition([2, 3], [1], one_way=True)
        else:
            network.partition([1], [2, 3], one_way=kind == "cannot speak")
        await data.led(T, 2, 3)
        await data.write(T)
        # A replaced leader that has not applied the change commits nothing.
        await data.producer("d", idempotent=False).send(T, node=1, within_s=0.5)
        await asyncio.sleep(1.0)
        network.heal()
        await clients

    simulate_data(test)


def test_row_04_two_followers_do_not_hear_each_other() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        clients = await written(data, 5.0)
        await asyncio.sleep(0.5)
        data.world.network.partition([2], [3])
        await asyncio.sleep(2.5)
        data.world.network.heal()
        await clients

    simulate_data(test)


def test_a_leader_that_was_moved_unawares_tells_no_old_end() -> None:
    """The next one does not wait for its lease to end, as after a silence (`data 40638`)."""

    async def test(data: DataWorld) -> None:
        controller = await data.nodes.until(data.nodes.controller)
        late, *others = data.nodes.others(controller)
        await data.create("t", [[late, *others]])
        await data.write(T, 5)
        await data.in_sync()
        consumer = Consumer(data, "c", T)
        assert await consumer.ask_end(late) == 5
        data.world.network.slow(controller, late, 0.6)
        await data.reassign(T, others)
        await data.led(T, *others)
        await data.write(T, 2)
        # The node has not applied the change, and may still act as a leader.
        assert data.leader_by(late, T) == late
        assert data.nodes.takes_writes(late, "t", 0)
        assert await consumer.ask_end(late) == 7
        data.world.network.slow(controller, late, 0.0)

    simulate_data(test, node_count=5)


def test_row_05_a_leader_without_the_quorum_acknowledges_nothing_that_needs_an_isr_change() -> None:
    """The leader and one follower still have each other, and their clients; the rest the quorum."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[4, 5, 1]])
        await data.write(T, 2)
        cut_at = data.world.loop.now
        data.world.network.partition([4, 5], [1, 2, 3])
        send = await data.producer("p", idempotent=False).send(T, node=4, within_s=1.0)
        assert send is not None and send.outcome != "ok"
        assert data.nodes.takes_writes(4, "t", 0)
        # The node resigns within a session timeout, by its own clock.
        await data.nodes.until(lambda: not data.nodes.takes_writes(4, "t", 0))
        assert data.world.loop.now - cut_at <= SESSION_S
        late = await data.producer("q", idempotent=False).send(T, node=4, within_s=0.2)
        assert late is not None and late.outcome == "refused"
        # The others do not go on without an electable replica with all records: node 1 has them.
        await data.led(T, 1)
        await data.isr(T, 1)
        data.world.network.heal()

    simulate_data(test, node_count=5)


def test_row_05_a_leader_alone_acknowledges_nothing() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        await data.write(T)
        data.nodes.cut_off(1)
        sends = [
            await data.producer(f"p{n}", idempotent=False).send(T, node=1, within_s=0.3)
            for n in range(8)
        ]
        assert all(send is not None and send.outcome != "ok" for send in sends)
        await data.led(T, 2, 3)

    simulate_data(test)


def test_row_05_an_isr_change_counts_once_it_is_committed() -> None:
    """The leader loses a follower, and its word takes long to reach the quorum."""

    async def test(data: DataWorld) -> None:
        controller = await data.nodes.until(data.nodes.controller)
        lost = 1 if controller != 1 else 2
        await data.create("t", [[4, 5, lost]])
        clients = await written(data, 6.0)
        await asyncio.sleep(0.5)
        network = data.world.network
        network.partition([4], [lost])
        network.slow(4, controller, 0.4)
        # These sends do not wait, so that the leader hears its other follower all the time.
        eager = data.producer("eager", acks=Acks.LEADER, stale=0.0)
        work = data.world.loop.create_task(eager.run(data.world.loop.now + 4.0, 0.02))
        await asyncio.sleep(4.0)
        network.heal()
        await asyncio.gather(clients, work)

    simulate_data(test, node_count=5)


@pytest.mark.parametrize("seed", range(3))
def test_row_07_delays_and_resets(seed: int) -> None:
    async def test(data: DataWorld) -> None:
        chance = data.world.random("row 7")
        await data.create("t", [[1, 2, 3], [2, 3, 1]])
        clients = await written(data, 6.0)
        for _ in range(30):
            await asyncio.sleep(0.15)
            one, other = chance.sample(data.nodes.node_ids, 2)
            data.world.network.slow(one, other, chance.choice((0.0, 0.0, 0.02, 0.3)))
            if chance.random() < 0.5:
                data.world.network.reset(one, other)
        await clients

    simulate_data(test, seed)


def test_kip_320_data_of_a_replaced_leader_is_refused() -> None:
    """Data of the old leader arrives when the follower has a new one."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        await data.write(T, 2)
        await data.in_sync()
        data.world.network.give_up_s = (30.0, 31.0)
        # Messages from 1 to 3 wait, as in TCP; then 1 is cut off from all, and replaced.
        data.world.network.block(1, 3)
        await data.producer("p", acks=Acks.LEADER, idempotent=False).send(T, 3, node=1)
        data.nodes.cut_off(1)
        await data.led(T, 2, 3)
        await data.write(T, 2)
        data.world.network.unblock(1, 3)
        await asyncio.sleep(0.5)
        await data.write(T, 2)

    simulate_data(test)


def test_kip_320_a_reader_at_a_follower_sees_nothing_that_is_withdrawn() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        await data.write(T, 2)
        await data.in_sync()
        near = Consumer(data, "c", T, near=1.0)
        near.seek(0)
        # From now on only node 2 gets the leader's records, and must not show them.
        data.world.network.partition([1], [3])
        await data.producer("p", acks=Acks.LEADER, idempotent=False).send(T, 3, node=1)
        await asyncio.sleep(0.1)
        await near.poll(2, near=True)
        assert near.position == 2
        data.nodes.cut_off(1)
        await data.led(T, 2, 3)
        for node_id in (2, 3, 2, 3):
            await data.write(T)
            await near.poll(node_id, near=True)

    simulate_data(test)
