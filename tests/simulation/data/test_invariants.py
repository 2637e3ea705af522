"""The invariants find violations that no planted mistake shows, and excuse only allowed losses."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from raftlog.metadata.commands import AlterClusterSettings
from raftlog.metadata.decisions.elections import Elections
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.replication.leader.role import LeaderRole
from raftlog.replication.partition import Acks
from tests.record.batches import stamped
from tests.simulation.clock import SimulatedClock
from tests.simulation.data.clients import encode
from tests.simulation.data.consumers import Consumer
from tests.simulation.data.data_world import DataWorld, Part, simulate_data
from tests.simulation.data.invariants import CHURN_S, OFFLINE_S, Churn
from tests.simulation.node_checker import InvariantError
from tests.verification.log_checker import HistoryError
from tests.verification.log_history import Deletion

T = Part("t", 0)


async def begin(data: DataWorld) -> None:
    await data.create("t", [[1, 2, 3]])
    await data.write(T, 4)
    await data.in_sync()


def test_a_high_watermark_that_falls_is_noticed() -> None:
    async def test(data: DataWorld) -> None:
        await begin(data)

        async def fall(_: object) -> None:
            replica = data.replica(2, T)
            assert replica is not None
            replica.move_high_watermark(Offset(1))

        await data.nodes.call(2, fall)

    with pytest.raises(InvariantError, match=r"fell from 4 to 1 in leader epoch 0"):
        simulate_data(test)


def test_two_batches_at_one_offset_of_one_epoch_are_noticed() -> None:
    async def test(data: DataWorld) -> None:
        await begin(data)
        data.nodes.cut_off(1)
        await data.producer("p", acks=Acks.LEADER, idempotent=False).send(T, node=1)

        async def append(_: object) -> None:
            (batch,) = encode(["another"])
            replica = data.replica(2, T)
            assert replica is not None
            fetched = b"".join(map(bytes, stamped(batch, Offset(4), LeaderEpoch(0))))
            assert replica.log.appender.append_fetched_now(fetched, LeaderEpoch(0))

        await data.nodes.call(2, append)

    with pytest.raises(InvariantError, match="two batches, or two histories, at 4 in epoch 0"):
        simulate_data(test)


def test_a_replica_in_sync_that_is_cut_short_is_noticed() -> None:
    async def test(data: DataWorld) -> None:
        await begin(data)

        async def cut(_: object) -> None:
            replica = data.replica(3, T)
            assert replica is not None
            await replica.log.operations.truncate_to(Offset(0))

        await data.nodes.call(3, cut)

    with pytest.raises(InvariantError, match="broker 3 may be elected, and has 0 of 4 durably"):
        simulate_data(test)


def test_a_follower_that_dies_right_after_its_deletion_counts_with_it() -> None:
    """Seed 101098: the log start that the follower had acknowledged was not looked at any more."""

    async def test(data: DataWorld) -> None:
        await begin(data)
        leader = data.replica(1, T)
        assert leader is not None
        await data.nodes.call(1, lambda _: leader.require_leader().delete_records(Offset(2)))
        data.nodes.kill(3)
        step = data.step()
        data.history.append(Deletion(partition=str(T), before=2, completed=step))
        data.replicas.deleted(data.key(T), 2)
        data.nodes.start(3)

    simulate_data(test)


def test_records_after_a_truncated_end_are_known_as_committed() -> None:
    """Seed 102099: the second unclean election was taken to have lost no record."""

    async def test(data: DataWorld) -> None:
        configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        await data.create("t", [[1, 2]], configs)
        for count in (9, 3):
            # Node 1 alone commits records that node 2 lacks.
            await data.in_sync()
            data.nodes.kill(2)
            await data.led(T, 1)
            await data.isr(T, 1)
            for _ in range(count):
                await data.write(T)
            # A clean stop: the next start knows the high watermark.
            await data.nodes.stop(1)
            data.nodes.start(2)
            await data.led(T, 2)
            assert data.row(T).unclean_epoch == data.row(T).leader_epoch
            await data.write(T)
            data.nodes.start(1)

    simulate_data(test)


def test_what_is_lost_on_all_disks_is_noticed_by_the_history() -> None:
    """The clients' history finds a loss even if the invariants have excused it."""

    async def test(data: DataWorld) -> None:
        await begin(data)
        for node_id in data.nodes.node_ids:
            data.nodes.kill(node_id)
            path = data.paths(node_id, T)[0]
            disk = data.world.disk(node_id)
            disk.put(path, b"")
            for other in ("checkpoint", "00.index", "00.timeindex"):
                for each in [name for name in disk.paths() if name.endswith(other)]:
                    if "metadata" not in each:
                        disk.remove(each)
        data.replicas.replicas.clear()
        data.replicas.forgive(data.key(T))
        for node_id in data.nodes.node_ids:
            data.nodes.start(node_id)

    with pytest.raises(AssertionError):
        simulate_data(test, may_end=True)


def test_a_reader_who_is_given_what_is_not_committed_is_noticed() -> None:
    async def test(data: DataWorld) -> None:
        await begin(data)
        reader = Consumer(data, "c", T, near=1.0)
        reader.seek(0)
        data.nodes.cut_off(1)
        await data.producer("p", acks=Acks.LEADER, idempotent=False).send(T, node=1)

        async def show(_: object) -> None:
            replica = data.replica(1, T)
            assert replica is not None
            replica.high_watermark = replica.log_end_offset

        await data.nodes.call(1, show)
        assert await reader.poll(1, near=True)
        data.nodes.kill(1)
        await data.led(T, 2, 3)
        await data.write(T)

    with pytest.raises(HistoryError, match="inconsistent offset"):
        simulate_data(test)


def test_an_append_of_a_leader_without_touch_with_the_quorum_is_noticed() -> None:
    async def test(data: DataWorld) -> None:
        await begin(data)
        data.world.pause(1)
        await data.led(T, 2, 3)
        writer = data.producer("p", acks=Acks.LEADER, idempotent=False, repeats=False)
        sending = asyncio.ensure_future(writer.send(T, node=1))
        await asyncio.sleep(0.1)
        data.world.resume(1)
        await sending

    with (
        mock.patch.object(LeaderRole, "_require_lead", lambda _self: None),
        pytest.raises(InvariantError, match=r"n1\.1 appends to .* after its last touch"),
    ):
        simulate_data(test)


def test_a_lease_by_a_clock_that_sleeps_with_the_machine_is_noticed() -> None:
    """CLOCK_MONOTONIC stands still during a sleep: the lease goes on where it stood."""

    async def test(data: DataWorld) -> None:
        await begin(data)
        data.world.suspend(1)
        await asyncio.sleep(300.0)
        writer = data.producer("p", acks=Acks.LEADER, idempotent=False, repeats=False)
        sending = asyncio.ensure_future(writer.send(T, node=1))
        await asyncio.sleep(0.1)
        data.world.resume(1)
        await sending

    def asleep(clock: SimulatedClock) -> float:
        return asyncio.get_running_loop().time() - clock.suspended_s

    with (
        mock.patch.object(SimulatedClock, "monotonic", asleep),
        pytest.raises(InvariantError, match=r"n1\.1 appends to .* after its last touch"),
    ):
        simulate_data(test)


def test_an_acknowledgement_that_no_follower_sent_is_noticed() -> None:
    async def test(data: DataWorld) -> None:
        await begin(data)

        async def count(_: object) -> None:
            replica = data.replica(1, T)
            assert replica is not None
            replica.require_leader().state.followers[2].durable_end = Offset(99)  # type: ignore[index]

        data.nodes.cut_off(2)
        await data.nodes.call(1, count)
        await data.producer("p", acks=Acks.LEADER, idempotent=False).send(T, node=1)

    with pytest.raises(InvariantError, match=r"n1\.1 counts 99 of .* which has acknowledged 4"):
        simulate_data(test)


def test_a_partition_without_a_leader_and_without_a_cause_is_noticed() -> None:
    async def test(data: DataWorld) -> None:
        await begin(data)
        leader = 1 if await data.nodes.until(data.nodes.controller) != 1 else 2
        await data.nodes.call(
            1,
            lambda core: core.services.metadata.operations.transfer_leader("t", 0, leader),  # type: ignore[arg-type]
        )
        await data.led(T, leader)
        with mock.patch.object(Elections, "elect", lambda *_, **__: None):
            data.nodes.kill(leader)
            for _ in range(int(2 * OFFLINE_S)):
                await asyncio.sleep(1.0)
                await data.propose(AlterClusterSettings(values={}))

    with pytest.raises(InvariantError, match="has had no leader for"):
        simulate_data(test)


def test_changes_of_a_partition_are_counted_over_a_while() -> None:
    churn = Churn()
    assert [churn.changed(("t", 0), 3, now) for now in (0.0, 1.0, CHURN_S, CHURN_S + 0.5)] == [
        3,
        6,
        9,
        9,
    ]
    assert churn.changed(("t", 1), 1, 0.0) == 1
    assert churn.highest == 9
