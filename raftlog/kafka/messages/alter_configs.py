"""AlterConfigs, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from raftlog.schema.fields import Int8, Int16, Int32, Versions


class AlterableConfig(msgspec.Struct, frozen=True, gc=False):
    """A part of AlterConfigsRequest."""

    name: str = ""
    value: str | None = ""


class AlterConfigsResource(msgspec.Struct, frozen=True, gc=False):
    """A part of AlterConfigsRequest."""

    resource_type: Int8 = 0
    resource_name: str = ""
    configs: tuple[AlterableConfig, ...] = ()


class AlterConfigsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 33."""

    VERSIONS: ClassVar = Versions(0, 2, flexible=2)

    resources: tuple[AlterConfigsResource, ...] = ()
    validate_only: bool = False


class AlterConfigsResourceResponse(msgspec.Struct, frozen=True, gc=False):
    """A part of AlterConfigsResponse."""

    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""


class AlterConfigsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 33."""

    VERSIONS: ClassVar = Versions(0, 2, flexible=2)

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...] = ()
