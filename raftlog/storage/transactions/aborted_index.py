"""The aborted transactions with their abort markers in one segment.

    36 bytes an entry, big endian:   8 producer id, 8 first offset, 8 the marker's offset,
                                     8 stable offset, 4 CRC-32C

Entries rise by the marker's offset. The *stable offset* is the first offset of the earliest
transaction still open behind the marker, or the next offset. No transaction that ends later starts
below, so a lookup of a range that ends there needs no later entry.

A missing entry would make aborted records look committed, and only a walk over the log can prove
that none is missing. So an entry is never simply believed:

- Each has a CRC, which also covers the segment's base offset. A lookup that meets a wrong entry
  rebuilds the entries.
- The entries of the active segment below the recovery point are counted in the checkpoint.
- The entries of a finished segment are *sealed*. A CRC over all of them goes into one more entry of
  its time index, without which a start does not trust the segment, and scans it.

A segment without aborted transactions has no file. New entries are kept in memory and written by
`save`, with the other indexes, before the number that counts them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from raftlog.record.types import Offset, ProducerId
from raftlog.storage.files import OpenFiles
from raftlog.storage.transactions.transactions import AbortedEntry
from raftlog.world import DiskError, File

_LAYOUT: Final = struct.Struct(">qqqq")
_CRC: Final = struct.Struct(">I")
ENTRY_SIZE: Final = _LAYOUT.size + _CRC.size
CHUNK_ENTRIES: Final = 4096
NO_END: Final = Offset(2**63 - 1)
"""Offset above all offsets."""
NO_LIMIT: Final = 2**63 - 1


class Wanted(NamedTuple):
    """Transactions with offsets from `start` to below `end`, and about how many."""

    start: Offset = Offset(0)
    end: Offset = NO_END
    count_max: int = NO_LIMIT


def take(entries: Iterable[AbortedEntry], wanted: Wanted, found: list[AbortedEntry]) -> bool:
    """Add the wanted entries to `found`. Returns whether no later entry is wanted.

    With `count_max` entries, all that start below the last entry's stable offset are enough, if
    that is above `start`.
    """
    for entry in entries:
        if entry.last_offset >= wanted.start and entry.first_offset < wanted.end:
            found.append(entry)
        if entry.stable_offset >= wanted.end or (
            len(found) >= wanted.count_max and entry.stable_offset > wanted.start
        ):
            return True
    return False


class DamagedIndexError(Exception):
    """An entry is damaged or missing. Rebuild the entries from the log."""


class AbortedIndex:
    """Changed by the event loop only, except `save`, which a disk thread runs."""

    def __init__(self, files: OpenFiles, directory: str, name: str, base_offset: Offset) -> None:
        self.path = f"{directory}/{name}"
        self.saved = 0
        """Entries on disk that count."""
        self.unsaved: list[AbortedEntry] = []
        self._files = files
        self._directory = directory
        self._seed = crc32c(base_offset.to_bytes(8, "big"))
        self._is_stale = False
        """Whether the file may hold entries that do not count."""

    def __len__(self) -> int:
        return self.saved + len(self.unsaved)

    def add(self, entry: AbortedEntry) -> None:
        """Append an entry, in memory."""
        self.unsaved.append(entry)

    def keep(self, count: int) -> None:
        """Forget all entries but the first `count`. The file is cut by the next `save`."""
        if count >= self.saved:
            del self.unsaved[count - self.saved :]
        else:
            self.unsaved.clear()
            self.saved = count
            self._is_stale = True

    def restore(self, entries: Iterable[AbortedEntry]) -> None:
        """Replace all entries on disk, and entries in memory up to these, by rebuilt entries."""
        rebuilt = list(entries)
        end = rebuilt[-1].last_offset if rebuilt else -1
        self.unsaved = [*rebuilt, *(entry for entry in self.unsaved if entry.last_offset > end)]
        self.saved = 0
        self._is_stale = True

    def save(self, saved: int, entries: Sequence[AbortedEntry]) -> None:
        """Write `entries` behind the first `saved` entries, durably. Blocks. Raises DiskError."""
        if not entries and not self._is_stale:
            return
        is_new = not self._files.disk.exists(self.path)
        if is_new and not entries:
            self._is_stale = False
            return
        size = saved * ENTRY_SIZE
        with self._files.lease(self.path, create=True) as file:
            if file.size < size:
                raise DiskError(f"{self.path} lost {size - file.size} bytes")
            if file.size > size:
                file.truncate(size)
            if entries:
                file.append([b"".join(map(self._pack, entries))])
            file.sync()
        if is_new:
            # The counts and seals that rely on the file become durable after this.
            self._files.disk.sync_directory(self._directory)
        self._is_stale = False

    def confirm(self, count: int) -> None:
        """Note that the first `count` unsaved entries are on disk now."""
        self.saved += count
        del self.unsaved[:count]

    def seal(self, count: int) -> int | None:
        """A CRC over the file, of `count` entries, for the time index. None without entries.

        Blocks. Raises DiskError if the file is not as written.
        """
        if not count:
            return None
        with self._files.lease(self.path) as file:
            if file.size != count * ENTRY_SIZE:
                raise DiskError(f"{self.path} has {file.size} bytes instead of {count} entries")
            return self._sum(file)

    def load(self) -> int | None:
        """Count the entries of a finished segment's file, and return its seal. Blocks.

        Returns None if there are none. The entries count only if the time index has the same seal.
        """
        if not self._files.disk.exists(self.path):
            return None
        with self._files.lease(self.path) as file:
            self.saved = file.size // ENTRY_SIZE
            self._is_stale = True
            return self._sum(file) if file.size else None

    def load_counted(self, count: int) -> bool:
        """Trust the first `count` entries of the file, if there and intact. Blocks."""
        self.saved, self._is_stale = 0, True
        if count:
            self.saved = count
            try:
                self.read_saved(count, Wanted())
            except (DamagedIndexError, DiskError):
                self.saved = 0
                return False
        return True

    def count_below(self, offset: Offset) -> int:
        """Entries with a marker below `offset`. Blocks. Raises DiskError."""
        try:
            later, _ = self.read_saved(self.saved, Wanted(offset))
        except DamagedIndexError as error:
            raise DiskError(str(error)) from error
        later += [entry for entry in self.unsaved if entry.last_offset >= offset]
        return len(self) - len(later)

    def read_saved(self, saved: int, wanted: Wanted) -> tuple[list[AbortedEntry], bool]:
        """Wanted entries among the first `saved` entries on disk, as by `take`. Blocks.

        Raises DamagedIndexError.
        """
        found: list[AbortedEntry] = []
        if not saved:
            return found, False
        if not self._files.disk.exists(self.path):
            raise DamagedIndexError(f"{self.path} is missing")
        with self._files.lease(self.path) as file:
            low, high = 0, saved
            while low < high:
                middle = (low + high) // 2
                if self._read(file, middle, 1)[0].last_offset < wanted.start:
                    low = middle + 1
                else:
                    high = middle
            while low < saved:
                chunk = self._read(file, low, min(CHUNK_ENTRIES, saved - low))
                if take(chunk, wanted, found):
                    return found, True
                low += len(chunk)
        return found, False

    def _read(self, file: File, number: int, count: int) -> list[AbortedEntry]:
        data = file.read(number * ENTRY_SIZE, count * ENTRY_SIZE)
        if len(data) < count * ENTRY_SIZE:
            raise DamagedIndexError(f"{self.path} ends before entry {number + count - 1}")
        entries: list[AbortedEntry] = []
        for position in range(0, len(data), ENTRY_SIZE):
            content = data[position : position + _LAYOUT.size]
            (crc,) = _CRC.unpack_from(data, position + _LAYOUT.size)
            if crc32c(content, self._seed) != crc:
                entry = number + position // ENTRY_SIZE
                raise DamagedIndexError(f"{self.path}: entry {entry} is damaged")
            producer_id, first, last, stable = _LAYOUT.unpack(content)
            entries.append(
                AbortedEntry(ProducerId(producer_id), Offset(first), Offset(last), Offset(stable))
            )
        return entries

    def _pack(self, entry: AbortedEntry) -> bytes:
        content = _LAYOUT.pack(*entry)
        return content + _CRC.pack(crc32c(content, self._seed))

    def _sum(self, file: File) -> int:
        crc, position = self._seed, 0
        while position < file.size:
            data = file.read(position, CHUNK_ENTRIES * ENTRY_SIZE)
            if not data:
                break
            crc = crc32c(data, crc)
            position += len(data)
        return crc
