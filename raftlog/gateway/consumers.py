"""Consumer instances read the logs of several clusters.

The home cluster has the instance, its membership, its positions and offsets. There, the partitions
of a log are those of its stub topic. So most calls go to the home cluster unchanged, and any
gateway serves any instance. Three kinds need the cluster of the log, which are a seek to a time or
to an end, a read of records, and the address of a new instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from raftlog.api.records import OffsetsRequest, OffsetsResponse, TimesRequest, TimesResponse
from raftlog.broker.offsets import NamedOffset
from raftlog.gateway.forwarding import Context, answer, filled, passed_on
from raftlog.gateway.group_reads import ClusterSource
from raftlog.gateway.links import Reply
from raftlog.gateway.service import Gateway
from raftlog.http.request import Request, own_url
from raftlog.http.responses import bytes_response, json_response
from raftlog.http.routing import Handler, Route
from raftlog.record.errors import ERROR_TABLE, INTERNAL, INVALID_BODY, LogError
from raftlog.rest.v2.consumer_shapes import ENTRIES_MAX, Created, PositionOffset, Positions
from raftlog.rest.v2.consumers import (
    accepted_media_types,
    instance_of,
    partitions_decoder,
    places_of,
    positions_decoder,
    read_bounds,
    required_body,
    time_ms_of,
)
from raftlog.rest.v2.instance_reads import InstanceRead
from raftlog.rest.v2.topics import V2_MEDIA_TYPE

T = TypeVar("T")
Place = tuple[str, int]
"""Log and partition."""

LOGS_AT_ONCE: Final = 16
"""Clusters that look up offsets for one request at the same time."""

_created_decoder = msgspec.json.Decoder(Created)


def create(route: Route) -> Handler:
    """POST /consumers/{group}. The address of the instance is this gateway's."""

    async def handler(request: Request, context: Context) -> web.StreamResponse:
        reply = await passed_on(request, context, route, context.broker.home)
        if reply.is_error:
            return answer(reply)
        try:
            created = _created_decoder.decode(reply.body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LogError(INTERNAL, f"The home cluster returned another shape: {error}") from error
        path = filled(
            "/consumers/{group}/instances/{instance}",
            {**request.path_parameters, "instance": created.instance_id},
        )
        return json_response(
            Created(created.instance_id, own_url(request, context) + path),
            content_type=reply.headers.get("Content-Type", V2_MEDIA_TYPE),
        )

    return handler


def assign(route: Route) -> Handler:
    """POST …/assignments. It accepts only logs in the catalog."""

    async def handler(request: Request, context: Context) -> web.StreamResponse:
        body = await required_body(request, context, partitions_decoder)
        for log, _ in places_of(body):
            context.broker.catalog.find(log)
        return answer(await _to_home(request, context, route.path, body))

    return handler


def seek(route: Route) -> Handler:
    """POST …/positions. Times become offsets at the clusters of their logs."""

    async def handler(request: Request, context: Context) -> web.StreamResponse:
        body = await required_body(request, context, positions_decoder)
        times_ms = {
            (position.topic, position.partition): time_ms_of(position)
            for position in body.timestamps
        }
        found = await _at_times(context.broker, times_ms)
        offsets = [*body.offsets, *_rows(found)]
        return answer(await _to_home(request, context, route.path, Positions(offsets)))

    return handler


def seek_to(route: Route, target: NamedOffset) -> Handler:
    """POST …/positions/beginning and /end, by the bounds at the clusters of the logs."""

    async def handler(request: Request, context: Context) -> web.StreamResponse:
        body = await required_body(request, context, partitions_decoder)
        bounds = await _bounds(context.broker, places_of(body))
        is_earliest = target is NamedOffset.EARLIEST
        found = {place: first if is_earliest else end for place, (first, end) in bounds.items()}
        # The home cluster knows only offsets, and has none of the records.
        path = route.path.rpartition("/")[0]
        return answer(await _to_home(request, context, path, Positions(_rows(found))))

    return handler


async def read_records(request: Request, context: Context) -> web.StreamResponse:
    """GET …/records. Returns records from the positions on, after a wait for the first."""
    instance_of(request)
    bounds = read_bounds(request, context.limits)
    source = ClusterSource(request, context, bounds)
    read = InstanceRead(context, source, accepted_media_types(request), bounds)
    body, content_type = await read.run()
    return bytes_response(body, content_type)


async def _to_home(request: Request, context: Context, path: str, body: msgspec.Struct) -> Reply:
    return await context.broker.home.send(
        "POST",
        filled(path, request.path_parameters),
        body=msgspec.json.encode(body),
        headers={"Content-Type": V2_MEDIA_TYPE},
    )


def _rows(found: Mapping[Place, int]) -> list[PositionOffset]:
    return [PositionOffset(log, number, offset) for (log, number), offset in found.items()]


# Offsets at the clusters of the logs


async def _bounds(gateway: Gateway, places: Iterable[Place]) -> dict[Place, tuple[int, int]]:
    """Beginning and end of these partitions. Raises LogError if a partition has none."""

    async def of_log(log: str, numbers: Sequence[int]) -> dict[Place, tuple[int, int]]:
        response = await gateway.link(log).call(
            "POST",
            "/v1/offsets",
            OffsetsResponse,
            OffsetsRequest({log: list(numbers)}, any_node=True),
            may_repeat=True,
        )
        found = {}
        for number in numbers:
            row = response.topics[log].partitions[str(number)]
            _raise_error(row.error_code, row.message)
            found[log, number] = (int(row.beginning_offset), int(row.high_watermark))
        return found

    return await _of_logs(places, of_log)


async def _at_times(gateway: Gateway, times_ms: Mapping[Place, int]) -> dict[Place, int]:
    """The first offset of each time, the end where all records are older. Raises LogError."""
    if not times_ms:
        return {}
    # The ends are read before the lookup, because a record committed in between may be that young.
    ends = await _bounds(gateway, times_ms)

    async def of_log(log: str, numbers: Sequence[int]) -> dict[Place, int]:
        wanted = {str(number): times_ms[log, number] for number in numbers}
        response = await gateway.link(log).call(
            "POST",
            "/v1/offsets-for-times",
            TimesResponse,
            TimesRequest({log: wanted}, any_node=True),
            may_repeat=True,
        )
        found = {}
        for number in numbers:
            row = response.offsets[log][str(number)]
            if row is None:
                found[log, number] = ends[log, number][1]
                continue
            _raise_error(row.error_code, row.message)
            found[log, number] = int(row.offset)
        return found

    return await _of_logs(times_ms, of_log)


async def _of_logs(
    places: Iterable[Place], of_log: Callable[[str, Sequence[int]], Awaitable[dict[Place, T]]]
) -> dict[Place, T]:
    """The results of `of_log` for the partitions of each log, together. Raises LogError."""
    by_log: dict[str, dict[int, None]] = {}
    for log, number in places:
        by_log.setdefault(log, {})[number] = None
    if sum(map(len, by_log.values())) > ENTRIES_MAX:
        raise LogError(INVALID_BODY, f"The body names more than {ENTRIES_MAX} partitions.")
    gate = asyncio.Semaphore(LOGS_AT_ONCE)

    async def gated(log: str, numbers: Sequence[int]) -> dict[Place, T]:
        async with gate:
            return await of_log(log, numbers)

    outcomes = await asyncio.gather(
        *(gated(log, tuple(numbers)) for log, numbers in by_log.items()), return_exceptions=True
    )
    found: dict[Place, T] = {}
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        found.update(outcome)
    return found


def _raise_error(code: int | msgspec.UnsetType, message: str | msgspec.UnsetType) -> None:
    if isinstance(code, int):
        text = message if isinstance(message, str) else None
        raise LogError(ERROR_TABLE.get(code, INTERNAL), text)
