"""The invariants find violations that no planted mistake shows, and excuse only allowed losses."""

from __future__ import annotations

import pytest

from raftlog.record.batch import stamped
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.replication.partition import Acks
from tests.simulation.data.clients import encode
from tests.simulation.data.consumers import Consumer
from tests.simulation.data.data_world import DataWorld, Part, simulate_data
from tests.simulation.node_checker import InvariantError
from tests.verification.log_checker import HistoryError

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
