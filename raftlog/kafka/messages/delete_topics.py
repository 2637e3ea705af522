"""DeleteTopics, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, OptionalUuid, Versions


class DeleteTopicState(msgspec.Struct, frozen=True, gc=False):
    """A part of DeleteTopicsRequest."""

    name: Annotated[str | None, Field(since=6)] = None
    topic_id: Annotated[OptionalUuid, Field(since=6)] = None


class DeleteTopicsRequest(msgspec.Struct, frozen=True, gc=False):
    """API 20."""

    VERSIONS: ClassVar = Versions(1, 6, flexible=4)

    topics: Annotated[tuple[DeleteTopicState, ...], Field(since=6)] = ()
    topic_names: Annotated[tuple[str, ...], Field(until=5, is_ignorable=True)] = ()
    timeout_ms: Int32 = 0


class DeletableTopicResult(msgspec.Struct, frozen=True, gc=False):
    """A part of DeleteTopicsResponse."""

    name: Annotated[str | None, Field(nullable_since=6)] = ""
    topic_id: Annotated[OptionalUuid, Field(since=6, is_ignorable=True)] = None
    error_code: Int16 = 0
    error_message: Annotated[str | None, Field(since=5, is_ignorable=True)] = None


class DeleteTopicsResponse(msgspec.Struct, frozen=True, gc=False):
    """API 20."""

    VERSIONS: ClassVar = Versions(1, 6, flexible=4)

    throttle_time_ms: Int32 = 0
    responses: tuple[DeletableTopicResult, ...] = ()
