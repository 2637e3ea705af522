"""Numbers and bodies shared by all calls: bounds, offsets from the end, errors, empty answers."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from raftlog.record.types import Offset

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
EPOCH_MAX: Final = 2**15 - 1
"""Of a producer epoch."""
NODE_ID_MAX: Final = INT32_MAX
REPLICAS_MAX: Final = 1_000
"""Replicas that one reassignment may name: as many as a cluster may have nodes."""

PartitionNumber: TypeAlias = Annotated[int, Meta(ge=0, le=INT32_MAX)]
OffsetNumber: TypeAlias = Annotated[Offset, Meta(ge=0, le=INT64_MAX)]
OffsetOrEnd: TypeAlias = Annotated[int, Meta(ge=-1, le=INT64_MAX)]
"""An offset, or -1 for the end."""
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=INT64_MAX)]
NodeNumber: TypeAlias = Annotated[int, Meta(ge=1, le=NODE_ID_MAX)]


def offset_before_end(start_offset: int, end_offset: int, count: int) -> int:
    """The offset `count` before the end; the first one, if the log has fewer.

    The meaning of a negative offset in REST, the client and the CLI alike. Offsets count, not
    records: those of transaction markers and of records removed by compaction are among them.
    """
    return max(end_offset - count, start_offset)


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error answer."""

    error_code: int
    """HTTP status and two digits; codes never change their meaning."""
    message: str
    """The cause, and where possible the next step."""


class Empty(msgspec.Struct, frozen=True):
    """A request without fields; or an answer without content, or with content of no use here."""


class Status(msgspec.Struct, frozen=True):
    """The answer of `/health` and `/ready` of a healthy node."""

    status: str
    node_id: int
    cluster_id: str
