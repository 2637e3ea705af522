"""Shapes for a gateway that reads for a consumer instance on the node.

A gateway fetches the records of other clusters itself. The instance, its membership and its offsets
stay with the coordinator of the group (docs/decisions/rest-consumers.md).
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from raftlog.api.common import OffsetNumber, OffsetOrEnd, PartitionNumber

READ_PARTITIONS_MAX: Final = 10_000
"""Most partitions of one body. An instance has at most 1,000."""
READ_WAIT_MS_MAX: Final = 10_000
"""Most milliseconds to wait for a first partition in one call."""
FORMATS_MAX: Final = 16
NO_POSITION: Final = -1
"""Position of an instance without a position yet. `auto_offset_reset` decides where it starts."""


class BeginReadRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Starts or continues a read."""

    formats: Annotated[list[str], Meta(max_length=FORMATS_MAX)]
    """Record formats accepted by the client."""
    is_first: bool = True
    """False for a continued read. The client may not have used earlier responses yet."""
    max_wait_ms: Annotated[int, Meta(ge=0, le=READ_WAIT_MS_MAX)] = 0
    """Milliseconds to wait for a first partition."""


class PlannedPosition(msgspec.Struct, frozen=True):
    """A partition to read, and its position."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    """Next offset to read, or -1 if the instance's `auto_offset_reset` decides."""


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
    """Progress of a read in one partition."""

    topic_id: str
    partition: PartitionNumber
    planned: OffsetOrEnd
    """Position at the start of the read, or -1."""
    next: OffsetNumber
    """The next offset to read."""
    reset_to: OffsetOrEnd = NO_POSITION
    """Offset chosen by `auto_offset_reset`, or -1 if it was not needed."""


class EndReadRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Moves of positions. Each applies only if the position is still the planned offset."""

    moves: Annotated[list[PositionMove], Meta(max_length=READ_PARTITIONS_MAX)] = []
    last: Annotated[list[ReadPartition], Meta(max_length=READ_PARTITIONS_MAX)] = []
    """Partitions that had their turn, which are the last of the next read."""


class EndReadResponse(msgspec.Struct, frozen=True):
    """Partitions lost to another reader. Their records must not be returned."""

    lost: list[ReadPartition]
