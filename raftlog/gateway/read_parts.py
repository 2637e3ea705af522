"""The partitions of one read: the records in its answer, the moves of positions. Pure.

A cluster answers a JSON array of whole records. The answer takes records in order until the
bounds, and the position of a partition moves to the first record left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from raftlog.api.instances import NO_POSITION, PlannedPosition, PositionMove, ReadPartition
from raftlog.record.errors import INTERNAL, LogError
from raftlog.record.types import Offset

SEPARATOR_BYTES: Final = 1


class _RecordOffset(msgspec.Struct, frozen=True):
    """The one field of a record needed for a cut."""

    offset: int


_array_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_offset_decoder = msgspec.json.Decoder(_RecordOffset)


@dataclass(slots=True, eq=False)
class Part:
    """A partition of the read."""

    plan: PlannedPosition
    offset: int = NO_POSITION
    """To be read next; NO_POSITION: not reached yet."""
    reset_to: int = NO_POSITION
    pieces: list[bytes] = field(default_factory=list)
    """JSON of records, without the brackets around all of them."""
    is_tried: bool = False
    """Whether it had a turn."""
    error: LogError | None = None
    """In the way of its records, until a seek past it."""

    def __post_init__(self) -> None:
        self.offset = self.plan.offset

    @property
    def log(self) -> str:
        """The log's name."""
        return self.plan.topic

    @property
    def name(self) -> str:
        """Log and partition, for messages."""
        return f"{self.plan.topic}-{self.plan.partition}"

    @property
    def pair(self) -> tuple[str, int]:
        """The partition, by the id of its stub topic."""
        return self.plan.topic_id, self.plan.partition

    @property
    def key(self) -> ReadPartition:
        """The same, in the home cluster's shape."""
        return ReadPartition(*self.pair)

    @property
    def move(self) -> PositionMove | None:
        """The move of the position; None: there is none."""
        if self.offset in (self.plan.offset, NO_POSITION):
            return None
        return PositionMove(*self.pair, self.plan.offset, Offset(self.offset), self.reset_to)

    def reset(self, offset: int) -> None:
        """Go on where `auto_offset_reset` begins."""
        self.offset = self.reset_to = offset


@dataclass(slots=True)
class AnswerBounds:
    """How much the answer may still take."""

    bytes_max: int
    records_max: int
    count: int = 0
    size_bytes: int = 0
    is_cut: bool = False
    """Whether a record was left out."""

    @property
    def is_full(self) -> bool:
        """Whether no further record is wanted."""
        return self.is_cut or self.size_bytes >= self.bytes_max or self.count >= self.records_max

    def share(self, parts: int) -> tuple[int, int]:
        """Bytes for each of so many partitions, records for any one; at least 1 each."""
        left = (self.bytes_max - self.size_bytes) // max(parts, 1)
        return max(left, 1), max(self.records_max - self.count, 1)

    def take(self, part: Part, body: bytes, following: int) -> int:
        """Take the records of an answer until the bounds; returns the kept bytes.

        `following` is the offset behind all records. A first record of the whole answer is taken
        whatever its size. Raises LogError INTERNAL for a body of another shape.
        """
        try:
            records = _array_decoder.decode(body)
            kept: list[bytes] = []
            size_bytes = 0
            for record in records:
                data = bytes(record)
                size = len(data) + SEPARATOR_BYTES
                is_over = self.size_bytes + size_bytes + size > self.bytes_max
                if (is_over and (self.count or kept)) or (
                    self.count + len(kept) >= self.records_max
                ):
                    self.is_cut = True
                    following = _offset_decoder.decode(data).offset
                    break
                kept.append(data)
                size_bytes += size
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LogError(INTERNAL, f"{part.name}: the cluster's answer: {error}") from error
        if kept:
            part.pieces.append(b",".join(kept))
            self.count += len(kept)
            self.size_bytes += size_bytes
        part.offset = following
        return size_bytes
