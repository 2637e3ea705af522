"""Readers of committed records get none of an aborted transaction, whatever happens to files."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from raftlog.record.types import AbortedTransaction, Offset, ProducerId
from raftlog.storage.checkpoints.checkpoints import ReplicaCheckpoint, StartKind
from raftlog.storage.log.log import Log
from raftlog.storage.transactions.aborted_index import ENTRY_SIZE, Wanted
from raftlog.storage.transactions.aborted_lookup import find_aborted
from raftlog.storage.types import LogConfig
from tests.simulation.disk import SimulatedDisk
from tests.storage.logs import DIRECTORY, EPOCH, batch, new_log
from tests.storage.transactional import (
    Transactions,
    append,
    end,
    read_committed,
    transactional,
)

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150, retention_ms=-1)


class Story:
    """Random transactions in one log, beside the model."""

    def __init__(self, log: Log, seed: int = 1) -> None:
        self.log = log
        self.random = random.Random(seed)
        self.model = Transactions()
        self.values: dict[int, bytes] = {}
        self.sequences: dict[int, int] = {}

    async def write(self, steps: int, *, ends: bool = True) -> None:
        for _ in range(steps):
            producer = self.random.randrange(4)
            if producer in self.model.opened and self.random.random() < 0.4 and ends:
                commit = self.random.random() < 0.5
                offset = await end(self.log, producer, commit=commit)
                self.model.end(producer, offset, commit=commit)
                continue
            values = [
                b"%d" % self.random.randrange(10**6) for _ in range(self.random.choice((1, 2)))
            ]
            if producer == 3:
                base = (await self.log.appender.append([batch(values)], EPOCH))[0].base_offset
            else:
                sequence = self.sequences.get(producer, 0)
                base = await append(self.log, transactional(values, producer, sequence))
                self.sequences[producer] = sequence + len(values)
                self.model.append(producer, base, len(values))
            for number, value in enumerate(values):
                self.values[base + number] = value
        await self.log.flush()
        self.log.high_watermark = self.log.log_end_offset

    async def check(self) -> None:
        log, model = self.log, self.model
        stable = model.stable(log.high_watermark, log.log_start_offset)
        assert log.last_stable_offset(log.high_watermark) == stable
        gone = model.aborted_offsets()
        for max_bytes in (1, 300, 5000):
            start = Offset(
                self.random.randint(log.log_start_offset, max(stable - 1, log.log_start_offset))
            )
            for begin in (log.log_start_offset, start):
                expected = [
                    (offset, value)
                    for offset, value in sorted(self.values.items())
                    if begin <= offset < stable and offset not in gone
                ]
                found = await read_committed(log, start=begin, max_bytes=max_bytes)
                assert found == expected

    def paths(self) -> list[str]:
        disk = self.log.shared.disk
        return [
            f"{DIRECTORY}/{name}"
            for name in disk.list_directory(DIRECTORY)
            if name.endswith(".txnindex")
        ]


async def stored(seed: int = 1, steps: int = 120) -> tuple[Story, SimulatedDisk]:
    disk = SimulatedDisk(seed)
    story = Story(new_log(disk, CONFIG), seed)
    await story.write(steps // 2)
    await story.log.operations.checkpoint()
    await story.write(steps // 2)
    return story, disk


async def reopened(
    story: Story,
    disk: SimulatedDisk,
    checkpoint: ReplicaCheckpoint | None,
    start: StartKind,
) -> Story:
    story.log = new_log(disk, CONFIG, checkpoint=checkpoint, start=start)
    assert story.log.damage == ""
    story.log.high_watermark = story.log.log_end_offset
    return story


@pytest.mark.parametrize("seed", range(5))
async def test_readers_get_the_records_of_committed_transactions(seed: int) -> None:
    story, _ = await stored(seed)
    assert len(story.log.segments.all) > 4
    assert len(story.paths()) > 2
    await story.check()


async def test_a_log_without_aborted_transactions_has_no_index_of_them() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, CONFIG)
    for sequence in range(20):
        await append(log, transactional([b"x" * 50], 1, sequence))
        await end(log, 1, commit=True)
    await log.operations.checkpoint()
    assert not [name for name in disk.list_directory(DIRECTORY) if name.endswith(".txnindex")]
    log.high_watermark = log.log_end_offset
    assert len(await read_committed(log)) == 20


@pytest.mark.parametrize("start", list(StartKind))
@pytest.mark.parametrize("seed", range(3))
async def test_a_start_knows_them_again(seed: int, start: StartKind) -> None:
    story, disk = await stored(seed)
    if start is StartKind.CLEAN:
        await story.log.operations.checkpoint()
    checkpoint = story.log.current_checkpoint()
    if start is StartKind.POWER_LOSS:
        disk.crash(power=True)
    await reopened(story, disk, checkpoint, start)
    if start is StartKind.CLEAN:
        assert story.log.segments.has_aborted
    await story.check()
    await story.write(30)
    await story.check()


async def test_a_start_without_checkpoint_scans_for_them() -> None:
    story, disk = await stored()
    await reopened(story, disk, None, StartKind.PROCESS_CRASH)
    await story.check()


def flip(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


HARMS: dict[str, Callable[[bytes], bytes | None]] = {
    "removed": lambda _: None,
    "emptied": lambda _: b"",
    "cut": lambda content: content[:-ENTRY_SIZE],
    "torn": lambda content: content[:-5],
    "flipped": flip,
    "first flipped": lambda content: flip(content[:9]) + content[9:],
    "doubled": lambda content: content + content[-ENTRY_SIZE:],
    "swapped": lambda content: content[-ENTRY_SIZE:] + content[:-ENTRY_SIZE],
}


@pytest.mark.parametrize("start", [StartKind.CLEAN, StartKind.PROCESS_CRASH])
@pytest.mark.parametrize("harm", sorted(HARMS))
async def test_a_damaged_index_is_never_believed_at_a_start(harm: str, start: StartKind) -> None:
    for number in range(20):
        story, disk = await stored(7)
        await story.log.operations.checkpoint()
        checkpoint = story.log.current_checkpoint()
        paths = story.paths()
        if number >= len(paths):
            assert number > 2
            return
        content = disk.contents(paths[number])
        changed = HARMS[harm](content)
        disk.remove(paths[number])
        if changed is not None:
            disk.replace(paths[number], changed)
        await reopened(story, disk, checkpoint, start)
        await story.check()
        await story.log.operations.checkpoint()
        # And what was rebuilt is believed at the next start.
        await reopened(story, disk, story.log.current_checkpoint(), StartKind.CLEAN)
        await story.check()


@pytest.mark.parametrize("harm", ["removed", "cut", "flipped", "first flipped"])
async def test_damage_in_service_is_found_and_the_index_rebuilt(
    harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    story, disk = await stored(7)
    await story.log.operations.checkpoint()
    for path in story.paths():
        changed = HARMS[harm](disk.contents(path))
        story.log.shared.files.forget(path)
        disk.remove(path)
        if changed is not None:
            disk.replace(path, changed)
    await story.check()
    assert "reading the aborted transactions from the log" in caplog.text
    await story.write(20)
    await story.check()
    await story.log.operations.checkpoint()
    await reopened(story, disk, story.log.current_checkpoint(), StartKind.CLEAN)
    await story.check()


@pytest.mark.parametrize("seed", range(10))
async def test_a_truncation_cuts_the_index(seed: int) -> None:
    story, disk = await stored(seed, 80)
    log = story.log
    for _ in range(4):
        to = story.random.randint(log.log_start_offset, log.log_end_offset)
        log.high_watermark = Offset(0)
        await log.operations.truncate_to(Offset(to))
        story.model.cut(log.log_end_offset)
        story.values = {
            offset: value for offset, value in story.values.items() if offset < log.log_end_offset
        }
        log.high_watermark = log.log_end_offset
        await story.check()
        story.sequences = {
            known.producer_id: known.next_sequence for known in log.producers._producers.values()
        }
        await story.write(15)
        await story.check()
    checkpoint = log.current_checkpoint()
    await reopened(story, disk, checkpoint, StartKind.PROCESS_CRASH)
    await story.check()


async def test_deleted_segments_take_their_index_along() -> None:
    story, disk = await stored(3)
    log = story.log
    before = story.paths()
    await log.operations.delete_records_before(log.last_stable_offset(log.high_watermark))
    assert len(story.paths()) < len(before)
    bases = {segment.base_offset for segment in log.segments.all}
    assert all(int(path.rpartition("/")[2][:20]) in bases for path in story.paths())
    await story.check()
    await reopened(story, disk, log.current_checkpoint(), StartKind.PROCESS_CRASH)
    await story.check()


async def test_a_log_that_starts_within_an_open_transaction_shows_nothing_of_it() -> None:
    log = new_log(config=CONFIG)
    await append(log, transactional([b"a", b"b"], 1, 0))
    await log.appender.append([batch([b"c"])], EPOCH)
    await log.flush()
    log.high_watermark = Offset(3)
    assert log.last_stable_offset(Offset(3)) == 0
    await log.operations.delete_records_before(Offset(1))
    assert log.last_stable_offset(Offset(3)) == 1
    assert await read_committed(log) == []
    await end(log, 1, commit=False)
    await log.flush()
    log.high_watermark = Offset(4)
    assert await read_committed(log) == [(2, b"c")]


async def test_a_follower_indexes_what_it_fetches() -> None:
    story, _ = await stored(5)
    leader = story.log
    follower = new_log(SimulatedDisk(9), CONFIG)
    offset = Offset(0)
    while offset < leader.log_end_offset:
        result = await leader.reader.read(offset, end=leader.log_end_offset, max_bytes=500)
        await follower.appender.append_fetched(bytes(result.data), EPOCH)
        offset = result.next_offset
    await follower.flush()
    follower.high_watermark = follower.log_end_offset
    wanted = Wanted()
    assert await find_aborted(follower, wanted) == await find_aborted(leader, wanted)
    story.log = follower
    await story.check()


async def test_a_follower_that_begins_in_an_open_transaction_knows_it() -> None:
    leader = new_log(config=CONFIG)
    await append(leader, transactional([b"a", b"b"], 1, 0))
    await append(leader, transactional([b"c"], 1, 2))
    await leader.flush()
    leader.high_watermark = Offset(3)
    await leader.operations.delete_records_before(Offset(2))
    follower = new_log(SimulatedDisk(9), CONFIG)
    await follower.operations.restart_at(Offset(2), leader.producers_below(Offset(2)))
    assert follower.producers.first_unstable(Offset(2)) == 0
    data = (await leader.reader.read(Offset(2), end=Offset(3), max_bytes=1000)).data
    await follower.appender.append_fetched(bytes(data), EPOCH)
    follower.high_watermark = Offset(3)
    assert follower.last_stable_offset(Offset(3)) == 2
    marker = await end(leader, 1, commit=False)
    data = (await leader.reader.read(marker, end=Offset(marker + 1), max_bytes=1000)).data
    await follower.appender.append_fetched(bytes(data), EPOCH)
    await follower.flush()
    follower.high_watermark = Offset(4)
    result, aborted = await follower.reader.read_committed(
        Offset(2), end=follower.last_stable_offset(Offset(4)), max_bytes=1000
    )
    assert result.next_offset == 4
    assert aborted == (AbortedTransaction(ProducerId(1), Offset(0)),)


async def test_a_read_across_a_removal_of_the_marker_is_done_again() -> None:
    story, _ = await stored(4)
    log = story.log
    (found, *_) = await find_aborted(log, Wanted())
    read, calls = log.reader.read, 0

    async def raced(start: Offset, *, end: Offset, max_bytes: int):  # type: ignore[no-untyped-def]
        nonlocal calls
        result = await read(start, end=end, max_bytes=max_bytes)
        calls += 1
        if calls == 1:
            log.segments.generation += 1
        return result

    log.reader.read = raced  # type: ignore[method-assign]
    result, aborted = await log.reader.read_committed(
        found.first_offset, end=Offset(found.last_offset + 1), max_bytes=100
    )
    assert calls == 2
    assert found.producer_id in {one.producer_id for one in aborted}
    assert result.data


async def test_a_bounded_lookup_ends_where_it_knows_all() -> None:
    story, _ = await stored(6, 300)
    log = story.log
    everything = await find_aborted(log, Wanted())
    for count in range(1, len(everything)):
        some = await find_aborted(log, Wanted(count_max=count))
        assert some == everything[: len(some)]
        assert len(some) >= min(count, len(everything))
        stable = some[-1].stable_offset
        assert all(one.first_offset >= stable for one in everything[len(some) :])


async def test_an_unfinished_batch_of_a_transaction_is_not_taken_for_more_than_it_is() -> None:
    """A torn marker leaves the transaction open."""
    disk = SimulatedDisk()
    log = new_log(disk, CONFIG)
    await append(log, transactional([b"a"], 1, 0))
    await log.flush()
    checkpoint = log.current_checkpoint()
    await end(log, 1, commit=True)
    log.segments.active.file.truncate(log.segments.active.size_bytes - 1)
    log = new_log(disk, CONFIG, checkpoint=checkpoint, start=StartKind.PROCESS_CRASH)
    assert log.log_end_offset == 1
    assert log.last_stable_offset(Offset(1)) == 0
