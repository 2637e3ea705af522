"""Replicas deleted, damaged and renewed, or missing."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from raftlog.record.errors import (
    DISK_FULL,
    ILLEGAL_STATE,
    STORAGE_FAILED,
    LogError,
)
from raftlog.record.header import parse_header
from raftlog.record.types import Offset, PartitionId, TopicId
from raftlog.storage.checkpoints.checkpoints import StartKind, start_kind
from raftlog.storage.log.log import Log
from raftlog.storage.manager import LogManager
from raftlog.storage.repair.quarantine import DAMAGED_KEPT_MAX, REPLICAS, free_number, keep_bytes
from raftlog.storage.types import FlushMode, LogConfig, LogState, PossibleLoss
from raftlog.world import DiskError, DiskFullError
from tests.simulation.clock import ManualClock
from tests.simulation.disk import MachineStoppedError, SimulatedDisk
from tests.storage.logs import EPOCH, PARTITION, TOPIC, Gate, batch, read_all

CONFIG = LogConfig(segment_bytes=300)
DIRECTORY = f"replicas/{TOPIC}/{PARTITION}"
STOPPED = (MachineStoppedError, LogError, DiskError)


async def start(disk: SimulatedDisk) -> LogManager:
    return await LogManager.open(disk, ManualClock())


async def open_log(manager: LogManager, config: LogConfig = CONFIG) -> Log:
    return await manager.open_replica(TOPIC, PARTITION, config, create=True)


async def filled(disk: SimulatedDisk, config: LogConfig = CONFIG) -> tuple[LogManager, Log]:
    manager = await start(disk)
    log = await open_log(manager, config)
    for number in range(9):
        await log.appender.append([batch([b"v%d" % number + b"x" * 60])], EPOCH)
    await log.flush()
    log.high_watermark = Offset(9)
    await log.publish()
    return manager, log


async def settled(disk: SimulatedDisk) -> None:
    disk.stopped = True
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("missing", [DIRECTORY, f"replicas/{TOPIC}"])
async def test_a_known_replica_without_its_directory_is_damaged_and_not_created(
    create: bool, missing: str
) -> None:
    disk = SimulatedDisk()
    await filled(disk)
    disk.crash(power=False)
    disk.rename(missing, "elsewhere")
    for _ in range(2):
        manager = await start(disk)
        log = await manager.open_replica(TOPIC, PARTITION, CONFIG, create=create)
        assert log.state is LogState.DAMAGED
        assert log.failure is not None and "its directory is missing" in log.failure.message
        assert not disk.exists(missing)
        with pytest.raises(LogError) as caught:
            await log.appender.append([batch([b"x"])], EPOCH)
        assert caught.value.entry is STORAGE_FAILED
        await manager.close()
    manager = await start(disk)
    await open_log(manager)
    log = await manager.renew_replica(TOPIC, PARTITION, CONFIG)
    assert log.state is LogState.ONLINE
    assert log.log_end_offset == 0
    assert manager.quarantined() == [], "there was nothing to keep"


async def test_a_damaged_replica_is_quarantined_and_renewed() -> None:
    disk = SimulatedDisk()
    manager, log = await filled(disk)
    names = disk.list_directory(DIRECTORY)
    log.declare_damaged("a bit has flipped")
    new = await manager.renew_replica(TOPIC, PARTITION, CONFIG)
    assert (new.state, new.log_end_offset, new.high_watermark) == (LogState.ONLINE, 0, 0)
    assert manager.logs()[TOPIC, PARTITION] is new
    assert manager.quarantined() == [f"{TOPIC}/0-0"]
    assert set(disk.list_directory(f"damaged/{TOPIC}/0-0")) - {"replica-marks"} == set(names)
    await new.appender.append([batch([b"new"])], EPOCH)
    await new.flush()
    disk.crash(power=True)
    manager = await start(disk)
    log = await open_log(manager)
    assert await read_all(log) == [b"new"]
    assert manager.quarantined() == [f"{TOPIC}/0-0"]
    assert manager.strays() == []
    disk.fail_next("append", ".log")
    with suppress(LogError):
        await log.appender.append([batch([b"x"])], EPOCH)
    assert log.state is LogState.FAILED
    await manager.renew_replica(TOPIC, PARTITION, CONFIG)
    assert manager.quarantined() == [f"{TOPIC}/0-0", f"{TOPIC}/0-1"]


async def test_a_replica_in_service_is_not_renewed() -> None:
    manager, log = await filled(SimulatedDisk())
    with pytest.raises(LogError) as caught:
        await manager.renew_replica(TOPIC, PARTITION, CONFIG)
    assert caught.value.entry is ILLEGAL_STATE
    assert len(await read_all(log)) == 9


@pytest.mark.parametrize("step", ["make_directory", "checkpoints"])
async def test_a_renewal_that_finds_no_room_keeps_only_what_was_damaged(step: str) -> None:
    disk = SimulatedDisk()
    config = LogConfig(segment_bytes=300, flush=FlushMode.ASYNC)
    manager, log = await filled(disk, config)
    names = disk.list_directory(DIRECTORY)
    log.declare_damaged("a bit has flipped")
    for _ in range(10):
        await asyncio.sleep(0)  # the damage is marked
    faults = {
        "make_directory": ("make_directory", DIRECTORY),
        "checkpoints": ("append", "checkpoints"),
    }
    for again in range(DAMAGED_KEPT_MAX + 2):
        disk.fail_next(*faults[step], DiskFullError)
        with pytest.raises(LogError) as caught:
            if again % 2:
                await open_log(manager, config)
            else:
                await manager.renew_replica(TOPIC, PARTITION, config)
        assert caught.value.entry is DISK_FULL
    log = await manager.renew_replica(TOPIC, PARTITION, config)
    assert manager.quarantined() == [f"{TOPIC}/0-0"]
    assert set(disk.list_directory(f"damaged/{TOPIC}/0-0")) - {"replica-marks"} == set(names)
    assert (log.log_end_offset, log.possible_loss) == (0, None)
    await log.appender.append([batch([b"x"])], EPOCH)
    log.declare_damaged("another one")
    await manager.renew_replica(TOPIC, PARTITION, config)
    assert manager.quarantined() == [f"{TOPIC}/0-0", f"{TOPIC}/0-1"]


async def test_no_damaged_copy_is_ever_removed_to_make_room_for_another() -> None:
    disk = SimulatedDisk()
    manager, log = await filled(disk)
    for _ in range(DAMAGED_KEPT_MAX):
        log.declare_damaged("again")
        log = await manager.renew_replica(TOPIC, PARTITION, CONFIG)
    log.declare_damaged("once more")
    for _ in range(2):
        with pytest.raises(LogError) as caught:
            await manager.renew_replica(TOPIC, PARTITION, CONFIG)
        assert caught.value.entry is ILLEGAL_STATE
    assert len(manager.quarantined()) == DAMAGED_KEPT_MAX
    assert manager.logs()[TOPIC, PARTITION] is log
    disk.rename(f"damaged/{TOPIC}/0-4", "elsewhere")
    await manager.renew_replica(TOPIC, PARTITION, CONFIG)


def test_the_first_free_number_is_taken() -> None:
    names = ["t/1-0", "t/1-2", "t/11-1", "u/1-1"]
    assert free_number(names, TopicId("t"), PartitionId(1)) == 1
    assert free_number(names, TopicId("t"), PartitionId(2)) == 0


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("how", ["damaged", "failed", "not open"])
async def test_a_crash_in_a_renewal_leaves_the_old_one_a_damaged_one_or_an_empty_one(
    how: str, power: bool
) -> None:
    kinds: set[str] = set()
    for step in range(1, 60):
        disk = SimulatedDisk(step)
        manager, log = await filled(disk)
        if how == "damaged":
            log.declare_damaged("a bit has flipped")
        elif how == "failed":
            log.fail(DiskError("gone"))
        else:
            disk.crash(power=False)
            manager = await start(disk)
        disk.crash_in(step)
        done = False
        with suppress(*STOPPED):
            log = await manager.renew_replica(TOPIC, PARTITION, CONFIG)
            done = True
        await settled(disk)
        disk.crash(power=power)
        manager = await start(disk)
        log = await open_log(manager)
        if log.state is LogState.DAMAGED:
            assert not done
            log = await manager.renew_replica(TOPIC, PARTITION, CONFIG)
            kinds.add("damaged")
        elif log.log_end_offset:
            assert not done
            assert len(await read_all(log)) == 9
            kinds.add("old")
        if not log.log_end_offset:
            assert any(
                f"{name}/00000000000000000000.log" in path
                for name in manager.quarantined()
                for path in disk.paths()
            ), "the old files are gone"
            assert not disk.list_directory(DIRECTORY)
        if done:
            break
    assert done
    assert "damaged" in kinds
    assert how == "damaged" or "old" in kinds


async def test_work_on_the_way_does_not_reach_into_the_new_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    manager, log = await filled(disk)
    gate = Gate(disk, "_write_derived", monkeypatch)
    checkpoint = asyncio.ensure_future(log.operations.checkpoint())
    await gate.reached.wait()
    log.declare_damaged("now")
    renewal = asyncio.ensure_future(manager.renew_replica(TOPIC, PARTITION, CONFIG))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not renewal.done(), "what was begun may still write"
    gate.opened.set()
    await renewal
    await asyncio.gather(checkpoint, return_exceptions=True)
    assert not disk.list_directory(DIRECTORY)


async def test_a_read_on_the_way_gives_nothing_of_the_new_files() -> None:
    disk = SimulatedDisk(1, yields=True)
    _, log = await filled(disk)
    disk.cold = True
    reading = asyncio.ensure_future(log.reader.read(Offset(0), end=Offset(3), max_bytes=1))
    await asyncio.sleep(0)
    log.discard(LogError(ILLEGAL_STATE, "renewed"))
    with pytest.raises(LogError, match="renewed"):
        await reading


async def test_a_quarantined_log_gets_no_maintenance() -> None:
    manager, log = await filled(SimulatedDisk())
    log.declare_damaged("a bit has flipped")
    await manager.renew_replica(TOPIC, PARTITION, CONFIG)
    log.possible_loss = PossibleLoss(Offset(0), 0)
    await log.forget_possible_loss()
    await manager.tick()
    assert log not in manager._shared.changed


async def test_a_log_that_is_declared_damaged_stays_so_and_keeps_what_was_promised() -> None:
    disk = SimulatedDisk()
    manager, log = await filled(disk)
    reported: list[str] = []
    log.listeners.failed.append(lambda error: reported.append(error.message))
    await log.operations.delete_records_before(Offset(2))
    log.declare_damaged("a bit has flipped")
    log.declare_damaged("twice")
    assert len(reported) == 1
    await manager.tick()
    disk.crash(power=True)
    manager = await start(disk)
    log = await open_log(manager)
    assert log.state is LogState.DAMAGED
    checkpoint = log.current_checkpoint()
    assert (checkpoint.flushed_offset, checkpoint.high_watermark) == (9, 9)
    assert (checkpoint.log_start_offset, checkpoint.damage) == (2, "a bit has flipped")


async def test_damage_is_written_down_once_there_is_room() -> None:
    disk = SimulatedDisk()
    manager, log = await filled(disk)
    clock = manager._shared.clock
    assert isinstance(clock, ManualClock)
    await manager.tick()
    log.declare_damaged("a bit has flipped")
    clock.advance(2)
    disk.fail_next("append", "checkpoints", DiskFullError)
    await manager.tick()
    clock.advance(2)
    await manager.tick()
    disk.crash(power=True)
    assert (await open_log(await start(disk))).state is LogState.DAMAGED


async def test_a_deleted_replica_goes_and_can_come_back_empty() -> None:
    disk = SimulatedDisk()
    manager, log = await filled(disk)
    other = await manager.open_replica(TOPIC, PartitionId(1), CONFIG, create=True)
    await manager.delete_replica(TOPIC, PARTITION)
    with pytest.raises(LogError) as caught:
        await log.appender.append([batch([b"x"])], EPOCH)
    assert caught.value.entry is ILLEGAL_STATE
    assert not disk.exists(DIRECTORY)
    assert other.state is LogState.ONLINE
    log = await open_log(manager)
    assert log.log_end_offset == 0
    await manager.delete_replica(TOPIC, PARTITION)
    assert disk.list_directory("deleted") == [f"{TOPIC}-0-0", f"{TOPIC}-0-1"]
    await manager.delete_topic(TOPIC)
    for _ in range(10):
        await manager.tick()
    assert [path for path in disk.paths() if TOPIC in path] == []
    assert disk.list_directory("deleted") == []
    await manager.delete_replica(TOPIC, PARTITION)


async def test_a_replica_deleted_before_a_crash_is_not_taken_for_a_missing_one() -> None:
    for step in range(1, 40):
        disk = SimulatedDisk(step)
        manager, _ = await filled(disk)
        disk.crash_in(step)
        done = False
        with suppress(*STOPPED):
            await manager.delete_replica(TOPIC, PARTITION)
            done = True
        await settled(disk)
        disk.crash(power=True)
        manager = await start(disk)
        assert not done or manager.strays() == []
        log = await open_log(manager)
        assert log.state is LogState.ONLINE
        assert log.log_end_offset == 0 or not done
        if done:
            return
    pytest.fail("never done")


async def test_a_topic_that_is_released_is_left_alone_until_it_is_opened_again() -> None:
    disk = SimulatedDisk()
    manager, log = await filled(disk, LogConfig(segment_bytes=300, retention_ms=1))
    await manager.close()
    manager = await start(disk)
    log = await open_log(manager, LogConfig(segment_bytes=300, retention_ms=1))
    await log.appender.append([batch([b"more"])], EPOCH)
    files = disk.list_directory(DIRECTORY)
    await manager.release_topic(TOPIC)
    assert manager.strays() == [f"{TOPIC}/0"]
    assert manager.logs() == {}
    with pytest.raises(LogError) as caught:
        await log.appender.append([batch([b"x"])], EPOCH)
    assert caught.value.entry is ILLEGAL_STATE
    for _ in range(10):
        assert isinstance(manager._shared.clock, ManualClock)
        manager._shared.clock.advance(3600)
        await manager.tick()
    assert set(files) <= set(disk.list_directory(DIRECTORY))
    # This run has written to a replica marked clean by the run before.
    assert start_kind(manager._found, f"{TOPIC}/0", disk.boot_id()) is StartKind.PROCESS_CRASH
    log = await open_log(manager)
    assert (log.state, log.log_end_offset) == (LogState.ONLINE, 10)
    await manager.release_topic(TOPIC)
    await manager.close()
    log = await open_log(await start(disk))
    assert (await read_all(log))[-1] == b"more"


async def test_a_stray_can_be_deleted() -> None:
    disk = SimulatedDisk()
    await filled(disk)
    disk.crash(power=False)
    manager = await start(disk)
    assert manager.strays() == [f"{TOPIC}/0"]
    await manager.delete_replica(TOPIC, PARTITION)
    assert manager.strays() == []
    assert not disk.exists(DIRECTORY)


async def test_a_possible_loss_is_reported_at_every_start_until_forgotten() -> None:
    disk = SimulatedDisk()
    config = LogConfig(flush=FlushMode.ASYNC)
    await filled(disk, config)
    disk.crash(power=True)
    log = await open_log(await start(disk), config)
    found = log.possible_loss
    assert found is not None and found.from_offset == 9
    # The second power cut adds to the loss; the others change nothing.
    for power, expected in ((False, 9), (False, 9), (True, 9)):
        await log.appender.append([batch([b"after"])], EPOCH)
        await log.flush()
        disk.crash(power=power)
        manager = await start(disk)
        log = await open_log(manager, config)
        assert log.possible_loss == PossibleLoss(Offset(expected), found.torn_bytes)
    await log.forget_possible_loss()
    disk.crash(power=False)
    manager = await start(disk)
    log = await open_log(manager, config)
    assert log.possible_loss is None
    await manager.close()


async def test_a_loss_that_could_not_be_forgotten_durably_stays() -> None:
    disk = SimulatedDisk()
    config = LogConfig(flush=FlushMode.ASYNC)
    await filled(disk, config)
    disk.crash(power=True)
    manager = await start(disk)
    log = await open_log(manager, config)
    disk.fail_next("append", "checkpoints", DiskFullError)
    with pytest.raises(LogError):
        await log.forget_possible_loss()
    assert log.possible_loss is not None
    assert log.current_checkpoint().possible_loss is not None
    disk.crash(power=False)
    manager = await start(disk)
    log = await open_log(manager, config)
    assert log.possible_loss is not None
    await log.forget_possible_loss()
    # At once: a replica counting on the log now must find the same after a crash.
    disk.crash(power=False)
    log = await open_log(await start(disk), config)
    assert log.possible_loss is None


async def test_a_loss_is_forgotten_only_if_the_file_that_was_written_last_says_so() -> None:
    disk = SimulatedDisk(1, yields=True)
    config = LogConfig(flush=FlushMode.ASYNC)
    await filled(disk, config)
    disk.crash(power=True)
    manager = await start(disk)
    log = await open_log(manager, config)
    disk.fail_next("append", "checkpoints", DiskFullError)
    first = asyncio.ensure_future(log.forget_possible_loss())
    for _ in range(3):
        await asyncio.sleep(0)
    second = asyncio.ensure_future(log.forget_possible_loss())
    done = await asyncio.gather(first, second, return_exceptions=True)
    assert isinstance(done[0], LogError)
    assert done[1] is None
    assert log.possible_loss is None
    await settled(disk)
    disk.crash(power=False)
    log = await open_log(await start(disk), config)
    assert log.possible_loss is None


def test_damage_at_a_place_that_was_damaged_before_is_kept_too() -> None:
    disk = SimulatedDisk()
    for content in (b"first", b"second", b"first"):
        assert keep_bytes(disk, f"{REPLICAS}/{TOPIC}/0", "00000000000000000000.log-79", content)
    kept = f"damaged/{TOPIC}/0-batches"
    names = disk.list_directory(kept)
    assert sorted(disk.contents(f"{kept}/{name}") for name in names) == [b"first", b"second"]


async def test_intact_batches_are_read_from_damaged_files() -> None:
    """Of the log that is offline, and of the copies in quarantine; none behind a damaged header."""
    disk = SimulatedDisk()
    manager, log = await filled(disk)
    first, second = log.segments.all[:2]
    whole = disk.contents(first.path)
    # In the body of the first batch, and in the header of the second segment's first one.
    disk.flip_bit(first.path, 8 * 80)
    disk.flip_bit(second.path, 8 * 8)
    log.declare_damaged("rot")
    assert log.state is LogState.DAMAGED
    at = int(first.next_offset) - 1

    async def copy(offset: int, max_bytes: int = 1 << 20) -> bytes:
        return await manager.read_copy(TOPIC, PARTITION, Offset(offset), max_bytes)

    for is_quarantined in (False, True):
        if is_quarantined:
            await manager.renew_replica(TOPIC, PARTITION, CONFIG)
        assert not await copy(0)
        found = await copy(1)
        assert found
        assert found in whole
        assert parse_header(found, 0).base_offset == 1
        one = await copy(1, 1)
        assert len(one) == parse_header(one, 0).size_bytes
        assert parse_header(await copy(at), 0).base_offset == at
        assert not await copy(int(second.base_offset))
    assert not await manager.read_copy(TOPIC, PartitionId(PARTITION + 1), Offset(1), 100)
    await manager.close()
