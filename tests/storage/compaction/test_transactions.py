"""Compaction of a log with transactions: what readers of committed records see stays."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from raftlog.record.batch import iterate_batches
from raftlog.record.codec import decode
from raftlog.record.errors import LogError
from raftlog.record.types import Offset
from raftlog.storage.checkpoints.checkpoints import StartKind
from raftlog.storage.compaction import run as compaction_run
from raftlog.storage.log.log import Log
from raftlog.storage.transactions.aborted_index import Wanted
from raftlog.storage.transactions.aborted_lookup import find_aborted
from raftlog.storage.types import LogState
from raftlog.world import DiskError
from tests.simulation.disk import MachineStoppedError, SimulatedDisk
from tests.storage.compaction.test_run import CONFIG, KEYS, Written
from tests.storage.logs import DIRECTORY, EPOCH, all_bytes, batch, new_log
from tests.storage.transactional import append, end, read_committed, transactional

AFTER_RETENTION = 20_000
"""Later than the first compaction, at 10,000, by more than `delete.retention.ms`."""


async def fill(log: Log, seed: int, count: int = 60, *, closes: bool = True) -> None:
    chance = random.Random(seed)
    sequences: dict[int, int] = {}
    opened: set[int] = set()
    for number in range(count):
        producer = chance.randrange(4)
        value = b"%d" % number
        if producer in opened and chance.random() < 0.5:
            await end(log, producer, commit=chance.random() < 0.5)
            opened.discard(producer)
        elif producer == 3:
            await log.appender.append([batch([value], keys=[chance.choice(KEYS)])], EPOCH)
        else:
            known = log.producers._producers.get(producer)
            sequence = sequences.get(producer, 0 if known is None else known.next_sequence)
            key = [chance.choice(KEYS)]
            await append(log, transactional([value], producer, sequence, keys=key))
            sequences[producer] = sequence + 1
            opened.add(producer)
    for producer in sorted(opened) if closes else ():
        await end(log, producer, commit=producer % 2 == 0)
    await log.flush()
    log.high_watermark = log.flushed_offset


async def view(log: Log) -> dict[bytes | None, tuple[int, bytes | None]]:
    """The newest committed record of each key, by the value, which is unique."""
    found: dict[bytes | None, tuple[int, bytes | None]] = {}
    keys = await keys_by_offset(log)
    for offset, value in await read_committed(log):
        found[keys[offset]] = (offset, value)
    return found


async def keys_by_offset(log: Log) -> dict[int, bytes | None]:
    return {
        record.offset: record.key
        for found in iterate_batches(await all_bytes(log))
        for record in decode(found, decompressed_bytes_max=1 << 20)
    }


@pytest.mark.parametrize("seed", range(20))
async def test_the_newest_committed_record_of_each_key_stays(seed: int) -> None:
    log = new_log(SimulatedDisk(seed), CONFIG)
    await fill(log, seed)
    wanted = await view(log)
    report = await log.compact(10_000)
    assert report is not None
    assert await view(log) == wanted
    await fill(log, seed + 1000)
    wanted = await view(log)
    await log.compact(10_500)
    assert await view(log) == wanted
    await log.compact(AFTER_RETENTION)
    assert await view(log) == wanted


async def test_aborted_records_go_and_with_their_markers_the_index() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, CONFIG)
    for number in range(20):
        await append(log, transactional([b"%d" % number], 1, number, keys=[b"a"]))
        await end(log, 1, commit=False)
    await fill(log, 1, 5)
    aborted = await find_aborted(log, Wanted())
    await log.compact(10_000)
    compacted = log.segments.active.base_offset
    left = await read_committed(log)
    keys = await keys_by_offset(log)
    assert not [offset for offset in keys if offset < compacted and keys[offset] == b"a"][1:]
    assert await find_aborted(log, Wanted()) == aborted, "its marker tells later readers"
    await fill(log, 2, 12)
    await log.compact(AFTER_RETENTION)
    gone = [one for one in await find_aborted(log, Wanted()) if one.last_offset < compacted]
    assert gone == []
    first = f"{DIRECTORY}/{0:020}.txnindex"
    assert not disk.exists(first)
    assert left


async def test_a_marker_of_a_commit_stays_with_its_records() -> None:
    log = new_log(config=CONFIG)
    await append(log, transactional([b"kept"], 1, 0, keys=[b"z"]))
    marker = await end(log, 1, commit=True)
    await fill(log, 3)
    for now in (10_000, AFTER_RETENTION, 2 * AFTER_RETENTION):
        await log.compact(now)
        await fill(log, now, 12)
    assert (0, b"kept") in await read_committed(log)
    headers = {
        found.header.base_offset: found.header for found in iterate_batches(await all_bytes(log))
    }
    assert headers[marker].is_control
    assert headers[marker].record_count == 1


@pytest.mark.parametrize("seed", range(5))
async def test_nothing_from_the_first_open_transaction_on_is_compacted(seed: int) -> None:
    log = new_log(config=CONFIG)
    await fill(log, seed, 20)
    await append(log, transactional([b"open"], 9, 0, keys=[b"a"]))
    first = log.producers.first_unstable(log.log_end_offset)
    assert first is not None
    await fill(log, seed + 100, 40)
    before = await all_bytes(log)
    await log.compact(10_000)
    kept = {
        found.header.base_offset: bytes(found.data)
        for found in iterate_batches(await all_bytes(log))
    }
    for found in iterate_batches(before):
        if found.header.base_offset >= first:
            assert kept[found.header.base_offset] == bytes(found.data)
    await end(log, 9, commit=True)
    await log.flush()
    log.high_watermark = log.flushed_offset
    wanted = await view(log)
    await log.compact(11_000)
    assert await view(log) == wanted


@pytest.mark.parametrize("power", [False, True])
async def test_a_crash_at_any_step_changes_nothing_for_readers(power: bool) -> None:
    wanted = None
    for step in range(1, 300):
        disk = SimulatedDisk(step)
        written = Written(disk)
        log = written.open(StartKind.CLEAN)
        await written.publish()
        await fill(log, 11)
        wanted = wanted or await view(log)
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
        again.high_watermark = again.log_end_offset
        assert await view(again) == wanted
        if finished:
            return
    raise AssertionError("the compaction never ended")


@pytest.mark.parametrize("seed", range(5))
async def test_many_aborted_transactions_take_several_passes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction_run, "ABORTED_MAX", 2)
    log = new_log(SimulatedDisk(seed), CONFIG)
    await fill(log, seed, 80)
    wanted = await view(log)
    passes = 0
    report = await log.compact(10_000)
    while report is not None and report.is_partial:
        passes += 1
        report = await log.compact(10_000, resume=True)
        assert await view(log) == wanted
    assert passes
    assert log.compaction.first_dirty_offset == log.segments.active.base_offset


async def test_a_log_compacted_and_scanned_has_no_open_transaction() -> None:
    """Batches without records, kept for their sequences, begin none."""
    log = new_log(disk := SimulatedDisk(), CONFIG)
    for number in range(10):
        await append(log, transactional([b"%d" % number], number % 3, number // 3, keys=[b"a"]))
        await end(log, number % 3, commit=False)
    await fill(log, 5, 12)
    await log.compact(10_000)
    await log.compact(AFTER_RETENTION)
    await log.compact(2 * AFTER_RETENTION)
    wanted = await view(log)
    again = new_log(disk, CONFIG, checkpoint=None, start=StartKind.PROCESS_CRASH)
    again.high_watermark = again.log_end_offset
    assert again.last_stable_offset(again.log_end_offset) == again.log_end_offset
    assert await view(again) == wanted
    assert again.producers.first_unstable(Offset(10**6)) is None
