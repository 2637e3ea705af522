"""Damaged batches are replaced by good copies of other replicas, and nothing else changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raftlog.record.batch import iterate_batches
from raftlog.record.codec import decode
from raftlog.record.errors import NOT_READY, LogError
from raftlog.record.types import Offset
from raftlog.storage.checkpoints.checkpoints import StartKind
from raftlog.storage.log.log import Log
from raftlog.storage.repair.batch_repair import Copies
from raftlog.storage.types import LogConfig, LogState
from raftlog.world import Buffer, DiskError
from tests.examples import examples
from tests.simulation.disk import MachineStoppedError, SimulatedDisk
from tests.storage.logs import EPOCH, all_bytes, batch, new_log, read_all

SMALL = LogConfig(segment_bytes=600, index_interval_bytes=100)
COMPACTED = LogConfig(
    segment_bytes=600, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0
)
RECORDS = 60
BATCH_BYTES = 71
DAMAGED = "damaged/replica-batches"


async def written(disk: SimulatedDisk, config: LogConfig = SMALL) -> Log:
    log = new_log(disk, config)
    for number in range(RECORDS):
        key = b"%d" % (number % 7)
        await log.appender.append([batch([b"%02d" % number], keys=[key])], EPOCH)
    await log.flush()
    log.high_watermark = log.flushed_offset
    return log


async def find_damage(log: Log) -> None:
    """Read everything, as far as it can be read."""
    for offset in range(log.log_start_offset, log.log_end_offset):
        try:
            await log.reader.read(Offset(offset), end=log.log_end_offset, max_bytes=1)
        except LogError:
            assert log.damage_found is not None


def copies_of(*logs: Log) -> Copies:
    async def copies(offset: Offset) -> AsyncIterator[Buffer]:
        for log in logs:
            try:
                result = await log.reader.read(offset, end=log.log_end_offset, max_bytes=300)
            except LogError:
                continue
            yield result.data

    return copies


def log_files(disk: SimulatedDisk) -> Sequence[str]:
    names = disk.list_directory("replica")
    return [f"replica/{name}" for name in names if name.endswith(".log")]


@example([(0, 0.796875), (1, 0.767578125)])
@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.floats(0, 0.999999)), min_size=1, max_size=6))
async def test_flipped_bits_in_different_batches_are_mended_from_each_other(
    flips: list[tuple[int, float]],
) -> None:
    disks = SimulatedDisk(), SimulatedDisk()
    logs = [await written(disk) for disk in disks]
    original = await all_bytes(logs[0])
    assert len(original) == RECORDS * BATCH_BYTES
    hit: list[set[tuple[str, int]]] = [set(), set()]
    for which, at in flips:
        total = sum(len(disks[which].contents(path)) for path in log_files(disks[which]))
        bit = int(at * 8 * total)
        for path in log_files(disks[which]):
            size = 8 * len(disks[which].contents(path))
            if bit < size:
                break
            bit -= size
        place = (path, bit // 8 // BATCH_BYTES)
        if any(abs(place[1] - other) <= 1 and path == name for name, other in hit[1 - which]):
            continue  # no good copy, or one that reads do not reach behind its damaged neighbour
        hit[which].add(place)
        disks[which].flip_bit(path, bit)
    for _ in range(2):
        for log in logs:
            await find_damage(log)
        for log, other in (logs, reversed(logs)):
            if log.damage_found is not None:
                assert await log.repair(copies_of(other))
                assert log.damage_found is None
    for disk, log in zip(disks, logs, strict=True):
        assert await all_bytes(log) == original
        assert not [name for name in disk.list_directory("replica") if "cleaned" in name]
        await log.appender.append([batch([b"more"])], EPOCH)
        await log.close()
        again = new_log(disk, SMALL, checkpoint=log.current_checkpoint())
        assert again.state is LogState.ONLINE
        assert (await all_bytes(again))[: len(original)] == original


async def damaged(disk: SimulatedDisk, *, segment: int = 1, config: LogConfig = SMALL) -> Log:
    log = await written(disk, config)
    path = log_files(disk)[segment]
    disk.flip_bit(path, 8 * (len(disk.contents(path)) // 2))
    await find_damage(log)
    assert log.damage_found is not None
    return log


@pytest.mark.parametrize("segment", [0, 1, -1])
async def test_the_damaged_bytes_are_kept(segment: int) -> None:
    disk, good = SimulatedDisk(), await written(SimulatedDisk())
    log = await written(disk)
    path = log_files(disk)[segment]
    disk.flip_bit(path, 8 * (len(disk.contents(path)) // 2))
    before = disk.contents(path)
    await find_damage(log)
    assert await log.repair(copies_of(good))
    (name,) = disk.list_directory(DAMAGED)
    position = int(name.split("-")[1])
    kept = disk.contents(f"{DAMAGED}/{name}")
    assert kept == before[position : position + len(kept)]
    after = disk.contents(path)
    assert after[:position] == before[:position]
    assert after[position + len(kept) :] == before[position + len(kept) :]
    assert await read_all(log) == await read_all(good)


async def records_of(log: Log) -> dict[int, tuple[bytes | None, bytes | None]]:
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    for one in iterate_batches(await all_bytes(log)):
        for record in decode(one, decompressed_bytes_max=1 << 20):
            found[record.offset] = record.key, record.value
    return found


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=20, max_size=60),
    st.sampled_from([(False, True), (True, False), (True, True)]),
    st.integers(0, 59),
    st.floats(0, 0.999999),
)
async def test_a_replica_compacted_apart_gives_what_it_has(
    keys: list[tuple[int, bool]], compacts: tuple[bool, bool], rolled_at: int, place: float
) -> None:
    """The newest record of each key stays, no record is made up, and no deleted one is back."""
    written = {
        offset: (b"%d" % key, None if is_tombstone else b"%02d" % offset)
        for offset, (key, is_tombstone) in enumerate(keys)
    }
    newest = dict(written.values())
    disks = SimulatedDisk(), SimulatedDisk()
    logs: list[Log] = []
    for number, disk in enumerate(disks):
        log = new_log(disk, COMPACTED)
        for offset in range(len(keys)):
            if number and offset == rolled_at:
                async with log.write_lock:
                    await log.operations.roll()
            key, value = written[offset]
            await log.appender.append([batch([value], keys=[key])], EPOCH)
        await log.flush()
        log.high_watermark = log.flushed_offset
        for later in range(3 if compacts[number] else 0):
            await log.compact(10**15 + later * 10**12)
        logs.append(log)
    log, other = logs
    files = log_files(disks[0])
    path = files[int(place * len(files))]
    size = len(disks[0].contents(path))
    if not size:
        return
    disks[0].flip_bit(path, int(place * 8 * size))
    await find_damage(log)
    if log.damage_found is None:
        return  # an epoch or a gap that nothing contradicts
    if not await log.repair(copies_of(other)):
        assert log.damage_found is not None
        return
    await log.close()
    reopened = new_log(disks[0], COMPACTED, checkpoint=log.current_checkpoint())
    assert reopened.state is LogState.ONLINE
    found = await records_of(reopened)
    assert found.items() <= written.items()
    values = dict(found.values())
    assert values == {key: newest[key] for key in values}
    assert all(newest[key] is None for key in newest.keys() - values)


async def test_without_a_good_copy_nothing_changes() -> None:
    disk = SimulatedDisk()
    log = await damaged(disk)
    before = {path: disk.contents(path) for path in log_files(disk)}
    assert not await log.repair(copies_of(log))
    assert {path: disk.contents(path) for path in log_files(disk)} == before
    assert log.damage_found is not None

    async def unreachable(offset: Offset) -> AsyncIterator[Buffer]:
        for _ in ():
            yield b""
        raise LogError(NOT_READY)

    with pytest.raises(LogError):
        await log.repair(unreachable)
    assert {path: disk.contents(path) for path in log_files(disk)} == before
    log.report_damage("somewhere")
    assert not await log.repair(copies_of(await written(SimulatedDisk())))


async def test_a_copy_of_another_leader_epoch_is_no_copy() -> None:
    log, other = await damaged(SimulatedDisk()), new_log(SimulatedDisk(), SMALL)
    for number in range(RECORDS):
        await other.appender.append(
            [batch([b"%02d" % number], keys=[b"0"])], type(EPOCH)(EPOCH + 1)
        )
    assert not await log.repair(copies_of(other))


@pytest.mark.parametrize("power", [True, False])
async def test_a_crash_at_any_step_of_a_repair_leaves_the_old_or_the_new(power: bool) -> None:
    for step in range(1, 200):
        disk, good = SimulatedDisk(), await written(SimulatedDisk())
        log = await damaged(disk)
        await log.operations.checkpoint()
        disk.crash_in(step)
        try:
            await log.repair(copies_of(good))
            ended = not disk.stopped
        except (LogError, DiskError, MachineStoppedError):
            ended = False
        for _ in range(20):
            await asyncio.sleep(0)
        checkpoint = log.current_checkpoint()
        disk.crash(power=power)
        start = StartKind.POWER_LOSS if power else StartKind.PROCESS_CRASH
        again = new_log(disk, SMALL, checkpoint=checkpoint, start=start)
        assert again.state is LogState.ONLINE
        assert again.log_end_offset == RECORDS
        await find_damage(again)
        if again.damage_found is not None:
            assert await again.repair(copies_of(good))
        assert await all_bytes(again) == await all_bytes(good)
        if ended:
            return
    raise AssertionError("the repair never ended")


async def test_the_batch_that_holds_the_log_start_has_copies_too() -> None:
    disk, logs = SimulatedDisk(), []
    for each in (disk, SimulatedDisk()):
        log = new_log(each, LogConfig())
        for number in range(4):
            await log.appender.append([batch([b"%d" % number, b"x", b"y"])], EPOCH)
        await log.flush()
        log.high_watermark = log.flushed_offset
        await log.operations.delete_records_before(Offset(4))
        logs.append(log)
    log, good = logs
    (path,) = log_files(disk)
    # The second batch holds the offsets 3 to 5.
    disk.flip_bit(path, 8 * (len(disk.contents(path)) * 3 // 8))
    await find_damage(log)
    assert log.damage_found is not None
    assert await log.repair(copies_of(good))
    assert await read_all(log) == await read_all(good)
