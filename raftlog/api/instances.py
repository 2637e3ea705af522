"""Reads of a consumer instance by another process than the node: where to begin, the new positions.

A gateway fetches the records of other clusters itself; the instance, its membership and its offsets
stay with the coordinator of the group (docs/decisions/rest-consumers.md).
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from raftlog.api.common import OffsetNumber, OffsetOrEnd, PartitionNumber

READ_PARTITIONS_MAX: Final = 10_000
"""Partitions of one body; an instance has 1,000 at most."""
READ_WAIT_MS_MAX: Final = 10_000
"""Longest wait for a first partition in one call."""
FORMATS_MAX: Final = 16
NO_POSITION: Final = -1
"""The instance has no position yet: its `auto_offset_reset` decides."""


class BeginReadRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A read that begins, or goes on."""

    formats: Annotated[list[str], Meta(max_length=FORMATS_MAX)]
    """Record formats accepted by the client."""
    is_first: bool = True
    """False: the same read goes on, and the client may not have used earlier answers yet."""
    max_wait_ms: Annotated[int, Meta(ge=0, le=READ_WAIT_MS_MAX)] = 0
    """Time to wait for a first partition."""


class PlannedPosition(msgspec.Struct, frozen=True):
    """A partition to read, and its position."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    """The next offset to read; -1: the instance's auto_offset_reset decides."""


class BeginReadResponse(msgspec.Struct, frozen=True):
    """Options of the instance, and its partitions in their order of turns."""

    format: str
    auto_offset_reset: str
    fetch_min_bytes: int
    request_timeout_ms: int
    partitions: list[PlannedPosition]


class ReadPartition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A partition, by its topic's id."""

    topic_id: str
    partition: PartitionNumber


class PositionMove(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How far a read came in one partition."""

    topic_id: str
    partition: PartitionNumber
    planned: OffsetOrEnd
    """The position at the beginning of the read; -1: none."""
    next: OffsetNumber
    """The next offset to read."""
    reset_to: OffsetOrEnd = NO_POSITION
    """Where auto_offset_reset began; -1: it was not needed."""


class EndReadRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Moves of positions. Each moves only from where it was planned."""

    moves: Annotated[list[PositionMove], Meta(max_length=READ_PARTITIONS_MAX)] = []
    last: Annotated[list[ReadPartition], Meta(max_length=READ_PARTITIONS_MAX)] = []
    """Partitions that had their turn: the last ones of the next read."""


class EndReadResponse(msgspec.Struct, frozen=True):
    """Partitions lost to another reader: their records must not be answered."""

    lost: list[ReadPartition]
