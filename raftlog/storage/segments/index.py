"""Sparse indexes of a segment, with hints where to find an offset or time.

    offset index, 8 bytes an entry, big endian:   4 relative base offset of a batch, 4 its position
    time index,  16 bytes an entry:               8 timestamp (ms), 4 relative offset, 4 CRC-32C

An offset entry names a batch exactly, and is checked against the header found there. A wrong entry
costs time, but never gives a wrong result. A time entry (t, o) means that no record of the segment
up to and including offset o is younger than t. The last entry of a finished segment has the
segment's last offset, and so also marks its end. Nothing in the log proves a time entry without a
walk over all batches before, and retention deletes by it. So each has a CRC, which also covers the
segment's base offset. A damaged time entry counts as missing. Then lookups start at the segment's
start, and a start scans.

Where a finished segment has aborted transactions, its last time entry stands there twice, the
second time with a CRC that covers their index as well. Without it a start scans the segment.

New entries are kept in memory and written by `save`, at checkpoints and rolls. An append is one
write to the log and none to an index. Entries on disk above the recovery point are not trusted
after an unclean stop. Recovery rebuilds these entries.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from crc32c import crc32c

from raftlog.record.types import Offset
from raftlog.storage.files import OpenFiles
from raftlog.world import DiskError

UNSAVED_ENTRIES_MAX: Final = 65_536
"""Most unsaved entries in memory (on a full disk). Beyond, every second entry is dropped."""
RELATIVE_OFFSET_MAX: Final = 2**31 - 1
POSITION_MAX: Final = 2**31 - 1


_OFFSET_LAYOUT: Final = struct.Struct(">II")
_TIME_LAYOUT: Final = struct.Struct(">qI")
_CRC: Final = struct.Struct(">I")


class OffsetEntry(NamedTuple):
    """A batch and its position in the segment."""

    base_offset: Offset
    position: int


class TimeEntry(NamedTuple):
    """No record up to `last_offset` is younger than `timestamp_ms`."""

    timestamp_ms: int
    last_offset: Offset


class IndexFile:
    """A file of fixed-size entries in rising order, the newest still in memory.

    Changed by the event loop only, except `save`, which a disk thread runs and the loop confirms.
    """

    def __init__(
        self,
        files: OpenFiles,
        path: str,
        layout: struct.Struct,
        *,
        saved: int = 0,
        crc_seed: int | None = None,
    ) -> None:
        """`crc_seed` is the start value of a CRC behind each entry, if any."""
        self.path = path
        self.saved = saved
        self.unsaved: list[tuple[int, int]] = []
        self._files = files
        self._layout = layout
        self._crc_seed = crc_seed
        self._width = layout.size + (0 if crc_seed is None else _CRC.size)

    def __len__(self) -> int:
        return self.saved + len(self.unsaved)

    def add(self, entry: tuple[int, int]) -> None:
        """Append an entry, in memory."""
        self.unsaved.append(entry)

    def thin(self) -> None:
        """Bound the unsaved entries after a save that found no room.

        A sparser index is slower. An unbounded index ends the process. The newest entry stays,
        since it may mark the segment's end.
        """
        if len(self.unsaved) > UNSAVED_ENTRIES_MAX:
            del self.unsaved[-2::-2]

    def save(
        self,
        saved: int,
        entries: Sequence[tuple[int, int]],
        *,
        seal: tuple[tuple[int, int], int] | None = None,
    ) -> None:
        """Write `entries` behind the first `saved` entries and sync. Blocks. Raises DiskError.

        `seal`, an entry and its CRC seed, goes behind them, and is not counted, see `take_seal`.
        """
        size = saved * self._width
        with self._files.lease(self.path, create=True) as file:
            if file.size < size:
                raise DiskError(f"{self.path} lost {size - file.size} bytes")
            if file.size > size:
                file.truncate(size)
            data = [self._pack(entry) for entry in entries]
            if seal is not None:
                data.append(self._pack(*seal))
            if data:
                file.append([b"".join(data)])
            file.sync()

    def confirm(self, count: int) -> None:
        """Note that the first `count` unsaved entries are on disk now."""
        self.saved += count
        del self.unsaved[:count]

    def keep(self, count: int) -> None:
        """Forget all entries but the first `count`. The file is cut by the next `save`."""
        if count >= self.saved:
            del self.unsaved[count - self.saved :]
        else:
            self.unsaved.clear()
            self.saved = count

    def search_unsaved(self, target: int, *, key: int = 0) -> tuple[int, tuple[int, int]] | None:
        """Number and value of the last unsaved entry with a key up to `target`."""
        unsaved = self.unsaved
        if not unsaved or unsaved[0][key] > target:
            return None
        at = bisect_right(unsaved, target, key=itemgetter(key)) - 1
        return self.saved + at, unsaved[at]

    def search(self, target: int, *, key: int = 0) -> tuple[int, tuple[int, int]] | None:
        """Search among all entries. Blocks. Raises DiskError."""
        found = self.search_unsaved(target, key=key)
        return found or self.search_saved(target, self.saved, key=key)

    def search_saved(
        self, target: int, saved: int, *, key: int = 0
    ) -> tuple[int, tuple[int, int]] | None:
        """Search among the first `saved` entries on disk. Blocks. Raises DiskError.

        Returns None also where an entry is damaged.
        """
        if not saved:
            return None
        width = self._width
        with self._files.lease(self.path) as file:
            low, high = -1, saved
            found: tuple[int, int] | None = None
            while high - low > 1:
                middle = (low + high) // 2
                data = file.read(middle * width, width)
                if len(data) < width:
                    raise DiskError(f"{self.path} ends before entry {middle}")
                entry = self._unpack(data)
                if entry is None:
                    return None
                if entry[key] <= target:
                    low, found = middle, entry
                else:
                    high = middle
        return None if found is None else (low, found)

    def last_saved(self) -> tuple[int, int] | None:
        """The last entry on disk, or None if missing or damaged. Blocks. Raises DiskError."""
        if not self.saved:
            return None
        with self._files.lease(self.path) as file:
            data = file.read((self.saved - 1) * self._width, self._width)
        return None if len(data) < self._width else self._unpack(data)

    def take_seal(self, crc_seed: int) -> bool:
        """Exclude the last entry on disk from the count, if it is the seal.

        Returns whether it is. Blocks. Raises DiskError.
        """
        if self.saved < 2:
            return False
        with self._files.lease(self.path) as file:
            data = file.read((self.saved - 1) * self._width, self._width)
        if len(data) < self._width or self._unpack(data, crc_seed) is None:
            return False
        self.saved -= 1
        return True

    def count_on_disk(self) -> int:
        """Whole entries in the file. Blocks. Raises DiskError."""
        if not self._files.disk.exists(self.path):
            return 0
        with self._files.lease(self.path) as file:
            return file.size // self._width

    def _pack(self, entry: tuple[int, int], crc_seed: int | None = None) -> bytes:
        data = self._layout.pack(*entry)
        seed = self._crc_seed if crc_seed is None else crc_seed
        return data if seed is None else data + _CRC.pack(crc32c(data, seed))

    def _unpack(self, data: bytes, crc_seed: int | None = None) -> tuple[int, int] | None:
        size = self._layout.size
        seed = self._crc_seed if crc_seed is None else crc_seed
        if seed is not None and _CRC.pack(crc32c(data[:size], seed)) != data[size:]:
            return None
        entry: tuple[int, int] = self._layout.unpack_from(data)
        return entry


def offset_index(files: OpenFiles, path: str, saved: int = 0) -> IndexFile:
    """Make an index searched by relative offset."""
    return IndexFile(files, path, _OFFSET_LAYOUT, saved=saved)


def time_index(files: OpenFiles, path: str, base_offset: Offset, saved: int = 0) -> IndexFile:
    """Make an index searched by timestamp, of the segment at `base_offset`."""
    seed = crc32c(base_offset.to_bytes(8, "big"))
    return IndexFile(files, path, _TIME_LAYOUT, saved=saved, crc_seed=seed)
