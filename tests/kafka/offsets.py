"""Requests that commit offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raftlog.kafka.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from raftlog.record.types import TopicId


def commit_request(
    group: str,
    offsets: Mapping[tuple[str, int], int],
    *,
    ids: Mapping[str, TopicId] | None = None,
    metadata: str | None = "",
    **fields: Any,
) -> OffsetCommitRequest:
    """Commit offsets by topic and partition; `ids`: the topics travel by their ids."""
    by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, number), offset in offsets.items():
        part = OffsetCommitRequestPartition(number, offset, committed_metadata=metadata)
        by_topic.setdefault(topic, []).append(part)
    topics = tuple(
        OffsetCommitRequestTopic(
            topic if ids is None else "", None if ids is None else ids[topic], tuple(parts)
        )
        for topic, parts in by_topic.items()
    )
    return OffsetCommitRequest(group, topics=topics, **fields)


def committed_codes(answer: Any) -> list[int]:
    """Error codes of all partitions."""
    return [part.error_code for topic in answer.topics for part in topic.partitions]
