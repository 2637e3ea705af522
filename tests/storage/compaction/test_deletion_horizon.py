"""A log knows how far its tombstones may be gone, before the first one goes and after any crash."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from raftlog.record.errors import LogError
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.storage.checkpoints.checkpoints import StartKind
from raftlog.storage.compaction.plan import (
    NO_HORIZON,
    CleanTo,
    CompactionHistory,
    DeletionHorizon,
)
from raftlog.storage.leader_epochs import EpochEntry, LeaderEpochs
from raftlog.storage.log.derived_state import Marks, clear_damage_mark, read_marks, write_marks
from raftlog.storage.log.log import Log
from raftlog.storage.types import LogState
from raftlog.world import DiskError
from tests.simulation.disk import MachineStoppedError, SimulatedDisk
from tests.storage.compaction.test_run import Written, fill, records
from tests.storage.logs import DIRECTORY, EPOCH, batch, sent

TOMBSTONE = 40
"""Its offset."""
FIRST_MS = 10_000
DUE_MS = 12_000
"""`delete.retention.ms` after the first pass."""
COPIED = DeletionHorizon(Offset(70), LeaderEpoch(3))


class Hold:
    """A follower that catches up, as the log sees it."""

    def __init__(self, held_from: Offset) -> None:
        self.held_from = held_from

    def tombstones_held_from(self) -> Offset:
        return self.held_from


async def fill_with_tombstone(log: Log) -> None:
    """40 records of three keys, a tombstone, and 40 records of the other keys; then a pass."""
    await fill(log)
    await log.appender.append([batch([None], keys=[b"a"])], EPOCH)
    await fill_others(log)
    assert await log.compact(FIRST_MS) is not None


async def fill_others(log: Log) -> None:
    """40 records of other keys than the deleted one."""
    for number in range(40):
        await log.appender.append([batch([b"x"], keys=[(b"b", b"c")[number % 2]])], EPOCH)
    await log.flush()
    log.high_watermark = log.flushed_offset


async def has_tombstone(log: Log) -> bool:
    return any(offset == TOMBSTONE for offset, _, _ in await records(log))


async def test_the_horizon_rises_when_tombstones_go() -> None:
    log = Written(SimulatedDisk()).open(StartKind.CLEAN)
    seen: list[bool] = []
    await fill_with_tombstone(log)
    log.listeners.horizon_raised.append(lambda: seen.append(not log.segments.all[0].size_bytes))
    assert log.deletion_horizon == NO_HORIZON
    assert await has_tombstone(log)
    assert await log.compact(DUE_MS) is not None
    assert not await has_tombstone(log)
    assert log.deletion_horizon == DeletionHorizon(log.compaction.deleted_before, EPOCH)
    assert log.deletion_horizon.offset > TOMBSTONE
    assert len(seen) == 1


async def test_the_horizon_stands_still_where_no_tombstone_waits() -> None:
    """A follower that was away for long is not fetched again for nothing."""
    log = Written(SimulatedDisk()).open(StartKind.CLEAN)
    for now_ms in (FIRST_MS, DUE_MS, DUE_MS + 2_000):
        await fill(log)
        assert await log.compact(now_ms) is not None
    assert log.compaction.deleted_before > 0
    assert log.deletion_horizon == NO_HORIZON


async def test_tombstones_stay_for_a_follower_that_catches_up() -> None:
    log = Written(SimulatedDisk()).open(StartKind.CLEAN)
    await fill_with_tombstone(log)
    hold = Hold(Offset(20))
    log.hold_tombstones(hold)
    assert await log.compact(DUE_MS) is None, "nothing to do, and no pass for it"
    assert await log.compact(DUE_MS, resume=True) is None
    await fill_others(log)
    assert await log.compact(DUE_MS) is not None
    assert await has_tombstone(log)
    assert log.deletion_horizon.offset <= 20
    hold.held_from = Offset(TOMBSTONE + 1)
    await fill_others(log)
    assert await log.compact(DUE_MS) is not None
    assert not await has_tombstone(log)
    assert TOMBSTONE < log.deletion_horizon.offset <= TOMBSTONE + 1


@pytest.mark.parametrize("keeps_checkpoint", [True, False])
@pytest.mark.parametrize("power", [False, True])
async def test_no_crash_leaves_a_log_that_lacks_a_tombstone_unawares(
    power: bool, keeps_checkpoint: bool
) -> None:
    gone = 0
    for step in range(1, 300):
        disk = SimulatedDisk(step)
        written = Written(disk)
        log = written.open(StartKind.CLEAN)
        await written.publish()
        await fill_with_tombstone(log)
        await written.publish()
        disk.crash_in(step)
        finished = False
        with suppress(MachineStoppedError, LogError, DiskError):
            await log.compact(DUE_MS)
            finished = not disk.stopped
        for _ in range(20):
            await asyncio.sleep(0)
        disk.crash(power=power)
        if not keeps_checkpoint:
            written.checkpoint = None
        again = written.open(StartKind.POWER_LOSS if power else StartKind.PROCESS_CRASH)
        assert again.state is LogState.ONLINE, again.failure
        if not await has_tombstone(again):
            gone += 1
            assert again.deletion_horizon.offset > TOMBSTONE
        if finished:
            assert gone > 1, "also before the pass was over"
            return
    raise AssertionError("the compaction never ended")


@pytest.mark.parametrize("keeps_checkpoint", [True, False])
@pytest.mark.parametrize("power", [False, True])
async def test_a_copy_keeps_the_horizon_of_its_source(power: bool, keeps_checkpoint: bool) -> None:
    """Never before it is empty, and always before its first record."""
    seen: set[str] = set()
    for step in range(1, 200):
        disk = SimulatedDisk(step)
        written = Written(disk)
        log = written.open(StartKind.CLEAN)
        await written.publish()
        await fill(log)
        disk.crash_in(step)
        finished = False
        with suppress(MachineStoppedError, LogError, DiskError):
            await log.operations.restart_at(Offset(0), horizon=COPIED)
            finished = not disk.stopped
        for _ in range(20):
            await asyncio.sleep(0)
        disk.crash(power=power)
        if finished and not keeps_checkpoint:
            written.checkpoint = None
        again = written.open(StartKind.POWER_LOSS if power else StartKind.PROCESS_CRASH)
        assert again.state is LogState.ONLINE, again.failure
        is_empty = again.log_end_offset == 0
        assert again.deletion_horizon == (COPIED if is_empty else NO_HORIZON)
        seen.add("empty" if is_empty else "old")
        if is_empty:
            # The checkpoint file is lost later, after the first records.
            await again.appender.append_fetched(sent(batch([b"n"], keys=[b"a"])), EPOCH)
            await again.flush()
            written.checkpoint = None
            again = written.open(StartKind.PROCESS_CRASH)
            assert again.deletion_horizon == COPIED
        if finished:
            assert seen == {"old", "empty"}
            return
    raise AssertionError("the restart never ended")


def test_a_log_that_was_repaired_keeps_its_horizon() -> None:
    disk = SimulatedDisk()
    disk.make_directory(DIRECTORY)
    write_marks(disk, DIRECTORY, Marks(Offset(5), "rot", COPIED))
    clear_damage_mark(disk, DIRECTORY)
    assert read_marks(disk, DIRECTORY) == Marks(Offset(5), "", COPIED)


def epochs_of(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in entries)


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        ([], COPIED),
        ([(1, 0), (2, 10)], COPIED),
        ([(1, 0), (3, 60)], COPIED),
        ([(1, 0), (3, 60), (4, 70)], COPIED),
        ([(1, 0), (2, 10), (4, 40)], DeletionHorizon(Offset(40), LeaderEpoch(2))),
        ([(4, 90)], COPIED),
    ],
    ids=[
        "an empty copy",
        "a copy under way",
        "a copy beyond the record before the horizon",
        "a copy that goes on",
        "an incomplete copy that was elected uncleanly",
        "records before the horizon that were deleted",
    ],
)
def test_a_horizon_holds_for_one_history(
    epochs: list[tuple[int, int]], expected: DeletionHorizon
) -> None:
    assert COPIED.within(epochs_of(*epochs)) == expected


def test_a_truncation_lowers_the_horizon() -> None:
    history = CompactionHistory(known_horizon=COPIED)
    epochs = epochs_of((1, 0), (3, 20))
    assert history.truncate_to(Offset(70), epochs).horizon == COPIED
    lowered = DeletionHorizon(Offset(15), LeaderEpoch(1))
    assert history.truncate_to(Offset(15), epochs).horizon == lowered


def test_histories_of_versions_without_a_horizon_have_one() -> None:
    history = CompactionHistory((CleanTo(Offset(30), 0),), Offset(20), awaits_deletion=False)
    assert history.horizon.offset == 20
