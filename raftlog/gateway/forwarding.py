"""Requests about one log go to its cluster, and about groups to the home cluster.

They are passed on unchanged. Every node serves the same v2 surface, so a node's response is the
gateway's, errors included. A node forwards to partition leaders by itself, so any node of its
cluster will do.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final
from urllib.parse import quote

from aiohttp import web

from raftlog.gateway.links import Link, Reply
from raftlog.gateway.service import Gateway
from raftlog.http.body import read_body
from raftlog.http.request import Request, ServerContext, integer_parameter
from raftlog.http.responses import bytes_response, json_response, negotiate
from raftlog.http.routing import Handler, Route
from raftlog.record.errors import NOT_READY, LogError
from raftlog.rest.v2.topics import (
    HIGH_WATERMARK_HEADER,
    LOG_START_HEADER,
    NEXT_OFFSET_HEADER,
    V2_OFFERED,
)

Context = ServerContext[Gateway]

REQUEST_HEADERS: Final = ("Accept", "Content-Type")
RESPONSE_HEADERS: Final = (
    HIGH_WATERMARK_HEADER,
    NEXT_OFFSET_HEADER,
    LOG_START_HEADER,
    "Retry-After",
)


async def list_logs(request: Request, context: Context) -> web.StreamResponse:
    """GET /topics. Returns the names of all logs, sorted."""
    names = [entry.log for entry in context.broker.catalog.logs()]
    return json_response(names, content_type=negotiate(request, V2_OFFERED))


def to_log(route: Route) -> Handler:
    """A handler that passes requests to the cluster of the path's log."""

    async def handler(request: Request, context: Context) -> web.StreamResponse:
        link = context.broker.link(request.path_parameters["topic"])
        return answer(await passed_on(request, context, route, link))

    return handler


def to_home(route: Route) -> Handler:
    """A handler that passes the route's requests to the home cluster."""

    async def handler(request: Request, context: Context) -> web.StreamResponse:
        return answer(await passed_on(request, context, route, context.broker.home))

    return handler


async def passed_on(request: Request, context: Context, route: Route, link: Link) -> Reply:
    """The cluster's response to the request. Raises LogError as `Link.send`."""
    body = await read_body(request, context) if request.body_exists else None
    target = filled(route.path, request.path_parameters)
    if request.query_text:
        target = f"{target}?{request.query_text}"
    is_read = route.method == "GET"
    sending = link.send(
        route.method,
        target,
        body=body,
        headers=_request_headers(request),
        wait_s=_wait_s(request, context, route),
        may_repeat=is_read,
        hold=partial(context.hold, request),
    )
    if not is_read:
        return await sending
    reply = await context.broker.closing.unless_set(sending)
    if reply is None:
        raise LogError(NOT_READY, "The gateway is stopping. Use another gateway.")
    return reply


def filled(template: str, parameters: Mapping[str, str]) -> str:
    """The path of a route with these values, percent-encoded."""
    for name, value in parameters.items():
        template = template.replace(f"{{{name}}}", quote(value, safe=""))
    return template


def answer(reply: Reply) -> web.StreamResponse:
    """A node's response as this server's."""
    headers = {
        name: value for name in RESPONSE_HEADERS if (value := reply.headers.get(name)) is not None
    }
    content_type = reply.headers.get("Content-Type", "")
    return bytes_response(reply.body, content_type, status=reply.status, headers=headers)


def _request_headers(request: Request) -> dict[str, str]:
    # A compressed body has been inflated, so Content-Encoding is dropped.
    return {
        name: value for name in REQUEST_HEADERS if (value := request.headers.get(name)) is not None
    }


def _wait_s(request: Request, context: Context, route: Route) -> float:
    """Seconds for which the cluster may delay the response."""
    limits = context.limits
    if "timeout" not in route.query_names:
        return 0.0
    if route.method == "GET":
        default_ms, longest_ms = 0, limits.long_poll_ms_max
    else:
        default_ms, longest_ms = limits.produce_timeout_ms_default, limits.produce_timeout_ms_max
    return min(integer_parameter(request, "timeout", default_ms), longest_ms) / 1000
