"""Walk a segment file batch by batch, with all possible checks.

A batch of the log has a possible header, the base offset that follows the batch before (compaction
may leave gaps), a leader epoch that does not go back, all its bytes, and its CRC. Base offset and
leader epoch lie outside the CRC, so only the rules on their order protect these two.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from raftlog.record.batch import check_batch
from raftlog.record.errors import LogError
from raftlog.record.header import CRC_START, HEADER_SIZE, MAGIC, BatchHeader, parse_header
from raftlog.record.types import Buffer, LeaderEpoch, Offset
from raftlog.world import File

SCAN_CHUNK_BYTES: Final = 1 << 20
OFFSET_BYTES: Final = 8
LATER_BATCH_BYTES_MAX: Final = 256 << 20
"""Range in bytes of the search for a valid batch after an invalid batch. No single append is
longer."""

Visit: TypeAlias = Callable[[int, BatchHeader], None]
"""Called with each valid batch's position and header, in order."""


class Stop(StrEnum):
    """Reason why a scan ended."""

    END = "end"
    """The last batch ends exactly where the file does."""
    INCOMPLETE = "incomplete"
    """The file ends in the middle of a possibly valid batch."""
    INVALID = "invalid"
    """The file has bytes that no write left."""


class ScanEnd(NamedTuple):
    """End of a scan, with position and offset of the first invalid batch."""

    position: int
    next_offset: Offset
    stop: Stop
    reason: str


class Expectation(NamedTuple):
    """Conditions on the next batch."""

    next_offset: Offset
    leader_epoch: LeaderEpoch
    gaps_below: Offset
    """Offset below which base offsets may jump ahead, because compaction removed batches."""


def mismatch(header: BatchHeader, expected: Expectation) -> str | None:
    """Reason why a batch cannot follow here, or None if valid."""
    base_offset = header.base_offset
    if not _may_begin_at(base_offset, expected):
        return f"base offset {base_offset} where {expected.next_offset} follows"
    if header.partition_leader_epoch < expected.leader_epoch:
        return f"leader epoch {header.partition_leader_epoch} after epoch {expected.leader_epoch}"
    return None


def _may_begin_at(base_offset: int, expected: Expectation) -> bool:
    return base_offset == expected.next_offset or (
        expected.next_offset < base_offset < expected.gaps_below
    )


def next_batch(
    buffer: Buffer, at: int, expected: Expectation, *, is_whole: bool = True
) -> BatchHeader | None:
    """The header at `at`, or None if its batch cannot be the next.

    With `is_whole`, the batch must be complete and its CRC right.
    """
    try:
        header = parse_header(buffer, at)
    except LogError:
        return None  # a result, not a failure, as it is damaged or cut off
    if mismatch(header, expected) is not None:
        return None
    return header if not is_whole or check_batch(buffer, at, header) else None


def scan(file: File, position: int, end: int, expected: Expectation, visit: Visit) -> ScanEnd:
    """Visit every valid batch from `position` to `end`. Blocks. Raises DiskError."""
    chunk = b""
    chunk_position = position
    while position < end:
        offset = position - chunk_position
        if len(chunk) - offset < HEADER_SIZE:
            chunk, chunk_position, offset = file.read(position, SCAN_CHUNK_BYTES), position, 0
            if len(chunk) < HEADER_SIZE:
                return _incomplete(chunk, position, expected)
        try:
            header = parse_header(chunk, offset)
        except LogError as error:
            return ScanEnd(position, expected.next_offset, Stop.INVALID, error.message)
        reason = mismatch(header, expected)
        if reason is not None:
            return ScanEnd(position, expected.next_offset, Stop.INVALID, reason)
        size = header.size_bytes
        if position + size > end:
            return _cut_off(file, position, end, header, expected)
        if offset + size > len(chunk):
            chunk = file.read(position, max(size, SCAN_CHUNK_BYTES))
            chunk_position, offset = position, 0
        if not check_batch(chunk, offset, header):
            return ScanEnd(position, expected.next_offset, Stop.INVALID, "the CRC does not match")
        visit(position, header)
        position += size
        expected = Expectation(
            header.next_offset, header.partition_leader_epoch, expected.gaps_below
        )
    return ScanEnd(position, expected.next_offset, Stop.END, "")


def _incomplete(rest: bytes, position: int, expected: Expectation) -> ScanEnd:
    """Judge bytes shorter than a header. A torn write leaves the start of a valid header."""
    begins_well = len(rest) < OFFSET_BYTES or _may_begin_at(
        int.from_bytes(rest[:OFFSET_BYTES], "big", signed=True), expected
    )
    begins_well = begins_well and (len(rest) <= 16 or rest[16] == MAGIC)
    stop = Stop.INCOMPLETE if begins_well else Stop.INVALID
    return ScanEnd(position, expected.next_offset, stop, f"{len(rest)} bytes of a header")


def _cut_off(
    file: File, position: int, end: int, header: BatchHeader, expected: Expectation
) -> ScanEnd:
    """Judge a batch longer than the file. It is torn, unless only its length is wrong."""
    rest = file.read(position, min(end - position, LATER_BATCH_BYTES_MAX))
    if crc32c(memoryview(rest)[CRC_START:]) == header.crc:
        reason = f"whole, but claims a length of {header.size_bytes} instead of {len(rest)}"
        return ScanEnd(position, expected.next_offset, Stop.INVALID, reason)
    reason = f"{end - position} of {header.size_bytes} bytes"
    return ScanEnd(position, expected.next_offset, Stop.INCOMPLETE, reason)


def find_later_batch(file: File, position: int, end: int, next_offset: Offset) -> Offset | None:
    """Base offset of a valid batch anywhere behind an invalid batch at `position`.

    None if none. Blocks. Raises DiskError. The search ends after LATER_BATCH_BYTES_MAX.
    """
    data = file.read(position, min(end - position, LATER_BATCH_BYTES_MAX))
    # Base offsets of possible later batches share their upper five bytes with `next_offset` (or, at
    # a carry, differ by 1 there). Searching for these bytes replaces trying every position.
    upper = {offset.to_bytes(8, "big")[:5] for offset in (next_offset, next_offset + (1 << 24))}
    for pattern in sorted(upper):
        at = data.find(pattern, 1)
        while at >= 0:
            found = _batch_at(data, at, next_offset)
            if found is not None:
                return found
            at = data.find(pattern, at + 1)
    return None


def _batch_at(data: bytes, at: int, next_offset: Offset) -> Offset | None:
    if at + HEADER_SIZE > len(data) or data[at + 16] != MAGIC:
        return None
    try:
        header = parse_header(data, at)
    except LogError:
        # Most matches are no base offsets.
        return None
    if header.base_offset < next_offset or not check_batch(data, at, header):
        return None
    return header.base_offset
