"""Removal of records by age, by size, or by request, also across restarts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest

from raftlog.record.batch import iterate_batches
from raftlog.record.errors import (
    OFFSET_OUT_OF_RANGE,
    STORAGE_FAILED,
    LogError,
)
from raftlog.record.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from raftlog.storage.checkpoints.checkpoints import StartKind
from raftlog.storage.log.derived_state import Marks, read_marks, snapshot_offsets, write_marks
from raftlog.storage.segments.segments import FIRST_APPENDS_MAX
from raftlog.storage.types import LogConfig
from tests.simulation.clock import ManualClock
from tests.simulation.disk import SimulatedDisk
from tests.storage.logs import EPOCH, Gate, batch, new_log, numbered, read_all, sent
from tests.waiting import until

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)
T = TypeVar("T")
TURNS_MAX = 1000


async def test_deleted_records_stay_deleted_and_their_segments_go() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, SMALL)
    for number in range(40):
        await log.appender.append([batch([b"%02d" % number])], EPOCH)
    await log.flush()
    log.high_watermark = log.flushed_offset
    count = len(log.segments)
    assert await log.operations.delete_records_before(Offset(33)) == 33
    assert await log.operations.delete_records_before(Offset(20)) == 33
    assert len(log.segments) < count
    assert await read_all(log) == [b"%02d" % number for number in range(33, 40)]
    with pytest.raises(LogError) as refused:
        await log.reader.read(Offset(32), end=Offset(40), max_bytes=1)
    assert refused.value.entry is OFFSET_OUT_OF_RANGE
    with pytest.raises(LogError) as refused:
        await log.operations.delete_records_before(Offset(41))
    assert refused.value.entry is OFFSET_OUT_OF_RANGE
    log = new_log(disk, SMALL, checkpoint=log.current_checkpoint(), start=StartKind.PROCESS_CRASH)
    assert log.log_start_offset == 33
    assert not [name for name in disk.list_directory("replica") if name.endswith(".deleted")]


@pytest.mark.parametrize("way", ["by request", "by age"])
async def test_producers_of_records_that_left_are_not_forgotten_by_a_crash(way: str) -> None:
    disk, config = SimulatedDisk(), replace(SMALL, retention_ms=1000)
    log = new_log(disk, config)
    producer = {"producer_id": ProducerId(5), "producer_epoch": ProducerEpoch(0)}
    for number in range(40):
        one = batch([b"%02d" % number], timestamp_ms=10_000, sequence=number, **producer)
        await log.appender.append([one], EPOCH)
    await log.flush()
    log.high_watermark = log.flushed_offset
    if way == "by request":
        await log.operations.delete_records_before(Offset(40))
    else:
        while await log.operations.apply_retention(20_000):
            pass
    assert log.log_start_offset == 40
    checkpoint = log.current_checkpoint()
    disk.crash(power=True)
    log = new_log(disk, config, checkpoint=checkpoint, start=StartKind.POWER_LOSS)
    repeated = batch([b"39"], timestamp_ms=10_000, sequence=39, **producer)
    (result,) = await log.appender.append([repeated], EPOCH)
    assert result.duplicate
    following = batch([b"40"], timestamp_ms=10_000, sequence=40, **producer)
    assert [found.base_offset for found in await log.appender.append([following], EPOCH)] == [40]


async def test_retention_drops_old_segments_and_rolls_a_due_active_one() -> None:
    config = replace(SMALL, retention_ms=1000)
    log = new_log(SimulatedDisk(), config)
    for number in range(20):
        await log.appender.append([batch([b"%02d" % number], timestamp_ms=10_000 + number)], EPOCH)
    await log.flush()
    assert await log.operations.apply_retention(10_500) == 0
    log.high_watermark = log.flushed_offset
    assert await log.operations.apply_retention(10_500) == 0
    dropped = await log.operations.apply_retention(20_000)
    assert dropped > 1
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (20, 20, 1)
    await log.appender.append([batch([b"next"])], EPOCH)
    assert await read_all(log) == [b"next"]


DAY_MS = 24 * 3_600_000


async def test_segments_with_timestamps_in_the_future_grow_old_over_restarts() -> None:
    disk = SimulatedDisk()
    clock = ManualClock()
    config = replace(SMALL, retention_ms=2 * DAY_MS, segment_ms=DAY_MS)
    checkpoint = None
    dropped = []
    future_ms = clock.time_ms() + 1000 * DAY_MS
    for _ in range(12):
        log = new_log(disk, config, checkpoint=checkpoint, clock=clock)
        if not dropped:
            for _ in range(40):
                await log.appender.append([batch([b"x"], timestamp_ms=future_ms)], EPOCH)
        await log.flush()
        log.high_watermark = log.flushed_offset
        dropped.append(await log.operations.apply_retention(clock.time_ms()))
        await log.close()
        checkpoint = log.current_checkpoint()
        clock.advance(24 * 3600)
    assert sum(dropped) > 3
    assert dropped[:3] == [0, 0, 0]
    assert (log.log_start_offset, len(log.segments)) == (40, 1)


async def test_of_many_segments_some_ages_are_kept_and_none_grows_older_than_it_is() -> None:
    disk = SimulatedDisk()
    clock = ManualClock()
    log = new_log(disk, SMALL, clock=clock)
    for _ in range(200):
        await log.appender.append([batch([b"x"])], EPOCH)
        clock.advance(60)
    ages = [segment.first_append_ms for segment in log.segments.all]
    await log.close()
    assert len(ages) > 2 * FIRST_APPENDS_MAX
    checkpoint = log.current_checkpoint()
    assert len(checkpoint.first_appends) <= FIRST_APPENDS_MAX
    clock.advance(3600)
    again = new_log(disk, SMALL, checkpoint=checkpoint, clock=clock)
    found = [segment.first_append_ms for segment in again.segments.all]
    assert (found[0], found[-1]) == (ages[0], ages[-1])
    for before, after in zip(ages, found, strict=True):
        assert before is not None
        assert after is not None
        assert before <= after <= before + 60_000 * 200 // 10


async def test_an_active_segment_is_rolled_by_its_age_over_restarts() -> None:
    disk = SimulatedDisk()
    clock = ManualClock()
    config = LogConfig(segment_ms=DAY_MS)
    checkpoint = None
    for _ in range(4):
        log = new_log(disk, config, checkpoint=checkpoint, clock=clock)
        await log.appender.append([batch([b"x"])], EPOCH)
        await log.close()
        checkpoint = log.current_checkpoint()
        clock.advance(13 * 3600)
    assert len(log.segments) == 2


async def test_no_snapshot_of_a_past_that_was_cut_off_comes_back_with_a_power_cut() -> None:
    for seed in range(20):
        disk = SimulatedDisk(seed)
        log = new_log(disk)
        for number in range(6):
            await log.appender.append([numbered([b"x"], number)], EPOCH)
            await log.operations.checkpoint()
        await log.operations.truncate_to(Offset(0))
        disk.crash(power=True)
        left = snapshot_offsets(disk.list_directory("replica"))
        assert [offset for offset in left if offset > 0] == []


async def test_a_reader_goes_on_while_its_segment_is_removed() -> None:
    disk = SimulatedDisk(yields=True)
    log = new_log(disk, SMALL)
    for number in range(40):
        await log.appender.append([batch([b"%02d" % number])], EPOCH)
    await log.flush()
    log.high_watermark = log.flushed_offset
    disk.cold = True
    reads = [
        asyncio.ensure_future(log.reader.read(Offset(start), end=Offset(40), max_bytes=1))
        for start in range(40)
    ]
    await asyncio.sleep(0)
    await log.operations.delete_records_before(Offset(35))
    for start, outcome in enumerate(await asyncio.gather(*reads, return_exceptions=True)):
        if isinstance(outcome, LogError):
            assert outcome.entry is OFFSET_OUT_OF_RANGE
            assert start < 35
        else:
            assert not isinstance(outcome, BaseException)
            assert next(iter(iterate_batches(outcome.data))).header.base_offset == start
    assert log.damaged_ranges == {}


async def test_what_is_not_committed_stays_however_old_it_is() -> None:
    config = replace(SMALL, retention_ms=1000, retention_bytes=1)
    log = new_log(SimulatedDisk(), config)
    for number in range(20):
        await log.appender.append_fetched(
            sent(batch([b"%02d" % number]), base_offset=number), EPOCH
        )
    await log.flush()
    log.high_watermark = Offset(11)
    while await log.operations.apply_retention(1_000_000):
        pass
    assert 0 < log.log_start_offset <= 11
    kept = await read_all(log)
    assert kept[-9:] == [b"%02d" % number for number in range(11, 20)]


@pytest.mark.parametrize("committed", [False, True])
async def test_what_is_appended_while_the_active_segment_is_to_go_stays(committed: bool) -> None:
    """The append waits for a gap to be written down, holding the retention's roll back."""
    log = new_log(SimulatedDisk(), replace(SMALL, retention_ms=1000))
    if committed:
        log.listeners.flushed.append(lambda end: setattr(log, "high_watermark", end))
    await log.appender.append_fetched(sent(batch([b"old"])), EPOCH)
    await log.flush()
    log.high_watermark = Offset(1)
    retaining: list[asyncio.Task[int]] = []

    async def publish() -> None:
        if not retaining:
            retaining.append(asyncio.ensure_future(log.operations.apply_retention(1_000_000)))
            for _ in range(5):
                await asyncio.sleep(0)

    log._publish = publish
    await log.appender.append_fetched(sent(batch([b"new"]), base_offset=7), EPOCH)
    await retaining[0]
    result = await log.reader.read(Offset(7), end=Offset(8), max_bytes=1)
    assert result.next_offset == 8


async def test_epochs_that_were_deleted_do_not_count_as_an_older_one_after_a_start() -> None:
    """The stored history ends before these records; a follower would truncate far too much."""
    disk = SimulatedDisk()
    log = new_log(disk, SMALL)
    await log.appender.append([batch([b"a"])], LeaderEpoch(1))
    await log.operations.checkpoint()
    for number in range(20):
        await log.appender.append([batch([b"x" * 60])], LeaderEpoch(2 + number))
    await log.flush()
    log.high_watermark = log.flushed_offset
    await log.operations.delete_records_before(Offset(20))
    await log.appender.append([batch([b"z"])], LeaderEpoch(50))
    await log.flush()
    checkpoint = log.current_checkpoint()
    disk.crash(power=False)
    again = new_log(disk, SMALL, checkpoint=checkpoint, start=StartKind.PROCESS_CRASH)
    entries = [(entry.epoch, entry.start_offset) for entry in again.leader_epochs.entries]
    assert entries == [(21, 20), (50, 21)]


@pytest.mark.parametrize("bit", range(96))
async def test_a_flipped_bit_in_a_time_index_makes_no_segment_old(bit: int) -> None:
    disk, config = SimulatedDisk(), replace(SMALL, retention_ms=7 * 24 * 3_600_000)
    now_ms = 1_700_000_000_000
    log = new_log(disk, config)
    for number in range(40):
        await log.appender.append([batch([b"%02d" % number], timestamp_ms=now_ms)], EPOCH)
    await log.close()
    index = next(name for name in disk.list_directory("replica") if name.endswith(".timeindex"))
    path = f"replica/{index}"
    width = 16 if len(disk.contents(path)) % 16 == 0 else 12
    disk.flip_bit(path, 8 * (len(disk.contents(path)) - width) + bit)
    log = new_log(disk, config, checkpoint=log.current_checkpoint())
    log.high_watermark = log.flushed_offset
    assert await log.operations.apply_retention(now_ms + 1000) == 0
    assert [segment.max_timestamp_ms for segment in log.segments.all] == [now_ms] * len(
        log.segments
    )


class _HeldDisk(SimulatedDisk):
    """Holds the first write of a replica's marks on its thread."""

    def __init__(self) -> None:
        super().__init__()
        self.held: asyncio.Event | None = None
        self.writers: Counter[str] = Counter()

    async def run(self, work: Callable[[], T]) -> T:
        if not isinstance(work, partial) or work.func is not write_marks:
            return await super().run(work)
        _disk, directory, _marks = work.args
        self.writers[directory] += 1
        assert self.writers[directory] == 1, "two threads write one file"
        if self.held is not None:
            held, self.held = self.held, None
            await held.wait()
        try:
            return await super().run(work)
        finally:
            self.writers[directory] -= 1


@pytest.mark.parametrize("later", ["another request", "damage"])
async def test_marks_are_written_one_after_the_other_and_never_go_back(later: str) -> None:
    disk = _HeldDisk()
    log = new_log(disk, SMALL)
    for number in range(40):
        await log.appender.append([batch([b"%02d" % number])], EPOCH)
    await log.flush()
    log.high_watermark = log.flushed_offset
    disk.held = held = asyncio.Event()
    first = asyncio.create_task(log.operations.delete_records_before(Offset(10)))
    await until(lambda: disk.writers["replica"] == 1)
    second: asyncio.Task[Offset] | None = None
    if later == "damage":
        log.declare_damaged("rot")
    else:
        second = asyncio.create_task(log.operations.delete_records_before(Offset(20)))
        await until(lambda: log.log_start_offset == 20)
    for _ in range(20):
        await asyncio.sleep(0)
    held.set()
    await asyncio.gather(*filter(None, (first, second)), return_exceptions=True)
    await until(lambda: not disk.writers["replica"])
    marks = read_marks(disk, "replica")
    assert marks == (Marks(Offset(10), "rot") if second is None else Marks(Offset(20)))


async def test_marks_are_not_written_into_the_directory_of_the_next_log() -> None:
    disk = _HeldDisk()
    log = new_log(disk, SMALL)
    for number in range(40):
        await log.appender.append([batch([b"%02d" % number])], EPOCH)
    await log.flush()
    log.high_watermark = log.flushed_offset
    disk.held = held = asyncio.Event()
    deletion = asyncio.create_task(log.operations.delete_records_before(Offset(10)))
    await until(lambda: disk.writers["replica"] == 1)
    retired = asyncio.create_task(log.retire(LogError(STORAGE_FAILED, "It is renewed.")))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not retired.done()
    held.set()
    await asyncio.gather(deletion, return_exceptions=True)
    await retired


@pytest.mark.parametrize("first", ["_keep_snapshot", "_write_derived"])
async def test_retention_and_a_checkpoint_never_write_snapshots_at_once(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may write the snapshot of one offset, by one temporary file, and one removes others."""
    disk = SimulatedDisk()
    log = new_log(disk, replace(SMALL, retention_bytes=600))
    for number in range(20):
        await log.appender.append([batch([b"%02d" % number])], EPOCH)
    await log.operations.checkpoint()
    log.high_watermark = log.flushed_offset
    await log.appender.append([batch([b"20"])], EPOCH)
    gates = {name: Gate(disk, name, monkeypatch) for name in ("_keep_snapshot", "_write_derived")}
    works = {
        "_keep_snapshot": partial(log.operations.apply_retention, None),
        "_write_derived": log.operations.checkpoint,
    }
    (second,) = gates.keys() - {first}
    running = [asyncio.create_task(works[first]())]
    await gates[first].reached.wait()
    running.append(asyncio.create_task(works[second]()))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not gates[second].reached.is_set()
    for gate in gates.values():
        gate.opened.set()
    await asyncio.gather(*running)
    assert gates[second].reached.is_set()
    assert log.log_start_offset > 0
