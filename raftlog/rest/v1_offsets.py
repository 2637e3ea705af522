"""/v1 offsets of many partitions in one call: the ends of topics, and offsets for timestamps.

By default a node answers for partitions that it leads, all of them or an error: for clients that
know the leaders. With `any_node` it queries the other leaders, once each, and every partition has
offsets or its own error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

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
from raftlog.record.types import Offset, PartitionId
from raftlog.rest.json_records import INT64_MAX, PartitionNumber

NO_OFFSET = Offset(-1)
NO_TIMESTAMP = -1


class OffsetsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which offsets are wanted: of topics, with all partitions; or of some partitions of each."""

    topics: list[str] | dict[str, list[PartitionNumber]]
    any_node: bool = False
    """Whether this node asks the leaders of what it does not lead. Then each partition may have an
    error of its own, instead of one for all."""


class PartitionOffsets(msgspec.Struct, frozen=True):
    """What can be read of a partition. All offsets are -1 beside an error."""

    beginning_offset: Offset
    end_offset: Offset
    """Offset after the last record that can be read."""
    high_watermark: Offset
    """First offset that is not committed yet; readers go no further."""
    last_stable_offset: Offset
    """First offset that may belong to an open transaction; who reads committed transactions only
    goes no further. At most the high watermark."""
    error_code: int | msgspec.UnsetType = msgspec.UNSET
    message: str | msgspec.UnsetType = msgspec.UNSET


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
    any_node: bool = False
    """Whether this node asks the leaders of what it does not lead. Then each partition may have an
    error of its own, instead of one for all."""


class FoundOffset(msgspec.Struct, frozen=True):
    """The first record at or after the timestamp asked for. Both are -1 beside an error."""

    offset: Offset
    timestamp: int
    error_code: int | msgspec.UnsetType = msgspec.UNSET
    message: str | msgspec.UnsetType = msgspec.UNSET


class TimesResponse(msgspec.Struct, frozen=True):
    """Offsets by topic and partition number; null: no record is that young."""

    offsets: dict[str, dict[str, FoundOffset | None]]
    topic_ids: dict[str, str]
    """Of each topic: which topic of that name this is of."""


_offsets_decoder = msgspec.json.Decoder(OffsetsRequest)
_times_decoder = msgspec.json.Decoder(TimesRequest)


async def bulk_offsets(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/offsets. Every partition; without `any_node`, all of them or an error."""
    body = await read_json(request, context, _offsets_decoder)
    found = await context.broker.offsets.bounds_of(
        request.principal, body.topics, any_node=body.any_node
    )
    return json_response(
        OffsetsResponse(
            {
                name: TopicOffsets(
                    topic.topic_id, {str(number): _offsets(row) for number, row in rows.items()}
                )
                for name, (topic, rows) in found.items()
            }
        )
    )


async def offsets_for_times(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/offsets-for-times. Every partition; without `any_node`, all of them or an error."""
    body = await read_json(request, context, _times_decoder)
    wanted = {
        name: {partition_number(text): time for text, time in timestamps.items()}
        for name, timestamps in body.timestamps.items()
    }
    found = await context.broker.offsets.at_times(request.principal, wanted, any_node=body.any_node)
    return json_response(
        TimesResponse(
            {
                name: {str(number): _found(row) for number, row in rows.items()}
                for name, (_, rows) in found.items()
            },
            {name: topic.topic_id for name, (topic, _) in found.items()},
        )
    )


def _offsets(row: PartitionBounds | LogError) -> PartitionOffsets:
    if isinstance(row, LogError):
        none = NO_OFFSET
        return PartitionOffsets(none, none, none, none, row.entry.code, row.message)
    return PartitionOffsets(
        row.log_start_offset, row.high_watermark, row.high_watermark, row.last_stable_offset
    )


def _found(row: FoundRecord | LogError | None) -> FoundOffset | None:
    if isinstance(row, LogError):
        return FoundOffset(NO_OFFSET, NO_TIMESTAMP, row.entry.code, row.message)
    return None if row is None else FoundOffset(*row)


def partition_number(text: str) -> PartitionId:
    """A partition number used as a JSON key; LogError INVALID_BODY for any other text."""
    number = whole_number(text)
    if number is None or not 0 <= number < 2**31 or str(number) != text:
        raise LogError(INVALID_BODY, f"{text[:40]!r} is not a partition number.")
    return PartitionId(number)


def partition_list(text: str) -> Sequence[PartitionId]:
    """Partition numbers separated by commas; LogError BAD_REQUEST for any other text."""
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
        "The readable offsets: `topics` lists topics, for all their partitions, or is an object "
        "with the partitions of each. This node must lead them all, unless `any_node` is true: "
        "then each partition has offsets, or an error_code of its own.",
        tag="offsets",
        request_type=OffsetsRequest,
        response_type=OffsetsResponse,
        errors=_ERRORS,
    ),
    Route(
        "POST",
        "/v1/offsets-for-times",
        offsets_for_times,
        "The first offset that is not older than a timestamp, of many partitions. This node "
        "must lead them all, unless `any_node` is true: then each partition has an offset, "
        "null, or an error_code of its own.",
        tag="offsets",
        request_type=TimesRequest,
        response_type=TimesResponse,
        errors=_ERRORS,
    ),
)
