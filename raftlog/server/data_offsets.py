"""/v1 offsets of many partitions in one call: the ends of topics, and offsets for timestamps."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from raftlog.record.errors import BAD_REQUEST, INVALID_BODY, LogError
from raftlog.record.types import Offset, PartitionId
from raftlog.replication.partition import Partition
from raftlog.server.body import read_json
from raftlog.server.context import ServerContext
from raftlog.server.json_records import INT64_MAX, PartitionNumber
from raftlog.server.parameters import whole_number
from raftlog.server.request import Request
from raftlog.server.responses import json_response

SEARCHES_AT_ONCE_MAX = 16
"""Partitions of one request that are searched for a timestamp at the same time."""


class OffsetsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which offsets are wanted: of topics, with all partitions; or of some partitions of each."""

    topics: list[str] | dict[str, list[PartitionNumber]]


class PartitionOffsets(msgspec.Struct, frozen=True):
    """What can be read of a partition."""

    beginning_offset: Offset
    end_offset: Offset
    """Offset after the last record that can be read."""
    high_watermark: Offset
    """First offset that is not committed yet; readers go no further."""


class TopicOffsets(msgspec.Struct, frozen=True):
    """One topic's partitions, by number."""

    topic_id: str
    partitions: dict[str, PartitionOffsets]


class OffsetsResponse(msgspec.Struct, frozen=True):
    """Offsets by topic."""

    topics: dict[str, TopicOffsets]


class TimesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A timestamp (ms) for each partition, by topic and partition number."""

    timestamps: dict[str, dict[str, Annotated[int, Meta(ge=0, le=INT64_MAX)]]]


class FoundOffset(msgspec.Struct, frozen=True):
    """The first record at or after the timestamp asked for."""

    offset: Offset
    timestamp: int


class TimesResponse(msgspec.Struct, frozen=True):
    """Offsets by topic and partition number; null: no record is that young."""

    offsets: dict[str, dict[str, FoundOffset | None]]


_offsets_decoder = msgspec.json.Decoder(OffsetsRequest)
_times_decoder = msgspec.json.Decoder(TimesRequest)


async def bulk_offsets(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/offsets. All partitions asked for, or an error."""
    topics = (await read_json(request, context, _offsets_decoder)).topics
    image = context.services.metadata.image
    wanted: dict[str, Collection[int]]
    if isinstance(topics, dict):
        wanted = {name: dict.fromkeys(numbers) for name, numbers in topics.items()}
    else:
        wanted = {name: range(len(image.topic(name).partitions)) for name in topics}
    check_partition_count(sum(map(len, wanted.values())), context)
    answer: dict[str, TopicOffsets] = {}
    for name, numbers in wanted.items():
        topic_id = image.topic(name).topic_id
        rows = {
            str(number): _offsets(context.services.replicas.partition(name, number))
            for number in numbers
        }
        answer[name] = TopicOffsets(topic_id, rows)
    return json_response(OffsetsResponse(answer))


def _offsets(partition: Partition) -> PartitionOffsets:
    end = partition.end_offset()
    return PartitionOffsets(partition.log_start_offset, end, end)


async def offsets_for_times(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/offsets-for-times. All partitions asked for, or an error."""
    wanted = await read_json(request, context, _times_decoder)
    check_partition_count(sum(map(len, wanted.timestamps.values())), context)
    searches: list[tuple[str, str, Partition, int]] = []
    for topic, timestamps in wanted.timestamps.items():
        for text, timestamp_ms in timestamps.items():
            partition = context.services.replicas.partition(topic, partition_number(text))
            searches.append((topic, text, partition, timestamp_ms))
    answer: dict[str, dict[str, FoundOffset | None]] = {topic: {} for topic in wanted.timestamps}
    for start in range(0, len(searches), SEARCHES_AT_ONCE_MAX):
        some = searches[start : start + SEARCHES_AT_ONCE_MAX]
        found = await asyncio.gather(*(_search(one[2], one[3]) for one in some))
        for (topic, text, _, _), result in zip(some, found, strict=True):
            answer[topic][text] = result
    return json_response(TimesResponse(answer))


async def _search(partition: Partition, timestamp_ms: int) -> FoundOffset | None:
    found = await partition.offset_for_timestamp(timestamp_ms)
    return None if found is None else FoundOffset(*found)


def partition_number(text: str) -> PartitionId:
    """A partition number used as a JSON key; LogError INVALID_BODY if it is none."""
    number = whole_number(text)
    if number is None or not 0 <= number < 2**31 or str(number) != text:
        raise LogError(INVALID_BODY, f"{text[:40]!r} is not a partition number.")
    return PartitionId(number)


def check_partition_count(count: int, context: ServerContext) -> None:
    """LogError INVALID_BODY if one request names more partitions than it may."""
    most = context.limits.partitions_per_request_max
    if count > most:
        raise LogError(INVALID_BODY, f"The request names {count} partitions; {most} may be.")


def partition_list(text: str) -> Sequence[PartitionId]:
    """Partition numbers separated by commas; LogError BAD_REQUEST if that is not what it is."""
    numbers = [whole_number(part) for part in text.split(",")]
    checked = [PartitionId(n) for n in numbers if n is not None and 0 <= n < 2**31]
    if len(checked) != len(numbers) or len(set(checked)) != len(checked):
        raise LogError(BAD_REQUEST, f"{text[:40]!r} is not a list of partition numbers.")
    return checked
