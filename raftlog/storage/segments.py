"""The segments of one log, in order, and the generation of their arrangement."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from raftlog.record.types import Offset
from raftlog.storage.checkpoints import FirstAppend
from raftlog.storage.segment import Segment

FIRST_APPENDS_MAX: Final = 16
"""Segments of one log whose age is written down; those between take the next one's."""
POSITIONS_MAX: Final = 128
"""Places where readers of one log left off that are remembered."""


class Segments:
    """Lives in the event loop. The last segment is the active one."""

    def __init__(self, segments: list[Segment], log_start_offset: Offset) -> None:
        assert segments
        self.log_start_offset = log_start_offset
        self.generation = 0
        """Grows whenever files are cut, swapped or removed: what was read across it is suspect."""
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._positions: OrderedDict[Offset, tuple[Segment, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def active(self) -> Segment:
        """The segment that takes appends."""
        return self._segments[-1]

    @property
    def end_offset(self) -> Offset:
        """Log end offset."""
        return self._segments[-1].next_offset

    def clamp(self, high_watermark: Offset) -> Offset:
        """A high watermark from a checkpoint, for the log as it was found.

        What is not here is not committed here; and all that was deleted had been committed.
        """
        return max(min(high_watermark, self.end_offset), self.log_start_offset)

    @property
    def all(self) -> tuple[Segment, ...]:
        """All of them, oldest first."""
        return tuple(self._segments)

    @property
    def size_bytes(self) -> int:
        """Sum of their sizes."""
        return sum(segment.size_bytes for segment in self._segments)

    def set_first_appends(self, known: Sequence[FirstAppend], now_ms: int) -> None:
        """At a start: tell each segment that is not empty when it took its first append.

        One that is not known by itself takes the next later one that is: too young, never too old.
        Where nothing is known (no checkpoint), it is now, once: from here on it grows old.
        """
        at_ms = now_ms
        left = list(known)
        for segment in reversed(self._segments):
            while left and left[-1].base_offset >= segment.base_offset:
                at_ms = left.pop().at_ms
            segment.first_append_ms = at_ms if segment.size_bytes else None

    def first_appends(self) -> tuple[FirstAppend, ...]:
        """What `set_first_appends` needs at the next start."""
        # The first one is always among them. So whatever the others lose by being left out, at
        # each start again, ends when they come to be the first one.
        segments = self._segments
        stride = -(-len(segments) // (FIRST_APPENDS_MAX - 2))
        last = len(segments) - (1 if segments[-1].size_bytes else 2)
        return tuple(
            FirstAppend(segment.base_offset, segment.first_append_ms)
            for number in sorted({*range(0, last, stride), max(last, 0)})
            if (segment := segments[number]).first_append_ms is not None
        )

    def number(self, offset: Offset) -> int:
        """Number of the segment that an offset belongs to."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def holding(self, offset: Offset) -> Segment:
        """The segment that an offset belongs to."""
        return self._segments[self.number(offset)]

    def end_of(self, segment: Segment) -> Offset:
        """First offset behind a segment: where the next one begins, or the log ends."""
        number = self.number(segment.base_offset)
        if number + 1 < len(self._segments):
            return self._bases[number + 1]
        return segment.next_offset

    def roll(self, segment: Segment) -> None:
        """Make `segment` the active one."""
        assert segment.base_offset == self.end_offset
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def replace(self, first: int, last: int, new: list[Segment]) -> None:
        """Put `new` in the place of the segments from number `first` up to, not with, `last`."""
        self.generation += 1
        self._segments[first:last] = new
        self._bases = [segment.base_offset for segment in self._segments]
        self._positions.clear()
        assert self._segments

    def remember(self, offset: Offset, segment: Segment, position: int) -> None:
        """The batch with base offset `offset` lies, or will lie, at `position`."""
        positions = self._positions
        positions[offset] = (segment, position)
        positions.move_to_end(offset)
        if len(positions) > POSITIONS_MAX:
            positions.popitem(last=False)

    def remembered(self, offset: Offset, segment: Segment) -> int | None:
        """The position of that batch in that segment, if known."""
        if offset == segment.base_offset:
            return 0
        found = self._positions.get(offset)
        return found[1] if found is not None and found[0] is segment else None
