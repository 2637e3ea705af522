"""IncrementalAlterConfigs, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from raftlog.schema.fields import Int8, Int16, Int32, Versions


class AlterableConfig(msgspec.Struct, frozen=True, gc=False):
    """A part of IncrementalAlterConfigsRequest."""

    name: str = ""
    config_operation: Int8 = 0
    value: str | None = ""


class AlterConfigsResource(msgspec.Struct, frozen=True, gc=False):
    """A part of IncrementalAlterConfigsRequest."""

    resource_type: Int8 = 0
    resource_name: str = ""
    configs: tuple[AlterableConfig, ...] = ()


class IncrementalAlterConfigsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 44."""

    VERSIONS: ClassVar = Versions(0, 1, flexible=1)

    resources: tuple[AlterConfigsResource, ...] = ()
    validate_only: bool = False


class AlterConfigsResourceResponse(msgspec.Struct, frozen=True, gc=False):
    """A part of IncrementalAlterConfigsResponse."""

    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""


class IncrementalAlterConfigsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 44."""

    VERSIONS: ClassVar = Versions(0, 1, flexible=1)

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...] = ()
