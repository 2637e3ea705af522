"""Messages of JoinGroup, Heartbeat, LeaveGroup, SyncGroup.

scripts/generate_kafka_messages.py wrote this module. Do not edit it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Versions


class JoinGroupRequestProtocol(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    metadata: bytes = b""


class JoinGroupRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 9, flexible=6)
    group_id: str = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Annotated[Int32, Field(since=1, is_ignorable=True)] = -1
    member_id: str = ""
    group_instance_id: Annotated[str | None, Field(since=5)] = None
    protocol_type: str = ""
    protocols: tuple[JoinGroupRequestProtocol, ...] = ()
    reason: Annotated[str | None, Field(since=8, is_ignorable=True)] = None


class JoinGroupResponseMember(msgspec.Struct, frozen=True, gc=False):
    member_id: str = ""
    group_instance_id: Annotated[str | None, Field(since=5, is_ignorable=True)] = None
    metadata: bytes = b""


class JoinGroupResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 9, flexible=6)
    throttle_time_ms: Annotated[Int32, Field(since=2, is_ignorable=True)] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[str | None, Field(since=7, is_ignorable=True)] = None
    protocol_name: Annotated[str | None, Field(nullable_since=7)] = ""
    leader: str = ""
    skip_assignment: Annotated[bool, Field(since=9)] = False
    member_id: str = ""
    members: tuple[JoinGroupResponseMember, ...] = ()


class HeartbeatRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 4, flexible=4)
    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: Annotated[str | None, Field(since=3)] = None


class HeartbeatResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 4, flexible=4)
    throttle_time_ms: Annotated[Int32, Field(since=1, is_ignorable=True)] = 0
    error_code: Int16 = 0


class MemberIdentity(msgspec.Struct, frozen=True, gc=False):
    member_id: Annotated[str, Field(since=3)] = ""
    group_instance_id: Annotated[str | None, Field(since=3)] = None
    reason: Annotated[str | None, Field(since=5, is_ignorable=True)] = None


class LeaveGroupRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 5, flexible=4)
    group_id: str = ""
    member_id: Annotated[str, Field(until=2)] = ""
    members: Annotated[tuple[MemberIdentity, ...], Field(since=3)] = ()


class MemberResponse(msgspec.Struct, frozen=True, gc=False):
    member_id: Annotated[str, Field(since=3)] = ""
    group_instance_id: Annotated[str | None, Field(since=3)] = ""
    error_code: Annotated[Int16, Field(since=3)] = 0


class LeaveGroupResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 5, flexible=4)
    throttle_time_ms: Annotated[Int32, Field(since=1, is_ignorable=True)] = 0
    error_code: Int16 = 0
    members: Annotated[tuple[MemberResponse, ...], Field(since=3)] = ()


class SyncGroupRequestAssignment(msgspec.Struct, frozen=True, gc=False):
    member_id: str = ""
    assignment: bytes = b""


class SyncGroupRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 5, flexible=4)
    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: Annotated[str | None, Field(since=3)] = None
    protocol_type: Annotated[str | None, Field(since=5, is_ignorable=True)] = None
    protocol_name: Annotated[str | None, Field(since=5, is_ignorable=True)] = None
    assignments: tuple[SyncGroupRequestAssignment, ...] = ()


class SyncGroupResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 5, flexible=4)
    throttle_time_ms: Annotated[Int32, Field(since=1, is_ignorable=True)] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[str | None, Field(since=5, is_ignorable=True)] = None
    protocol_name: Annotated[str | None, Field(since=5, is_ignorable=True)] = None
    assignment: bytes = b""
