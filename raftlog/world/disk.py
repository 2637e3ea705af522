"""The disk of a node, with append, read, sync, and a few atomic operations.

Paths are strings relative to the disk's root, with `/` between their parts. All calls but `run`
block the caller. Calls that can wait for the device (`sync`, `sync_directory`, `replace`, `read` of
cold data) belong inside `run`, off the event loop.

After a power cut, the bytes of a file up to the last returned `File.sync` remain, and names up to
the last returned `sync_directory` (or `replace`). Nothing else may be assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
Buffer: TypeAlias = bytes | bytearray | memoryview


class DiskError(Exception):
    """The disk failed. After a failed sync a file's state is unknown, so never sync it again."""


class DiskFullError(DiskError):
    """The disk has no room, or the process no descriptor. The file is as before the call."""


class File(Protocol):
    """An open file, growing at its end."""

    @property
    def size(self) -> int:
        """Length in bytes, as written (not as synced)."""
        ...

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write all buffers at the end, in one gathered write. Return their position.

        Raises DiskFullError (the file is as before) or DiskError. If a part was written and cannot
        be taken back, DiskError is raised and the file must not be used again.
        """
        ...

    def read(self, position: int, length: int) -> bytes:
        """Read `length` bytes at `position`, or fewer at the end of the file. May block."""
        ...

    def read_cached(self, position: int, length: int) -> Buffer | None:
        """Read from memory only. Return None if the read would wait for the device."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes, not above its size. Not durable until `sync`."""
        ...

    def sync(self) -> None:
        """Return once every byte written so far is durable. Blocks, so call it inside `Disk.run`.

        Raises DiskError. A failed sync is final, and the caller stops using the file.
        """
        ...

    def close(self) -> None:
        """Release the file. Syncs nothing. Closing twice is allowed."""
        ...


class Sync(NamedTuple):
    """A file to sync, and then perhaps the directory that has its name."""

    file: File
    directory: str | None = None


class Disk(Protocol):
    """One directory tree, owned by a node."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for appending and reading.

        A missing file is created if `create`. Otherwise it raises DiskError.
        """
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory exists at `path`."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory, sorted. A missing directory counts as empty, and a file too."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents. Not durable until the parents are synced."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory, replacing a file. Not durable until synced."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it exists. Open handles stay readable."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all its content, or a file, if it exists."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return once the names in the directory are durable. Blocks."""
        ...

    def replace(self, path: str, content: bytes) -> None:
        """Durably replace a whole small file. Blocks.

        Writes and syncs a temporary file, renames it and syncs the directory. After a crash the
        file holds the old content or the new, never a mixture.
        """
        ...

    def free_bytes(self) -> int:
        """Free bytes for an unprivileged writer."""
        ...

    def boot_id(self) -> str:
        """Identity of the kernel's present run. After a change, unsynced bytes may be gone."""
        ...

    async def sync_all(
        self, syncs: Sequence[Sync], on_begun: Callable[[], None]
    ) -> list[Exception | None]:
        """Execute syncs off the event loop, and return the error of each.

        An error of one sync leaves the others alone. `on_begun` is called before each sync that
        starts separately, and once for syncs that start together, perhaps in another thread.
        """
        ...

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work off the event loop, and return its result or raise its error."""
        ...


def sync_each(
    disk: Disk, syncs: Sequence[Sync], on_begun: Callable[[], None]
) -> list[Exception | None]:
    """Execute `Disk.sync_all`, one sync after the other. Blocks."""

    def sync(file: File, directory: str | None) -> None:
        on_begun()
        file.sync()
        if directory is not None:
            disk.sync_directory(directory)

    return [attempt(partial(sync, file, directory)) for file, directory in syncs]


def attempt(work: Callable[[], None]) -> Exception | None:
    """Run one sync and return its error, so that the other files are still synced."""
    try:
        work()
    except Exception as error:
        return error
    return None


def read_small_file(disk: Disk, path: str, bytes_max: int) -> bytes | None:
    """Read a file's content, or None if the file is missing. Blocks. Raises DiskError.

    A file longer than `bytes_max` is cut there, so that its reader finds damage. None would mean a
    missing file.
    """
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return file.read(0, min(file.size, bytes_max))
    finally:
        file.close()
