"""ListGroups, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Versions


class ListGroupsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 16."""

    VERSIONS: ClassVar = Versions(0, 5, flexible=3)

    states_filter: Annotated[tuple[str, ...], Field(since=4)] = ()
    types_filter: Annotated[tuple[str, ...], Field(since=5)] = ()


class ListedGroup(msgspec.Struct, frozen=True, gc=False):
    """A part of ListGroupsResponse."""

    group_id: str = ""
    protocol_type: str = ""
    group_state: Annotated[str, Field(since=4, is_ignorable=True)] = ""
    group_type: Annotated[str, Field(since=5, is_ignorable=True)] = ""


class ListGroupsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 16."""

    VERSIONS: ClassVar = Versions(0, 5, flexible=3)

    throttle_time_ms: Annotated[Int32, Field(since=1, is_ignorable=True)] = 0
    error_code: Int16 = 0
    groups: tuple[ListedGroup, ...] = ()
