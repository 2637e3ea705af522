"""An offline log is repaired from copies of other replicas, byte by byte as it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import contains

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.record.batch import iterate_batches
from raftlog.record.codec import decode
from raftlog.record.errors import DISK_FULL, ILLEGAL_STATE, NOT_READY, LogError
from raftlog.record.header import HEADER_SIZE, PREFIX_SIZE, parse_header
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.storage.checkpoints.checkpoint_file import CHECKPOINT_NAME
from raftlog.storage.log.derived_state import EPOCHS_NAME, MARKS_NAME
from raftlog.storage.log.log import Log
from raftlog.storage.manager import LogManager
from raftlog.storage.repair.batch_repair import Copies
from raftlog.storage.types import FlushMode, LogConfig, LogState
from raftlog.world import Buffer, DiskError, DiskFullError
from tests.examples import examples
from tests.simulation.clock import ManualClock
from tests.simulation.disk import MachineStoppedError, SimulatedDisk
from tests.storage.logs import EPOCH, PARTITION, TOPIC, all_bytes, batch, new_log, sent

SMALL = LogConfig(segment_bytes=600, index_interval_bytes=100)
COMPACTED = LogConfig(
    segment_bytes=600, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0
)
RECORDS = 60
NAME = f"{TOPIC}/{PARTITION}"
DIRECTORY = f"replicas/{NAME}"
KEPT = f"damaged/{NAME}-batches"
STOPPED = (MachineStoppedError, LogError, DiskError)


class Node:
    """The storage of one node, and its only log."""

    def __init__(self, config: LogConfig = SMALL, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk or SimulatedDisk()
        self.config = config
        self.manager: LogManager
        self.log: Log

    async def start(self) -> Log:
        self.manager = await LogManager.open(self.disk, ManualClock())
        self.log = await self.manager.open_replica(TOPIC, PARTITION, self.config, create=True)
        return self.log

    async def start_again(self, *, power: bool = False, without: str = EPOCHS_NAME) -> Log:
        """Crash, and start without a file, so that all segments are scanned."""
        self.disk.stopped = True
        for _ in range(20):
            await asyncio.sleep(0)
        self.disk.crash(power=power)
        for path in self.disk.paths():
            if path.endswith(without):
                self.disk.remove(path)
        return await self.start()

    async def repair(self, copies: Copies) -> bool:
        """Repair the log and open it again."""
        if not await self.log.repair_offline(copies):
            return False
        self.log = await self.manager.reopen_replica(TOPIC, PARTITION, self.config)
        return True

    def files(self) -> Sequence[str]:
        names = self.disk.list_directory(DIRECTORY)
        return [f"{DIRECTORY}/{name}" for name in names if name.endswith(".log")]

    def contents(self) -> dict[str, bytes]:
        return {path: self.disk.contents(path) for path in self.files()}

    def flip(self, at: float) -> None:
        """Flip a bit at a place of the log between 0 and 1, but for its last two batches."""
        bit = int(at * 8 * (sum(map(len, self.contents().values())) - 160))
        for path, content in self.contents().items():
            if bit < 8 * len(content):
                self.disk.flip_bit(path, bit)
                return
            bit -= 8 * len(content)


async def fill(log: Log, epochs: Sequence[int] = (1,), records: int = RECORDS) -> Log:
    for number in range(records):
        epoch = LeaderEpoch(epochs[number * len(epochs) // records])
        one = batch([b"%02d" % number], keys=[b"%d" % (number % 7)])
        await log.appender.append([one], epoch)
    await log.flush()
    log.high_watermark = log.flushed_offset
    await log.publish()
    return log


async def filled(epochs: Sequence[int] = (1,), config: LogConfig = SMALL) -> Node:
    node = Node(config)
    await fill(await node.start(), epochs)
    return node


def copies_of(*logs: Log, max_bytes: int = 300) -> Copies:
    async def copies(offset: Offset) -> AsyncIterator[Buffer]:
        for log in logs:
            try:
                result = await log.reader.read(offset, end=log.log_end_offset, max_bytes=max_bytes)
            except LogError:
                continue
            yield result.data

    return copies


async def good(epochs: Sequence[int] = (1,), config: LogConfig = SMALL) -> Log:
    return await fill(new_log(SimulatedDisk(), config), epochs)


def place(node: Node, offset: int) -> tuple[str, int]:
    """File and position of a batch."""
    for path, content in node.contents().items():
        position = 0
        while position < len(content):
            header = parse_header(content, position)
            if header.base_offset == offset:
                return path, position
            position += header.size_bytes
    raise AssertionError(offset)


def flip_body(node: Node, offset: int) -> None:
    path, position = place(node, offset)
    node.disk.flip_bit(path, 8 * (position + HEADER_SIZE + 3))


def destroy_header(node: Node, offset: int) -> None:
    path, position = place(node, offset)
    for byte in range(HEADER_SIZE):
        node.disk.flip_bit(path, 8 * (position + byte) + byte % 8)


def without_prefixes(contents: dict[str, bytes]) -> list[bytes]:
    """All batches without base offsets, lengths and epochs, which are outside the CRC."""
    found = []
    for content in contents.values():
        position = 0
        while position < len(content):
            size = parse_header(content, position).size_bytes
            found.append(content[position + PREFIX_SIZE : position + size])
            position += size
    return found


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.floats(0, 0.999999), min_size=1, max_size=5),
    st.sampled_from([CHECKPOINT_NAME, EPOCHS_NAME]),
    st.booleans(),
    st.sampled_from([(1,), (1, 2), (1, 4, 9)]),
    st.integers(1, 300),
)
async def test_flipped_bits_are_mended_or_left(
    places: list[float], without: str, power: bool, epochs: Sequence[int], max_bytes: int
) -> None:
    node, other = await filled(epochs), await good(epochs)
    before = node.contents()
    for at in places:
        node.flip(at)
    damaged = node.contents()
    log = await node.start_again(power=power, without=without)
    copies = copies_of(other, max_bytes=max_bytes)
    if log.state is LogState.DAMAGED and not await node.repair(copies):
        # Too little is left to tell the batch. Those before may be repaired.
        for path, content in node.contents().items():
            assert all(map(contains, zip(before[path], damaged[path], strict=True), content))
        return
    assert node.log.state is LogState.ONLINE
    assert node.log.log_end_offset == RECORDS
    # A start does not contradict each flipped epoch either.
    assert without_prefixes(node.contents()) == without_prefixes(before)


@pytest.mark.parametrize("without", [CHECKPOINT_NAME, EPOCHS_NAME])
@pytest.mark.parametrize("epochs", [(1,), (1, 4, 9)])
@pytest.mark.parametrize("offset", [0, 7, 8, 20, 38])
async def test_each_byte_of_a_batch_is_mended(
    without: str, epochs: Sequence[int], offset: int
) -> None:
    """Of the log's first one, of the last and first of a segment, and where an epoch begins."""
    other = await good(epochs)
    undetected = 0
    for byte in range(68):
        node = await filled(epochs)
        before = node.contents()
        path, position = place(node, offset)
        node.disk.flip_bit(path, 8 * (position + byte) + byte % 8)
        log = await node.start_again(without=without)
        if log.state is LogState.DAMAGED:
            assert await node.repair(copies_of(other))
            assert node.contents() == before
        else:
            assert 12 <= byte < 16, "an epoch that nothing contradicts"
            undetected += 1
        assert node.log.state is LogState.ONLINE
        assert node.log.log_end_offset == RECORDS
    assert undetected <= 1


@pytest.mark.parametrize("byte", range(0, 68, 3))
async def test_the_last_batch_is_mended_while_something_tells_which_it_was(byte: int) -> None:
    node, other = await filled(), await good()
    before = node.contents()
    path, position = place(node, RECORDS - 1)
    node.disk.flip_bit(path, 8 * (position + byte) + 1)
    log = await node.start_again()
    is_told = not (byte < 8 or 12 <= byte < 16 or 17 <= byte < 21)
    if log.state is LogState.DAMAGED:
        assert await node.repair(copies_of(other)) is is_told
        assert (node.contents() == before) is is_told
    else:
        assert 12 <= byte < 16, "an epoch that nothing contradicts"


async def test_batches_side_by_side_are_mended_from_several_copies() -> None:
    node = await filled()
    before = node.contents()
    others = [await filled(), await filled()]
    for offset in (10, 11, 12, 15, 30):
        flip_body(node, offset)
    destroy_header(node, 21)
    destroy_header(node, 20)
    for other, bad in zip(others, ((10, 12, 30), (11, 15)), strict=True):
        for offset in bad:
            flip_body(other, offset)
    await node.start_again()
    assert await node.repair(copies_of(*(other.log for other in others)))
    assert node.contents() == before
    kept = [node.disk.contents(f"{KEPT}/{name}") for name in node.disk.list_directory(KEPT)]
    size = parse_header(kept[0], 0).size_bytes
    assert sorted(map(len, kept)) == [size, size, 2 * size, 3 * size]
    assert await all_bytes(node.log) == b"".join(before.values())
    await node.log.appender.append([batch([b"more"])], EPOCH)
    await node.log.flush()
    log = await node.start_again(power=True, without="nothing")
    assert (log.state, log.log_end_offset) == (LogState.ONLINE, RECORDS + 1)


async def test_without_a_good_copy_nothing_changes() -> None:
    node = await filled()
    flip_body(node, 20)
    damaged = node.contents()
    await node.start_again()
    bad = await filled()
    flip_body(bad, 20)
    asked: list[Offset] = []

    async def unreachable(offset: Offset) -> AsyncIterator[Buffer]:
        asked.append(offset)
        for _ in ():
            yield b""
        raise LogError(NOT_READY)

    assert not await node.repair(copies_of(bad.log))
    with pytest.raises(LogError):
        await node.repair(unreachable)
    assert asked == [20]
    assert (node.contents(), node.log.state) == (damaged, LogState.DAMAGED)
    assert not await node.repair(copies_of(bad.log))
    assert await node.repair(copies_of(await good()))


async def test_a_batch_of_another_leader_is_not_taken() -> None:
    """Its length fits, and its leader epoch lies between those of the batches around it."""
    node = await filled((1, 4, 9))
    other, right = await good((1, 2, 9)), await good((1, 4, 9))
    destroy_header(node, 20)
    damaged = node.contents()
    await node.start_again()
    for max_bytes in (1, 300):
        assert not await node.repair(copies_of(other, max_bytes=max_bytes))
    assert node.contents() == damaged
    assert await node.repair(copies_of(other, right))
    assert await all_bytes(node.log) == await all_bytes(right)


@pytest.mark.parametrize("number", [0, 2])
async def test_missing_records_are_not_made_up(number: int) -> None:
    node = await filled()
    node.disk.remove(node.files()[number])
    await node.start_again()
    assert node.log.state is LogState.DAMAGED
    assert not await node.repair(copies_of(await good()))


async def test_without_a_known_log_start_a_log_stays_offline() -> None:
    """Deleted records would be back."""
    node = await filled()
    flip_body(node, 20)
    await node.start_again(without=CHECKPOINT_NAME)
    path = f"{DIRECTORY}/{MARKS_NAME}"
    node.disk.flip_bit(path, 8 * (len(node.disk.contents(path)) - 1))
    await node.start_again(without=CHECKPOINT_NAME)
    assert not await node.repair(copies_of(await good()))


@pytest.mark.parametrize("without", [CHECKPOINT_NAME, EPOCHS_NAME])
@pytest.mark.parametrize("power", [True, False])
async def test_a_crash_at_any_step_of_a_repair_is_repaired_after_it(
    power: bool, without: str
) -> None:
    other = await good()
    for step in range(1, 200):
        node = await filled()
        before = node.contents()
        for offset in (10, 20, 30):
            flip_body(node, offset)
        await node.start_again(without=without)
        assert node.log.state is LogState.DAMAGED
        node.disk.crash_in(step)
        ended = False
        with suppress(*STOPPED):
            ended = await node.repair(copies_of(other)) and not node.disk.stopped
        log = await node.start_again(power=power, without="nothing")
        if log.state is LogState.DAMAGED:
            assert await node.repair(copies_of(other))
        assert node.log.state is LogState.ONLINE
        assert node.contents() == before
        assert await all_bytes(node.log) == b"".join(before.values())
        assert not [name for name in node.disk.list_directory(DIRECTORY) if "cleaned" in name]
        log = await node.start_again(power=power, without=CHECKPOINT_NAME)
        assert log.state is LogState.ONLINE, "the mark of the damage is gone, too"
        if ended:
            assert step > 10
            return
    raise AssertionError("the repair never ended")


@pytest.mark.parametrize("seed", range(6))
async def test_damage_below_the_recovery_point_is_mended_before_it_is_forgotten(seed: int) -> None:
    node = Node(disk=SimulatedDisk(seed))
    await fill(await node.start())
    before = node.contents()
    await node.log.operations.checkpoint()
    await node.log.publish()
    flip_body(node, 10)
    node.log.declare_damaged("as found by a reader")
    await node.log.publish()
    log = await node.start_again(without="nothing")
    assert log.state is LogState.DAMAGED
    assert not await node.repair(copies_of())
    assert await log.repair_offline(copies_of(await good()))
    assert (await node.start_again(power=True, without="nothing")).state is LogState.DAMAGED
    assert node.contents() == before, "the repair is durable"
    assert await node.repair(copies_of())
    assert node.log.state is LogState.ONLINE


async def test_a_log_that_is_not_damaged_is_not_opened_again() -> None:
    node = await filled()
    with pytest.raises(LogError) as refused:
        await node.manager.reopen_replica(TOPIC, PARTITION, SMALL)
    assert refused.value.entry is ILLEGAL_STATE
    with pytest.raises(LogError):
        await node.log.repair_offline(copies_of())
    assert node.log.state is LogState.ONLINE


@pytest.mark.parametrize("stop", ["none", "crash", "clean"])
async def test_records_that_a_power_cut_may_have_taken_are_reported_after_the_repair(
    stop: str,
) -> None:
    """Also if the node stops once more before: the last stop is no power cut."""
    node = await filled(config=replace(SMALL, flush=FlushMode.ASYNC))
    await node.log.publish()
    flip_body(node, 10)
    await node.start_again(power=True)
    assert node.log.state is LogState.DAMAGED
    if stop == "crash":
        await node.start_again(without="nothing")
    elif stop == "clean":
        await node.manager.close()
        await node.start()
    assert await node.repair(copies_of(await good()))
    assert node.log.state is LogState.ONLINE
    assert node.log.possible_loss is not None


@pytest.mark.parametrize("place", ["create", "append"])
async def test_a_full_disk_is_waited_for(place: str) -> None:
    node, other = await filled(), await good()
    before = node.contents()
    flip_body(node, 10)
    await node.start_again()
    damaged = node.contents()
    node.disk.fail_next(place, "cleaned", DiskFullError)
    with pytest.raises(LogError) as full:
        await node.repair(copies_of(other))
    assert full.value.entry is DISK_FULL
    assert node.contents() == damaged
    assert await node.repair(copies_of(other))
    assert node.contents() == before


async def test_a_failed_sync_is_not_retried() -> None:
    node, other = await filled(), await good()
    flip_body(node, 10)
    await node.start_again()
    node.disk.fail_next("sync", "cleaned", DiskError)
    with pytest.raises(LogError):
        await node.repair(copies_of(other))
    assert not await node.repair(copies_of(other))
    await node.start_again(without="nothing")
    assert await node.repair(copies_of(other))


async def records_of(log: Log) -> dict[int, tuple[bytes | None, bytes | None]]:
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    for one in iterate_batches(await all_bytes(log)):
        for record in decode(one, decompressed_bytes_max=1 << 20):
            found[record.offset] = record.key, record.value
    return found


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=20, max_size=60),
    st.sampled_from([(False, True), (True, False), (True, True)]),
    st.integers(0, 59),
    st.floats(0, 0.999999),
    st.sampled_from([CHECKPOINT_NAME, EPOCHS_NAME]),
)
async def test_a_replica_compacted_apart_gives_what_it_has(
    keys: list[tuple[int, bool]],
    compacts: tuple[bool, bool],
    rolled_at: int,
    at: float,
    without: str,
) -> None:
    """The newest record of each key stays, no record is made up, and no deleted one is back."""
    written = {
        offset: (b"%d" % key, None if is_tombstone else b"%02d" % offset)
        for offset, (key, is_tombstone) in enumerate(keys)
    }
    newest = dict(written.values())
    node, other = Node(COMPACTED), new_log(SimulatedDisk(), COMPACTED)
    for number, log in enumerate((await node.start(), other)):
        for offset, (key, value) in written.items():
            if number and offset == rolled_at:
                async with log.write_lock:
                    await log.operations.roll()
            await log.appender.append([batch([value], keys=[key])], EPOCH)
        await log.flush()
        log.high_watermark = log.flushed_offset
        for later in range(3 if compacts[number] else 0):
            await log.compact(10**15 + later * 10**12)
        await log.publish()
    node.flip(at)
    await node.start_again(without=without)
    if node.log.state is LogState.ONLINE or not await node.repair(copies_of(other)):
        return
    assert node.log.state is LogState.ONLINE
    found = await records_of(node.log)
    assert found.items() <= written.items()
    values = dict(found.values())
    assert values == {key: newest[key] for key in values}
    assert all(newest[key] is None for key in newest.keys() - values)


async def test_gaps_of_compaction_are_no_damage_without_the_checkpoint() -> None:
    """Not after one more start either, whose checkpoint file names the log."""
    nodes = [await filled(config=COMPACTED), await filled(config=COMPACTED)]
    for node in nodes:
        await node.log.compact(10**15)
    node, other = nodes
    before = node.contents()
    flip_body(node, parse_header(next(iter(before.values())), 0).base_offset)
    await node.start_again(without=CHECKPOINT_NAME)
    await node.start_again(without="nothing")
    assert node.log.state is LogState.DAMAGED
    assert await node.repair(copies_of(other.log))
    assert (node.log.state, node.contents()) == (LogState.ONLINE, before)


async def test_another_batch_does_not_pass_for_one_of_a_compacted_log() -> None:
    """Its length and epoch fit, and here, where offsets jump, so does its offset."""
    config = replace(COMPACTED, segment_bytes=2000)
    node, other = Node(config), new_log(SimulatedDisk(), config)
    await node.start()
    for log, left in ((node.log, 7), (other, 8)):
        for offset in (*range(7), left, *range(9, 12)):
            one = sent(batch([b"%02d" % offset], keys=[b"k"]), base_offset=offset)
            await log.appender.append_fetched(one, EPOCH)
        await log.flush()
        log.high_watermark = log.flushed_offset
    destroy_header(node, 7)
    damaged = node.contents()
    await node.start_again()
    assert node.log.state is LogState.DAMAGED
    assert not await node.repair(copies_of(other, max_bytes=1))
    assert node.contents() == damaged
