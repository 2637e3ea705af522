"""Which replicas without files are new, and which lost them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.record.types import PartitionId
from raftlog.storage.checkpoints.checkpoint_file import CHECKPOINT_NAME, UNREADABLE_NAME
from raftlog.storage.manager import LogManager
from raftlog.storage.types import FlushMode, LogConfig
from raftlog.world import DiskFullError
from tests.simulation.clock import ManualClock
from tests.simulation.disk import SimulatedDisk
from tests.storage.logs import EPOCH, PARTITION, TOPIC, batch

OTHER = PartitionId(PARTITION + 1)


async def stopped() -> SimulatedDisk:
    """A disk with one replica of a node that crashed."""
    disk = SimulatedDisk()
    manager = await LogManager.open(disk, ManualClock())
    await manager.all_known()
    log = await manager.open_replica(TOPIC, PARTITION, LogConfig(), create=True)
    await log.appender.append([batch([b"a"])], EPOCH)
    await log.flush()
    disk.crash(power=False)
    return disk


def lose_replicas(disk: SimulatedDisk) -> None:
    disk.remove_tree("replicas")


def empty_replicas(disk: SimulatedDisk) -> None:
    for path in disk.paths():
        if path.startswith("replicas/"):
            disk.remove(path)


def lose_checkpoints(disk: SimulatedDisk) -> None:
    disk.remove(CHECKPOINT_NAME)


def spoil_checkpoints(disk: SimulatedDisk) -> None:
    disk.flip_bit(CHECKPOINT_NAME, 8 * 40)


@pytest.mark.parametrize(
    ("losses", "known_is_lost", "other_is_lost"),
    [
        ([], False, False),
        ([lose_replicas], True, False),
        ([lose_checkpoints], False, True),
        ([spoil_checkpoints], False, True),
        ([lose_replicas, lose_checkpoints], True, True),
        ([lose_replicas, spoil_checkpoints], True, True),
        ([empty_replicas, lose_checkpoints], True, True),
        ([empty_replicas, spoil_checkpoints], True, True),
    ],
)
async def test_state_table(
    losses: list[Callable[[SimulatedDisk], None]], known_is_lost: bool, other_is_lost: bool
) -> None:
    """`other`: assigned by the metadata before the start, and never seen in the files."""
    disk = await stopped()
    for lose in losses:
        lose(disk)
    for _ in range(3):
        # Each start writes a new checkpoint file, and must come to the same result.
        manager = await LogManager.open(disk, ManualClock())
        assert manager.is_lost(TOPIC, PARTITION) is known_is_lost
        assert manager.is_lost(TOPIC, OTHER) is other_is_lost
        disk.crash(power=True)


async def test_first_start_has_lost_nothing_once_it_knows_all() -> None:
    disk = SimulatedDisk()
    manager = await LogManager.open(disk, ManualClock())
    await manager.all_known()
    disk.crash(power=True)
    manager = await LogManager.open(disk, ManualClock())
    assert not manager.is_lost(TOPIC, PARTITION)


async def test_renewed_replicas_are_not_lost_any_more() -> None:
    disk = await stopped()
    lose_replicas(disk)
    spoil_checkpoints(disk)
    manager = await LogManager.open(disk, ManualClock())
    assert manager.is_lost(TOPIC, PARTITION)
    await manager.renew_replica(TOPIC, PARTITION, LogConfig())
    await manager.all_known()
    disk.crash(power=True)
    manager = await LogManager.open(disk, ManualClock())
    assert not manager.is_lost(TOPIC, PARTITION)
    assert not manager.is_lost(TOPIC, OTHER)
    assert disk.exists(UNREADABLE_NAME)


async def test_full_disk_does_not_keep_a_node_from_its_start() -> None:
    disk = await stopped()
    lose_replicas(disk)
    lose_checkpoints(disk)
    disk.capacity_bytes = disk.used_bytes()
    try:
        manager = await LogManager.open(disk, ManualClock())
    except DiskFullError:
        # Making the directories needs room, too.
        disk.capacity_bytes = None
        manager = await LogManager.open(disk, ManualClock())
    assert manager.is_lost(TOPIC, PARTITION)


async def test_a_loss_found_on_a_full_disk_is_known_to_the_start_after_a_crash() -> None:
    """The first checkpoint file of that start is written once there is room, before the repair."""
    disk = await stopped()
    lose_replicas(disk)
    lose_checkpoints(disk)
    disk.make_directory("replicas")
    disk.make_directory("deleted")
    disk.capacity_bytes = disk.used_bytes()
    manager = await LogManager.open(disk, ManualClock())
    assert not disk.exists(CHECKPOINT_NAME)
    disk.capacity_bytes = None
    await manager.open_replica(TOPIC, OTHER, LogConfig(), create=True)
    assert disk.exists(CHECKPOINT_NAME)
    disk.crash(power=True)
    manager = await LogManager.open(disk, ManualClock())
    assert manager.is_lost(TOPIC, PARTITION)
    assert not manager.is_lost(TOPIC, OTHER)


@pytest.mark.parametrize("starts_before", [0, 1])
async def test_unlisted_replica_is_not_new_while_the_checkpoint_file_is_incomplete(
    starts_before: int,
) -> None:
    config = LogConfig(flush=FlushMode.ASYNC)
    empty = 0
    for seed in range(20):
        disk = SimulatedDisk(seed)
        manager = await LogManager.open(disk, ManualClock())
        await manager.all_known()
        log = await manager.open_replica(TOPIC, PARTITION, config, create=True)
        await log.appender.append([batch([b"a"])], EPOCH)
        assert log.flush_mode is FlushMode.ASYNC
        disk.crash(power=True)
        empty += not disk.list_directory(log.directory)
        spoil_checkpoints(disk)
        for _ in range(starts_before):
            # Writes a file that does not name the replica, and ends before it is opened.
            await LogManager.open(disk, ManualClock())
            disk.crash(power=False)
        manager = await LogManager.open(disk, ManualClock())
        log = await manager.open_replica(TOPIC, PARTITION, config, create=True)
        assert log.possible_loss is not None
    assert empty
