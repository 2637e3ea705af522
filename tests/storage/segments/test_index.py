from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.record.types import Offset
from raftlog.storage.files import OpenFiles
from raftlog.storage.segments.index import IndexFile, offset_index, time_index
from raftlog.world import DiskError
from tests.simulation.disk import SimulatedDisk


def make(entries: list[tuple[int, int]], saved: int) -> IndexFile:
    index = offset_index(OpenFiles(SimulatedDisk()), "i.index")
    for entry in entries[:saved]:
        index.add(entry)
    save(index)
    for entry in entries[saved:]:
        index.add(entry)
    return index


def save(index: IndexFile) -> None:
    entries = tuple(index.unsaved)
    index.save(index.saved, entries)
    index.confirm(len(entries))


@given(
    st.lists(st.integers(0, 300), unique=True, max_size=40).map(sorted),
    st.integers(0, 40),
    st.integers(-1, 301),
)
def test_a_search_finds_the_last_entry_at_or_below_its_target(
    keys: list[int], saved: int, target: int
) -> None:
    entries = [(key, key * 7) for key in keys]
    index = make(entries, saved)
    below = [(number, entry) for number, entry in enumerate(entries) if entry[0] <= target]
    assert index.search(target) == (below[-1] if below else None)
    assert index.search(target * 7, key=1) == index.search(target)


def test_entries_on_disk_behind_those_that_count_are_cut_by_the_next_save() -> None:
    index = make([(0, 0), (5, 50), (9, 90)], 3)
    index.keep(1)
    assert index.search(9) == (0, (0, 0))
    index.add((7, 70))
    save(index)
    assert index.search(9) == (1, (7, 70))
    assert index.last_saved() == (7, 70)


def test_keeping_cuts_unsaved_entries_first() -> None:
    index = make([(0, 0), (5, 50), (9, 90)], 1)
    index.keep(2)
    assert (index.saved, index.unsaved) == (1, [(5, 50)])


def test_a_save_of_a_file_that_lost_bytes_is_an_error() -> None:
    index = make([(0, 0), (5, 50)], 2)
    index.saved = 3
    with pytest.raises(DiskError):
        index.save(3, ())
    with pytest.raises(DiskError):
        index.search_saved(9, 3)


def test_thinning_keeps_the_first_and_the_newest_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.storage.segments.index.UNSAVED_ENTRIES_MAX", 10)
    index = time_index(OpenFiles(SimulatedDisk()), "t", Offset(0))
    for number in range(11):
        index.add((number, number))
    index.thin()
    assert [entry[0] for entry in index.unsaved] == [0, 2, 4, 6, 8, 10]
    index.thin()
    assert len(index.unsaved) == 6


def test_no_flipped_bit_of_a_time_entry_is_believed() -> None:
    disk = SimulatedDisk()
    index = time_index(OpenFiles(disk), "t", Offset(1000))
    index.add((1_700_000_000_000, 7))
    save(index)
    assert index.last_saved() == (1_700_000_000_000, 7)
    for bit in range(8 * len(disk.contents("t"))):
        disk.flip_bit("t", bit)
        assert index.last_saved() is None
        assert index.search_saved(1_800_000_000_000, 1) is None
        disk.flip_bit("t", bit)
    assert time_index(OpenFiles(disk), "t", Offset(2000), saved=1).last_saved() is None
