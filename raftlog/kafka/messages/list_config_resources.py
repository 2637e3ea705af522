"""ListConfigResources, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, Versions


class ListConfigResourcesRequest(msgspec.Struct, frozen=True, gc=False):
    """API 74."""

    VERSIONS: ClassVar = Versions(0, 1, flexible=0)

    resource_types: Annotated[tuple[Int8, ...], Field(since=1)] = ()


class ConfigResource(msgspec.Struct, frozen=True, gc=False):
    """A part of ListConfigResourcesResponse."""

    resource_name: str = ""
    resource_type: Annotated[Int8, Field(since=1, is_ignorable=True)] = 16


class ListConfigResourcesResponse(msgspec.Struct, frozen=True, gc=False):
    """API 74."""

    VERSIONS: ClassVar = Versions(0, 1, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: tuple[ConfigResource, ...] = ()
