"""Rebuild the aborted transactions of segments from the headers of the log's batches.

The entries of a segment depend on all segments before, since a transaction may start in any of
them.
"""

from __future__ import annotations

from collections.abc import Sequence

from raftlog.record.control import MARKER_SIZE, Marker, parse_marker
from raftlog.record.header import BatchHeader
from raftlog.record.types import Offset
from raftlog.storage.segments.index import OffsetEntry
from raftlog.storage.segments.segments import Segment, header_at
from raftlog.storage.transactions.transactions import AbortedEntry
from raftlog.world import DiskError, File


class TransactionTracker:
    """Open transactions, derived only from a log's batches, from its first segment on."""

    def __init__(self) -> None:
        self._open: dict[int, Offset] = {}
        """First offset by producer id."""

    def take(self, header: BatchHeader, marker: Marker | None) -> AbortedEntry | None:
        """Count the next batch, and return the transaction that an abort marker ends."""
        producer_id = header.producer_id
        if not header.is_transactional:
            return None
        if not header.is_control:
            if header.record_count:
                self._open.setdefault(producer_id, header.base_offset)
            return None
        if marker is None and header.record_count:
            return None
        first_offset = self._open.pop(producer_id, None)
        if first_offset is None or marker is None or marker.commit:
            return None
        last_offset = header.last_offset
        stable_offset = min(self._open.values(), default=Offset(last_offset + 1))
        return AbortedEntry(producer_id, first_offset, last_offset, stable_offset)

    def walk(self, segment: Segment, size_bytes: int) -> list[AbortedEntry]:
        """Count a segment's batches up to a position, by their headers.

        Raises DiskError, also for a damaged batch, since an unknown start would make aborted
        records look committed. Blocks.
        """
        found: list[AbortedEntry] = []
        with segment.files.lease(segment.path) as file:
            at = OffsetEntry(segment.base_offset, 0)
            while at.position < size_bytes:
                header = header_at(file, at, size_bytes)
                if header is None:
                    raise DiskError(f"{segment.path} at {at.position}: damaged")
                aborted = self.take(header, read_marker(file, at.position, header))
                if aborted is not None:
                    found.append(aborted)
                at = OffsetEntry(header.next_offset, at.position + header.size_bytes)
        return found


def read_marker(file: File, position: int, header: BatchHeader) -> Marker | None:
    """The marker at `position`, or None for any other batch. Blocks. Raises DiskError."""
    if not header.is_control or header.size_bytes != MARKER_SIZE:
        return None
    return parse_marker(header, file.read(position, MARKER_SIZE))


def aborted_in_last(segments: Sequence[Segment], sizes: Sequence[int]) -> list[AbortedEntry]:
    """The entries of the last segment. Blocks. Raises DiskError.

    `segments` are all segments up to it, from the log's first, with their sizes.
    """
    tracker = TransactionTracker()
    entries: list[AbortedEntry] = []
    for segment, size_bytes in zip(segments, sizes, strict=True):
        entries = tracker.walk(segment, size_bytes)
    return entries
