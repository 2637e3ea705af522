"""Bodies of consumer instances, in the v2 convention: subscriptions, positions, offsets."""

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
    """Of the instance, at this node; every node serves it."""


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """Topics to read: by name, or all whose whole name a pattern (RE2) matches."""

    topics: list[str] | None = None
    topic_pattern: str | None = None


class Subscribed(msgspec.Struct, frozen=True):
    """Topics subscribed to; of a pattern those that match."""

    topics: list[str]


class PartitionName(msgspec.Struct, frozen=True):
    """A partition."""

    topic: str
    partition: PartitionNumber


class Partitions(msgspec.Struct, frozen=True):
    """Partitions."""

    partitions: Annotated[list[PartitionName], Meta(max_length=ENTRIES_MAX)]


class PositionOffset(msgspec.Struct, frozen=True):
    """Where to go on in one partition."""

    topic: str
    partition: PartitionNumber
    offset: _NextOffset
    """The next offset to read."""
    metadata: str | None = None
    """Ignored."""


class PositionTime(msgspec.Struct, frozen=True):
    """When to go on in one partition."""

    topic: str
    partition: PartitionNumber
    timestamp: datetime
    """RFC 3339; UTC without an offset. Goes on at the first record that is not older."""
    metadata: str | None = None
    """Ignored."""


class Positions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where to go on."""

    offsets: Annotated[list[PositionOffset], Meta(max_length=ENTRIES_MAX)] = []
    timestamps: Annotated[list[PositionTime], Meta(max_length=ENTRIES_MAX)] = []


class ReadOffset(msgspec.Struct, frozen=True, omit_defaults=True):
    """An offset to commit: `offset` of the last record that is done, or `next_offset`."""

    topic: str
    partition: PartitionNumber
    offset: _CommittedOffset | None = None
    """Of a record. The next one is stored: offset + 1."""
    next_offset: _NextOffset | None = None
    """Stored as it is."""
    metadata: str | None = None


class NextOffset(msgspec.Struct, frozen=True, omit_defaults=True):
    """An offset to commit."""

    topic: str
    partition: PartitionNumber
    offset: _NextOffset
    """The next one to read, stored as it is."""
    metadata: str | None = None


class OffsetsToCommit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Offsets to commit; without any: all that was read."""

    offsets: Annotated[list[ReadOffset], Meta(max_length=ENTRIES_MAX)] | None = None
    partitions: Annotated[list[NextOffset], Meta(max_length=ENTRIES_MAX)] | None = None


class CommittedOffset(msgspec.Struct, frozen=True):
    """A committed offset."""

    topic: str
    partition: int
    offset: int
    """The next one to read; -1: none is committed."""
    metadata: str


class CommittedOffsets(msgspec.Struct, frozen=True):
    """Committed offsets."""

    offsets: list[CommittedOffset]
