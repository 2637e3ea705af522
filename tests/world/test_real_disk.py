from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from raftlog.world import Disk, DiskError, DiskFullError
from raftlog.world.real_disk import FileSystemDisk


@pytest.fixture(name="disk")
def _disk(tmp_path: Path) -> FileSystemDisk:
    return FileSystemDisk(tmp_path / "data")


class Kernel:
    """Stands in front of `os.pwritev`, and writes less, or fails, as ordered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: int | OSError) -> None:
        self.answers = list(answers)
        self.calls = 0
        self.really = os.pwritev
        monkeypatch.setattr(os, "pwritev", self.pwritev)

    def pwritev(self, descriptor: int, buffers: list[bytes], position: int) -> int:
        self.calls += 1
        answer = self.answers.pop(0) if self.answers else 1 << 30
        if isinstance(answer, OSError):
            raise answer
        data = b"".join(buffers)[:answer]
        return self.really(descriptor, [data], position)


def test_it_is_a_disk(disk: FileSystemDisk) -> None:
    as_disk: Disk = disk
    assert as_disk.boot_id()
    assert as_disk.boot_id() == as_disk.boot_id()
    assert as_disk.free_bytes() > 0


def test_what_is_appended_is_read_back(disk: FileSystemDisk) -> None:
    file = disk.open("f", create=True)
    assert file.append([b"ab", memoryview(b"cd"), bytearray(b"e")]) == 0
    assert file.append([b"f"]) == 5
    assert file.size == 6
    assert file.read(1, 3) == b"bcd"
    assert file.read(4, 100) == b"ef"
    assert file.read(6, 1) == b""
    file.truncate(2)
    assert file.append([b"X"]) == 2
    file.sync()
    file.close()
    file.close()
    again = disk.open("f")
    assert (again.size, again.read(0, 9)) == (3, b"abX")
    again.close()


def test_more_buffers_than_the_kernel_takes_at_once_are_all_written(disk: FileSystemDisk) -> None:
    file = disk.open("f", create=True)
    buffers = [b"%04d" % number for number in range(3000)]
    file.append(buffers)
    assert file.read(0, 1 << 20) == b"".join(buffers)
    file.close()


@pytest.mark.parametrize("cuts", [(1,), (3, 1, 1), (5, 2), (2, 2, 2, 2)])
def test_a_write_cut_short_is_continued(
    disk: FileSystemDisk, monkeypatch: pytest.MonkeyPatch, cuts: tuple[int, ...]
) -> None:
    file = disk.open("f", create=True)
    Kernel(monkeypatch, *cuts)
    file.append([b"abc", b"", b"defg", b"hi"])
    assert file.read(0, 99) == b"abcdefghi"
    file.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_write_without_room_is_taken_back_whole(
    disk: FileSystemDisk, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    file = disk.open("f", create=True)
    file.append([b"before"])
    Kernel(monkeypatch, 2, OSError(code, "no room"))
    with pytest.raises(DiskFullError):
        file.append([b"abc", b"def"])
    assert file.size == 6
    assert (disk.root / "f").read_bytes() == b"before"
    file.append([b"!"])
    assert (disk.root / "f").read_bytes() == b"before!"
    file.close()


def test_a_real_limit_of_the_file_size_is_a_full_disk(tmp_path: Path) -> None:
    program = """
import resource, signal, sys
from raftlog.world import DiskFullError
from raftlog.world.real_disk import FileSystemDisk
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
disk = FileSystemDisk(sys.argv[1])
file = disk.open("f", create=True)
file.append([b"x" * 9000])
resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))
try:
    file.append([b"y" * 500, b"z" * 5000])
except DiskFullError:
    print("full", file.size, file.append([b"w" * 1000]))
"""
    answer = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "limited")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split() == ["full", "9000", "9000"]


def test_other_errors_are_not_taken_for_a_full_disk(
    disk: FileSystemDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open("f", create=True)
    Kernel(monkeypatch, OSError(errno.EIO, "broken"))
    with pytest.raises(DiskError) as failed:
        file.append([b"abc"])
    assert not isinstance(failed.value, DiskFullError)
    file.close()


def test_a_write_that_cannot_be_taken_back_says_so(
    disk: FileSystemDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open("f", create=True)
    Kernel(monkeypatch, 2, OSError(errno.ENOSPC, "no room"))

    def refuse(*_: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(DiskError) as failed:
        file.append([b"abc"])
    assert not isinstance(failed.value, DiskFullError)
    file.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_an_error_and_never_a_full_disk(
    disk: FileSystemDisk, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(_: int) -> None:
        raise OSError(code, "broken")

    file = disk.open("f", create=True)
    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(DiskError) as failed:
        file.sync()
    assert not isinstance(failed.value, DiskFullError)
    file.close()


def test_cached_reads_give_everything_or_nothing(
    disk: FileSystemDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open("f", create=True)
    file.append([b"abcdef"])
    for position, length, wanted in ((0, 6, b"abcdef"), (4, 10, b"ef"), (6, 1, b"")):
        assert file.read_cached(position, length) in (wanted, None)

    def wait(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "not in memory")

    monkeypatch.setattr(os, "preadv", wait)
    assert file.read_cached(0, 6) is None

    def unknown(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "preadv", unknown)
    assert file.read_cached(0, 6) is None
    monkeypatch.undo()
    assert file.read_cached(0, 6) is None, "asked a file system again that does not know the call"
    assert file.read(0, 6) == b"abcdef"
    file.close()


def test_a_cached_read_of_a_part_is_no_answer(
    disk: FileSystemDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open("f", create=True)
    file.append([b"abcdef"])
    monkeypatch.setattr(os, "preadv", lambda *_: 3)
    assert file.read_cached(0, 6) is None
    file.close()


def test_names(disk: FileSystemDisk) -> None:
    with pytest.raises(DiskError):
        disk.open("missing")
    disk.make_directory("a/b")
    disk.make_directory("a/b")
    disk.open("a/b/f", create=True).close()
    disk.sync_directory("a/b")
    disk.rename("a/b/f", "a/b/g")
    assert disk.list_directory("a/b") == ["g"]
    assert disk.exists("a/b/g")
    assert not disk.exists("a/b/f")
    disk.remove("a/b/g")
    disk.remove("a/b/g")
    disk.open("a/stray", create=True).close()
    assert disk.list_directory("a/stray") == []
    disk.remove_tree("a/stray")
    assert disk.list_directory("a") == ["b"]
    disk.remove_tree("a")
    disk.remove_tree("a")
    assert disk.list_directory("a/b") == []
    with pytest.raises(DiskError):
        disk.rename("x", "y")
    with pytest.raises(DiskError):
        disk.sync_directory("x")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x"])
def test_a_path_out_of_the_root_is_a_broken_invariant(disk: FileSystemDisk, path: str) -> None:
    with pytest.raises(AssertionError):
        disk.open(path)


def test_replace_is_whole_and_leaves_nothing_behind(
    disk: FileSystemDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.replace("small", b"old")
    disk.replace("small", b"new")
    assert (disk.root / "small").read_bytes() == b"new"
    Kernel(monkeypatch, 1, OSError(errno.ENOSPC, "no room"))
    with pytest.raises(DiskFullError):
        disk.replace("small", b"newest")
    assert (disk.root / "small").read_bytes() == b"new"
    assert disk.list_directory("") == ["lock", "small"]


def test_an_open_file_outlives_its_name(disk: FileSystemDisk) -> None:
    file = disk.open("f", create=True)
    file.append([b"abc"])
    disk.remove("f")
    assert file.read(0, 3) == b"abc"
    file.close()


def test_a_directory_belongs_to_one_disk_at_a_time(disk: FileSystemDisk) -> None:
    with pytest.raises(
        DiskError,
        match=rf"in use by another raftlog process \({os.getpid()}\): stop that process first",
    ):
        FileSystemDisk(disk.root)
    disk.close()
    disk.close()
    FileSystemDisk(disk.root).close()


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskError):
        FileSystemDisk(tmp_path / "file" / "data")


async def test_work_runs_off_the_loop_and_its_errors_come_back(disk: FileSystemDisk) -> None:
    assert await disk.run(threading.get_ident) != threading.get_ident()
    with pytest.raises(DiskError):
        await disk.run(lambda: disk.open("missing"))
    disk.close()


def test_files_and_directories_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        disk = FileSystemDisk(tmp_path / "new" / "data")
        disk.make_directory("replicas/1")
        disk.open("replicas/1/log", create=True).close()
        disk.replace("state", b"x")
        disk.close()
    finally:
        os.umask(before)
    root = tmp_path / "new" / "data"
    modes = {
        str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*")
    }
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert modes.pop("replicas/1") == 0o700
    # Between: closed by the root. A node's umask closes it, too (tests/cli/test_serve.py).
    modes.pop("replicas")
    assert modes == {"lock": 0o600, "replicas/1/log": 0o600, "state": 0o600}


@pytest.mark.parametrize("below", ["", "/data"])
def test_file_in_the_place_of_the_directory_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DiskError, match="cannot be the data directory: a file is in its place"):
        FileSystemDisk(f"{tmp_path}/file{below}")


def test_a_file_that_cannot_be_opened_for_want_of_a_descriptor_is_missing_room(
    disk: FileSystemDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with pytest.raises(DiskFullError, match="Too many open files"):
            disk.open("f", create=True)
        with pytest.raises(DiskError, match="cannot sync") as caught:
            disk.sync_directory("")
        assert not isinstance(caught.value, DiskFullError)
    assert not disk.exists("f")
