from __future__ import annotations

from raftlog.record.types import Offset
from raftlog.storage.segment import segment_name
from raftlog.storage.swap import commit_swap, finish_swaps, swap_name, swap_range
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
    for other in ("x.swap", "1-2.log", "1-x.swap", segment_name(ZERO)):
        assert swap_range(other) is None


def test_a_crash_at_any_step_leaves_all_of_the_old_or_the_new() -> None:
    seen = set()
    for seed in range(40):
        for step in range(1, 12):
            disk = make(seed)
            disk.crash_in(step)
            try:
                commit_swap(disk, "d", "new.cleaned", ZERO, TWENTY)
                finish_swaps(disk, "d")
            except MachineStoppedError:
                pass
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
