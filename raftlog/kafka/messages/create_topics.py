"""CreateTopics, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, OptionalUuid, Versions


class CreatableReplicaAssignment(msgspec.Struct, frozen=True, gc=False):
    """A part of CreateTopicsRequest."""

    partition_index: Int32 = 0
    broker_ids: tuple[Int32, ...] = ()


class CreatableTopicConfig(msgspec.Struct, frozen=True, gc=False):
    """A part of CreateTopicsRequest."""

    name: str = ""
    value: str | None = ""


class CreatableTopic(msgspec.Struct, frozen=True, gc=False):
    """A part of CreateTopicsRequest."""

    name: str = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: tuple[CreatableReplicaAssignment, ...] = ()
    configs: tuple[CreatableTopicConfig, ...] = ()


class CreateTopicsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 19."""

    VERSIONS: ClassVar = Versions(2, 7, flexible=5)

    topics: tuple[CreatableTopic, ...] = ()
    timeout_ms: Int32 = 60_000
    validate_only: bool = False


class CreatableTopicConfigs(msgspec.Struct, frozen=True, gc=False):
    """A part of CreateTopicsResponse."""

    name: Annotated[str, Field(since=5)] = ""
    value: Annotated[str | None, Field(since=5)] = ""
    read_only: Annotated[bool, Field(since=5)] = False
    config_source: Annotated[Int8, Field(since=5, is_ignorable=True)] = -1
    is_sensitive: Annotated[bool, Field(since=5)] = False


class CreatableTopicResult(msgspec.Struct, frozen=True, gc=False):
    """A part of CreateTopicsResponse."""

    name: str = ""
    topic_id: Annotated[OptionalUuid, Field(since=7, is_ignorable=True)] = None
    error_code: Int16 = 0
    error_message: str | None = ""
    topic_config_error_code: Annotated[Int16, Field(since=5, tag=0, is_ignorable=True)] = 0
    num_partitions: Annotated[Int32, Field(since=5, is_ignorable=True)] = -1
    replication_factor: Annotated[Int16, Field(since=5, is_ignorable=True)] = -1
    configs: Annotated[
        tuple[CreatableTopicConfigs, ...] | None, Field(since=5, is_ignorable=True)
    ] = ()


class CreateTopicsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 19."""

    VERSIONS: ClassVar = Versions(2, 7, flexible=5)

    throttle_time_ms: Int32 = 0
    topics: tuple[CreatableTopicResult, ...] = ()
