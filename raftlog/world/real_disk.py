"""A directory of the machine's file system, owned by one process at a time.

The system calls' promises, and their use here:

- A gathered write may be cut short (no room, a signal, 2 GiB). It is continued or taken back whole.
- `fdatasync` makes a file's bytes and size durable, but not its name. Names take an `fsync` of the
  directory.
- `preadv2(RWF_NOWAIT)` reads from the page cache or not at all. Where a file system lacks it
  (tmpfs, some network mounts), nothing counts as cached and readers use the pool.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from raftlog.world.disk import Buffer, DiskError, DiskFullError, Sync, attempt, sync_each
from raftlog.world.kernel_sync import NOT_BEGUN, KernelSyncError, KernelSyncs
from raftlog.world.threads import Threads

T = TypeVar("T")

DISK_THREADS_MAX: Final = 8
"""Blocking operations at once. A device's queue is deeper, but two cores serve no more threads."""
GATHER_MAX: Final = min(os.sysconf("SC_IOV_MAX"), 1024)
"""Most buffers of one gathered write."""
LOCK_NAME: Final = "lock"
LOCK_BYTES_MAX: Final = 32
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
"""Records are for the node alone, whatever the umask. Directories in between take the umask's mode,
inside a root closed to other users."""
TEMPORARY_SUFFIX: Final = ".tmp"

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})
"""Missing room. Without a free descriptor a file cannot be opened, and stays as before."""
_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class FileSystemFile:
    """`File` over a descriptor. Positions are explicit, so no cursor exists."""

    def __init__(self, path: str, flags: int) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            _fail("open", path, error)
        self._size = os.fstat(self._descriptor).st_size
        self._nowait = bool(_NOWAIT)

    @property
    def path(self) -> str:
        """The path, as it was opened."""
        return self._path

    @property
    def descriptor(self) -> int:
        """The descriptor, for the calls of this package."""
        return self._descriptor

    @property
    def size(self) -> int:
        """Length in bytes, as written."""
        return self._size

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write all buffers at the end, or nothing."""
        start = self._size
        length = sum(len(buffer) for buffer in buffers)
        try:
            written = os.pwritev(self._descriptor, buffers[:GATHER_MAX], start)
            if written != length:
                self._write_rest(buffers, start, written)
        except OSError as error:
            self._take_back(start, error)
        self._size = start + length
        return start

    def _write_rest(self, buffers: Sequence[Buffer], start: int, written: int) -> None:
        """Continue a write that the kernel cut short or that has too many buffers."""
        position = start + written
        skip = written
        rest: list[memoryview] = []
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            if skip >= len(view):
                skip -= len(view)
                continue
            rest.append(view[skip:])
            skip = 0
        while rest:
            count = os.pwritev(self._descriptor, rest[:GATHER_MAX], position)
            if count == 0:
                raise OSError(errno.EIO, "the kernel wrote nothing")
            position += count
            while rest and count >= len(rest[0]):
                count -= len(rest.pop(0))
            if count:
                rest[0] = rest[0][count:]

    def _take_back(self, start: int, error: OSError) -> NoReturn:
        """Cut off any part of a failed write that arrived."""
        try:
            os.ftruncate(self._descriptor, start)
        except OSError as second:
            raise DiskError(
                f"{self._path}: write failed ({error.strerror}) and could not be taken back "
                f"({second.strerror})"
            ) from error
        _fail("write", self._path, error)

    def read(self, position: int, length: int) -> bytes:
        """Read `length` bytes at `position`, or fewer at the end of the file."""
        try:
            data = os.pread(self._descriptor, length, position)
            if len(data) == length or position + len(data) >= self._size:
                return data
            parts = [data]
            got = len(data)
            while got < length and data:
                data = os.pread(self._descriptor, length - got, position + got)
                parts.append(data)
                got += len(data)
            return b"".join(parts)
        except OSError as error:
            _fail("read", self._path, error)

    def read_cached(self, position: int, length: int) -> Buffer | None:
        """Read from the page cache only."""
        if not self._nowait:
            return None
        length = min(length, self._size - position)
        if length <= 0:
            return b""
        buffer = bytearray(length)
        try:
            count = os.preadv(self._descriptor, [buffer], position, _NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                self._nowait = False
                return None
            _fail("read", self._path, error)
        return buffer if count == length else None

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        assert 0 <= size <= self._size, f"{self._path}: cannot cut {self._size} bytes to {size}"
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            _fail("truncate", self._path, error)
        self._size = size

    def sync(self) -> None:
        """Return once every byte written so far is durable."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            _fail_sync(self._path, error)

    def close(self) -> None:
        """Release the descriptor."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class FileSystemDisk:
    """`Disk` over the directory `root`, locked against a second process until `close`.

    Raises DiskError if the directory cannot be made, or another process holds it.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).absolute()
        try:
            self._root.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
            self._lock = os.open(
                self._root / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE
            )
        except (FileExistsError, NotADirectoryError) as error:
            raise DiskError(
                f"{self._root} cannot be the data directory: a file is in its place. Name a "
                "directory, or a path where none is yet"
            ) from error
        except OSError as error:
            _fail("use", self._root, error)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._lock, LOCK_BYTES_MAX).decode(errors="replace").strip()
            os.close(self._lock)
            raise DiskError(
                f"the data directory {self._root} is in use by another raftlog process"
                f"{f' ({holder})' if holder.isdigit() else ''}: stop that process first, or give "
                "this node a directory of its own"
            ) from error
        # For the message above, in another process. The lock holds without it, on a full disk.
        with suppress(OSError):
            os.truncate(self._lock, 0)
            os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)
        self._threads = Threads(DISK_THREADS_MAX, "disk")
        self._kernel_syncs: KernelSyncs | None = None
        # Without it, threads sync.
        with suppress(KernelSyncError):
            self._kernel_syncs = KernelSyncs()
        self._boot_id = _read_boot_id()

    @property
    def root(self) -> Path:
        """The directory, absolute."""
        return self._root

    def open(self, path: str, *, create: bool = False) -> FileSystemFile:
        """Open a file for appending and reading."""
        return FileSystemFile(self._at(path), os.O_RDWR | (os.O_CREAT if create else 0))

    def exists(self, path: str) -> bool:
        """Whether a file or directory of that name exists."""
        return os.access(self._at(path), os.F_OK)

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        try:
            with os.scandir(self._at(path)) as entries:
                return sorted(entry.name for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            _fail("list", self._at(path), error)

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents."""
        try:
            Path(self._at(path)).mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        except OSError as error:
            _fail("create", self._at(path), error)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory."""
        try:
            Path(self._at(old)).replace(self._at(new))
        except OSError as error:
            _fail("rename", self._at(old), error)

    def remove(self, path: str) -> None:
        """Remove a file."""
        try:
            Path(self._at(path)).unlink(missing_ok=True)
        except OSError as error:
            _fail("remove", self._at(path), error)

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all its content, or a file."""
        target = self._at(path)
        assert path, "the root itself"
        try:
            shutil.rmtree(target)
        except NotADirectoryError:
            self.remove(path)
        except FileNotFoundError:
            return
        except OSError as error:
            _fail("remove", target, error)

    def sync_directory(self, path: str) -> None:
        """Return once the names in the directory are durable."""
        target = self._at(path)
        try:
            descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            _fail_sync(target, error)
        try:
            os.fsync(descriptor)
        except OSError as error:
            _fail_sync(target, error)
        finally:
            os.close(descriptor)

    def replace(self, path: str, content: bytes) -> None:
        """Durably replace a whole small file."""
        temporary = path + TEMPORARY_SUFFIX
        self.remove(temporary)
        file = self.open(temporary, create=True)
        try:
            file.append([content])
            file.sync()
        except DiskError:
            # Removal is best effort, since the raised error matters more. The next replacement
            # removes a left-over temporary file.
            with suppress(DiskError):
                self.remove(temporary)
            raise
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_directory(path.rpartition("/")[0])

    def free_bytes(self) -> int:
        """Free bytes for an unprivileged writer."""
        try:
            status = os.statvfs(self._root)
        except OSError as error:
            _fail("read the free space of", self._root, error)
        return status.f_bavail * status.f_frsize

    def boot_id(self) -> str:
        """Identity of the kernel's present run."""
        return self._boot_id

    async def sync_all(
        self, syncs: Sequence[Sync], on_begun: Callable[[], None]
    ) -> list[Exception | None]:
        """Execute syncs together in the kernel, or else one by one on a thread."""
        by_threads = partial(sync_each, self, on_begun=on_begun)
        begun = self._begun_by_kernel(syncs)
        if begun is None:
            return await self._threads.run(partial(by_threads, syncs))
        on_begun()
        errors: list[Exception | None] = []
        for sync, result in zip(syncs, await begun, strict=True):
            error: Exception | None = None
            if result == NOT_BEGUN:
                [error] = await self._threads.run(partial(by_threads, [sync]))
            elif result:
                error = _sync_error(_file_of(sync).path, OSError(result, os.strerror(result)))
            elif sync.directory is not None:
                sync_name = partial(self.sync_directory, sync.directory)
                error = await self._threads.run(partial(attempt, sync_name))
            errors.append(error)
        return errors

    def _begun_by_kernel(self, syncs: Sequence[Sync]) -> asyncio.Future[list[int]] | None:
        """Start the syncs in the kernel. None if no sync has started."""
        if self._kernel_syncs is None:
            return None
        try:
            return self._kernel_syncs.begin([_file_of(sync).descriptor for sync in syncs])
        except KernelSyncError:
            return None

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work on a thread."""
        return await self._threads.run(work)

    def close(self) -> None:
        """Wait for running work, then release the directory. Closing twice is allowed."""
        if self._lock >= 0:
            self._threads.close()
            if self._kernel_syncs is not None:
                self._kernel_syncs.close()
            lock, self._lock = self._lock, -1
            os.close(lock)

    def _at(self, path: str) -> str:
        # Names come from ids and offsets, never from users, so an escape is a broken invariant.
        assert path[:1] != "/", f"illegal path {path!r}"
        assert ".." not in path, f"illegal path {path!r}"
        return f"{self._root}/{path}"


def _read_boot_id() -> str:
    """Read Linux's boot id. Elsewhere every start counts as a new boot, which assumes the worst."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"unknown-{uuid.uuid4().hex}"


def _fail(verb: str, path: str | Path, error: OSError) -> NoReturn:
    kind = DiskFullError if error.errno in _NO_ROOM else DiskError
    raise kind(f"cannot {verb} {path}: {error.strerror}") from error


def _fail_sync(path: str | Path, error: OSError) -> NoReturn:
    raise _sync_error(path, error) from error


def _sync_error(path: str | Path, error: OSError) -> DiskError:
    """Build the error of a failed sync. Even with missing room as its cause, bytes were lost."""
    return DiskError(f"cannot sync {path}: {error.strerror}")


def _file_of(sync: Sync) -> FileSystemFile:
    assert isinstance(sync.file, FileSystemFile)
    return sync.file
