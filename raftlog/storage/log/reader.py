"""Read whole, checked batches from a log.

A read is one `pread` of the requested size, from the page cache if cached, else by a disk thread.
Then follow a walk over the headers with a CRC check of each batch, and a view of the requested
part. No record is parsed and no byte is copied again. Memory is bounded by the requested size and
one batch, whatever the backlog.

A reader holds no lock. Bytes read while files were cut, swapped or removed (`generation`) are
discarded and read again.

A lookup by time rules out older records by segments and time index entries, which bound the age of
their records. Then batch headers narrow the search to one batch. Only this batch is decoded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

from crc32c import crc32c

from raftlog.record.batch import RecordBatch, iterate_batches
from raftlog.record.codec import iterate_records
from raftlog.record.errors import OFFSET_OUT_OF_RANGE, OVERLOADED, STORAGE_FAILED, LogError
from raftlog.record.header import CRC_START, HEADER_SIZE, BatchHeader, parse_header
from raftlog.record.types import AbortedTransaction, Offset
from raftlog.storage.log.core import LogCore
from raftlog.storage.segments.index import OffsetEntry
from raftlog.storage.segments.segments import Segment, header_at, walk
from raftlog.storage.transactions.aborted_index import Wanted
from raftlog.storage.transactions.aborted_lookup import find_aborted
from raftlog.storage.types import DamagedRange, ReadResult
from raftlog.world import Buffer, DiskError

_T = TypeVar("_T")

READ_BYTES_MAX: Final = 16 << 20
"""Most bytes of one read, unless one batch is larger."""
READ_BYTES_MIN: Final = 16 << 10
"""Least bytes of one read. A smaller read costs as much, and mostly has to be followed by another
read."""
DAMAGED_RANGES_MAX: Final = 16
"""Most damaged places of one log that are remembered and logged."""
ATTEMPTS_MAX: Final = 100
"""Most reads of one request, when retention, truncation or compaction keep changing the files."""

logger = logging.getLogger(__name__)


class DamageFoundError(Exception):
    """A batch on disk fails its check."""

    def __init__(self, damaged: DamagedRange, reason: str) -> None:
        super().__init__(reason)
        self.damaged = damaged
        self.reason = reason


class _Cut(NamedTuple):
    """The part of a chunk to return."""

    begin: int
    finish: int
    next_offset: Offset
    """First offset after the batches walked. It is the end of the result, or the next offset to
    search."""
    position: int
    """Position of `next_offset`, relative to the chunk. It is beyond the chunk if a batch is to be
    skipped."""
    wanted_bytes: int
    """Size of the batch at `position` if the result is empty, or 0."""


class _Wanted(NamedTuple):
    """Batches with records from `start` on that begin before `end`."""

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
        """Approximate size of the last batch over the requested size. It is 0 once batches fit
        again. The next batch is mostly as large, and would be read twice."""

    async def read(self, start: Offset, *, end: Offset, max_bytes: int) -> ReadResult:
        """Read whole, checked batches from the batch that holds `start`.

        Returns `max_bytes`, or one batch if larger. No batch starts at or after `end`, so there is
        none if `start >= end`. Raises LogError, OFFSET_OUT_OF_RANGE with the readable range, or
        STORAGE_FAILED where the disk does not return the bytes once written.
        """
        core = self._core
        core.require_online()
        self._check_range(start)
        end = min(end, core.segments.end_offset)
        if start >= end:
            return ReadResult(b"", start)
        try:
            result = await self.read_raw(start, end=end, max_bytes=max_bytes)
        except DamageFoundError as error:
            raise self._note_damage(error) from error
        except DiskError as error:
            raise self._unreadable(start, error) from error
        # Bytes read while the log ended may be of other files under the same names.
        core.require_online()
        if not result.data:
            # Retention may have been faster.
            self._check_range(start)
        return result

    async def read_committed(
        self, start: Offset, *, end: Offset, max_bytes: int
    ) -> tuple[ReadResult, tuple[AbortedTransaction, ...]]:
        """Read as `read`, for an `end` up to the last stable offset.

        Also returns the aborted transactions with offsets in the result, by their first offsets.
        """
        segments = self._segments
        for _ in range(ATTEMPTS_MAX):
            generation = segments.generation
            result = await self.read(start, end=end, max_bytes=max_bytes)
            if not result.data:
                return result, ()
            try:
                found = await find_aborted(self._core, Wanted(start, result.next_offset))
            except DiskError as error:
                if generation == segments.generation:
                    raise self._unreadable(start, error) from error
                continue
            if generation == segments.generation:
                found.sort(key=lambda entry: entry.first_offset)
                return result, tuple(
                    AbortedTransaction(entry.producer_id, entry.first_offset) for entry in found
                )
            # A marker may have been removed with its segment since the records were read.
        raise LogError(OVERLOADED, f"{self._core.directory}: its files kept changing.")

    async def offset_for_timestamp(
        self, timestamp_ms: int, *, end: Offset
    ) -> tuple[Offset, int] | None:
        """Offset and timestamp of the first record below `end` not older than `timestamp_ms`.

        Raises LogError(STORAGE_FAILED).
        """
        core = self._core
        core.require_online()
        end = min(end, core.segments.end_offset)
        try:
            async with core.shared.lookups:
                return await _find_offset_for_timestamp(core, self, timestamp_ms, end)
        except DamageFoundError as error:
            raise self._note_damage(error) from error
        except DiskError as error:
            raise self._unreadable(None, error) from error

    async def offset_of_newest_timestamp(self, *, end: Offset) -> tuple[Offset, int] | None:
        """Offset and timestamp of the first record below `end` with the largest timestamp.

        None if no record has a timestamp. Raises LogError(STORAGE_FAILED).
        """
        segments = self._segments.all
        # Markers and records from `end` on also count, so the largest may be none of a record
        # below.
        newest = max(
            (segment.max_timestamp_ms for segment in segments if segment.base_offset < end),
            default=-1,
        )
        found: tuple[Offset, int] | None = None
        oldest, wanted, step = 0, newest, 1
        while oldest <= newest:
            hit = await self.offset_for_timestamp(wanted, end=end)
            if hit is None:
                newest = wanted - 1
            else:
                found = hit
                oldest = hit[1] + 1
            if found is None:
                # Most often the record is just before, since markers follow their records at once.
                wanted = max(0, newest - step)
                step *= 4
            else:
                wanted = (oldest + newest + 1) // 2
        return found

    def _check_range(self, offset: Offset) -> None:
        segments = self._segments
        if not segments.log_start_offset <= offset <= segments.end_offset:
            raise LogError(
                OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is out of range: {segments.log_start_offset} to "
                f"{segments.end_offset} can be read.",
            )

    def _note_damage(self, error: DamageFoundError) -> LogError:
        place = (error.damaged.segment_base_offset, error.damaged.position)
        known = self._core.damaged_ranges
        if place not in known and len(known) < DAMAGED_RANGES_MAX:
            known[place] = error.damaged
            logger.error("damage on disk: %s", error.reason)
        self._core.report_damage(error.reason, error.damaged.segment_base_offset)
        return LogError(STORAGE_FAILED, f"Damaged on disk and not served: {error.reason}.")

    def _unreadable(self, offset: Offset | None, error: DiskError) -> LogError:
        # The log stays in service, since one unreadable place does not concern the others.
        directory = self._core.directory
        place = directory if offset is None else f"{directory}: offset {offset}"
        base = None if offset is None else self._segments.holding(offset).base_offset
        self._core.report_damage(f"{place} cannot be read: {error}", base)
        return LogError(STORAGE_FAILED, f"{place} cannot be read: {error}")

    async def read_raw(self, start: Offset, *, end: Offset, max_bytes: int) -> ReadResult:
        """Read as `read`, for a `start` and an `end` in the log. Damage is only raised.

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
        """A batch at or before `offset`, and its position."""
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
        """Find and check the wanted batches in a chunk beginning at `entry`."""
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
                    # This batch is before the wanted batches. Its records may not even be in the
                    # chunk.
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
        return _Cut(begin=begin, finish=at, next_offset=expected, position=at, wanted_bytes=needed)

    def _header(
        self, segment: Segment, view: memoryview, position: int, at: int, expected: Offset
    ) -> BatchHeader:
        """The header at `at`, checked against its neighbours and the epoch history."""
        try:
            header = parse_header(view, at)
        except LogError as error:
            raise self._damaged(segment, position + at, expected, error.message) from error
        base_offset = header.base_offset
        if base_offset != expected and not (
            expected < base_offset < self._core.gaps_below
            # The CRC does not cover the offset, so a flipped bit may look like a gap of compaction.
            and header.next_offset <= self._segments.end_of(segment)
        ):
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


DECOMPRESSED_BYTES_MAX: Final = 256 << 20
"""Most decompressed bytes of the decoded batch."""
HEADERS_PER_STEP_MAX: Final = 10_000
"""Most headers read by one step of a lookup. Other cold reads take turns with it."""


async def _find_offset_for_timestamp(
    core: LogCore, reader: LogReader, timestamp_ms: int, end: Offset
) -> tuple[Offset, int] | None:
    """Find the first record below `end` with a timestamp of at least `timestamp_ms`.

    Headers are the producers' claims. A batch without the young record that its header promises, or
    without readable records, is passed over, however many there are. Raises DiskError,
    DamageFoundError, LogError(OVERLOADED) if the files keep changing.
    """
    segments = core.segments
    offset = segments.log_start_offset
    changes = 0
    while offset < end:
        generation = segments.generation
        step = await _search_step(core, timestamp_ms, offset, end)
        if generation != segments.generation:
            changes += 1
            if changes > ATTEMPTS_MAX:
                raise LogError(OVERLOADED, f"{core.directory}: its files kept changing.")
            offset = max(offset, segments.log_start_offset)
            continue
        offset = step.offset
        if not step.is_candidate:
            continue
        offset = max(offset, segments.log_start_offset)
        result = await reader.read_raw(offset, end=end, max_bytes=1)
        found = await _in_batches(core, result.data, timestamp_ms, end)
        if found is not None:
            return found
        offset = result.next_offset
    return None


class _Step(NamedTuple):
    """The result of one step of a lookup."""

    offset: Offset
    """Offset at which the search continues. No batch before promises a young enough record."""
    is_candidate: bool
    """Whether the batch at `offset` promises a young enough record."""


async def _search_step(core: LogCore, timestamp_ms: int, start: Offset, end: Offset) -> _Step:
    """Search part of a segment for a batch that promises a young enough record."""
    for segment in core.segments.all[core.segments.number(start) :]:
        if segment.base_offset >= end:
            break
        if core.segments.end_of(segment) <= start or segment.max_timestamp_ms < timestamp_ms:
            continue
        search = _Search(
            segment=segment,
            start=start,
            timestamp_ms=timestamp_ms,
            end_offset=core.segments.end_of(segment),
            known=segment.time_index.search_unsaved(timestamp_ms - 1),
            saved_times=segment.time_index.saved,
            saved_offsets=segment.offset_index.saved,
            unsaved_offsets=tuple(segment.offset_index.unsaved),
        )
        async with core.shared.cold_reads:
            step = await core.shared.disk.run(search.run)
        return step if step.offset < end else _Step(end, is_candidate=False)
    return _Step(end, is_candidate=False)


class _Search(NamedTuple):
    """One step in one segment, for a disk thread."""

    segment: Segment
    start: Offset
    timestamp_ms: int
    end_offset: Offset
    known: tuple[int, tuple[int, int]] | None
    """Unsaved time index entry to start after, if any."""
    saved_times: int
    saved_offsets: int
    unsaved_offsets: tuple[tuple[int, int], ...]

    def run(self) -> _Step:
        """Walk headers from the first batch that may be young enough. Blocks. Raises DiskError."""
        segment, timestamp_ms = self.segment, self.timestamp_ms
        entry = self.known or segment.time_index.search_saved(timestamp_ms - 1, self.saved_times)
        after = self.start
        if entry is not None:
            after = max(after, Offset(segment.time_entry(entry[1]).last_offset + 1))
        hint = self._hint(after)
        with segment.files.lease(segment.path) as file:
            at = walk(file, hint, segment.size_bytes, after)
            for _ in range(HEADERS_PER_STEP_MAX):
                if at.position >= segment.size_bytes:
                    return _Step(self.end_offset, is_candidate=False)
                header = header_at(file, at, segment.size_bytes)
                if header is None:
                    # Damage: the reader of this offset will report it.
                    return _Step(max(at.base_offset, after), is_candidate=True)
                if header.max_timestamp_ms >= timestamp_ms:
                    return _Step(max(header.base_offset, after), is_candidate=True)
                at = OffsetEntry(header.next_offset, at.position + header.size_bytes)
        return _Step(max(at.base_offset, after), is_candidate=False)

    def _hint(self, after: Offset) -> OffsetEntry:
        relative = after - self.segment.base_offset
        near = [entry for entry in self.unsaved_offsets if entry[0] <= relative]
        if near:
            return OffsetEntry(Offset(self.segment.base_offset + near[-1][0]), near[-1][1])
        return self.segment.hint_on_disk(after, self.saved_offsets)


async def _in_batches(
    core: LogCore, data: Buffer, timestamp_ms: int, end: Offset
) -> tuple[Offset, int] | None:
    start = core.segments.log_start_offset
    for batch in iterate_batches(data, check_crc=False):
        header = batch.header
        if header.max_timestamp_ms < timestamp_ms or header.is_control:
            continue
        if header.is_log_append_time:
            offset = max(header.base_offset, start)
            return (offset, header.max_timestamp_ms) if offset < end else None
        async with core.shared.decodes:
            work = partial(_first_young, batch, timestamp_ms, start, end)
            found = await core.shared.disk.run(work)
        if found is not None:
            return found
    return None


def _first_young(
    batch: RecordBatch, timestamp_ms: int, start: Offset, end: Offset
) -> tuple[Offset, int] | None:
    try:
        for record in iterate_records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
            timestamp = record.timestamp
            if timestamp is not None and timestamp >= timestamp_ms and start <= record.offset < end:
                return Offset(record.offset), timestamp
    except LogError as error:
        # The CRC is right, so the producer's records are none, or too large. Others follow.
        logger.debug("lookup by time: %s", error.message)
    return None
