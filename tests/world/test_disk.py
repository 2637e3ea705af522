from __future__ import annotations

import pytest

from raftlog.world import DiskError, read_small_file
from tests.simulation.disk import SimulatedDisk


def disk_with(content: bytes) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.replace("file", content)
    return disk


@pytest.mark.parametrize("content", [b"", b"12345"])
def test_a_file_is_read_whole(content: bytes) -> None:
    assert read_small_file(disk_with(content), "file", 5) == content


def test_a_missing_file_is_none() -> None:
    disk = SimulatedDisk()
    assert read_small_file(disk, "file", 5) is None
    assert read_small_file(disk, "directory/file", 5) is None
    assert disk.list_directory("") == []


def test_a_file_that_is_too_long_is_cut_not_missing() -> None:
    assert read_small_file(disk_with(b"123456"), "file", 5) == b"12345"


def test_a_file_that_cannot_be_read_raises() -> None:
    disk = disk_with(b"12345")
    disk.fail_next("read", "file", DiskError)
    with pytest.raises(DiskError):
        read_small_file(disk, "file", 5)
    assert read_small_file(disk, "file", 5) == b"12345"
