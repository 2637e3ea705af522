"""What a follower checks of the batches that its leader sent, before one byte of them is written.

The leader has stamped them: their offsets and epochs are to be kept, and their bytes written as
they are. So a follower checks what would make its log differ from the leader's, or unreadable at
its own next start: whole batches, their CRCs, offsets that go on where the log ends, epochs that do
not go back. Offsets may jump ahead, since compaction takes batches out of a leader's log.

Cost is per batch, not per record: a header and a CRC.
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from raftlog.record.errors import CORRUPT_BATCH, LogError
from raftlog.record.header import CRC_START, BatchHeader, parse_header
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.storage.index import POSITION_MAX, RELATIVE_OFFSET_MAX
from raftlog.world import Buffer


class FetchedBatches(NamedTuple):
    """Batches that may follow at the end of the log."""

    headers: list[BatchHeader]
    size_bytes: int
    next_offset: Offset
    """Where the log ends behind them."""
    gap_to: Offset | None
    """Base offset of the last batch that does not begin where the one before it ended, if any."""


def check_fetched(
    data: Buffer, end_offset: Offset, last_epoch: LeaderEpoch, leader_epoch: LeaderEpoch
) -> FetchedBatches:
    """Take apart what a leader sent for a log that ends at `end_offset`, or refuse all of it.

    `last_epoch` is the epoch of the log's last record, `leader_epoch` the sender's: epochs of the
    batches lie between them, and do not go back. Raises LogError(CORRUPT_BATCH).
    """
    view = memoryview(data)
    size_bytes = view.nbytes
    headers: list[BatchHeader] = []
    expected, epoch = end_offset, last_epoch
    gap_to: Offset | None = None
    position = 0
    while position < size_bytes:
        header = parse_header(view, position)
        following = position + header.size_bytes
        if following > size_bytes:
            raise _refused(
                header, f"it is cut off: {size_bytes - position} of {header.size_bytes} bytes"
            )
        if header.base_offset != expected:
            if header.base_offset < expected:
                raise _refused(header, f"the log goes on at {expected}")
            gap_to = header.base_offset
        if not epoch <= header.partition_leader_epoch <= leader_epoch:
            raise _refused(
                header,
                f"leader epoch {header.partition_leader_epoch} after {epoch}, from a leader of "
                f"epoch {leader_epoch}",
            )
        if crc32c(view[position + CRC_START : following]) != header.crc:
            raise _refused(header, "its CRC does not match")
        headers.append(header)
        expected, epoch = header.next_offset, header.partition_leader_epoch
        position = following
    if not headers:
        raise LogError(CORRUPT_BATCH, "The leader sent no record batch.")
    if expected - end_offset > RELATIVE_OFFSET_MAX or size_bytes > POSITION_MAX:
        raise LogError(CORRUPT_BATCH, "The leader sent more than one segment can hold.")
    return FetchedBatches(headers, size_bytes, expected, gap_to)


def _refused(header: BatchHeader, reason: str) -> LogError:
    return LogError(
        CORRUPT_BATCH, f"The leader's batch at offset {header.base_offset} is refused: {reason}."
    )
