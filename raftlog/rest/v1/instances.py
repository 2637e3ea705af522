"""The /v1 routes begin and end reads whose records another process fetches.

They are the two halves of `GET …/records` of the v2 convention, without the records. The gateway
uses them, because it reads the group's partitions in this cluster and the records in others.
"""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from raftlog.api import instances as api
from raftlog.broker.consumer_instances import PartitionMove
from raftlog.http.body import read_json
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import json_response
from raftlog.http.routing import Handler, Route
from raftlog.record import errors
from raftlog.record.types import PartitionId, TopicId

_begin_decoder = msgspec.json.Decoder(api.BeginReadRequest)
_end_decoder = msgspec.json.Decoder(api.EndReadRequest)


async def begin_read(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST …/begin-read."""
    body = await read_json(request, context, _begin_decoder)
    found = await context.broker.consumer_instances.begin_read(
        request.principal,
        request.path_parameters["group"],
        request.path_parameters["instance"],
        body.formats,
        is_first=body.is_first,
        max_wait_s=body.max_wait_ms / 1000,
    )
    plan = found.plan
    return json_response(
        api.BeginReadResponse(
            format=plan.format,
            auto_offset_reset=plan.auto_offset_reset,
            fetch_min_bytes=plan.fetch_min_bytes,
            request_timeout_ms=plan.request_timeout_ms,
            partitions=[
                api.PlannedPosition(
                    partition.handle.topic,
                    partition.handle.topic_id,
                    partition.handle.partition,
                    partition.offset,
                )
                for partition in found.partitions
            ],
        )
    )


async def end_read(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST …/end-read."""
    body = await read_json(request, context, _end_decoder)
    lost = await context.broker.consumer_instances.end_read(
        request.principal,
        request.path_parameters["group"],
        request.path_parameters["instance"],
        [
            PartitionMove(
                topic_id=TopicId(move.topic_id),
                partition=move.partition,
                planned=move.planned,
                next=move.next,
                reset_to=move.reset_to,
            )
            for move in body.moves
        ],
        [
            (TopicId(partition.topic_id), PartitionId(partition.partition))
            for partition in body.last
        ],
    )
    return json_response(
        api.EndReadResponse(
            [api.ReadPartition(topic_id, number) for topic_id, number in sorted(lost)]
        )
    )


_INSTANCE: Final = "/v1/groups/{group}/instances/{instance}"


def _route(name: str, handler: Handler, summary: str, body: object, answer: object) -> Route:
    return Route(
        "POST",
        f"{_INSTANCE}/{name}",
        handler,
        summary,
        tag="groups",
        request_type=body,
        response_type=answer,
        errors=(
            errors.INVALID_BODY,
            errors.UNKNOWN_INSTANCE,
            errors.UNSUPPORTED_FORMAT,
            errors.ILLEGAL_STATE,
            errors.RETRIABLE,
            errors.INVALID_GROUP,
            errors.COORDINATOR_LOADING,
            errors.NOT_COORDINATOR,
        ),
    )


ROUTES: Final = (
    _route(
        "begin-read",
        begin_read,
        "Begin a read of a consumer instance whose records another process fetches. Returns its "
        "options, and the position of each partition",
        api.BeginReadRequest,
        api.BeginReadResponse,
    ),
    _route(
        "end-read",
        end_read,
        "End such a read. Moves positions from the planned offsets to the offsets read. Records "
        "of a partition in `lost` must not be returned.",
        api.EndReadRequest,
        api.EndReadResponse,
    ),
)
