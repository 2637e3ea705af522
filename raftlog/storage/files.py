"""Open files of a node's logs, shared and bounded.

A lease keeps a file open during use, so that readers outlive retention, compaction and eviction. A
removed file stays readable until its last lease is released. Idle files stay open for the next
reader. The least recently used files are closed first.

The event loop and the disk's threads take leases alike.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from types import TracebackType
from typing import Final

from raftlog.world import Disk, File

IDLE_FILES_MAX: Final = 512
"""Most idle open files. Active segments are in use and come on top."""


class _OpenFile:
    __slots__ = ("file", "forgotten", "leases", "path")

    def __init__(self, path: str, file: File) -> None:
        self.path = path
        self.file = file
        self.leases = 0
        self.forgotten = False


class Lease:
    """The right to use an open file until `release`."""

    __slots__ = ("_entry", "_files", "file")

    def __init__(self, files: OpenFiles, entry: _OpenFile) -> None:
        self._files = files
        self._entry: _OpenFile | None = entry
        self.file = entry.file

    def release(self) -> None:
        """Return the file. Releasing twice is allowed."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._files.give_back(entry)

    def __enter__(self) -> File:
        return self.file

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class OpenFiles:
    """A bounded pool of open files, by path."""

    def __init__(self, disk: Disk, idle_files_max: int = IDLE_FILES_MAX) -> None:
        self.disk = disk
        self._idle_files_max = idle_files_max
        self._lock = threading.Lock()
        self._entries: dict[str, _OpenFile] = {}
        self._idle: OrderedDict[str, _OpenFile] = OrderedDict()
        """Idle files, the least recently used first."""

    def __len__(self) -> int:
        return len(self._entries)

    def lease_open(self, path: str) -> Lease | None:
        """Return a lease on an open file, or None if the file is not open. Never blocks."""
        with self._lock:
            entry = self._entries.get(path)
            if entry is None:
                return None
            return self._lease(entry)

    def lease(self, path: str, *, create: bool = False) -> Lease:
        """Return a lease on a file, opened if needed. May block. Raises DiskError."""
        lease = self.lease_open(path)
        if lease is not None:
            return lease
        file = self.disk.open(path, create=create)
        surplus: File | None = None
        with self._lock:
            entry = self._entries.get(path)
            if entry is None:
                entry = self._entries[path] = _OpenFile(path, file)
            else:
                # Another thread was faster. Each of two handles would keep its size.
                surplus = file
            lease = self._lease(entry)
        if surplus is not None:
            surplus.close()
        return lease

    def forget(self, path: str) -> None:
        """Forget a file before its name means another file or none.

        No new lease gets the open file.
        """
        with self._lock:
            entry = self._entries.pop(path, None)
            if entry is None:
                return
            entry.forgotten = True
            if entry.leases:
                return
            self._idle.pop(path, None)
        entry.file.close()

    def give_back(self, entry: _OpenFile) -> None:
        """End one lease. For `Lease` only."""
        closing: list[File] = []
        with self._lock:
            entry.leases -= 1
            if entry.leases:
                return
            if entry.forgotten:
                closing.append(entry.file)
            else:
                self._idle[entry.path] = entry
                while len(self._idle) > self._idle_files_max:
                    path, unused = self._idle.popitem(last=False)
                    del self._entries[path]
                    closing.append(unused.file)
        for file in closing:
            file.close()

    def close(self) -> None:
        """Close all idle files at once, and the others when released."""
        for path in list(self._entries):
            self.forget(path)

    def _lease(self, entry: _OpenFile) -> Lease:
        if not entry.leases:
            self._idle.pop(entry.path, None)
        entry.leases += 1
        return Lease(self, entry)
