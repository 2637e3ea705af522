"""FindCoordinator, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, Versions


class FindCoordinatorRequest(msgspec.Struct, frozen=True, gc=False):
    """API 10."""

    VERSIONS: ClassVar = Versions(0, 6, flexible=3)

    key: Annotated[str, Field(until=3)] = ""
    key_type: Annotated[Int8, Field(since=1)] = 0
    coordinator_keys: Annotated[tuple[str, ...], Field(since=4)] = ()


class Coordinator(msgspec.Struct, frozen=True, gc=False):
    """A part of FindCoordinatorResponse."""

    key: Annotated[str, Field(since=4)] = ""
    node_id: Annotated[Int32, Field(since=4)] = 0
    host: Annotated[str, Field(since=4)] = ""
    port: Annotated[Int32, Field(since=4)] = 0
    error_code: Annotated[Int16, Field(since=4)] = 0
    error_message: Annotated[str | None, Field(since=4, is_ignorable=True)] = ""


class FindCoordinatorResponse(msgspec.Struct, frozen=True, gc=False):
    """API 10."""

    VERSIONS: ClassVar = Versions(0, 6, flexible=3)

    throttle_time_ms: Annotated[Int32, Field(since=1, is_ignorable=True)] = 0
    error_code: Annotated[Int16, Field(until=3)] = 0
    error_message: Annotated[str | None, Field(since=1, until=3, is_ignorable=True)] = ""
    node_id: Annotated[Int32, Field(until=3)] = 0
    host: Annotated[str, Field(until=3)] = ""
    port: Annotated[Int32, Field(until=3)] = 0
    coordinators: Annotated[tuple[Coordinator, ...], Field(since=4)] = ()
