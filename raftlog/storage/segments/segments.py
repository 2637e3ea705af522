"""Segments of a log, their order, and their replacement.

A segment is a file of record batches, and its indexes. Files are named by the offset of their first
record, in 20 digits, so that names sort as offsets do. Only the event loop changes a segment. Disk
threads read the numbers passed to them.

A swap replaces a run of segments by one new segment, so that a crash leaves the old or the new.

1. The new log file is written as `<base>.log.cleaned` and synced. After a crash it is removed.
2. The file is renamed to `<base>-<end>.swap`, and the name is made durable. From here on the file
   counts. Its name holds the offsets that it replaces.
3. The old segments of that range are removed, the file gets its final name, and the directory is
   synced. After a crash in between, the next start does this step again.

Indexes of the old segments are removed with their files. The new indexes are written before step 3
ends, and are rebuilt by a scan if a crash loses any.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from raftlog.record.errors import LogError
from raftlog.record.header import HEADER_SIZE, BatchHeader, parse_header
from raftlog.record.types import Offset
from raftlog.storage.checkpoints.checkpoints import FirstAppend
from raftlog.storage.files import Lease, OpenFiles
from raftlog.storage.segments.index import (
    POSITION_MAX,
    RELATIVE_OFFSET_MAX,
    OffsetEntry,
    TimeEntry,
    offset_index,
    time_index,
)
from raftlog.storage.transactions.aborted_index import AbortedIndex
from raftlog.storage.transactions.transactions import AbortedEntry
from raftlog.storage.types import NO_TIMESTAMP
from raftlog.world import Disk, DiskError, DiskFullError, File

LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
ABORTED_INDEX_SUFFIX: Final = ".txnindex"
SEGMENT_SUFFIXES: Final = (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    ABORTED_INDEX_SUFFIX,
)
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
OFFSET_DIGITS: Final = 20
OFFSET_MAX: Final = 2**63 - 1


def segment_name(base_offset: Offset, suffix: str = LOG_SUFFIX) -> str:
    """The name of one of a segment's files."""
    return f"{base_offset:0{OFFSET_DIGITS}d}{suffix}"


def base_offset_of(name: str, suffix: str = LOG_SUFFIX) -> Offset | None:
    """The offset in a segment file's name, or None for any other name."""
    digits = name.removesuffix(suffix)
    return None if digits == name else _offset_of(digits)


def _offset_of(digits: str) -> Offset | None:
    """The offset in a part of a file's name. None if no log has this offset."""
    if len(digits) != OFFSET_DIGITS or not (digits.isascii() and digits.isdecimal()):
        return None
    offset = int(digits)
    return Offset(offset) if offset <= OFFSET_MAX else None


@dataclass(frozen=True, slots=True)
class IndexTails:
    """Index entries about to be written, and the number of entries on disk before these."""

    offset_saved: int
    offset_entries: tuple[tuple[int, int], ...]
    time_saved: int
    time_entries: tuple[tuple[int, int], ...]
    aborted_saved: int
    aborted_entries: tuple[AbortedEntry, ...]
    is_finished: bool
    """Whether the segment takes no more appends. Then its aborted index is sealed."""


class Segment:
    """A part of the log, from `base_offset` to `next_offset`."""

    def __init__(
        self,
        files: OpenFiles,
        directory: str,
        base_offset: Offset,
        *,
        size_bytes: int = 0,
        next_offset: Offset | None = None,
        max_timestamp_ms: int = NO_TIMESTAMP,
        offset_entries: int = 0,
        time_entries: int = 0,
    ) -> None:
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.next_offset = base_offset if next_offset is None else next_offset
        self.max_timestamp_ms = max_timestamp_ms
        """Largest timestamp of any record, or NO_TIMESTAMP."""
        self.first_append_ms: int | None = None
        """Wall time of the first append, or later if unknown. None if the segment is empty."""
        self.path = f"{directory}/{segment_name(base_offset)}"
        self.files = files
        self.offset_index = offset_index(
            files, f"{directory}/{segment_name(base_offset, OFFSET_INDEX_SUFFIX)}", offset_entries
        )
        self.time_index = time_index(
            files,
            f"{directory}/{segment_name(base_offset, TIME_INDEX_SUFFIX)}",
            base_offset,
            time_entries,
        )
        self.aborted = AbortedIndex(
            files, directory, segment_name(base_offset, ABORTED_INDEX_SUFFIX), base_offset
        )
        self._bytes_since_entry = 0
        self._last_time_entry: TimeEntry | None = None
        self._lease: Lease | None = None
        self._is_unwritten = False
        self.is_name_durable = True
        """Whether a sync of only the file makes its records durable."""

    @property
    def file(self) -> File:
        """The log file of the active segment, created by the first use. Raises DiskError then."""
        if self._is_unwritten and self._lease is None:
            self._lease = self.files.lease(self.path, create=True)
        assert self._lease is not None, f"{self.path} is not the active segment"
        return self._lease.file

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of its files, existing or not, the log first."""
        return self.path, self.offset_index.path, self.time_index.path, self.aborted.path

    def hold(self, lease: Lease) -> None:
        """Become the active segment, with its file kept open."""
        self._lease = lease

    def begin_unwritten(self) -> None:
        """Become the active segment without a file, since most partitions never take a record.

        The first append creates the file, and the first sync also makes its name durable.
        """
        self._is_unwritten = True
        self.is_name_durable = False

    def release_file(self) -> None:
        """Stop being the active segment. Readers continue."""
        self._is_unwritten = False
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def fits(self, size_bytes: int, next_offset: Offset, segment_bytes: int) -> bool:
        """Whether an append of that size, up to that offset, still fits."""
        if not self.size_bytes:
            return True
        return (
            self.size_bytes + size_bytes <= min(segment_bytes, POSITION_MAX)
            and next_offset - self.base_offset <= RELATIVE_OFFSET_MAX
        )

    def is_due(self, now_ms: int, segment_ms: int) -> bool:
        """Whether the segment has taken appends for `segment_ms`, and a roll is due."""
        begun_ms = self.first_append_ms
        return begun_ms is not None and self.size_bytes > 0 and now_ms - begun_ms >= segment_ms

    def note(self, header: BatchHeader, position: int, base_offset: Offset, interval: int) -> None:
        """Account for a batch written at `position`, with an index entry where due."""
        size = header.size_bytes
        if self._bytes_since_entry >= interval or not self._bytes_since_entry:
            self.offset_index.add((base_offset - self.base_offset, position))
            self.note_time()
            self._bytes_since_entry = 0
        self._bytes_since_entry += size
        self.size_bytes = position + size
        self.next_offset = Offset(base_offset + header.last_offset_delta + 1)
        self.max_timestamp_ms = max(self.max_timestamp_ms, header.max_timestamp_ms)

    def note_time(self) -> None:
        """Note, in memory, how young the records up to the present end are."""
        if self.next_offset == self.base_offset:
            return
        entry = TimeEntry(self.max_timestamp_ms, Offset(self.next_offset - 1))
        if entry != self._last_time_entry:
            self._last_time_entry = entry
            self.time_index.add((entry.timestamp_ms, entry.last_offset - self.base_offset))

    def index_tails(self, *, is_finished: bool) -> IndexTails:
        """Entries that `save_indexes` has to write for all present batches."""
        self.note_time()
        return IndexTails(
            offset_saved=self.offset_index.saved,
            offset_entries=tuple(self.offset_index.unsaved),
            time_saved=self.time_index.saved,
            time_entries=tuple(self.time_index.unsaved),
            aborted_saved=self.aborted.saved,
            aborted_entries=tuple(self.aborted.unsaved),
            is_finished=is_finished,
        )

    def save_indexes(self, tails: IndexTails) -> None:
        """Make index entries durable. Blocks. Raises DiskError."""
        self.aborted.save(tails.aborted_saved, tails.aborted_entries)
        self.offset_index.save(tails.offset_saved, tails.offset_entries)
        seal: tuple[tuple[int, int], int] | None = None
        if tails.is_finished:
            crc = self.aborted.seal(tails.aborted_saved + len(tails.aborted_entries))
            if crc is not None:
                last = (self.max_timestamp_ms, self.next_offset - 1 - self.base_offset)
                seal = last, crc
        self.time_index.save(tails.time_saved, tails.time_entries, seal=seal)

    def confirm_indexes(self, tails: IndexTails) -> None:
        """Note that `save_indexes` succeeded."""
        self.offset_index.confirm(len(tails.offset_entries))
        self.time_index.confirm(len(tails.time_entries))
        self.aborted.confirm(len(tails.aborted_entries))

    def thin_indexes(self) -> None:
        """Note that `save_indexes` found no room."""
        self.offset_index.thin()
        self.time_index.thin()

    def cut(
        self,
        next_offset: Offset,
        size_bytes: int,
        offset_entries: int,
        last_time: tuple[int, TimeEntry | None],
        aborted_entries: int,
    ) -> None:
        """Cut off the records from `next_offset` on."""
        entries, entry = last_time
        self.next_offset = next_offset
        self.size_bytes = size_bytes
        if not size_bytes:
            self.first_append_ms = None
        self.offset_index.keep(offset_entries)
        self.time_index.keep(entries)
        self.aborted.keep(aborted_entries)
        self._last_time_entry = entry
        self._bytes_since_entry = 0

    def hint(self, target: Offset) -> OffsetEntry | None:
        """Hint where to look for `target`, from memory. After None, call `hint_on_disk`."""
        found = self.offset_index.search_unsaved(target - self.base_offset)
        if found is not None:
            return self._offset_entry(found[1])
        if not self.offset_index.saved:
            return OffsetEntry(self.base_offset, 0)
        return None

    def hint_on_disk(self, target: Offset, saved: int) -> OffsetEntry:
        """The batch containing `target`, or the batch after it. Blocks. Raises DiskError.

        The walk starts at an index entry, checked against the log. A wrong index must not turn
        intact data into damage, so the walk then starts at the start of the segment.
        """
        found = self.offset_index.search_saved(target - self.base_offset, saved)
        entry = OffsetEntry(self.base_offset, 0)
        with self.files.lease(self.path) as file:
            if found is not None:
                claimed = self._offset_entry(found[1])
                header = read_header(file, claimed.position)
                if header is not None and header.base_offset == claimed.base_offset:
                    entry = claimed
            return walk(file, entry, self.size_bytes, target)

    def _offset_entry(self, entry: tuple[int, int]) -> OffsetEntry:
        return OffsetEntry(Offset(self.base_offset + entry[0]), entry[1])

    def time_entry(self, entry: tuple[int, int]) -> TimeEntry:
        """A time index entry with its offset made absolute."""
        return TimeEntry(entry[0], Offset(self.base_offset + entry[1]))


def walk(file: File, entry: OffsetEntry, end: int, target: Offset) -> OffsetEntry:
    """Walk from a batch to the batch containing or following `target`, or to the end.

    Reads headers only. Stops early at bytes that cannot be the next batch, which a reader will
    report. Blocks. Raises DiskError.
    """
    while entry.position < end:
        header = header_at(file, entry, end)
        if header is None or header.next_offset > target:
            break
        entry = OffsetEntry(header.next_offset, entry.position + header.size_bytes)
    return entry


def header_at(file: File, entry: OffsetEntry, end: int) -> BatchHeader | None:
    """The header at an entry, or None if impossible, in a file of `end` bytes.

    Neither length nor base offset are under the batch's CRC. A walk by a damaged length would pass
    over intact batches, and report none. Blocks. Raises DiskError.
    """
    header = read_header(file, entry.position)
    if header is None or header.base_offset < entry.base_offset:
        return None
    return header if entry.position + header.size_bytes <= end else None


def read_header(file: File, position: int) -> BatchHeader | None:
    """The header at `position`, or None. Blocks. Raises DiskError."""
    data = file.read(position, HEADER_SIZE)
    if len(data) < HEADER_SIZE:
        return None
    try:
        return parse_header(data)
    except LogError:
        # Bytes without a valid header are a result here, not a failure.
        return None


FIRST_APPENDS_MAX: Final = 16
"""Most segments of one log with a stored age. Segments between take the next segment's age."""
POSITIONS_MAX: Final = 128
"""Most remembered positions at which readers of one log stopped."""


class Segments:
    """The segments of one log in order. Lives in the event loop. The last segment is active."""

    def __init__(self, segments: list[Segment], log_start_offset: Offset) -> None:
        assert segments
        self.log_start_offset = log_start_offset
        self.generation = 0
        """Number that grows whenever files are cut, swapped or removed. Bytes read across a change
        are suspect."""
        self._segments = segments
        self.has_aborted = any(len(segment.aborted) for segment in segments)
        """Whether there has been an aborted transaction. Otherwise no reader looks for them."""
        self._bases = [segment.base_offset for segment in segments]
        self._positions: OrderedDict[Offset, tuple[Segment, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def active(self) -> Segment:
        """The segment for appends."""
        return self._segments[-1]

    @property
    def end_offset(self) -> Offset:
        """Log end offset."""
        return self._segments[-1].next_offset

    def add_aborted(self, entry: AbortedEntry) -> None:
        """Add an aborted transaction with its marker in the active segment."""
        self.active.aborted.add(entry)
        self.has_aborted = True

    def clamp(self, high_watermark: Offset) -> Offset:
        """Limit a high watermark of a checkpoint to the log as found.

        Missing records are not committed here, and all deleted records had been committed.
        """
        return max(min(high_watermark, self.end_offset), self.log_start_offset)

    @property
    def all(self) -> tuple[Segment, ...]:
        """All segments, oldest first."""
        return tuple(self._segments)

    @property
    def size_bytes(self) -> int:
        """Sum of their sizes."""
        return sum(segment.size_bytes for segment in self._segments)

    def set_first_appends(self, known: Sequence[FirstAppend], now_ms: int | None) -> None:
        """Set the time of the first append of each non-empty segment, at a start.

        A segment without a stored time takes that of the next later segment with a time. It is too
        young, never too old. Without any (no checkpoint), the time is now, once, and from here on
        the segment ages. While the time is unknown, the segment gets none yet.
        """
        at_ms = now_ms
        left = list(known)
        for segment in reversed(self._segments):
            while left and left[-1].base_offset >= segment.base_offset:
                at_ms = left.pop().at_ms
            segment.first_append_ms = at_ms if segment.size_bytes else None

    def first_appends(self) -> tuple[FirstAppend, ...]:
        """The times for `set_first_appends` at the next start."""
        # The first segment is always included. So the others, which lose their age at each start by
        # being left out, keep it once they become the first.
        segments = self._segments
        stride = -(-len(segments) // (FIRST_APPENDS_MAX - 2))
        last = len(segments) - (1 if segments[-1].size_bytes else 2)
        return tuple(
            FirstAppend(segment.base_offset, segment.first_append_ms)
            for number in sorted({*range(0, last, stride), max(last, 0)})
            if (segment := segments[number]).first_append_ms is not None
        )

    def number(self, offset: Offset) -> int:
        """Number of the segment of an offset."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def holding(self, offset: Offset) -> Segment:
        """The segment of an offset."""
        return self._segments[self.number(offset)]

    def end_of(self, segment: Segment) -> Offset:
        """First offset behind a segment, where the next segment starts or the log ends."""
        number = self.number(segment.base_offset)
        if number + 1 < len(self._segments):
            return self._bases[number + 1]
        return segment.next_offset

    def roll(self, segment: Segment) -> None:
        """Make `segment` active."""
        assert segment.base_offset == self.end_offset
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def replace(self, first: int, last: int, new: list[Segment]) -> None:
        """Replace the segments from number `first` up to, not with, `last`."""
        self.generation += 1
        self._segments[first:last] = new
        self._bases = [segment.base_offset for segment in self._segments]
        self._positions.clear()
        assert self._segments

    def remember(self, offset: Offset, segment: Segment, position: int) -> None:
        """Note that the batch with base offset `offset` lies, or will lie, at `position`."""
        positions = self._positions
        positions[offset] = (segment, position)
        positions.move_to_end(offset)
        if len(positions) > POSITIONS_MAX:
            positions.popitem(last=False)

    def remembered(self, offset: Offset, segment: Segment) -> int | None:
        """The position of the batch at that offset in that segment, if known."""
        if offset == segment.base_offset:
            return 0
        found = self._positions.get(offset)
        return found[1] if found is not None and found[0] is segment else None


SWAP_SUFFIX: Final = ".swap"


def swap_name(base_offset: Offset, end_offset: Offset) -> str:
    """The name of a finished segment replacing the offsets from base to end."""
    return f"{base_offset:0{OFFSET_DIGITS}d}-{end_offset:0{OFFSET_DIGITS}d}{SWAP_SUFFIX}"


def swap_range(name: str) -> tuple[Offset, Offset] | None:
    """The offsets in a swap file's name, or None for any other name."""
    if not name.endswith(SWAP_SUFFIX):
        return None
    base, _, end = name.removesuffix(SWAP_SUFFIX).partition("-")
    base_offset, end_offset = _offset_of(base), _offset_of(end)
    return None if base_offset is None or end_offset is None else (base_offset, end_offset)


def swap_segments(
    disk: Disk, directory: str, cleaned: str, base_offset: Offset, end_offset: Offset
) -> None:
    """Execute steps 2 and 3 for a synced `.cleaned` file. Blocks.

    Raises DiskFullError if nothing was changed, or DiskError if the valid segments are unknown.
    """
    disk.rename(f"{directory}/{cleaned}", f"{directory}/{swap_name(base_offset, end_offset)}")
    try:
        disk.sync_directory(directory)
        finish_swaps(disk, directory)
    except DiskFullError as error:
        # There is no way back, since appends to the old segments would be lost.
        raise DiskError(f"{directory}: a swap was cut short: {error}") from error


def finish_swaps(disk: Disk, directory: str) -> int:
    """Execute step 3 for every committed swap, and return how many. Blocks. Raises DiskError."""
    names = disk.list_directory(directory)
    swaps = [(name, swapped) for name in names if (swapped := swap_range(name)) is not None]
    for _, (base_offset, end_offset) in swaps:
        for old in names:
            # Each file is removed separately, as a crash may have removed some of a segment's files
            # already.
            if any(
                old_base is not None and base_offset <= old_base < end_offset
                for suffix in SEGMENT_SUFFIXES
                for old_base in (base_offset_of(old, suffix),)
            ):
                disk.remove(f"{directory}/{old}")
    if swaps:
        # The name listing the segments to remove must stay until their removal is durable.
        disk.sync_directory(directory)
        for name, (base_offset, _) in swaps:
            disk.rename(f"{directory}/{name}", f"{directory}/{segment_name(base_offset)}")
        disk.sync_directory(directory)
    return len(swaps)
