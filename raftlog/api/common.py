"""Bounds and bodies that all calls share."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from raftlog.record.types import Offset

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
EPOCH_MAX: Final = 2**15 - 1
"""Largest producer epoch."""
NODE_ID_MAX: Final = INT32_MAX
REPLICAS_MAX: Final = 1_000
"""Most replicas of one reassignment, equal to the most nodes of a cluster."""

PartitionNumber: TypeAlias = Annotated[int, Meta(ge=0, le=INT32_MAX)]
OffsetNumber: TypeAlias = Annotated[Offset, Meta(ge=0, le=INT64_MAX)]
OffsetOrEnd: TypeAlias = Annotated[int, Meta(ge=-1, le=INT64_MAX)]
"""An offset, or -1 for the end."""
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=INT64_MAX)]
NodeNumber: TypeAlias = Annotated[int, Meta(ge=1, le=NODE_ID_MAX)]


def offset_before_end(start_offset: int, end_offset: int, count: int) -> int:
    """Return the offset `count` before the end, or the first offset of a shorter log.

    This is the meaning of a negative offset in REST, the client and the CLI. It counts offsets, not
    records. Offsets of transaction markers and of records removed by compaction count.
    """
    return max(end_offset - count, start_offset)


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error response."""

    error_code: int
    """HTTP status and two digits. Codes never change their meaning."""
    message: str
    """The cause and, if possible, the next step."""


class Empty(msgspec.Struct, frozen=True):
    """A request without fields, or a response without useful content."""


class Status(msgspec.Struct, frozen=True):
    """The response of a healthy node to `/health` and `/ready`."""

    status: str
    node_id: int
    cluster_id: str
