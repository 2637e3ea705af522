"""A disk that lost some directories of the data path and kept the metadata: a reported loss."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.metadata.image import NO_LEADER_ID
from raftlog.storage.checkpoints.checkpoint_file import MISSING_NAME
from tests.simulation.data.data_world import DataWorld, Part, simulate_data

T = Part("t", 0)


def wipe(data: DataWorld, node_id: int, *names: str, unreadable: str = "") -> None:
    """Move these away from a stopped node's disk, and spoil a file."""
    disk = data.world.disk(node_id)
    disk.make_directory("gone")
    for name in names:
        disk.rename(name, "gone/" + name.replace("/", "-"))
        disk.sync_directory(name.rpartition("/")[0])
    disk.sync_directory("gone")
    if unreadable:
        disk.flip_bit(unreadable, 8 * 40)
    data.replicas.damaged(node_id, data.key(T))


def empty(data: DataWorld, node_id: int) -> None:
    """Remove the files of all replicas, and keep their directories; the checkpoint file, too."""
    disk = data.world.disk(node_id)
    for path in disk.paths():
        if path.startswith("replicas/") or path == "checkpoints.json":
            disk.remove(path)
            disk.sync_directory(path.rpartition("/")[0])
    data.replicas.damaged(node_id, data.key(T))


def is_renewed(data: DataWorld, node_id: int) -> bool:
    """Whether the node has all records again, fetched from others."""
    replica = data.replica(node_id, T)
    return data.is_in_sync(T) and replica is not None and replica.log_end_offset >= 20


@pytest.mark.parametrize(
    ("names", "unreadable"),
    [
        (("replicas", "checkpoints.json"), ""),
        (("replicas",), "checkpoints.json"),
        (("replicas",), ""),
    ],
)
@pytest.mark.parametrize("power", [True, False])
def test_one_replica_lost_is_copied_again(
    names: tuple[str, ...], unreadable: str, power: bool
) -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[2, 1, 3]])
        for _ in range(10):
            await data.write(T, 2)
        await data.in_sync()
        for node_id in (3, 1, 2):
            data.nodes.kill(node_id, power=power)
        wipe(data, 2, *names, unreadable=unreadable)
        data.nodes.start(2)
        data.nodes.start(1)
        await asyncio.sleep(4.0)
        assert data.row(T).leader == 1
        data.nodes.start(3)
        await data.nodes.until(lambda: is_renewed(data, 2))
        assert data.row(T).unclean_epoch == -1

    simulate_data(test)


@pytest.mark.parametrize("power", [True, False])
def test_replica_emptied_with_the_checkpoint_file_is_copied_again(power: bool) -> None:
    """Taken for a new replica, it would lead an empty partition, and the others would truncate."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[2, 1, 3]])
        for _ in range(10):
            await data.write(T, 2)
        await data.in_sync()
        for node_id in (3, 1, 2):
            data.nodes.kill(node_id, power=power)
        empty(data, 2)
        data.nodes.start(2)
        data.nodes.start(1)
        await asyncio.sleep(4.0)
        assert data.row(T).leader == 1
        data.nodes.start(3)
        await data.nodes.until(lambda: is_renewed(data, 2))
        assert data.row(T).unclean_epoch == -1

    simulate_data(test)


def test_leader_that_restarts_at_once_without_its_files() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[4, 2, 3]])
        for _ in range(10):
            await data.write(T, 2)
        await data.in_sync()
        await asyncio.sleep(3.0)
        data.nodes.kill(4)
        wipe(data, 4, "replicas", "checkpoints.json")
        data.nodes.start(4)
        await data.nodes.until(lambda: is_renewed(data, 4))

    simulate_data(test, node_count=4)


@pytest.mark.parametrize("crashes", [1, 3])
def test_loss_is_not_forgotten_by_a_crash_before_its_report(crashes: int) -> None:
    """The new checkpoint file is written before the loss is reported, and must not hide it."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[2, 1, 3]])
        for _ in range(10):
            await data.write(T, 2)
        await data.in_sync()
        for node_id in (1, 3, 2):
            data.nodes.kill(node_id, power=True)
        wipe(data, 2, "replicas", "checkpoints.json")
        for _ in range(crashes):
            # Without the others there is no quorum, so no report.
            data.nodes.start(2)
            await asyncio.sleep(1.0)
            data.nodes.kill(2, power=True)
        data.nodes.start(2)
        data.nodes.start(1)
        await asyncio.sleep(4.0)
        assert data.row(T).leader != 2
        data.nodes.start(3)
        await data.nodes.until(lambda: is_renewed(data, 2))

    simulate_data(test)


def test_the_only_replica_lost_waits_for_the_operator() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[2]])
        for _ in range(5):
            await data.write(T, 2)
        data.nodes.kill(2)
        wipe(data, 2, "replicas", "checkpoints.json")
        data.nodes.start(2)
        await data.nodes.until(lambda: data.nodes.is_ready(2))
        await asyncio.sleep(3.0)
        row = data.row(T)
        assert (row.leader, row.isr, row.elr) == (NO_LEADER_ID, (), ())
        data.lose(T, 0)
        await data.nodes.call(
            await data.nodes.until(data.nodes.controller),
            lambda core: core.services.metadata.operations.transfer_leader(
                "t", 0, None, unclean=True
            ),
        )
        await data.led(T, 2)
        await data.write(T, 1)

    simulate_data(test)


def test_topic_whose_creation_a_crash_cut_short_is_not_lost() -> None:
    """A new replica has no files either, and a whole checkpoint file does not name it."""

    async def test(data: DataWorld) -> None:
        await data.create("u", [[1, 2, 3]])
        data.nodes.kill(2, power=True)
        await data.nodes.until(lambda: data.nodes.controller() is not None)
        await data.create("t", [[1, 3, 2]])
        data.nodes.start(2)
        await data.nodes.until(lambda: data.is_in_sync(T))
        assert data.row(T).leader_epoch == 0

    simulate_data(test)


def test_lost_replica_that_is_no_longer_wanted_is_forgotten() -> None:
    """Without it all replicas are known again: a replica created since is new at the next start."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 3, 2]])
        await data.create("u", [[1, 3, 4]])
        await data.write(T, 2)
        await data.in_sync()
        data.nodes.kill(2)
        wipe(data, 2, "replicas", "checkpoints.json")
        disk = data.world.disk(2)
        for node_id in (1, 3):
            data.world.network.partition([2], [node_id])
        data.nodes.start(2)
        await asyncio.sleep(1.0)
        data.world.network.heal()
        await data.reassign(T, [1, 3])
        await data.nodes.until(lambda: set(data.row(T).replicas) == {1, 3})
        await data.nodes.until(lambda: not disk.exists(MISSING_NAME))

    simulate_data(test, node_count=4)


def test_checkpoint_file_alone_is_no_loss() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[2, 1, 3]])
        for _ in range(10):
            await data.write(T, 2)
        await data.in_sync()
        for node_id in (1, 2, 3):
            data.nodes.kill(node_id, power=True)
            wipe(data, node_id, "checkpoints.json")
        for node_id in (1, 2, 3):
            data.nodes.start(node_id)
        await data.nodes.until(lambda: data.is_in_sync(T))

    simulate_data(test)
