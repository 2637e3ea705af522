"""Messages of DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

scripts/generate_kafka_messages.py wrote this module. Do not edit it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, Versions


class DescribeConfigsResource(msgspec.Struct, frozen=True, gc=False):
    resource_type: Int8 = 0
    resource_name: str = ""
    configuration_keys: tuple[str, ...] | None = ()


class DescribeConfigsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(1, 4, flexible=4)
    resources: tuple[DescribeConfigsResource, ...] = ()
    include_synonyms: bool = False
    include_documentation: Annotated[bool, Field(since=3)] = False


class DescribeConfigsSynonym(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    value: str | None = ""
    source: Int8 = 0


class DescribeConfigsResourceResult(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: Int8 = -1
    is_sensitive: bool = False
    synonyms: tuple[DescribeConfigsSynonym, ...] = ()
    config_type: Annotated[Int8, Field(since=3, is_ignorable=True)] = 0
    documentation: Annotated[str | None, Field(since=3, is_ignorable=True)] = ""


class DescribeConfigsResult(msgspec.Struct, frozen=True, gc=False):
    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""
    configs: tuple[DescribeConfigsResourceResult, ...] = ()


class DescribeConfigsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(1, 4, flexible=4)
    throttle_time_ms: Int32 = 0
    results: tuple[DescribeConfigsResult, ...] = ()


class AlterConfigsAlterableConfig(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    value: str | None = ""


class AlterConfigsResource(msgspec.Struct, frozen=True, gc=False):
    resource_type: Int8 = 0
    resource_name: str = ""
    configs: tuple[AlterConfigsAlterableConfig, ...] = ()


class AlterConfigsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 2, flexible=2)
    resources: tuple[AlterConfigsResource, ...] = ()
    validate_only: bool = False


class AlterConfigsResourceResponse(msgspec.Struct, frozen=True, gc=False):
    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""


class AlterConfigsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 2, flexible=2)
    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...] = ()


class IncrementalAlterConfigsAlterableConfig(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    config_operation: Int8 = 0
    value: str | None = ""


class IncrementalAlterConfigsAlterConfigsResource(msgspec.Struct, frozen=True, gc=False):
    resource_type: Int8 = 0
    resource_name: str = ""
    configs: tuple[IncrementalAlterConfigsAlterableConfig, ...] = ()


class IncrementalAlterConfigsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 1, flexible=1)
    resources: tuple[IncrementalAlterConfigsAlterConfigsResource, ...] = ()
    validate_only: bool = False


class IncrementalAlterConfigsAlterConfigsResourceResponse(msgspec.Struct, frozen=True, gc=False):
    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""


class IncrementalAlterConfigsResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 1, flexible=1)
    throttle_time_ms: Int32 = 0
    responses: tuple[IncrementalAlterConfigsAlterConfigsResourceResponse, ...] = ()


class ListConfigResourcesRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 1, flexible=0)
    resource_types: Annotated[tuple[Int8, ...], Field(since=1)] = ()


class ConfigResource(msgspec.Struct, frozen=True, gc=False):
    resource_name: str = ""
    resource_type: Annotated[Int8, Field(since=1, is_ignorable=True)] = 16


class ListConfigResourcesResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 1, flexible=0)
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: tuple[ConfigResource, ...] = ()
