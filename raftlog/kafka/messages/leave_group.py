"""LeaveGroup, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Versions


class MemberIdentity(msgspec.Struct, frozen=True, gc=False):
    """A part of LeaveGroupRequest."""

    member_id: Annotated[str, Field(since=3)] = ""
    group_instance_id: Annotated[str | None, Field(since=3)] = None
    reason: Annotated[str | None, Field(since=5, is_ignorable=True)] = None


class LeaveGroupRequest(msgspec.Struct, frozen=True, gc=False):
    """API 13."""

    VERSIONS: ClassVar = Versions(0, 5, flexible=4)

    group_id: str = ""
    member_id: Annotated[str, Field(until=2)] = ""
    members: Annotated[tuple[MemberIdentity, ...], Field(since=3)] = ()


class MemberResponse(msgspec.Struct, frozen=True, gc=False):
    """A part of LeaveGroupResponse."""

    member_id: Annotated[str, Field(since=3)] = ""
    group_instance_id: Annotated[str | None, Field(since=3)] = ""
    error_code: Annotated[Int16, Field(since=3)] = 0


class LeaveGroupResponse(msgspec.Struct, frozen=True, gc=False):
    """API 13."""

    VERSIONS: ClassVar = Versions(0, 5, flexible=4)

    throttle_time_ms: Annotated[Int32, Field(since=1, is_ignorable=True)] = 0
    error_code: Int16 = 0
    members: Annotated[tuple[MemberResponse, ...], Field(since=3)] = ()
