"""A read's partitions have records in its response, and moves of positions. Pure.

A cluster returns a JSON array of whole records. The response takes records in order until the
bounds, and the position of a partition moves to the first record left out.
"""

from __future__ import annotations

from typing import Final

import msgspec

from raftlog.api.instances import PlannedPosition, PositionMove, ReadPartition
from raftlog.record.errors import INTERNAL, LogError
from raftlog.record.types import Offset
from raftlog.rest.v2.instance_reads import ReadPart, Room

SEPARATOR_BYTES: Final = 1


class _RecordOffset(msgspec.Struct, frozen=True):
    """The one field of a record needed for a cut."""

    offset: int


_array_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_offset_decoder = msgspec.json.Decoder(_RecordOffset)


Part = ReadPart[PlannedPosition]


def part_of(plan: PlannedPosition) -> Part:
    """A partition of the read, at its planned position."""
    return Part(plan, f"{plan.topic}-{plan.partition}", plan.offset)


def key_of(part: Part) -> ReadPartition:
    """The partition in the home cluster, by the id of its stub topic."""
    return ReadPartition(part.place.topic_id, part.place.partition)


def move_of(part: Part) -> PositionMove:
    """The move of the position."""
    place = part.place
    offset = Offset(part.offset)
    return PositionMove(
        place.topic_id, place.partition, part.planned, offset, reset_to=part.reset_to
    )


def take(room: Room, part: Part, body: bytes, following: int) -> int:
    """Take the records of a response until the bounds. Returns the kept bytes.

    `following` is the offset behind all records. A first record of the whole response is taken
    whatever its size. Raises LogError INTERNAL for a body of another shape.
    """
    try:
        records = _array_decoder.decode(body)
        kept: list[bytes] = []
        size_bytes = 0
        for record in records:
            data = bytes(record)
            size = len(data) + SEPARATOR_BYTES
            is_over = room.size_bytes + size_bytes + size > room.bytes_max
            if (is_over and (room.count or kept)) or (room.count + len(kept) >= room.records_max):
                room.is_cut = True
                following = _offset_decoder.decode(data).offset
                break
            kept.append(data)
            size_bytes += size
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LogError(INTERNAL, f"{part.name}: the cluster's response: {error}") from error
    if kept:
        part.pieces.append(b",".join(kept))
        room.count += len(kept)
        room.size_bytes += size_bytes
    part.offset = following
    return size_bytes
