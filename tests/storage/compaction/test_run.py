from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from raftlog.record.batch import RecordBatch, iterate_batches, sealed
from raftlog.record.codec import decode
from raftlog.record.errors import INVALID_BODY, MALFORMED_BATCH, STORAGE_FAILED, LogError
from raftlog.record.header import HEADER_SIZE, parse_header
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.storage.checkpoints.checkpoints import ReplicaCheckpoint, StartKind
from raftlog.storage.compaction.rewrite import CompactionPass
from raftlog.storage.log.core import LogContext
from raftlog.storage.log.log import Log
from raftlog.storage.types import LogConfig, LogState
from raftlog.world import DiskError, DiskFullError
from tests.simulation.clock import ManualClock
from tests.simulation.disk import MachineStoppedError, SimulatedDisk
from tests.storage.logs import DIRECTORY, EPOCH, batch, new_log

CONFIG = LogConfig(
    segment_bytes=400,
    index_interval_bytes=100,
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.1,
    delete_retention_ms=1000,
)
KEYS = [b"a", b"b", b"c"]


class Written:
    """Stores the log's checkpoint, durable before the call returns."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.log: Log | None = None
        self.checkpoint: ReplicaCheckpoint | None = None

    def open(self, start: StartKind) -> Log:
        self.disk.make_directory(DIRECTORY)
        self.disk.sync_directory("")
        self.log = Log.open(
            LogContext(self.disk, ManualClock()),
            DIRECTORY,
            CONFIG,
            checkpoint=self.checkpoint,
            start=start,
            publish=self.publish,
        )
        return self.log

    async def publish(self) -> None:
        assert self.log is not None
        checkpoint = self.log.current_checkpoint()
        await self.disk.run(lambda: self.disk.replace("checkpoint", b"x"))
        self.checkpoint = checkpoint


async def fill(log: Log, count: int = 40) -> None:
    for number in range(count):
        key = KEYS[number % len(KEYS)]
        await log.appender.append([batch([b"%d" % number], keys=[key])], EPOCH)
    await log.flush()
    log.high_watermark = log.flushed_offset


async def records(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """All records as (offset, key, value), in order of their offsets."""
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = await log.reader.read(offset, end=log.log_end_offset, max_bytes=300)
        for part in iterate_batches(result.data):
            for record in decode(part, decompressed_bytes_max=1 << 20):
                if record.offset >= offset:
                    found.append((record.offset, record.key, record.value))
        assert result.next_offset > offset
        offset = result.next_offset
    assert found == sorted(found)
    return found


def newest(
    found: list[tuple[int, bytes | None, bytes | None]],
) -> dict[bytes | None, tuple[int, bytes | None]]:
    """The last record of each key."""
    return {key: (offset, value) for offset, key, value in found}


async def test_compaction_keeps_the_newest_record_of_each_key_at_its_offset() -> None:
    disk = SimulatedDisk(yields=True)
    log = new_log(disk, CONFIG)
    await fill(log)
    before = await records(log)
    size_bytes = log.size_bytes
    report = await log.compact(10_000)
    assert report is not None
    assert report.segments_rewritten > 0
    after = await records(log)
    assert newest(after) == newest(before)
    assert set(after) < set(before)
    assert log.size_bytes < size_bytes
    assert log.log_end_offset == 40
    assert await log.compact(10_000) is None
    # The next pass joins small segments.
    await fill(log)
    segments = len(log.segments)
    await log.compact(20_000)
    assert len(log.segments) < segments
    assert disk.slow_outside_run == []


async def test_compacted_logs_take_appends_and_every_kind_of_restart() -> None:
    for start in StartKind:
        disk = SimulatedDisk()
        written = Written(disk)
        log = written.open(StartKind.CLEAN)
        await written.publish()
        await fill(log)
        await log.compact(10_000)
        await fill(log, 20)
        expected = await records(log)
        await log.operations.checkpoint()
        await written.publish()
        if start is StartKind.CLEAN:
            await log.close()
            await written.publish()
        disk.crash(power=start is StartKind.POWER_LOSS)
        again = written.open(start)
        assert again.state is LogState.ONLINE
        assert await records(again) == expected
        again.high_watermark = again.flushed_offset
        await again.compact(20_000)
        assert newest(await records(again)) == newest(expected)


async def test_each_offset_of_a_compacted_log_can_be_asked_for() -> None:
    log = new_log(SimulatedDisk(), CONFIG)
    await fill(log)
    await log.compact(10_000)
    left = [offset for offset, _, _ in await records(log)]
    for start in range(40):
        following = next((offset for offset in left if offset >= start), 40)
        offset = Offset(start)
        while True:
            result = await log.reader.read(offset, end=Offset(40), max_bytes=1)
            found = [
                record.offset
                for part in iterate_batches(result.data)
                for record in decode(part, decompressed_bytes_max=1 << 20)
                if record.offset >= start
            ]
            assert result.next_offset > offset
            offset = result.next_offset
            if found or offset == 40:
                break
        assert (found or [40])[0] == following


async def test_nothing_is_compacted_above_the_high_watermark() -> None:
    log = new_log(SimulatedDisk(), CONFIG)
    await fill(log)
    log.high_watermark = Offset(3)
    assert await log.compact(10_000) is None


@pytest.mark.parametrize("seed", range(15))
async def test_readers_go_on_while_segments_are_swapped_under_them(seed: int) -> None:
    disk = SimulatedDisk(seed, yields=True)
    log = new_log(disk, CONFIG)
    await fill(log, 60)
    disk.cold = True
    wanted = newest(await records(log))
    compaction = asyncio.ensure_future(log.compact(10_000))

    async def read(start: int) -> None:
        while not compaction.done():
            result = await log.reader.read(Offset(start), end=Offset(60), max_bytes=1)
            assert result.next_offset > start

    await asyncio.gather(*(read(start) for start in range(60)))
    assert newest(await records(log)) == wanted
    assert await compaction is not None
    assert log.damaged_ranges == {}


async def test_a_truncation_interrupts_a_compaction() -> None:
    disk = SimulatedDisk(yields=True)
    log = new_log(disk, CONFIG)
    await fill(log, 60)
    compaction = asyncio.ensure_future(log.compact(10_000))
    for _ in range(10):
        await asyncio.sleep(0)
    await log.operations.truncate_to(Offset(50))
    await compaction
    assert log.log_end_offset == 50
    assert log.current_checkpoint().gaps_below <= 50
    assert newest(await records(log))[b"a"] == (48, b"48")


async def test_closing_does_not_wait_for_a_compaction_to_end() -> None:
    disk = SimulatedDisk(yields=True)
    log = new_log(disk, CONFIG)
    await fill(log, 60)
    compaction = asyncio.ensure_future(log.compact(10_000))
    for _ in range(10):
        await asyncio.sleep(0)
    await log.close()
    assert await compaction is None
    again = new_log(disk, CONFIG, checkpoint=log.current_checkpoint())
    assert newest(await records(again))[b"a"] == (57, b"57")


async def test_what_is_appended_after_a_truncation_may_have_no_gaps() -> None:
    log = new_log(SimulatedDisk(), CONFIG)
    await fill(log)
    await log.compact(10_000)
    assert log.current_checkpoint().gaps_below > 5
    await log.operations.truncate_to(Offset(5))
    assert log.current_checkpoint().gaps_below <= log.log_end_offset
    await fill(log, 3)


async def test_damage_ends_a_compaction_and_nothing_is_lost() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, CONFIG)
    await fill(log)
    name = f"{DIRECTORY}/{0:020d}.log"
    disk.flip_bit(name, 75 * 8)
    content = disk.contents(name)
    assert await log.compact(10_000) is None
    assert log.damage_found is not None, "its owner can have it repaired"
    assert disk.contents(name) == content
    assert not [name for name in disk.list_directory(DIRECTORY) if name.endswith(".cleaned")]


async def test_a_flipped_base_offset_is_no_gap_of_a_compaction() -> None:
    # Bit 14 of an offset, which no CRC covers: a reader would go on behind the log (data 220116).
    stored = Written(disk := SimulatedDisk())
    log = stored.open(StartKind.CLEAN)
    await fill(log)
    assert await log.compact(0) is not None
    log.gaps_below = Offset(1 << 20)  # as in a follower
    segment = log.segments.all[-2]
    disk.flip_bit(segment.path, 8 * 6 + 6)
    with pytest.raises(LogError) as refused:
        await log.reader.read(segment.base_offset, end=log.log_end_offset, max_bytes=300)
    assert refused.value.entry is STORAGE_FAILED
    assert log.damaged_segments == {segment.base_offset}


@pytest.mark.parametrize("power", [False, True])
async def test_a_crash_at_any_step_of_a_compaction_leaves_the_old_or_the_new(power: bool) -> None:
    wanted = None
    for step in range(1, 200):
        disk = SimulatedDisk(step)
        written = Written(disk)
        log = written.open(StartKind.CLEAN)
        await written.publish()
        await fill(log)
        wanted = wanted or newest(await records(log))
        disk.crash_in(step)
        finished = False
        with suppress(MachineStoppedError, LogError, DiskError):
            await log.compact(10_000)
            finished = not disk.stopped
        for _ in range(20):
            await asyncio.sleep(0)
        disk.crash(power=power)
        again = written.open(StartKind.POWER_LOSS if power else StartKind.PROCESS_CRASH)
        assert again.state is LogState.ONLINE, again.failure
        assert newest(await records(again)) == wanted
        assert again.log_end_offset == 40
        left = disk.list_directory(DIRECTORY)
        assert not [name for name in left if name.endswith((".cleaned", ".swap"))]
        if finished:
            return
    raise AssertionError("the compaction never ended")


async def test_a_compacted_log_takes_no_record_without_a_key() -> None:
    log = new_log(SimulatedDisk(), CONFIG)
    good = batch([b"x"], keys=[b"a"])
    with pytest.raises(LogError) as refused:
        await log.appender.append([good, batch([b"x", b"y"], keys=[b"a", None])], EPOCH)
    assert refused.value.entry is INVALID_BODY
    assert (log.log_end_offset, log.size_bytes) == (0, 0)
    await log.appender.append([good], EPOCH)
    log.configure(replace(CONFIG, cleanup_policy=frozenset({"delete"})))
    await log.appender.append([batch([b"x"])], EPOCH)
    assert log.log_end_offset == 2


def undecodable() -> RecordBatch:
    """A batch with a valid header and CRC, and invalid records."""
    data = bytearray(batch([b"x"], keys=[b"a"]).data)
    data[HEADER_SIZE] ^= 0x40
    return RecordBatch(sealed(data, parse_header(data)), bytes(data))


async def test_a_compacted_log_takes_no_batch_that_cannot_be_decoded() -> None:
    log = new_log(SimulatedDisk(), CONFIG)
    with pytest.raises(LogError) as refused:
        await log.appender.append([undecodable()], EPOCH)
    assert refused.value.entry is MALFORMED_BATCH


async def test_a_batch_that_cannot_be_decoded_stops_compaction_without_rewriting_again() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, replace(CONFIG, cleanup_policy=frozenset({"delete"})))
    await fill(log, 12)
    await log.appender.append([undecodable()], EPOCH)
    await fill(log, 12)
    log.configure(CONFIG)
    report = await log.compact(10_000)
    assert report is not None
    assert report.compacted_offset == 12
    assert log.unreadable is not None
    assert log.unreadable.offset == 12
    for now_ms in (20_000, 30_000):
        appends = disk.operations["append"]
        assert await log.compact(now_ms) is None
        assert disk.operations["append"] == appends
    assert log.unreadable.offset == 12


async def test_more_keys_than_a_pass_can_learn_are_worth_another_pass_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "raftlog.storage.compaction.run.CompactionPass", partial(CompactionPass, keys_max=5)
    )
    log = new_log(SimulatedDisk(), replace(CONFIG, min_cleanable_dirty_ratio=0.9))
    for number in range(60):
        await log.appender.append([batch([b"%d" % number], keys=[b"%d" % (number % 30)])], EPOCH)
    await log.flush()
    log.high_watermark = log.flushed_offset
    wanted = newest(await records(log))
    report = await log.compact(10_000)
    passes = 1
    while report is not None and report.is_partial:
        report = await log.compact(10_000, resume=True)
        passes += 1
    assert report is not None
    assert passes > 5
    left = await records(log)
    assert newest(left) == wanted
    assert len([offset for offset, _, _ in left if offset < report.compacted_offset]) <= 30


async def test_what_is_left_below_a_truncation_can_be_read_in_spite_of_its_gaps() -> None:
    log = new_log(SimulatedDisk(), replace(CONFIG, segment_bytes=2000))
    for number in range(80):
        key = KEYS[0] if number % 3 else b"%d" % number
        await log.appender.append([batch([b"%d" % number], keys=[key])], EPOCH)
    await log.flush()
    log.high_watermark = log.flushed_offset
    await log.compact(10_000)
    before = await records(log)
    cut = log.segments.all[1].base_offset + 9
    await log.operations.truncate_to(Offset(cut))
    left = await records(log)
    assert left == [record for record in before if record[0] < cut]
    assert len(left) < cut


@pytest.mark.parametrize("policy", ["compact", "delete"])
async def test_gaps_are_no_damage_without_a_checkpoint_whatever_the_policy_is_now(
    policy: str,
) -> None:
    disk = SimulatedDisk()
    log = new_log(disk, replace(CONFIG, segment_bytes=2000))
    await fill(log, 60)
    await log.compact(10_000)
    expected = await records(log)
    disk.crash(power=False)
    config = replace(CONFIG, segment_bytes=2000, cleanup_policy=frozenset({policy}))
    again = new_log(disk, config, checkpoint=None, start=StartKind.POWER_LOSS)
    assert again.state is LogState.ONLINE, again.failure
    assert await records(again) == expected


async def test_a_full_disk_in_the_middle_of_a_swap_ends_the_log_and_loses_nothing() -> None:
    disk = SimulatedDisk()
    written = Written(disk)
    log = written.open(StartKind.CLEAN)
    await written.publish()
    await fill(log)
    wanted = newest(await records(log))
    disk.fail_next("rename", ".swap", DiskFullError)
    with pytest.raises(LogError):
        await log.compact(10_000)
    assert log.state is LogState.FAILED
    disk.crash(power=True)
    again = written.open(StartKind.POWER_LOSS)
    assert newest(await records(again)) == wanted


async def test_a_scan_of_a_compacted_log_finds_where_each_leader_epoch_began() -> None:
    disk = SimulatedDisk()
    written = Written(disk)
    log = written.open(StartKind.CLEAN)
    for epoch in (1, 2, 5, 6, 9):
        for number in range(4):
            one = batch([b"%d" % number], keys=[b"a"])
            await log.appender.append([one], LeaderEpoch(epoch))
    for number in range(40):
        one = batch([b"%d" % number], keys=[KEYS[number % len(KEYS)]])
        await log.appender.append([one], LeaderEpoch(9))
    await log.flush()
    log.high_watermark = log.flushed_offset
    before = log.leader_epochs.entries
    assert [entry.start_offset for entry in before] == [0, 4, 8, 12, 16]
    report = await log.compact(10_000)
    assert report is not None
    assert report.compacted_offset > 20
    assert log.leader_epochs.entries == before
    await log.operations.checkpoint()
    await written.publish()
    disk.crash(power=False)
    disk.remove(f"{DIRECTORY}/leader-epoch-checkpoint")
    again = written.open(StartKind.PROCESS_CRASH)
    assert again.state is LogState.ONLINE
    assert again.leader_epochs.entries == before
