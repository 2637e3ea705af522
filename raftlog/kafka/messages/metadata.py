"""Messages of Metadata, ApiVersions.

scripts/generate_kafka_messages.py wrote this module. Do not edit it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Int64, OptionalUuid, Versions


class MetadataRequestTopic(msgspec.Struct, frozen=True, gc=False):
    topic_id: Annotated[OptionalUuid, Field(since=10, is_ignorable=True)] = None
    name: Annotated[str | None, Field(nullable_since=10)] = ""


class MetadataRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 13, flexible=9)
    topics: Annotated[tuple[MetadataRequestTopic, ...] | None, Field(nullable_since=1)] = ()
    allow_auto_topic_creation: Annotated[bool, Field(since=4)] = True
    include_cluster_authorized_operations: Annotated[bool, Field(since=8, until=10)] = False
    include_topic_authorized_operations: Annotated[bool, Field(since=8)] = False


class MetadataResponseBroker(msgspec.Struct, frozen=True, gc=False):
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: Annotated[str | None, Field(since=1, is_ignorable=True)] = None


class MetadataResponsePartition(msgspec.Struct, frozen=True, gc=False):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Annotated[Int32, Field(since=7, is_ignorable=True)] = -1
    replica_nodes: tuple[Int32, ...] = ()
    isr_nodes: tuple[Int32, ...] = ()
    offline_replicas: Annotated[tuple[Int32, ...], Field(since=5, is_ignorable=True)] = ()


class MetadataResponseTopic(msgspec.Struct, frozen=True, gc=False):
    error_code: Int16 = 0
    name: Annotated[str | None, Field(nullable_since=12)] = ""
    topic_id: Annotated[OptionalUuid, Field(since=10, is_ignorable=True)] = None
    is_internal: Annotated[bool, Field(since=1, is_ignorable=True)] = False
    partitions: tuple[MetadataResponsePartition, ...] = ()
    topic_authorized_operations: Annotated[Int32, Field(since=8)] = -2_147_483_648


class MetadataResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 13, flexible=9)
    throttle_time_ms: Annotated[Int32, Field(since=3, is_ignorable=True)] = 0
    brokers: tuple[MetadataResponseBroker, ...] = ()
    cluster_id: Annotated[str | None, Field(since=2, is_ignorable=True)] = None
    controller_id: Annotated[Int32, Field(since=1, is_ignorable=True)] = -1
    topics: tuple[MetadataResponseTopic, ...] = ()
    cluster_authorized_operations: Annotated[Int32, Field(since=8, until=10)] = -2_147_483_648
    error_code: Annotated[Int16, Field(since=13, is_ignorable=True)] = 0


class ApiVersionsRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(0, 4, flexible=3)
    client_software_name: Annotated[str, Field(since=3, is_ignorable=True)] = ""
    client_software_version: Annotated[str, Field(since=3, is_ignorable=True)] = ""


class ApiVersion(msgspec.Struct, frozen=True, gc=False):
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class SupportedFeatureKey(msgspec.Struct, frozen=True, gc=False):
    name: Annotated[str, Field(since=3)] = ""
    min_version: Annotated[Int16, Field(since=3)] = 0
    max_version: Annotated[Int16, Field(since=3)] = 0


class FinalizedFeatureKey(msgspec.Struct, frozen=True, gc=False):
    name: Annotated[str, Field(since=3)] = ""
    max_version_level: Annotated[Int16, Field(since=3)] = 0
    min_version_level: Annotated[Int16, Field(since=3)] = 0


class ApiVersionsResponse(msgspec.Struct, frozen=True, gc=False):
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
