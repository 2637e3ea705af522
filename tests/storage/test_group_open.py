from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from raftlog.record.errors import DISK_FULL, STORAGE_FAILED, LogError
from raftlog.record.types import Offset, PartitionId, TopicId
from raftlog.storage.checkpoints.checkpoint_file import CHECKPOINT_NAME
from raftlog.storage.checkpoints.checkpoints import NodeCheckpoint, decode_checkpoint
from raftlog.storage.group_open import GROUP_MAX, WORKERS_MAX
from raftlog.storage.log.log import Log
from raftlog.storage.manager import LogManager
from raftlog.storage.types import FlushMode, LogConfig, LogState
from raftlog.world import DiskError
from tests.simulation.clock import ManualClock
from tests.simulation.disk import MachineStoppedError, SimulatedDisk
from tests.storage.logs import EPOCH, TOPIC, batch, read_all

CONFIG = LogConfig()
ASYNC = LogConfig(flush=FlushMode.ASYNC)
MANY = 4 * GROUP_MAX


async def start(disk: SimulatedDisk) -> LogManager:
    return await LogManager.open(disk, ManualClock())


async def open_many(
    manager: LogManager, count: int, *, create: bool = True, config: LogConfig = CONFIG
) -> list[Log | BaseException]:
    return await asyncio.gather(
        *(
            manager.open_replica(TOPIC, PartitionId(number), config, create=create)
            for number in range(count)
        ),
        return_exceptions=True,
    )


def known(disk: SimulatedDisk) -> NodeCheckpoint:
    found = decode_checkpoint(disk.contents(CHECKPOINT_NAME))
    assert isinstance(found, NodeCheckpoint)
    return found


@contextmanager
def counted(disk: SimulatedDisk) -> Iterator[dict[str, int]]:
    """The operations of the body, by name."""
    before = disk.operations.copy()
    counts: dict[str, int] = {}
    yield counts
    counts.update(disk.operations - before)


@pytest.mark.parametrize("count", [1, MANY, 4 * MANY])
async def test_new_partitions_cost_syncs_by_the_group_not_by_the_partition(count: int) -> None:
    disk = SimulatedDisk(yields=True)
    manager = await start(disk)
    with counted(disk) as counts:
        logs = await open_many(manager, count)
    assert all(isinstance(log, Log) and log.state is LogState.ONLINE for log in logs)
    groups = -(-count // GROUP_MAX) + WORKERS_MAX
    # One checkpoint write is a sync of the file and one of its directory.
    assert counts["sync"] <= groups
    assert counts["sync_directory"] <= 3 * groups
    assert counts["make_directory"] == count + 1
    assert counts["create"] == counts["sync"], "only the checkpoint file is created"
    assert len(known(disk).replicas) == count
    assert not disk.slow_outside_run


async def test_an_empty_log_holds_no_file_open() -> None:
    disk = SimulatedDisk()
    manager = await start(disk)
    logs = await open_many(manager, MANY)
    assert manager.totals().open_files == 0
    log = logs[0]
    assert isinstance(log, Log)
    await log.appender.append([batch([b"a"])], EPOCH)
    assert manager.totals().open_files == 1


async def test_opening_again_after_a_crash_syncs_a_topic_once() -> None:
    disk = SimulatedDisk()
    await open_many(await start(disk), MANY)
    disk.crash(power=False)
    manager = await start(disk)
    with counted(disk) as counts:
        await open_many(manager, MANY, create=False)
    # Each replica's own directory may hold names of the crashed process.
    assert counts["sync_directory"] <= MANY + 3 * (MANY // GROUP_MAX + WORKERS_MAX)


@pytest.mark.parametrize("power", [False, True])
async def test_a_created_replica_is_known_after_a_crash_at_any_step(power: bool) -> None:
    outcomes = set()
    for seed in range(150):
        disk = SimulatedDisk(seed, yields=True)
        manager = await start(disk)
        count = random.Random(seed).randint(1, 12)
        disk.crash_in(seed % 50 + 1)
        logs = await open_many(manager, count)
        outcomes.update(type(log) for log in logs)
        disk.crash(power=power)
        manager = await start(disk)
        for number, log in enumerate(logs):
            partition = PartitionId(number)
            if isinstance(log, Log):
                # Acknowledged as created: the next start knows it, and finds its directory.
                again = await manager.open_replica(TOPIC, partition, CONFIG, create=False)
            else:
                again = await manager.open_replica(TOPIC, partition, CONFIG, create=True)
            assert again.state is LogState.ONLINE
            assert again.possible_loss is None
            await again.appender.append([batch([b"%d" % number])], EPOCH)
            await again.flush()
        disk.crash(power=power)
        manager = await start(disk)
        for number, log in enumerate(await open_many(manager, count, create=False)):
            assert isinstance(log, Log)
            assert await read_all(log) == [b"%d" % number]
    assert outcomes == {Log, MachineStoppedError}


async def test_the_first_sync_makes_the_name_of_the_file_durable() -> None:
    for seed in range(50):
        disk = SimulatedDisk(seed)
        manager = await start(disk)
        log = await manager.open_replica(TOPIC, PartitionId(0), CONFIG, create=True)
        await log.appender.append([batch([b"a"])], EPOCH)
        with counted(disk) as counts:
            await log.flush()
        assert (counts["sync"], counts["sync_directory"]) == (1, 1)
        await log.appender.append([batch([b"b"])], EPOCH)
        with counted(disk) as counts:
            await log.flush()
        assert counts == {"sync": 1}
        disk.crash(power=True)
        log = await (await start(disk)).open_replica(TOPIC, PartitionId(0), CONFIG, create=False)
        assert await read_all(log) == [b"a", b"b"]


@pytest.mark.parametrize("appends", [True, False])
async def test_a_power_cut_that_takes_the_file_of_an_async_log_is_a_possible_loss(
    appends: bool,
) -> None:
    lost = 0
    for seed in range(30):
        disk = SimulatedDisk(seed)
        log = await (await start(disk)).open_replica(TOPIC, PartitionId(0), ASYNC, create=True)
        if appends:
            await log.appender.append([batch([b"a"])], EPOCH)
        disk.crash(power=True)
        log = await (await start(disk)).open_replica(TOPIC, PartitionId(0), ASYNC, create=False)
        # A log that took no record looks the same: no proof, so the owner has to find out.
        assert log.possible_loss is not None
        assert log.possible_loss.from_offset == log.log_end_offset
        lost += appends and log.log_end_offset == 0
    assert not appends or lost


async def test_a_failed_process_loses_nothing_of_a_log_with_an_unsynced_name() -> None:
    disk = SimulatedDisk()
    log = await (await start(disk)).open_replica(TOPIC, PartitionId(0), ASYNC, create=True)
    await log.appender.append([batch([b"a"])], EPOCH)
    disk.crash(power=False)
    log = await (await start(disk)).open_replica(TOPIC, PartitionId(0), ASYNC, create=False)
    assert await read_all(log) == [b"a"]
    disk.crash(power=True)
    log = await (await start(disk)).open_replica(TOPIC, PartitionId(0), ASYNC, create=False)
    assert await read_all(log) == [b"a"]


async def test_one_directory_that_cannot_be_made_fails_alone() -> None:
    disk = SimulatedDisk()
    manager = await start(disk)
    disk.fail_next("make_directory", f"{TOPIC}/3")
    logs = await open_many(manager, 10)
    assert [isinstance(log, Log) for log in logs] == [number != 3 for number in range(10)]
    error = logs[3]
    assert isinstance(error, LogError)
    assert error.entry is STORAGE_FAILED


async def test_names_that_cannot_be_synced_fail_their_topic_alone() -> None:
    disk = SimulatedDisk()
    manager = await start(disk)
    other = TopicId("f" * 32)
    disk.fail_next("sync_directory", TOPIC, DiskError)
    logs = await asyncio.gather(
        *(
            manager.open_replica(topic, PartitionId(number), CONFIG, create=True)
            for number in range(2)
            for topic in (TOPIC, other)
        ),
        return_exceptions=True,
    )
    failed = {number % 2 for number, log in enumerate(logs) if not isinstance(log, Log)}
    assert failed == {0}


async def test_a_write_of_the_checkpoint_file_collects_changed_logs_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    manager = await start(disk)
    logs = await open_many(manager, MANY)
    collected: list[str] = []
    current = Log.current_checkpoint

    def count(log: Log) -> object:
        collected.append(log.directory)
        return current(log)

    monkeypatch.setattr(Log, "current_checkpoint", count)
    log = logs[7]
    assert isinstance(log, Log)
    await log.appender.append([batch([b"a"])], EPOCH)
    await log.flush()
    await log.operations.delete_records_before(Offset(1))
    assert set(collected) == {log.directory}
    written = known(disk).replicas
    assert len(written) == MANY
    assert written[f"{TOPIC}/7"].log_start_offset == 1


async def test_a_failed_write_leaves_its_logs_due(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    manager = await start(disk)
    log = (await open_many(manager, 2))[0]
    assert isinstance(log, Log)
    await log.appender.append([batch([b"a"])], EPOCH)
    await log.operations.checkpoint()
    disk.capacity_bytes = disk.used_bytes()
    with pytest.raises(LogError):
        await log.operations.delete_records_before(Offset(1))
    disk.capacity_bytes = None
    other = (await open_many(manager, 3))[2]
    assert isinstance(other, Log)
    assert known(disk).replicas[f"{TOPIC}/0"] == msgspec.structs.replace(
        log.current_checkpoint(), boot_id=disk.boot_id()
    )


async def test_a_file_whose_first_append_found_no_room_gets_a_durable_name_later() -> None:
    for seed in range(20):
        disk = SimulatedDisk(seed)
        manager = await start(disk)
        log = await manager.open_replica(TOPIC, PartitionId(0), CONFIG, create=True)
        disk.capacity_bytes = disk.used_bytes()
        with pytest.raises(LogError) as full:
            await log.appender.append([batch([b"a"])], EPOCH)
        assert full.value.entry is DISK_FULL
        assert log.segments.active.path in disk.paths()
        disk.capacity_bytes = None
        await manager.close()
        # A start after a clean stop syncs no names.
        log = await (await start(disk)).open_replica(TOPIC, PartitionId(0), CONFIG, create=False)
        await log.appender.append([batch([b"a"])], EPOCH)
        await log.flush()
        disk.crash(power=True)
        log = await (await start(disk)).open_replica(TOPIC, PartitionId(0), CONFIG, create=False)
        assert log.state is LogState.ONLINE
        assert await read_all(log) == [b"a"]
