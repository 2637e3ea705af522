"""The /v1 routes return ends, and offsets for timestamps, of many partitions.

By default a node serves only partitions that it leads, and returns all of them or an error. Clients
that know the leaders use this. With `any_node` the node queries each other leader once, and every
partition has offsets or its own error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import web

from raftlog.api import records as api
from raftlog.broker.offsets import FoundRecord, PartitionBounds
from raftlog.http.body import read_json
from raftlog.http.request import Request, ServerContext, whole_number
from raftlog.http.responses import json_response
from raftlog.http.routing import Route
from raftlog.record.errors import (
    BAD_REQUEST,
    INVALID_BODY,
    NO_LEADER,
    STORAGE_FAILED,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
    LogError,
)
from raftlog.record.types import PartitionId

_offsets_decoder = msgspec.json.Decoder(api.OffsetsRequest)
_times_decoder = msgspec.json.Decoder(api.TimesRequest)


async def bulk_offsets(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/offsets. Without `any_node`, it returns all partitions or an error."""
    body = await read_json(request, context, _offsets_decoder)
    found = await context.broker.offsets.bounds_of(
        request.principal, body.topics, any_node=body.any_node
    )
    return json_response(
        api.OffsetsResponse(
            {
                name: api.TopicOffsets(
                    topic.topic_id, {str(number): _offsets(row) for number, row in rows.items()}
                )
                for name, (topic, rows) in found.items()
            }
        )
    )


async def offsets_for_times(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/offsets-for-times. Without `any_node`, it returns all partitions or an error."""
    body = await read_json(request, context, _times_decoder)
    wanted = {
        name: {partition_number(text): time for text, time in timestamps.items()}
        for name, timestamps in body.timestamps.items()
    }
    found = await context.broker.offsets.at_times(request.principal, wanted, any_node=body.any_node)
    return json_response(
        api.TimesResponse(
            {
                name: {str(number): _found(row) for number, row in rows.items()}
                for name, (_, rows) in found.items()
            },
            {name: topic.topic_id for name, (topic, _) in found.items()},
        )
    )


def _offsets(row: PartitionBounds | LogError) -> api.ReadableOffsets:
    if isinstance(row, LogError):
        none = api.NO_OFFSET
        return api.ReadableOffsets(
            beginning_offset=none,
            end_offset=none,
            high_watermark=none,
            last_stable_offset=none,
            error_code=row.entry.code,
            message=row.message,
        )
    return api.ReadableOffsets(
        row.log_start_offset, row.high_watermark, row.high_watermark, row.last_stable_offset
    )


def _found(row: FoundRecord | LogError | None) -> api.FoundOffset | None:
    if isinstance(row, LogError):
        return api.FoundOffset(api.NO_OFFSET, api.NO_TIMESTAMP, row.entry.code, row.message)
    return None if row is None else api.FoundOffset(*row)


def partition_number(text: str) -> PartitionId:
    """Parse a partition number used as a JSON key.

    Raises LogError INVALID_BODY for any other text.
    """
    number = whole_number(text)
    if number is None or not 0 <= number < 2**31 or str(number) != text:
        raise LogError(INVALID_BODY, f"{text[:40]!r} is not a partition number.")
    return PartitionId(number)


def partition_list(text: str) -> Sequence[PartitionId]:
    """Parse partition numbers separated by commas.

    Raises LogError BAD_REQUEST for any other text.
    """
    numbers = [whole_number(part) for part in text.split(",")]
    checked = [PartitionId(n) for n in numbers if n is not None and 0 <= n < 2**31]
    if len(checked) != len(numbers) or len(set(checked)) != len(checked):
        raise LogError(BAD_REQUEST, f"{text[:40]!r} is not a list of partition numbers.")
    return checked


_ERRORS: Final = (INVALID_BODY, UNKNOWN_TOPIC, UNKNOWN_PARTITION, NO_LEADER, STORAGE_FAILED)

ROUTES: Final = (
    Route(
        "POST",
        "/v1/offsets",
        bulk_offsets,
        "The readable offsets. `topics` lists topics, for all their partitions, or is an object "
        "with the partitions of each. This node must lead them all, unless `any_node` is true. "
        "Then each partition has offsets or a separate error_code.",
        tag="offsets",
        request_type=api.OffsetsRequest,
        response_type=api.OffsetsResponse,
        errors=_ERRORS,
    ),
    Route(
        "POST",
        "/v1/offsets-for-times",
        offsets_for_times,
        "The first offset that is not older than a timestamp, of many partitions. This node must "
        "lead them all, unless `any_node` is true. Then each partition has an offset, null, or a "
        "separate error_code.",
        tag="offsets",
        request_type=api.TimesRequest,
        response_type=api.TimesResponse,
        errors=_ERRORS,
    ),
)
