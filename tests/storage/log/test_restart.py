"""Empty a log and restart elsewhere; and the effects of truncation."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from raftlog.record.errors import DISK_FULL, OFFSET_OUT_OF_RANGE, STORAGE_FAILED, LogError
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.storage.log.log import Log
from raftlog.storage.manager import LogManager
from raftlog.storage.producers.state import ProducerStates
from raftlog.storage.types import FlushMode, LogConfig, LogState, PossibleLoss
from raftlog.world import DiskError, DiskFullError
from tests.simulation.clock import ManualClock
from tests.simulation.disk import MachineStoppedError, SimulatedDisk
from tests.storage.logs import EPOCH, PARTITION, TOPIC, batch, numbered, read_all, sent
from tests.storage.producers.test_state import header

CONFIG = LogConfig(segment_bytes=300)
STOPPED = (MachineStoppedError, LogError, DiskError)


async def open_log(disk: SimulatedDisk, config: LogConfig = CONFIG) -> tuple[LogManager, Log]:
    manager = await LogManager.open(disk, ManualClock())
    return manager, await manager.open_replica(TOPIC, PARTITION, config, create=True)


async def fill(log: Log) -> None:
    """Offsets 0 to 8, in several segments, of two epochs."""
    for number in range(9):
        await log.appender.append(
            [numbered([b"v%d" % number + b"x" * 60], number)], LeaderEpoch(number // 5)
        )
    await log.flush()
    log.high_watermark = Offset(7)
    await log.operations.checkpoint()
    await log.publish()


@pytest.mark.parametrize("offset", [0, 3, 4, 9, 100])
async def test_a_restarted_log_is_empty_and_knows_nothing_of_before(offset: int) -> None:
    disk = SimulatedDisk()
    manager, log = await open_log(disk)
    await fill(log)
    assert len(log.segments) > 2
    await log.operations.restart_at(Offset(offset))
    for _ in range(3):
        ends = (log.log_start_offset, log.log_end_offset, log.flushed_offset, log.high_watermark)
        assert ends == (offset,) * 4
        assert (log.size_bytes, len(log.segments), len(log.producers)) == (0, 1, 0)
        assert log.leader_epochs.entries == ()
        assert log.last_epoch == -1
        with pytest.raises(LogError) as caught:
            await log.reader.read(Offset(offset + 1), end=Offset(200), max_bytes=100)
        assert caught.value.entry is OFFSET_OUT_OF_RANGE
        disk.crash(power=True)
        manager, log = await open_log(disk)
    await log.appender.append_fetched(sent(batch([b"new"]), base_offset=offset, epoch=1), EPOCH)
    await log.flush()
    disk.crash(power=True)
    manager, log = await open_log(disk)
    assert await read_all(log) == [b"new"]
    await manager.close()
    manager, log = await open_log(disk)
    assert await read_all(log) == [b"new"]


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("offset", [0, 4, 100])
async def test_a_crash_leaves_the_old_log_or_an_empty_one(offset: int, power: bool) -> None:
    seen: set[str] = set()
    for step in range(1, 80):
        disk = SimulatedDisk(step)
        _, log = await open_log(disk)
        await fill(log)
        old = await read_all(log)
        disk.crash_in(step)
        done = False
        with suppress(*STOPPED):
            await log.operations.restart_at(Offset(offset))
            done = True
            await log.appender.append_fetched(sent(batch([b"n"]), base_offset=offset), EPOCH)
            await log.flush()
        disk.stopped = True
        for _ in range(20):
            await asyncio.sleep(0)
        disk.crash(power=power)
        _, log = await open_log(disk)
        assert log.state is LogState.ONLINE, log.failure
        values = await read_all(log)
        if values == old:
            assert not done
            seen.add("old")
            assert log.high_watermark == 7
            assert len(log.leader_epochs) == 2
        else:
            assert values in ([], [b"n"])
            seen.add("new" if values else "empty")
            assert log.log_start_offset == offset
        # In any state the log is usable, and a later start removes nothing.
        await log.appender.append([batch([b"after"])], LeaderEpoch(9))
        await log.flush()
        disk.crash(power=True)
        _, log = await open_log(disk)
        assert await read_all(log) == [*values, b"after"]
        if done and values:
            break
    assert seen == {"old", "empty", "new"}


def snapshot_of(offset: int) -> bytes:
    """A leader's state of a producer of the 40 records below an offset."""
    producers = ProducerStates()
    for number in range(40):
        producers.update(header(5, number, base_offset=offset - 40 + number), now_ms=0)
    return producers.to_bytes(Offset(offset), now_ms=0)


def known_producers(log: Log) -> dict[int, int]:
    return {known.producer_id: known.next_sequence for known in log.producers._producers.values()}


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("offset", [4, 100])
async def test_no_crash_parts_an_emptied_log_from_its_producers(offset: int, power: bool) -> None:
    new = {5: 40} if offset == 100 else {}
    seen: set[str] = set()
    for step in range(1, 80):
        disk = SimulatedDisk(step)
        _, log = await open_log(disk)
        await fill(log)
        if step % 2:
            # An earlier attempt, which found no room behind its first step.
            disk.fail_next("append", "checkpoints", DiskFullError)
            with pytest.raises(LogError):
                await log.operations.restart_at(Offset(offset))
        disk.crash_in(step)
        done = False
        with suppress(*STOPPED):
            await log.operations.restart_at(
                Offset(offset), snapshot_of(100) if offset == 100 else b""
            )
            done = True
        disk.stopped = True
        for _ in range(20):
            await asyncio.sleep(0)
        disk.crash(power=power)
        for _ in range(3):
            _, log = await open_log(disk)
            assert log.state is LogState.ONLINE, log.failure
            if log.log_start_offset == offset:
                assert known_producers(log) == new
                seen.add("new")
            else:
                assert not done
                assert known_producers(log) == {7: 9}
                seen.add("old")
            disk.crash(power=power)
        if done:
            assert "producers.restart" not in disk.list_directory(log.directory)
            break
    assert seen == {"old", "new"}


@pytest.mark.parametrize("failing", ["producers.restart", "checkpoints"])
async def test_a_restart_without_room_for_its_producers_changes_nothing(failing: str) -> None:
    disk = SimulatedDisk()
    _, log = await open_log(disk)
    await fill(log)
    disk.fail_next("append", failing, DiskFullError)
    with pytest.raises(LogError) as caught:
        await log.operations.restart_at(Offset(100), snapshot_of(100))
    assert caught.value.entry is DISK_FULL
    assert (log.log_end_offset, known_producers(log)) == (9, {7: 9})
    await log.flush()
    disk.crash(power=True)
    _, log = await open_log(disk)
    assert (log.log_end_offset, known_producers(log)) == (9, {7: 9})
    assert "producers.restart" not in disk.list_directory(log.directory)


async def test_a_batch_around_the_log_start_takes_no_producers_with_it() -> None:
    disk = SimulatedDisk()
    _, log = await open_log(disk)
    leader = ProducerStates()
    for number in range(40):
        leader.update(header(5, number, base_offset=50 + number), now_ms=0)
    leader.update(header(7, 0, 1, base_offset=90), now_ms=0)
    leader.update(header(7, 1, 3, base_offset=98), now_ms=0)
    all_producers = leader.below(Offset(100)).to_bytes(Offset(100), now_ms=0)
    await log.operations.restart_at(Offset(100), all_producers)
    assert "producers.restart" not in disk.list_directory(log.directory)
    around = sent(numbered([b"a", b"b", b"c"], 1), base_offset=98)
    await log.appender.append_fetched(around, EPOCH)
    for _ in range(2):
        assert (log.log_start_offset, log.log_end_offset) == (100, 101)
        assert known_producers(log) == {5: 40, 7: 4}
        await log.flush()
        disk.crash(power=True)
        _, log = await open_log(disk)


@pytest.mark.parametrize(("to", "recovery_point"), [(6, 0), (20, 0), (20, 19)])
async def test_no_crash_parts_the_producers_of_deleted_records_from_the_log(
    to: int, recovery_point: int
) -> None:
    for step in range(1, 200):
        disk = SimulatedDisk(step)
        _, log = await open_log(disk, CONFIG)
        for number in range(20):
            if number == recovery_point > 0:
                await log.operations.checkpoint()
            await log.appender.append([numbered([b"x" * 60], number)], EPOCH)
        await log.flush()
        assert log.segments.active.base_offset in (18, 19)
        log.high_watermark = Offset(20)
        await log.publish()
        disk.crash_in(step)
        done = False
        with suppress(*STOPPED):
            await log.operations.delete_records_before(Offset(to))
            done = True
        disk.stopped = True
        for _ in range(20):
            await asyncio.sleep(0)
        disk.crash(power=True)
        _, log = await open_log(disk, CONFIG)
        assert (log.log_end_offset, known_producers(log)) == (20, {7: 20})
        if done:
            break
    assert done


@pytest.mark.parametrize("crash", [None, False, True])
@pytest.mark.parametrize("is_uncommitted", [False, True])
async def test_truncation_does_not_forget_the_producers_of_records_that_are_deleted(
    crash: bool | None, is_uncommitted: bool
) -> None:
    for step in range(1, 60):
        disk = SimulatedDisk(step)
        _, log = await open_log(disk, LogConfig(segment_bytes=600))
        await log.appender.append([numbered([b"x" * 60] * 3, 0)], LeaderEpoch(1))
        for number in range(20):
            await log.appender.append([batch([b"%d" % number + b"x" * 60])], LeaderEpoch(1))
        if not is_uncommitted:
            await log.operations.checkpoint()
        await log.appender.append([numbered([b"a"], 3)], LeaderEpoch(2))
        await log.flush()
        log.high_watermark = Offset(20)
        await log.operations.checkpoint()
        await log.publish()
        await log.operations.delete_records_before(Offset(20))
        assert log.segments.all[0].base_offset > 3
        for number in range(2):
            await log.appender.append([numbered([b"b"], 4 + number)], LeaderEpoch(2))
            await log.operations.checkpoint()
            await log.publish()
        if crash is not None:
            disk.crash_in(step)
        done = False
        with suppress(*STOPPED):
            await log.operations.truncate_to(Offset(22))
            done = True
        if crash is not None:
            disk.stopped = True
            for _ in range(20):
                await asyncio.sleep(0)
            disk.crash(power=crash)
            _, log = await open_log(disk, LogConfig(segment_bytes=600))
            if log.log_end_offset > 22:
                await log.operations.truncate_to(Offset(22))
        assert (log.log_end_offset, known_producers(log)) == (22, {7: 3})
        if done:
            break
    assert done


async def test_a_restart_that_cannot_be_written_down_changes_nothing() -> None:
    disk = SimulatedDisk()
    _, log = await open_log(disk)
    await fill(log)
    disk.fail_next("append", "checkpoints", DiskFullError)
    with pytest.raises(LogError) as caught:
        await log.operations.restart_at(Offset(50))
    assert caught.value.entry is DISK_FULL
    assert log.log_end_offset == 9
    await log.appender.append([batch([b"after"])], EPOCH)
    await log.publish()
    await log.flush()
    disk.crash(power=True)
    _, log = await open_log(disk)
    assert len(await read_all(log)) == 10


async def test_no_append_is_taken_before_the_end_of_a_restart_is_written_down() -> None:
    """The next start would empty the log once more."""
    disk = SimulatedDisk()
    _, log = await open_log(disk)
    await fill(log)
    publish = log._publish

    async def then_full() -> None:
        await publish()
        disk.fail_next("append", "checkpoints", DiskFullError)

    log._publish = then_full
    with pytest.raises(LogError) as caught:
        await log.operations.restart_at(Offset(50))
    assert caught.value.entry is STORAGE_FAILED
    assert log.state is LogState.FAILED
    disk.crash(power=False)
    _, log = await open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (50, 50)


async def test_a_start_that_cannot_end_a_restart_does_not_open_the_log() -> None:
    disk = SimulatedDisk()
    _, log = await open_log(disk)
    await fill(log)
    log.possible_loss = PossibleLoss(Offset(3), 7)
    disk.fail_next("remove", ".log")
    with pytest.raises(LogError):
        await log.operations.restart_at(Offset(50))
    disk.crash(power=False)
    manager = await LogManager.open(disk, ManualClock())
    for _ in range(2):
        disk.fail_next("append", "checkpoints", DiskFullError)
        with pytest.raises(LogError) as caught:
            await manager.open_replica(TOPIC, PARTITION, CONFIG, create=True)
        assert caught.value.entry is DISK_FULL
    log = await manager.open_replica(TOPIC, PARTITION, CONFIG, create=True)
    assert log.possible_loss == PossibleLoss(Offset(3), 7), "what was known stays known"
    await log.appender.append([batch([b"after"])], EPOCH)
    await log.flush()
    disk.crash(power=False)
    _, log = await open_log(disk)
    assert await read_all(log) == [b"after"]


async def test_truncation_lowers_the_high_watermark_to_the_end_that_is_left() -> None:
    log = (await open_log(SimulatedDisk()))[1]
    await log.appender.append([numbered([b"a", b"b"], 0)], LeaderEpoch(1))
    await log.appender.append([numbered([b"c", b"d"], 2)], LeaderEpoch(2))
    await log.flush()
    log.high_watermark = Offset(4)
    await log.operations.truncate_to(Offset(3))
    assert log.log_end_offset == log.high_watermark == log.flushed_offset == 2
    assert [entry.epoch for entry in log.leader_epochs.entries] == [1]
    with pytest.raises(LogError, match="2 is next"):
        await log.appender.append([numbered([b"z"], 4)], LeaderEpoch(3))
    results = await log.appender.append([numbered([b"c"], 2)], LeaderEpoch(3))
    assert results[0].base_offset == 2


async def test_a_log_emptied_by_truncation_has_its_high_watermark_at_its_start() -> None:
    log = (await open_log(SimulatedDisk()))[1]
    await log.appender.append([batch([b"a", b"b", b"c"])], EPOCH)
    await log.flush()
    log.high_watermark = Offset(3)
    await log.operations.delete_records_before(Offset(2))
    await log.operations.truncate_to(Offset(2))
    assert log.log_start_offset == log.log_end_offset == log.high_watermark == 2


async def test_a_start_takes_no_high_watermark_beyond_the_log_it_finds() -> None:
    disk = SimulatedDisk(3)
    config = LogConfig(flush=FlushMode.ASYNC)
    _, log = await open_log(disk, config)
    await log.appender.append([batch([b"a"])], EPOCH)
    await log.flush()
    await log.appender.append([batch([b"b"])], EPOCH)
    log.high_watermark = Offset(2)
    await log.publish()
    name = f"replicas/{TOPIC}/0/00000000000000000000.log"
    kept = disk.contents(name)[: log.size_bytes // 2]
    disk.crash(power=True)
    disk.put(name, kept)
    _, log = await open_log(disk, config)
    assert log.log_end_offset == log.high_watermark == 1
