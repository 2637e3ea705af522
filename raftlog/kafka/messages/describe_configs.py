"""DescribeConfigs, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, Versions


class DescribeConfigsResource(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeConfigsRequest."""

    resource_type: Int8 = 0
    resource_name: str = ""
    configuration_keys: tuple[str, ...] | None = ()


class DescribeConfigsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 32."""

    VERSIONS: ClassVar = Versions(1, 4, flexible=4)

    resources: tuple[DescribeConfigsResource, ...] = ()
    include_synonyms: bool = False
    include_documentation: Annotated[bool, Field(since=3)] = False


class DescribeConfigsSynonym(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeConfigsResponse."""

    name: str = ""
    value: str | None = ""
    source: Int8 = 0


class DescribeConfigsResourceResult(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeConfigsResponse."""

    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: Int8 = -1
    is_sensitive: bool = False
    synonyms: tuple[DescribeConfigsSynonym, ...] = ()
    config_type: Annotated[Int8, Field(since=3, is_ignorable=True)] = 0
    documentation: Annotated[str | None, Field(since=3, is_ignorable=True)] = ""


class DescribeConfigsResult(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeConfigsResponse."""

    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""
    configs: tuple[DescribeConfigsResourceResult, ...] = ()


class DescribeConfigsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 32."""

    VERSIONS: ClassVar = Versions(1, 4, flexible=4)

    throttle_time_ms: Int32 = 0
    results: tuple[DescribeConfigsResult, ...] = ()
