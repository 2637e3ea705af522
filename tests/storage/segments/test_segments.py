from __future__ import annotations

from contextlib import suppress

import pytest

from raftlog.record.types import Offset
from raftlog.storage.segments.segments import (
    finish_swaps,
    segment_name,
    swap_name,
    swap_range,
    swap_segments,
)
from raftlog.world import DiskError, DiskFullError
from tests.simulation.disk import MachineStoppedError, SimulatedDisk

ZERO, TEN, TWENTY = Offset(0), Offset(10), Offset(20)


def make(seed: int = 0) -> SimulatedDisk:
    disk = SimulatedDisk(seed)
    disk.make_directory("d")
    for base in (ZERO, TEN, TWENTY):
        disk.put(f"d/{segment_name(base)}", b"old")
        disk.put(f"d/{segment_name(base, '.index')}", b"old")
    disk.put("d/new.cleaned", b"new")
    disk.sync_directory("")
    disk.sync_directory("d")
    return disk


def test_a_name_tells_what_the_file_stands_for() -> None:
    assert swap_range(swap_name(ZERO, TWENTY)) == (0, 20)
    for other in ("x.swap", "1-2.log", "1-2.swap", "1-x.swap", segment_name(ZERO)):
        assert swap_range(other) is None


def test_a_crash_at_any_step_leaves_all_of_the_old_or_the_new() -> None:
    seen = set()
    for seed in range(40):
        for step in range(1, 12):
            disk = make(seed)
            disk.crash_in(step)
            with suppress(MachineStoppedError):
                swap_segments(disk, "d", "new.cleaned", ZERO, TWENTY)
            disk.crash(power=seed % 2 == 0)
            finish_swaps(disk, "d")
            names = [name for name in disk.list_directory("d") if name.endswith(".log")]
            first = disk.contents(f"d/{segment_name(ZERO)}")
            if first == b"new":
                assert names == [segment_name(ZERO), segment_name(TWENTY)]
                assert not disk.exists(f"d/{segment_name(ZERO, '.index')}")
            else:
                assert names == [segment_name(base) for base in (ZERO, TEN, TWENTY)]
            assert disk.contents(f"d/{segment_name(TWENTY)}") == b"old"
            seen.add(first)
    assert seen == {b"old", b"new"}


def test_a_full_disk_refuses_a_swap_that_has_not_begun_and_fails_one_that_has() -> None:
    disk = make()
    before = disk.list_directory("d")
    disk.fail_next("rename", "new.cleaned", DiskFullError)
    with pytest.raises(DiskFullError):
        swap_segments(disk, "d", "new.cleaned", ZERO, TWENTY)
    assert disk.list_directory("d") == before
    disk.fail_next("rename", ".swap", DiskFullError)
    with pytest.raises(DiskError) as failed:
        swap_segments(disk, "d", "new.cleaned", ZERO, TWENTY)
    assert not isinstance(failed.value, DiskFullError)
