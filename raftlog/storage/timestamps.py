"""Find the first record that is not older than a given time.

Segments and time index entries tell how young records may be at most, so they rule out everything
in front; batch headers narrow it down to a batch; only that batch is decoded.
"""

from __future__ import annotations

from typing import Final

from raftlog.record.batch import RecordBatch, iterate_batches
from raftlog.record.codec import decode
from raftlog.record.types import Offset
from raftlog.storage.core import LogCore
from raftlog.storage.index import OffsetEntry
from raftlog.storage.reader import LogReader
from raftlog.storage.segment import Segment, header_at

DECOMPRESSED_BYTES_MAX: Final = 256 << 20
"""What the one batch that is decoded may unpack to."""
ATTEMPTS_MAX: Final = 1000
"""Batches whose header promises a young enough record and whose records break the promise."""


async def find_offset_for_timestamp(
    core: LogCore, reader: LogReader, timestamp_ms: int, end: Offset
) -> tuple[Offset, int] | None:
    """The first record below `end` with a timestamp of at least `timestamp_ms`.

    Raises DiskError, DamageFoundError.
    """
    offset = core.segments.log_start_offset
    for _ in range(ATTEMPTS_MAX):
        generation = core.segments.generation
        candidate = await _candidate(core, timestamp_ms, offset, end)
        if candidate is None:
            if generation == core.segments.generation:
                return None
            continue
        candidate = max(candidate, core.segments.log_start_offset)
        result = await reader.read(candidate, end=end, max_bytes=1)
        for batch in iterate_batches(result.data, check_crc=False):
            found = _in_batch(batch, timestamp_ms, core.segments.log_start_offset, end)
            if found is not None:
                return found
        offset = result.next_offset
        if offset >= end:
            return None
    return None


async def _candidate(core: LogCore, timestamp_ms: int, start: Offset, end: Offset) -> Offset | None:
    """Base offset of the first batch at or behind `start` whose header promises such a record."""
    for segment in core.segments.all:
        if core.segments.end_of(segment) <= start or segment.max_timestamp_ms < timestamp_ms:
            continue
        if segment.base_offset >= end:
            return None
        found = segment.time_index.search_unsaved(timestamp_ms - 1)
        saved = segment.time_index.saved, segment.offset_index.saved
        unsaved = tuple(segment.offset_index.unsaved)

        def look(
            segment: Segment = segment,
            known: tuple[int, tuple[int, int]] | None = found,
            saved: tuple[int, int] = saved,
            unsaved: tuple[tuple[int, int], ...] = unsaved,
        ) -> Offset | None:
            entry = known or segment.time_index.search_saved(timestamp_ms - 1, saved[0])
            after = start
            if entry is not None:
                after = max(after, Offset(segment.time_entry(entry[1]).last_offset + 1))
            return _first_young(segment, after, timestamp_ms, saved[1], unsaved)

        async with core.shared.cold_reads:
            candidate = await core.shared.disk.run(look)
        if candidate is not None:
            return candidate if candidate < end else None
    return None


def _first_young(
    segment: Segment,
    after: Offset,
    timestamp_ms: int,
    saved: int,
    unsaved: tuple[tuple[int, int], ...],
) -> Offset | None:
    """Walk headers from the batch that holds `after`. Blocks. Raises DiskError."""
    relative = after - segment.base_offset
    near = [entry for entry in unsaved if entry[0] <= relative]
    if near:
        at = OffsetEntry(Offset(segment.base_offset + near[-1][0]), near[-1][1])
    else:
        at = segment.hint_on_disk(after, saved)
    with segment.files.lease(segment.path) as file:
        while at.position < segment.size_bytes:
            header = header_at(file, at, segment.size_bytes)
            if header is None:
                # Damage: let the reader that is asked for this offset say so.
                return at.base_offset
            if header.next_offset > after and header.max_timestamp_ms >= timestamp_ms:
                return header.base_offset
            at = OffsetEntry(header.next_offset, at.position + header.size_bytes)
    return None


def _in_batch(
    batch: RecordBatch, timestamp_ms: int, start: Offset, end: Offset
) -> tuple[Offset, int] | None:
    header = batch.header
    if header.max_timestamp_ms < timestamp_ms or header.is_control:
        return None
    if header.is_log_append_time:
        offset = max(header.base_offset, start)
        return (offset, header.max_timestamp_ms) if offset < end else None
    for record in decode(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
        timestamp = record.timestamp
        if timestamp is not None and timestamp >= timestamp_ms and start <= record.offset < end:
            return Offset(record.offset), timestamp
    return None
