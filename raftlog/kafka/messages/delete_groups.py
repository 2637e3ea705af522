"""DeleteGroups, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from raftlog.schema.fields import Int16, Int32, Versions


class DeleteGroupsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 42."""

    VERSIONS: ClassVar = Versions(0, 2, flexible=2)

    groups_names: tuple[str, ...] = ()


class DeletableGroupResult(msgspec.Struct, frozen=True, gc=False):
    """A part of DeleteGroupsResponse."""

    group_id: str = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 42."""

    VERSIONS: ClassVar = Versions(0, 2, flexible=2)

    throttle_time_ms: Int32 = 0
    results: tuple[DeletableGroupResult, ...] = ()
