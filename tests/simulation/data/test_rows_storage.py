"""Rows of FAULTS.md: power cuts, disks that fail, rot, lag or are wiped, and clocks."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.record.errors import LogError
from raftlog.record.types import LeaderEpoch, Offset
from tests.record.batches import stamped
from tests.simulation.data.clients import encode
from tests.simulation.data.consumers import Consumer
from tests.simulation.data.data_world import DataWorld, Part, simulate_data
from tests.simulation.data.test_rows_processes import written

T = Part("t", 0)
FLUSHES = ["sync", "async"]


@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize("victim", ["leader", "follower"])
@pytest.mark.parametrize("seed", range(2))
def test_row_12_power_cut_of_one_node(flush: str, victim: str, seed: int) -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]], {"flush": flush})
        clients = await written(data, 6.0)
        for _ in range(2):
            await asyncio.sleep(0.7)
            leader = await data.led(T)
            node_id = leader if victim == "leader" else data.nodes.others(leader)[0]
            data.cut_power(node_id)
            await asyncio.sleep(0.5)
            data.nodes.start(node_id)
            await data.nodes.until(lambda: data.is_in_sync(T))
        await clients

    simulate_data(test, seed)


@pytest.mark.parametrize("seed", range(4))
def test_row_13_power_cut_of_all_nodes_sync(seed: int) -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3], [2, 3, 1]])
        clients = await written(data, 6.0)
        for _ in range(3):
            await asyncio.sleep(1.0)
            data.cut_power(*data.nodes.node_ids)
            for node_id in data.nodes.node_ids:
                data.nodes.start(node_id)
        await clients

    simulate_data(test, seed)


@pytest.mark.parametrize("seed", range(4))
def test_row_13_power_cut_of_all_nodes_async_is_reported(seed: int) -> None:
    """No replica can vouch for the newest records: the partition stays offline and reports why."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]], {"flush": "async"})
        for _ in range(5):
            await data.write(T, 2)
        data.cut_power(*data.nodes.node_ids)
        for node_id in data.nodes.node_ids:
            data.nodes.start(node_id)
        await data.nodes.until(lambda: all(map(data.nodes.is_ready, data.nodes.node_ids)))
        await asyncio.sleep(3.0)
        assert data.leader(T) is None, data.describe()
        # An operator accepts the loss; from then on the metadata has recorded it.
        controller = await data.nodes.until(data.nodes.controller)
        data.lose(T, 0)
        await data.nodes.call(
            controller,
            lambda core: core.services.metadata.operations.transfer_leader(
                "t", 0, None, unclean=True
            ),
        )
        await data.led(T)
        assert data.row(T).unclean_epoch == data.row(T).leader_epoch

    simulate_data(test, seed)


def test_row_14_a_tail_torn_at_every_byte() -> None:
    """A write cut short at any byte is dropped, and fetched again."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]], small_segments=False)
        await data.write(T, 2)
        await data.in_sync()
        (batch,) = encode(["torn, and never acknowledged"])
        end = data.replica(3, T).log_end_offset  # type: ignore[union-attr]
        whole = b"".join(map(bytes, stamped(batch, Offset(end), LeaderEpoch(0))))
        for length in range(1, len(whole)):
            data.nodes.kill(3)
            path = data.paths(3, T)[-1]
            disk = data.world.disk(3)
            disk.put(path, disk.contents(path) + whole[:length])
            data.nodes.start(3)
            await data.nodes.until(lambda: data.replica(3, T) is not None)
            replica = data.replica(3, T)
            assert replica is not None and not replica.is_closed
            assert replica.log_end_offset == end, f"cut at {length}"
        await data.nodes.until(lambda: data.is_in_sync(T))
        await data.write(T)

    simulate_data(test)


@pytest.mark.parametrize("victim", ["leader", "follower"])
@pytest.mark.parametrize("when", ["at a read", "at a start"])
def test_row_15_bit_rot_in_the_middle(victim: str, when: str) -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        for _ in range(40):
            await data.write(T, 3)
        await data.in_sync()
        node_id = 1 if victim == "leader" else 2
        path = data.rot(node_id, T, segment=1)
        rotten = data.world.disk(node_id).contents(path)
        if when == "at a start":
            data.nodes.kill(node_id)
            data.nodes.start(node_id)
            await data.nodes.ready()
        near = Consumer(data, "c", T, near=1.0)
        near.seek(0)
        for _ in range(60):
            await near.poll(node_id, near=True)
        # Repaired, and the damaged bytes are kept.
        await data.nodes.until(lambda: rotten not in _contents(data, node_id, "replicas/"))
        await data.in_sync()
        kept = _contents(data, node_id, "damaged/")
        assert any(content and content in rotten for content in kept)

    simulate_data(test)


def _contents(data: DataWorld, node_id: int, under: str) -> list[bytes]:
    disk = data.world.disk(node_id)
    return [disk.contents(path) for path in disk.paths() if path.startswith(under)]


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_row_17_a_failed_sync_is_final(victim: str) -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        await data.write(T, 3)
        await data.in_sync()
        node_id = 1 if victim == "leader" else 2
        path = data.paths(node_id, T)[-1]
        disk = data.world.disk(node_id)
        disk.fail_next("sync", path)
        data.replicas.damaged(node_id, data.key(T))
        failed = data.replica(node_id, T)
        assert failed is not None
        flushed = failed.log.flushed_offset
        await data.write(T, 3)
        await data.nodes.until(lambda: failed.is_closed)
        # Unsynced records are not counted any more, whatever a second sync would return.
        assert failed.log.flushed_offset == flushed
        await data.in_sync()
        assert data.replica(node_id, T) is not failed

    simulate_data(test)


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_row_17_what_could_not_be_synced_is_not_counted(victim: str) -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]], small_segments=False)
        await data.write(T, 3)
        await data.in_sync()
        node_id = 1 if victim == "leader" else 2
        data.world.disk(node_id).fail_next("sync", data.paths(node_id, T)[-1])
        await data.write(T, 3)
        data.cut_power(*data.nodes.node_ids)
        for each in data.nodes.node_ids:
            data.nodes.start(each)

    simulate_data(test)


def test_row_17_a_node_whose_checkpoint_file_cannot_be_written_ends() -> None:
    """It went on, without maintenance and with replicas that stayed offline (`data 15`, with
    checkpoint-errors)."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        data.world.disk(2).fail_next("rename", "checkpoints.json")
        await data.write(T, 3)
        assert "checkpoints.json" in await data.nodes.ended(2)
        data.nodes.start(2)
        await data.in_sync()

    simulate_data(test, may_end=True)


def test_row_19_a_slow_disk_leaves_the_isr() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        await data.write(T)
        data.world.times(3).stick(6.0)
        begun = data.world.loop.now
        await data.write(T, within_s=5.0)
        assert data.world.loop.now - begun < 4.0
        assert set(data.row(T).isr) == {1, 2}
        for _ in range(10):
            begun = data.world.loop.now
            await data.write(T)
            assert data.world.loop.now - begun < 0.5

    # Node 3 has no vote: the metadata must not wait for its disk.
    simulate_data(test, voter_count=1)


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_row_20_clock_jumps(seconds: float) -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]], {"retention.ms": "86400000"})
        clients = await written(data, 4.0)
        controller = await data.nodes.until(data.nodes.controller)
        term = data.nodes.cores[controller].quorum.term
        for node_id in data.nodes.node_ids:
            await asyncio.sleep(0.7)
            data.world.clock(node_id).jump(seconds)
        await clients
        assert data.nodes.cores[controller].quorum.term == term
        assert data.row(T).leader_epoch == 0
        assert all(data.replica(n, T).log_start_offset == 0 for n in (1, 2, 3))  # type: ignore[union-attr]

    simulate_data(test)


def test_row_21_a_wiped_disk_under_the_same_id() -> None:
    """Refused, until the broker is removed and added again; then the replica catches up first."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 4]])
        for _ in range(10):
            await data.write(T, 2)
        await data.in_sync()
        data.nodes.kill(4)
        data.world.wipe(4)
        data.nodes.start(4)
        assert "another data directory" in await data.nodes.ended(4)
        await data.isr(T, 1, 2)
        await data.write(T, 2)
        await data.reassign(T, [1, 2, 3])
        await data.nodes.until(lambda: set(data.row(T).replicas) == {1, 2, 3})
        controller = await data.nodes.until(data.nodes.controller)
        await data.nodes.call(
            controller,
            lambda core: core.services.metadata.unregister_broker(4),  # type: ignore[arg-type]
        )
        data.nodes.start(4)
        await data.nodes.ready()
        assert 4 not in data.row(T).isr
        await data.reassign(T, [4, 1, 2])
        await data.nodes.until(lambda: data.row(T).replicas == (4, 1, 2))
        assert data.replica(4, T).log_end_offset == 22  # type: ignore[union-attr]

    simulate_data(test, node_count=4, may_end=True)


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_crashes_in_the_middle_of_a_change_of_the_disk(victim: str) -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        clients = await written(data, 8.0)
        for steps in range(1, 13):
            await asyncio.sleep(0.3)
            leader = await data.led(T)
            node_id = leader if victim == "leader" else data.nodes.others(leader)[0]
            if data.world.is_up(node_id):
                data.world.crash_in(node_id, steps, power=steps % 2 == 0)
                await asyncio.sleep(0.2)
            if not data.world.is_up(node_id):
                data.nodes.start(node_id)
        await clients

    simulate_data(test)


def test_what_was_refused_is_written_nowhere() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]], {"max.message.bytes": "200"})
        await data.write(T)
        for count in (1, 30):
            await data.producer(f"p{count}", idempotent=False).send(T, count)
        with pytest.raises(LogError):
            await data.nodes.call(
                2, lambda core: core.services.metadata.create_topic("t", partitions=1)
            )

    simulate_data(test)


def test_row_21_the_files_of_one_replica_are_gone() -> None:
    """The replica must not count as complete, though the metadata has it in the ISR."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        for _ in range(10):
            await data.write(T, 2)
        await data.in_sync()
        data.nodes.kill(2)
        for path in data.paths(2, T):
            directory = path.rpartition("/")[0]
            data.world.disk(2).make_directory("gone")
            data.world.disk(2).rename(directory, "gone/away")
            break
        data.replicas.damaged(2, data.key(T))
        data.nodes.start(2)
        await data.nodes.ready()
        data.nodes.kill(1)
        await data.led(T, 2, 3)
        await data.write(T)

    simulate_data(test)
