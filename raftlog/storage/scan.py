"""Walk a segment file batch by batch, checking everything that can be checked.

What a batch must satisfy to be part of the log: a header that can be one, the base offset that
follows from the batch before (compaction may leave gaps), a leader epoch that does not go back, all
its bytes there, and its CRC. Base offset and leader epoch lie outside the CRC: the rules on their
order are what protects them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from raftlog.record.batch import check_batch
from raftlog.record.errors import LogError
from raftlog.record.header import CRC_START, HEADER_SIZE, MAGIC, BatchHeader, parse_header
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.world import File

SCAN_CHUNK_BYTES: Final = 1 << 20
OFFSET_BYTES: Final = 8
LATER_BATCH_BYTES_MAX: Final = 256 << 20
"""How far behind an invalid batch a valid one is looked for. No single append is that long."""

Visit: TypeAlias = Callable[[int, BatchHeader], None]
"""Called with each valid batch's position and header, in order."""


class Stop(StrEnum):
    """Why a scan ended where it did."""

    END = "end"
    """The last batch ends exactly where the file does."""
    INCOMPLETE = "incomplete"
    """The file ends in the middle of what may be a valid batch."""
    INVALID = "invalid"
    """Bytes that no write of ours left there."""


class ScanEnd(NamedTuple):
    """Where a scan ended: the first position, and offset, that is not a valid batch."""

    position: int
    next_offset: Offset
    stop: Stop
    reason: str


class Expectation(NamedTuple):
    """What the next batch must satisfy."""

    next_offset: Offset
    leader_epoch: LeaderEpoch
    gaps_below: Offset
    """Below this offset, base offsets may jump ahead: compaction took batches out."""


def mismatch(header: BatchHeader, expected: Expectation) -> str | None:
    """Why a batch cannot follow here; None if it can."""
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
    """Fewer bytes are left than a header has. A torn write left the beginning of a valid one."""
    begins_well = len(rest) < OFFSET_BYTES or _may_begin_at(
        int.from_bytes(rest[:OFFSET_BYTES], "big", signed=True), expected
    )
    begins_well = begins_well and (len(rest) <= 16 or rest[16] == MAGIC)
    stop = Stop.INCOMPLETE if begins_well else Stop.INVALID
    return ScanEnd(position, expected.next_offset, stop, f"{len(rest)} bytes of a header")


def _cut_off(
    file: File, position: int, end: int, header: BatchHeader, expected: Expectation
) -> ScanEnd:
    """The batch claims more bytes than there are: torn, unless only its length is wrong."""
    rest = file.read(position, min(end - position, LATER_BATCH_BYTES_MAX))
    if crc32c(memoryview(rest)[CRC_START:]) == header.crc:
        reason = f"whole, but claims a length of {header.size_bytes} instead of {len(rest)}"
        return ScanEnd(position, expected.next_offset, Stop.INVALID, reason)
    reason = f"{end - position} of {header.size_bytes} bytes"
    return ScanEnd(position, expected.next_offset, Stop.INCOMPLETE, reason)


def find_later_batch(file: File, position: int, end: int, next_offset: Offset) -> Offset | None:
    """Base offset of a valid batch anywhere behind an invalid one at `position`; None if none.

    Blocks. Raises DiskError. Beyond LATER_BATCH_BYTES_MAX it does not look.
    """
    data = file.read(position, min(end - position, LATER_BATCH_BYTES_MAX))
    # Base offsets of batches that can follow share their upper five bytes with the next one (or,
    # at a carry, differ from it by one there): search for those instead of trying every byte.
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
        # Most places that look like a base offset are none.
        return None
    if header.base_offset < next_offset or not check_batch(data, at, header):
        return None
    return header.base_offset
