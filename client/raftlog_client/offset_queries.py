"""Questions about offsets, for consumer and admin alike. Any node answers them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from raftlog_client.errors import RaftlogClientError
from raftlog_client.metadata import ClusterMetadata
from raftlog_client.types import OffsetAndTimestamp, PartitionOffsets, TopicPartition


async def topic_offsets(
    metadata: ClusterMetadata, topics: Iterable[str]
) -> dict[TopicPartition, PartitionOffsets]:
    """The offsets that can be read, of all partitions of some topics.

    Raises TopicNotFoundError if one of them does not exist.
    """
    names = sorted(set(topics))
    if not names:
        return {}
    answer = await metadata.call_any("POST", "/v1/offsets", {"topics": names})
    try:
        return {
            TopicPartition(topic, int(number)): PartitionOffsets(
                int(offsets["beginning_offset"]),
                int(offsets["end_offset"]),
                int(offsets["high_watermark"]),
            )
            for topic, fields in answer["topics"].items()
            for number, offsets in fields["partitions"].items()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(error) from error


async def offsets_for_times(
    metadata: ClusterMetadata, timestamps: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """The first record at or after a timestamp (ms), of each partition; None if there is none."""
    if not timestamps:
        return {}
    body: dict[str, dict[str, int]] = {}
    for (topic, partition), timestamp_ms in timestamps.items():
        body.setdefault(topic, {})[str(partition)] = timestamp_ms
    answer: Any = await metadata.call_any("POST", "/v1/offsets-for-times", {"timestamps": body})
    found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    try:
        for asked in timestamps:
            fields = answer["offsets"][asked.topic][str(asked.partition)]
            found[asked] = (
                None
                if fields is None
                else OffsetAndTimestamp(int(fields["offset"]), int(fields["timestamp"]))
            )
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(error) from error
    return found


def _malformed(error: Exception) -> RaftlogClientError:
    return RaftlogClientError(f"A node's answer about offsets is malformed: {error!r}")
