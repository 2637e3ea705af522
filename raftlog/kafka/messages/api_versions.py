"""ApiVersions, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Int64, Versions


class ApiVersionsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 18."""

    VERSIONS: ClassVar = Versions(0, 4, flexible=3)

    client_software_name: Annotated[str, Field(since=3, is_ignorable=True)] = ""
    client_software_version: Annotated[str, Field(since=3, is_ignorable=True)] = ""


class ApiVersion(msgspec.Struct, frozen=True, gc=False):
    """A part of ApiVersionsResponse."""

    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class SupportedFeatureKey(msgspec.Struct, frozen=True, gc=False):
    """A part of ApiVersionsResponse."""

    name: Annotated[str, Field(since=3)] = ""
    min_version: Annotated[Int16, Field(since=3)] = 0
    max_version: Annotated[Int16, Field(since=3)] = 0


class FinalizedFeatureKey(msgspec.Struct, frozen=True, gc=False):
    """A part of ApiVersionsResponse."""

    name: Annotated[str, Field(since=3)] = ""
    max_version_level: Annotated[Int16, Field(since=3)] = 0
    min_version_level: Annotated[Int16, Field(since=3)] = 0


class ApiVersionsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 18."""

    VERSIONS: ClassVar = Versions(0, 4, flexible=3)

    error_code: Int16 = 0
    api_keys: tuple[ApiVersion, ...] = ()
    throttle_time_ms: Annotated[Int32, Field(since=1, is_ignorable=True)] = 0
    supported_features: Annotated[
        tuple[SupportedFeatureKey, ...], Field(since=3, tag=0, is_ignorable=True)
    ] = ()
    finalized_features_epoch: Annotated[Int64, Field(since=3, tag=1, is_ignorable=True)] = -1
    finalized_features: Annotated[
        tuple[FinalizedFeatureKey, ...], Field(since=3, tag=2, is_ignorable=True)
    ] = ()
    zk_migration_ready: Annotated[bool, Field(since=3, tag=3, is_ignorable=True)] = False
