"""Cut and flipped files: synced records are never cut away, and never served changed."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest

from raftlog.record.errors import STORAGE_FAILED, LogError
from raftlog.record.header import parse_header
from raftlog.record.types import Offset
from raftlog.storage.checkpoints.checkpoints import ReplicaCheckpoint, StartKind
from raftlog.storage.log.log import Log
from raftlog.storage.types import FlushMode, LogConfig, LogState
from tests.simulation.disk import SimulatedDisk
from tests.storage.logs import DIRECTORY, EPOCH, batch, new_log, numbered, read_all

LOG_PATH = f"{DIRECTORY}/{0:020d}.log"
VALUES = [[b"one", b"two"], [b"three"], [b"four", b"five", b"six"]]
FLAT = [value for values in VALUES for value in values]
CRASHES = [StartKind.PROCESS_CRASH, StartKind.POWER_LOSS]


class Fixture:
    """A log of three batches, and the checkpoint after each."""

    def __init__(self, content: bytes, ends: list[int], checkpoints: list[ReplicaCheckpoint]):
        self.content = content
        self.ends = ends
        self.checkpoints = checkpoints

    def open(
        self,
        content: bytes,
        checkpoint: ReplicaCheckpoint | None,
        start: StartKind,
        config: LogConfig | None = None,
    ) -> tuple[SimulatedDisk, Log]:
        disk = SimulatedDisk()
        disk.make_directory(DIRECTORY)
        disk.put(LOG_PATH, content)
        return disk, new_log(disk, config, checkpoint=checkpoint, start=start)


@pytest.fixture(name="three")
async def _three() -> Fixture:
    disk = SimulatedDisk()
    log = new_log(disk)
    ends = [0]
    checkpoints = [log.current_checkpoint()]
    for values in VALUES:
        await log.appender.append([batch(values)], EPOCH)
        await log.flush()
        ends.append(log.size_bytes)
        checkpoints.append(log.current_checkpoint())
    return Fixture(disk.contents(LOG_PATH), ends, checkpoints)


@pytest.mark.parametrize("start", CRASHES)
async def test_a_write_cut_at_any_byte_is_cut_to_the_last_whole_batch(
    three: Fixture, start: StartKind
) -> None:
    for size in range(len(three.content) + 1):
        disk, log = three.open(three.content[:size], three.checkpoints[0], start)
        whole = sum(end <= size for end in three.ends) - 1
        assert log.state is LogState.ONLINE
        assert log.log_end_offset == log.flushed_offset == sum(map(len, VALUES[:whole]))
        assert len(disk.contents(LOG_PATH)) == three.ends[whole]
        await log.appender.append([batch([b"next"])], EPOCH)
        assert await read_all(log) == [*FLAT[: log.log_end_offset - 1], b"next"]


@pytest.mark.parametrize("start", CRASHES)
@pytest.mark.parametrize("flushed", [1, 2, 3])
async def test_a_file_shorter_than_what_was_synced_is_damaged_and_kept(
    three: Fixture, start: StartKind, flushed: int
) -> None:
    for size in range(three.ends[flushed]):
        disk, log = three.open(three.content[:size], three.checkpoints[flushed], start)
        assert log.state is LogState.DAMAGED
        assert disk.contents(LOG_PATH) == three.content[:size]
        with pytest.raises(LogError) as refused:
            await log.appender.append([batch([b"next"])], EPOCH)
        assert refused.value.entry is STORAGE_FAILED
        with pytest.raises(LogError):
            await log.reader.read(Offset(0), end=Offset(1), max_bytes=1)


@pytest.mark.parametrize("start", CRASHES)
@pytest.mark.parametrize("flushed", [0, 1, 2, 3])
async def test_no_flipped_bit_changes_what_is_served_or_takes_what_was_synced(
    three: Fixture, start: StartKind, flushed: int
) -> None:
    synced = sum(map(len, VALUES[:flushed]))
    outcomes = {LogState.ONLINE: 0, LogState.DAMAGED: 0}
    for bit in range(flushed, len(three.content) * 8, 3):
        content = bytearray(three.content)
        content[bit // 8] ^= 1 << (bit % 8)
        disk, log = three.open(bytes(content), three.checkpoints[flushed], start)
        outcomes[log.state] += 1
        if log.state is LogState.DAMAGED:
            assert disk.contents(LOG_PATH) == content
            continue
        assert log.log_end_offset >= synced
        assert await read_all(log) == FLAT[: log.log_end_offset]
    assert outcomes[LogState.DAMAGED] > 0 or (start is StartKind.POWER_LOSS and flushed == 0)


async def test_after_a_process_crash_hardly_any_flipped_bit_goes_unnoticed(
    three: Fixture,
) -> None:
    """A write of a killed process is cut short, never changed: so whatever is changed is damage."""
    online = []
    for bit in range(len(three.content) * 8):
        content = bytearray(three.content)
        content[bit // 8] ^= 1 << (bit % 8)
        _, log = three.open(bytes(content), three.checkpoints[0], StartKind.PROCESS_CRASH)
        if log.state is LogState.ONLINE and log.log_end_offset < len(FLAT):
            online.append(bit)
    assert online == []


async def test_a_reader_is_never_given_a_changed_batch(three: Fixture) -> None:
    refused = 0
    for bit in range(0, len(three.content) * 8, 5):
        disk, log = three.open(three.content, three.checkpoints[3], StartKind.PROCESS_CRASH)
        disk.flip_bit(LOG_PATH, bit)
        try:
            assert await read_all(log) == FLAT
        except LogError as error:
            assert error.entry is STORAGE_FAILED
            assert len(log.damaged_ranges) == 1
            assert log.state is LogState.ONLINE
            refused += 1
    assert refused > len(three.content)


async def test_batches_around_a_damaged_one_are_served(three: Fixture) -> None:
    disk, log = three.open(three.content, three.checkpoints[3], StartKind.PROCESS_CRASH)
    disk.flip_bit(LOG_PATH, (three.ends[1] + 70) * 8)
    first = await log.reader.read(Offset(0), end=Offset(6), max_bytes=1 << 20)
    assert first.next_offset == 2
    with pytest.raises(LogError):
        await log.reader.read(Offset(2), end=Offset(6), max_bytes=1 << 20)
    last = await log.reader.read(Offset(3), end=Offset(6), max_bytes=1 << 20)
    assert last.next_offset == 6
    await log.appender.append([batch([b"next"])], EPOCH)


async def test_without_a_checkpoint_only_a_torn_end_is_cut(three: Fixture) -> None:
    _, log = three.open(three.content[:-5], None, StartKind.POWER_LOSS)
    assert (log.state, log.log_end_offset) == (LogState.ONLINE, 3)
    content = bytearray(three.content)
    content[three.ends[1] + 70] ^= 1
    disk, log = three.open(bytes(content), None, StartKind.POWER_LOSS)
    assert log.state is LogState.DAMAGED
    assert disk.contents(LOG_PATH) == content


async def test_damage_is_remembered_by_the_checkpoint_until_it_is_repaired(
    three: Fixture,
) -> None:
    content = bytearray(three.content)
    content[three.ends[2] + 70] ^= 1
    _, log = three.open(bytes(content), three.checkpoints[0], StartKind.PROCESS_CRASH)
    assert log.state is LogState.DAMAGED
    # By itself, a later power cut would make the same bytes look like a torn end.
    _, log = three.open(bytes(content), log.current_checkpoint(), StartKind.POWER_LOSS)
    assert log.state is LogState.DAMAGED


async def test_possible_loss_is_reported_after_a_power_cut_of_an_async_log_only(
    three: Fixture,
) -> None:
    config = LogConfig(flush=FlushMode.ASYNC)
    checkpoint = msgspec.structs.replace(three.checkpoints[1], flush=FlushMode.ASYNC)
    _, log = three.open(three.content[:-5], checkpoint, StartKind.POWER_LOSS, config)
    assert log.possible_loss is not None
    assert log.possible_loss.from_offset == log.log_end_offset == 3
    _, log = three.open(three.content, checkpoint, StartKind.PROCESS_CRASH, config)
    assert log.possible_loss is None
    _, log = three.open(three.content, three.checkpoints[1], StartKind.POWER_LOSS)
    assert log.possible_loss is None
    # Without a checkpoint the kind of stop is unknown.
    _, log = three.open(three.content[:-5], None, StartKind.POWER_LOSS, config)
    assert log.possible_loss is not None


async def test_no_flipped_bit_makes_a_read_pass_over_what_is_whole() -> None:
    """Lengths and base offsets are not under a batch's CRC, and a read walks over headers."""
    disk, log = await _small_segments()
    first = log.segments.all[0]
    end = log.segments.end_of(first)
    for bit in range(8 * first.size_bytes):
        disk.flip_bit(first.path, bit)
        for start in range(end):
            with suppress(LogError):
                result = await log.reader.read(
                    Offset(start), end=log.log_end_offset, max_bytes=2000
                )
                found = parse_header(result.data)
                assert found.base_offset <= start < found.next_offset, (bit, start)
        disk.flip_bit(first.path, bit)


async def test_a_cut_behind_damage_takes_nothing_that_is_whole() -> None:
    _, whole = await _small_segments()
    size = whole.segments.all[0].size_bytes
    expected = await _cut_at(5)
    for bit in range(0, 8 * size, 3):
        assert await _cut_at(5, bit) in {expected, None}, bit


async def test_a_cut_learns_no_producers_from_damage() -> None:
    """A damaged producer state refused the next sequence, once this log led (`data 50318`)."""

    async def cut(bit: int | None = None) -> bytes | None:
        disk = SimulatedDisk()
        log = new_log(disk)
        for number in range(8):
            await log.appender.append([numbered([b"%d" % number], number)], EPOCH)
        await log.flush()
        if bit is not None:
            disk.flip_bit(log.segments.all[0].path, bit)
        try:
            await log.operations.truncate_to(Offset(2))
        except LogError as error:
            assert error.entry is STORAGE_FAILED
            return None
        assert log.log_end_offset == 2
        return log.producers.to_bytes(Offset(2), now_ms=0)

    expected = await cut()
    size = numbered([b"0"], 0).header.size_bytes
    for bit in range(8 * 2 * size):
        assert await cut(bit) in {expected, None}, bit


async def _small_segments() -> tuple[SimulatedDisk, Log]:
    disk = SimulatedDisk()
    log = new_log(disk, LogConfig(segment_bytes=400))
    for _ in range(8):
        await log.appender.append([batch([b"one", b"two"])], EPOCH)
    await log.flush()
    assert len(log.segments.all) > 1
    return disk, log


async def _cut_at(offset: int, bit: int | None = None) -> int | None:
    """The log's end after a truncation; None if refused because of damage."""
    disk, log = await _small_segments()
    if bit is not None:
        disk.flip_bit(log.segments.all[0].path, bit)
    try:
        await log.operations.truncate_to(Offset(offset))
    except LogError as error:
        assert error.entry is STORAGE_FAILED
        return None
    return log.log_end_offset
