"""DescribeGroups, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Versions


class DescribeGroupsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 15."""

    VERSIONS: ClassVar = Versions(0, 6, flexible=5)

    groups: tuple[str, ...] = ()
    include_authorized_operations: Annotated[bool, Field(since=3)] = False


class DescribedGroupMember(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeGroupsResponse."""

    member_id: str = ""
    group_instance_id: Annotated[str | None, Field(since=4, is_ignorable=True)] = None
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""


class DescribedGroup(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeGroupsResponse."""

    error_code: Int16 = 0
    error_message: Annotated[str | None, Field(since=6)] = None
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedGroupMember, ...] = ()
    authorized_operations: Annotated[Int32, Field(since=3)] = -2_147_483_648


class DescribeGroupsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 15."""

    VERSIONS: ClassVar = Versions(0, 6, flexible=5)

    throttle_time_ms: Annotated[Int32, Field(since=1, is_ignorable=True)] = 0
    groups: tuple[DescribedGroup, ...] = ()
