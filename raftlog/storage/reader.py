"""Read whole, checked batches from a log.

A read is one `pread` of the size asked for, from the page cache if it is there, else by a disk
thread; then a walk over the headers with a CRC check of each batch; and a view of the part that is
asked for: no record is parsed and no byte is copied again. Memory is bounded by the size asked for
and one batch, whatever the backlog.

A reader holds no lock. What it read while files were cut, swapped or removed (`generation`) is
thrown away and read again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from crc32c import crc32c

from raftlog.record.errors import OVERLOADED, LogError
from raftlog.record.header import CRC_START, HEADER_SIZE, BatchHeader, parse_header
from raftlog.record.types import Offset
from raftlog.storage.core import LogCore
from raftlog.storage.index import OffsetEntry
from raftlog.storage.results import DamagedRange, ReadResult
from raftlog.storage.segment import Segment
from raftlog.world import Buffer, DiskError

_T = TypeVar("_T")

READ_BYTES_MAX: Final = 16 << 20
"""Bytes that one read gives at most, unless one batch is larger."""
READ_BYTES_MIN: Final = 16 << 10
"""A smaller read costs as much, and mostly has to be followed by another one."""
ATTEMPTS_MAX: Final = 100
"""Reads of one request, when retention, truncation or compaction keep changing the files."""


class DamageFoundError(Exception):
    """A batch on disk fails its check."""

    def __init__(self, damaged: DamagedRange, reason: str) -> None:
        super().__init__(reason)
        self.damaged = damaged
        self.reason = reason


class _Cut(NamedTuple):
    """The part of a chunk that answers a request."""

    begin: int
    finish: int
    next_offset: Offset
    """First offset behind what was passed: the answer's end, or where to go on looking."""
    position: int
    """Where `next_offset` lies, relative to the chunk; beyond it if a batch is to be skipped."""
    wanted_bytes: int
    """With an empty answer: bytes that the batch at `position` needs; 0: there is none."""


class _Wanted(NamedTuple):
    """Batches that hold records from `start` on and begin before `end`."""

    start: Offset
    end: Offset
    max_bytes: int


class LogReader:
    """Reads one log."""

    def __init__(self, core: LogCore) -> None:
        self._core = core
        self._disk = core.shared.disk
        self._files = core.shared.files
        self._segments = core.segments
        self._cold_reads = core.shared.cold_reads
        self._large_batch_bytes = 0
        """About the size of the last batch that was larger than what was asked for; 0 once batches
        fit again. Mostly the next one is as large, and would be read twice."""

    async def read(self, start: Offset, *, end: Offset, max_bytes: int) -> ReadResult:
        """Whole batches from the one that holds `start`, which the log must have; see `Log.read`.

        Raises DiskError, DamageFoundError, LogError(OVERLOADED) if its files keep changing.
        """
        segments = self._segments
        wanted_bytes = min(max(max_bytes, READ_BYTES_MIN, self._large_batch_bytes), READ_BYTES_MAX)
        offset = start
        entry: OffsetEntry | None = None
        segment = segments.holding(offset)
        generation = segments.generation
        for _ in range(ATTEMPTS_MAX):
            if generation != segments.generation:
                generation, entry, offset = segments.generation, None, start
                if start < segments.all[0].base_offset:
                    return ReadResult(b"", segments.log_start_offset)
                segment = segments.holding(offset)
            try:
                if entry is None:
                    entry = await self._locate(segment, offset)
                chunk = await self._chunk(segment, entry.position, wanted_bytes)
            except DiskError:
                if generation != segments.generation:
                    continue
                raise
            if generation != segments.generation:
                continue
            cut = self._cut(segment, chunk, entry, _Wanted(offset, end, max_bytes))
            position = entry.position + cut.position
            if cut.finish > cut.begin:
                segments.remember(cut.next_offset, segment, position)
                if cut.finish - cut.begin <= max_bytes:
                    self._large_batch_bytes = 0
                return ReadResult(_part(chunk, cut.begin, cut.finish), cut.next_offset)
            if cut.wanted_bytes:
                wanted_bytes = max(cut.wanted_bytes, wanted_bytes)
                # Batches of one producer differ a little in size.
                self._large_batch_bytes = cut.wanted_bytes + READ_BYTES_MIN
                entry = OffsetEntry(cut.next_offset, position)
                continue
            segment_end = segments.end_of(segment)
            if cut.next_offset < min(segment_end, end) and segment_end > self._core.gaps_below:
                reason = f"the batches end at {cut.next_offset} instead of {segment_end}"
                raise self._damaged(segment, position, cut.next_offset, reason)
            offset = max(segment_end, offset)
            if cut.next_offset >= end or offset >= end or segment is segments.active:
                return ReadResult(b"", end)
            # Compaction left nothing of this segment at or behind `start`.
            segment, entry = segments.holding(offset), None
        raise LogError(OVERLOADED, f"{segment.path}: its files kept changing while it was read.")

    async def _locate(self, segment: Segment, offset: Offset) -> OffsetEntry:
        """A batch at or before `offset`, and where it lies."""
        position = self._segments.remembered(offset, segment)
        if position is not None:
            return OffsetEntry(offset, position)
        if offset == segment.next_offset:
            return OffsetEntry(offset, segment.size_bytes)
        hint = segment.hint(offset)
        if hint is None:
            saved = segment.offset_index.saved
            hint = await self._cold(lambda: segment.hint_on_disk(offset, saved))
        return hint

    async def _chunk(self, segment: Segment, position: int, wanted_bytes: int) -> Buffer:
        length = min(wanted_bytes, segment.size_bytes - position)
        if length <= 0:
            return b""
        lease = self._files.lease_open(segment.path)
        if lease is not None:
            with lease as file:
                chunk = file.read_cached(position, length)
                if chunk is not None:
                    return chunk

        def read() -> bytes:
            with self._files.lease(segment.path) as file:
                return file.read(position, length)

        return await self._cold(read)

    async def _cold(self, work: Callable[[], _T]) -> _T:
        async with self._cold_reads:
            return await self._disk.run(work)

    def _cut(self, segment: Segment, chunk: Buffer, entry: OffsetEntry, wanted: _Wanted) -> _Cut:
        """Find the batches that are wanted in a chunk that begins at `entry`, and check them."""
        view = memoryview(chunk)
        begin = at = 0
        expected = entry.base_offset
        needed = 0
        while entry.position + at < segment.size_bytes:
            if len(view) - at < HEADER_SIZE <= segment.size_bytes - entry.position - at:
                needed = HEADER_SIZE
                break
            try:
                header = self._header(segment, view, entry.position, at, expected)
                size = header.size_bytes
                if header.next_offset <= wanted.start:
                    # In front of what is wanted; its records may not even be in the chunk.
                    at = begin = at + size
                    expected = header.next_offset
                    continue
                if header.base_offset >= wanted.end:
                    if at == begin:
                        expected = wanted.end
                    break
                if at > begin and at - begin + size > wanted.max_bytes:
                    break
                if at + size > len(view):
                    needed = size
                    break
                if crc32c(view[at + CRC_START : at + size]) != header.crc:
                    raise self._damaged(segment, entry.position + at, expected, "the CRC is wrong")
            except DamageFoundError:
                if at > begin:
                    # Whole batches before the damage are as good as ever.
                    break
                raise
            at += size
            expected = header.next_offset
        return _Cut(begin, at, expected, at, needed)

    def _header(
        self, segment: Segment, view: memoryview, position: int, at: int, expected: Offset
    ) -> BatchHeader:
        """The header at `at`, if it is the one that must be there."""
        try:
            header = parse_header(view, at)
        except LogError as error:
            raise self._damaged(segment, position + at, expected, error.message) from error
        base_offset = header.base_offset
        if base_offset != expected and not (expected < base_offset < self._core.gaps_below):
            reason = f"base offset {base_offset} where {expected} belongs"
            raise self._damaged(segment, position + at, expected, reason)
        epoch = self._core.leader_epochs.epoch_for(base_offset)
        if epoch is not None and header.partition_leader_epoch != epoch:
            reason = f"leader epoch {header.partition_leader_epoch} instead of {epoch}"
            raise self._damaged(segment, position + at, expected, reason)
        if position + at + header.size_bytes > segment.size_bytes:
            reason = f"{header.size_bytes} bytes claimed, which the segment does not have"
            raise self._damaged(segment, position + at, expected, reason)
        return header

    def _damaged(
        self, segment: Segment, position: int, offset: Offset, reason: str
    ) -> DamageFoundError:
        where = f"{segment.path} at {position}, offset {offset}"
        return DamageFoundError(
            DamagedRange(segment.base_offset, position, offset), f"{where}: {reason}"
        )


def _part(chunk: Buffer, begin: int, finish: int) -> bytes | memoryview:
    if isinstance(chunk, bytes) and begin == 0 and finish == len(chunk):
        return chunk
    return memoryview(chunk).toreadonly()[begin:finish]
