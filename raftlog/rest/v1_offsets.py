"""/v1 offsets of many partitions in one call: the ends of topics, and offsets for timestamps.

By default a node answers for what it leads, all partitions or an error: that is for clients that
know leaders. With `any_node` it asks the other leaders itself, once each, and every partition has
offsets or an error of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

import msgspec
from aiohttp import web

from raftlog.api.records import (
    NO_OFFSET,
    NO_TIMESTAMP,
    FoundOffset,
    OffsetsRequest,
    OffsetsResponse,
    ReadableOffsets,
    TimesRequest,
    TimesResponse,
    TopicOffsets,
)
from raftlog.http.body import read_json
from raftlog.http.context import ServerContext
from raftlog.http.request import Request, whole_number
from raftlog.http.responses import json_response
from raftlog.metadata.image import TopicImage
from raftlog.record.errors import BAD_REQUEST, INVALID_BODY, LogError
from raftlog.record.types import PartitionId
from raftlog.routing.handle import PartitionHandle
from raftlog.routing.many import (
    FoundRecord,
    PartitionBounds,
    bounds_of_many,
    local_bounds,
    local_times,
    times_of_many,
)

_offsets_decoder = msgspec.json.Decoder(OffsetsRequest)
_times_decoder = msgspec.json.Decoder(TimesRequest)


async def bulk_offsets(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/offsets. All partitions asked for; without `any_node`, all of them or an error."""
    asked = await read_json(request, context, _offsets_decoder)
    image = context.services.metadata.image
    topics = {name: image.topic(name) for name in asked.topics}
    wanted: dict[str, Collection[int]]
    if isinstance(asked.topics, dict):
        wanted = {name: dict.fromkeys(numbers) for name, numbers in asked.topics.items()}
    else:
        wanted = {name: range(len(topic.partitions)) for name, topic in topics.items()}
    check_partition_count(sum(map(len, wanted.values())), context)
    rows: Sequence[PartitionBounds | LogError]
    if asked.any_node:
        partitions = [
            _routed(context, topics[name], number)
            for name, numbers in wanted.items()
            for number in numbers
        ]
        rows = await bounds_of_many(context.services.partitions, partitions)
    else:
        find = context.services.replicas.partition
        rows = await local_bounds(
            [partial(find, name, number) for name, numbers in wanted.items() for number in numbers]
        )
        _require_all(rows)
    row = iter(rows)
    return json_response(
        OffsetsResponse(
            {
                name: TopicOffsets(
                    topics[name].topic_id, {str(number): _offsets(next(row)) for number in numbers}
                )
                for name, numbers in wanted.items()
            }
        )
    )


async def offsets_for_times(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/offsets-for-times. All partitions; without `any_node`, all of them or an error."""
    asked = await read_json(request, context, _times_decoder)
    check_partition_count(sum(map(len, asked.timestamps.values())), context)
    image = context.services.metadata.image
    topics = {name: image.topic(name) for name in asked.timestamps}
    wanted = [
        (name, partition_number(text), timestamp_ms)
        for name, timestamps in asked.timestamps.items()
        for text, timestamp_ms in timestamps.items()
    ]
    rows: Sequence[FoundRecord | LogError | None]
    if asked.any_node:
        rows = await times_of_many(
            context.services.partitions,
            [(_routed(context, topics[name], number), time) for name, number, time in wanted],
        )
    else:
        find = context.services.replicas.partition
        rows = await local_times(
            [(partial(find, name, number), time) for name, number, time in wanted]
        )
        _require_all(rows)
    answer: dict[str, dict[str, FoundOffset | None]] = {name: {} for name in topics}
    for (name, number, _), row in zip(wanted, rows, strict=True):
        answer[name][str(number)] = _found(row)
    ids: dict[str, str] = {name: topic.topic_id for name, topic in topics.items()}
    return json_response(TimesResponse(answer, ids))


def _routed(context: ServerContext, topic: TopicImage, number: int) -> PartitionHandle:
    """A partition of the topic; LogError UNKNOWN_PARTITION if there is none."""
    row = topic.partition(number)
    router = context.services.partitions
    return PartitionHandle(router, topic.name, topic.topic_id, row.partition, None)


def _require_all(rows: Iterable[object]) -> None:
    """Raise the first error."""
    for row in rows:
        if isinstance(row, LogError):
            raise row


def _offsets(row: PartitionBounds | LogError) -> ReadableOffsets:
    if isinstance(row, LogError):
        none = NO_OFFSET
        return ReadableOffsets(none, none, none, none, row.entry.code, row.message)
    return ReadableOffsets(
        row.log_start_offset, row.high_watermark, row.high_watermark, row.last_stable_offset
    )


def _found(row: FoundRecord | LogError | None) -> FoundOffset | None:
    if isinstance(row, LogError):
        return FoundOffset(NO_OFFSET, NO_TIMESTAMP, row.entry.code, row.message)
    return None if row is None else FoundOffset(*row)


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
