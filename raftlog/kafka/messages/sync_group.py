"""SyncGroup, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Versions


class SyncGroupRequestAssignment(msgspec.Struct, frozen=True, gc=False):
    """A part of SyncGroupRequest."""

    member_id: str = ""
    assignment: bytes = b""


class SyncGroupRequest(msgspec.Struct, frozen=True, gc=False):
    """API 14."""

    VERSIONS: ClassVar = Versions(0, 5, flexible=4)

    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: Annotated[str | None, Field(since=3)] = None
    protocol_type: Annotated[str | None, Field(since=5, is_ignorable=True)] = None
    protocol_name: Annotated[str | None, Field(since=5, is_ignorable=True)] = None
    assignments: tuple[SyncGroupRequestAssignment, ...] = ()


class SyncGroupResponse(msgspec.Struct, frozen=True, gc=False):
    """API 14."""

    VERSIONS: ClassVar = Versions(0, 5, flexible=4)

    throttle_time_ms: Annotated[Int32, Field(since=1, is_ignorable=True)] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[str | None, Field(since=5, is_ignorable=True)] = None
    protocol_name: Annotated[str | None, Field(since=5, is_ignorable=True)] = None
    assignment: bytes = b""
