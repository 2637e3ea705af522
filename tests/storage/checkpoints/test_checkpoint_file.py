from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from raftlog.storage.checkpoints.checkpoint_file import (
    CHECKPOINT_NAME,
    PAUSE_RATIO,
    PAUSE_S_MAX,
    CheckpointFile,
    read_checkpoint,
)
from raftlog.storage.checkpoints.checkpoints import NodeCheckpoint
from raftlog.world import DiskError, DiskFullError
from tests.simulation.clock import ManualClock
from tests.simulation.disk import SimulatedDisk
from tests.storage.checkpoints.test_checkpoints import replica

T = TypeVar("T")


class Source:
    """Counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    async def collect(self) -> NodeCheckpoint:
        self.count += 1
        return NodeCheckpoint(False, {"t/0": replica(self.count)})


class SlowDisk(SimulatedDisk):
    """Takes time on an otherwise stopped clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.work_s = 0.0

    async def run(self, work: Callable[[], T]) -> T:
        self.clock.advance(self.work_s)
        return await super().run(work)


async def test_callers_during_a_write_share_the_next_one_and_get_what_is_true_then() -> None:
    disk = SimulatedDisk(yields=True)
    source = Source()
    file = CheckpointFile(disk, ManualClock(), source.collect)
    first = asyncio.ensure_future(file.write())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(file.write()) for _ in range(20)]
    await asyncio.gather(first, *others)
    assert file.writes == source.count == 2
    found = read_checkpoint(disk)
    assert found is not None
    assert found.replicas["t/0"].recovery_point == 2


async def test_a_full_disk_leaves_the_old_file_and_a_later_write_succeeds() -> None:
    disk = SimulatedDisk()
    file = CheckpointFile(disk, ManualClock(), Source().collect)
    await file.write()
    old = disk.contents(CHECKPOINT_NAME)
    disk.fail_next("append", CHECKPOINT_NAME, DiskFullError)
    with pytest.raises(DiskFullError):
        await file.write()
    assert disk.contents(CHECKPOINT_NAME) == old
    await file.write()
    assert disk.contents(CHECKPOINT_NAME) != old


async def test_a_failed_sync_is_final() -> None:
    disk = SimulatedDisk()
    file = CheckpointFile(disk, ManualClock(), Source().collect)
    disk.fail_next("sync", CHECKPOINT_NAME)
    syncs = 0
    for _ in range(3):
        with pytest.raises(DiskError):
            await file.write()
        syncs = syncs or sum(disk.syncs.values())
        assert sum(disk.syncs.values()) == syncs


async def test_a_caller_that_gives_up_does_not_stop_the_write() -> None:
    disk = SimulatedDisk(yields=True)
    file = CheckpointFile(disk, ManualClock(), Source().collect)
    task = asyncio.ensure_future(file.write())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, file.write(), return_exceptions=True)
    assert read_checkpoint(disk) is not None


def test_no_file_means_nothing_is_known() -> None:
    assert read_checkpoint(SimulatedDisk()) is None


@pytest.mark.parametrize(
    ("work_s", "pause_s"),
    [(0.01, PAUSE_RATIO * 0.01), (PAUSE_S_MAX, PAUSE_S_MAX), (60.0, PAUSE_S_MAX)],
)
async def test_a_write_pauses_by_how_long_the_last_took_but_not_for_a_disk_that_had_hung(
    work_s: float, pause_s: float
) -> None:
    clock = ManualClock()
    disk = SlowDisk(clock)
    file = CheckpointFile(disk, clock, Source().collect)
    disk.work_s = work_s
    await file.write()
    disk.work_s, ended = 0.0, clock.monotonic()
    await file.write()
    assert clock.monotonic() - ended == pytest.approx(pause_s)
