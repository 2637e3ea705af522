"""The committed batches of one partition, in order, from the first replica with the high watermark.

Compaction ends at the last stable offset, so every batch is read here before compaction rewrites
the batch. Retention may delete batches of a replica that was down: these are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

from raftlog.record.batch import RecordBatch
from raftlog.record.errors import LogError
from raftlog.record.header import parse_header
from raftlog.record.types import Offset
from raftlog.storage.log.log import Log
from tests.simulation.disk import SimulatedDisk


class Span(NamedTuple):
    """An ended transaction: first offset, offset of its marker."""

    first: int
    marker: int


class Cursor(NamedTuple):
    """A place in the files of one log; valid for one generation of the segments."""

    generation: int
    segment: int
    position: int


@dataclass
class CommittedLog:
    """The committed batches of one partition, over all replicas."""

    name: str
    end: int = 0
    """All batches below were taken."""
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Producer id to the epoch and first offset of its open transaction."""
    spans: list[Span] = field(default_factory=list)
    """In the order of their markers."""
    epochs: dict[int, int] = field(default_factory=dict)
    """Producer id to its newest epoch, of a batch or marker."""
    coordinator_epochs: dict[int, int] = field(default_factory=dict)
    """Producer id to the newest marker's coordinator epoch."""
    _cursors: WeakKeyDictionary[Log, Cursor] = field(default_factory=WeakKeyDictionary)

    def new_batches(
        self, log: Log, disk: SimulatedDisk, high_watermark: int
    ) -> Iterator[RecordBatch]:
        """The batches from `end` to the high watermark of a replica."""
        if high_watermark <= self.end:
            return
        generation = log.segments.generation
        cursor = self._cursors.get(log)
        if cursor is None or cursor.generation != generation:
            number = log.segments.number(Offset(max(self.end, log.segments.log_start_offset)))
            cursor = Cursor(generation, int(log.segments.all[number].base_offset), 0)
        at, position = cursor.segment, cursor.position
        for segment in log.segments.all[log.segments.number(Offset(at)) :]:
            if segment.base_offset != at:
                at, position = int(segment.base_offset), 0
            data = disk._inode(segment.path).written
            while position < segment.size_bytes and self.end < high_watermark:
                try:
                    header = parse_header(data, position)
                except LogError:
                    # Lost in a power cut: another replica has the batch.
                    return
                if header.next_offset > high_watermark:
                    return
                following = position + header.size_bytes
                if header.base_offset >= self.end:
                    self.end = int(header.next_offset)
                    yield RecordBatch(header, memoryview(bytes(data[position:following])))
                position = following
                self._cursors[log] = Cursor(generation, at, position)

    def first_unstable(self, high_watermark: int, *, is_compacted: bool) -> int | None:
        """The first offset of the earliest transaction without a marker below.

        A compacted replica may lack the records of a transaction that has ended elsewhere: a
        follower fetches what compaction has left.
        """
        firsts = [first for _, first in self.open.values() if first < high_watermark]
        for span in () if is_compacted else reversed(self.spans):
            if span.marker < high_watermark:
                break
            if span.first < high_watermark:
                firsts.append(span.first)
        return min(firsts, default=None)
