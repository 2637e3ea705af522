"""Consumer instances of the v2 convention have bodies of subscriptions, positions and offsets."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from raftlog.api.common import INT64_MAX, PartitionNumber

ENTRIES_MAX: Final = 10_000
"""Partitions of one body."""

_CommittedOffset = Annotated[int, Meta(ge=0, le=INT64_MAX - 1)]
_NextOffset = Annotated[int, Meta(ge=0, le=INT64_MAX)]


class Created(msgspec.Struct, frozen=True):
    """A created consumer instance."""

    instance_id: str
    base_uri: str
    """Address of the instance at this node. Every node serves it."""


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """Topics to read, by name or by a pattern (RE2) that matches the whole name."""

    topics: list[str] | None = None
    topic_pattern: str | None = None


class Subscribed(msgspec.Struct, frozen=True):
    """Topics subscribed to. A pattern's are those that match."""

    topics: list[str]


class PartitionName(msgspec.Struct, frozen=True):
    """A partition."""

    topic: str
    partition: PartitionNumber


class Partitions(msgspec.Struct, frozen=True):
    """Partitions."""

    partitions: Annotated[list[PartitionName], Meta(max_length=ENTRIES_MAX)]


class PositionOffset(msgspec.Struct, frozen=True):
    """Next position in one partition, by offset."""

    topic: str
    partition: PartitionNumber
    offset: _NextOffset
    """The next offset to read."""
    metadata: str | None = None
    """Ignored."""


class PositionTime(msgspec.Struct, frozen=True):
    """Next position in one partition, by time."""

    topic: str
    partition: PartitionNumber
    timestamp: datetime
    """RFC 3339 time, UTC without an offset. The next record is the first that is not older."""
    metadata: str | None = None
    """Ignored."""


class Positions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Next positions."""

    offsets: Annotated[list[PositionOffset], Meta(max_length=ENTRIES_MAX)] = []
    timestamps: Annotated[list[PositionTime], Meta(max_length=ENTRIES_MAX)] = []


class ReadOffset(msgspec.Struct, frozen=True, omit_defaults=True):
    """An offset to commit, as `offset` of the last consumed record or as `next_offset`."""

    topic: str
    partition: PartitionNumber
    offset: _CommittedOffset | None = None
    """Offset of a record. The stored offset is that of the next record, offset + 1."""
    next_offset: _NextOffset | None = None
    """Stored as it is."""
    metadata: str | None = None


class NextOffset(msgspec.Struct, frozen=True, omit_defaults=True):
    """An offset to commit."""

    topic: str
    partition: PartitionNumber
    offset: _NextOffset
    """Next offset to read, stored as it is."""
    metadata: str | None = None


class OffsetsToCommit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Offsets to commit. Without any, the position after every record read is committed."""

    offsets: Annotated[list[ReadOffset], Meta(max_length=ENTRIES_MAX)] | None = None
    partitions: Annotated[list[NextOffset], Meta(max_length=ENTRIES_MAX)] | None = None


class CommittedOffset(msgspec.Struct, frozen=True):
    """A committed offset."""

    topic: str
    partition: int
    offset: int
    """Next offset to read, or -1 if none is committed."""
    metadata: str


class CommittedOffsets(msgspec.Struct, frozen=True):
    """Committed offsets."""

    offsets: list[CommittedOffset]
