from __future__ import annotations

import pytest

from raftlog.storage.files import OpenFiles
from tests.simulation.disk import SimulatedDisk, SimulatedFile


def make(idle_files_max: int = 2) -> OpenFiles:
    disk = SimulatedDisk()
    for number in range(5):
        disk.put(f"f{number}", b"content")
    return OpenFiles(disk, idle_files_max)


def test_a_file_is_opened_once_and_shared() -> None:
    files = make()
    assert files.lease_open("f0") is None
    with files.lease("f0") as one, files.lease("f0") as two:
        assert one is two
    again = files.lease_open("f0")
    assert again is not None
    assert again.file is one
    again.release()
    again.release()


def test_idle_files_are_bounded_and_used_ones_are_not_counted() -> None:
    files = make(idle_files_max=2)
    leases = [files.lease(f"f{number}") for number in range(5)]
    assert len(files) == 5
    for lease in leases:
        lease.release()
    assert len(files) == 2
    assert files.lease_open("f0") is None
    newest = files.lease_open("f4")
    assert newest is not None
    newest.release()


def test_a_forgotten_file_stays_open_for_who_uses_it() -> None:
    files = make()
    lease = files.lease("f0")
    file = lease.file
    assert isinstance(file, SimulatedFile)
    files.forget("f0")
    assert files.lease_open("f0") is None
    assert file.read(0, 7) == b"content"
    with files.lease("f0") as other:
        assert other is not file
    lease.release()
    assert file.closed


def test_closing_closes_idle_files_at_once_and_others_when_given_back() -> None:
    files = make()
    used = files.lease("f0")
    idle = files.lease("f1")
    idle.release()
    files.close()
    assert isinstance(idle.file, SimulatedFile)
    assert idle.file.closed
    assert isinstance(used.file, SimulatedFile)
    assert not used.file.closed
    used.release()
    assert used.file.closed


def test_another_thread_that_opened_the_same_file_first_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = make()
    opened: list[SimulatedFile] = []
    really_open = files.disk.open

    def open_twice(path: str, *, create: bool = False) -> SimulatedFile:
        monkeypatch.setattr(files.disk, "open", really_open)
        files.lease(path).release()
        file = really_open(path, create=create)
        assert isinstance(file, SimulatedFile)
        opened.append(file)
        return file

    monkeypatch.setattr(files.disk, "open", open_twice)
    with files.lease("f0") as file:
        assert file is not opened[0]
    assert opened[0].closed
