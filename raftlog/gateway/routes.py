"""The routes of a gateway: the v2 surface of a node, with other handlers, and its own health.

Paths, queries, bodies and errors are described by the node's own table, so the two cannot differ.
`GET /brokers` is left out: broker ids of different clusters say nothing together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from raftlog.broker.offsets import NamedOffset
from raftlog.gateway import consumers
from raftlog.gateway.forwarding import Context, list_logs, to_home, to_log
from raftlog.http import openapi
from raftlog.http.health import METRICS_MEDIA_TYPE
from raftlog.http.request import Request
from raftlog.http.responses import bytes_response, json_response
from raftlog.http.routing import Handler, Route
from raftlog.record.errors import NOT_READY, LogError
from raftlog.rest.v2 import consumers as v2_consumers
from raftlog.rest.v2 import topics as v2

_INSTANCE: Final = "/consumers/{group}/instances/{instance}"
LEFT_OUT: Final = ("GET /brokers",)

_HANDLERS: Final[dict[str, Callable[[Route], Handler]]] = {
    "GET /topics": lambda _: list_logs,
    "POST /consumers/{group}": consumers.create,
    f"POST {_INSTANCE}/assignments": consumers.assign,
    f"POST {_INSTANCE}/positions": consumers.seek,
    f"POST {_INSTANCE}/positions/beginning": lambda route: consumers.seek_to(
        route, NamedOffset.EARLIEST
    ),
    f"POST {_INSTANCE}/positions/end": lambda route: consumers.seek_to(route, NamedOffset.LATEST),
    f"GET {_INSTANCE}/records": lambda _: consumers.read_records,
}
"""Routes with a handler of their own; all others are passed on unchanged."""


def _served(route: Route) -> Route:
    """The node's route with the gateway's handler."""
    make = _HANDLERS.get(route.name)
    if make is None:
        make = to_log if "{topic}" in route.path else to_home
    return replace(route, handler=make(route))


class GatewayStatus(msgspec.Struct, frozen=True):
    """The answer of /healthy and /ready."""

    status: str
    logs: int
    """Served logs."""
    catalog_age_s: float
    """Since the home cluster last answered; -1: never."""
    catalog_failure: str
    """Empty while the home cluster answers."""
    logs_without_groups: dict[str, str]
    """Logs that groups cannot read, and why."""


def _status(context: Context, status: str) -> web.StreamResponse:
    gateway = context.broker
    return json_response(
        GatewayStatus(
            status,
            len(gateway.catalog.logs()),
            round(gateway.catalog_age_s, 3),
            gateway.catalog_failure,
            gateway.logs_without_groups(),
        )
    )


async def healthy(_request: Request, context: Context) -> web.StreamResponse:
    """GET /healthy: the process answers, whether or not it has a catalog."""
    return _status(context, "healthy")


async def ready(_request: Request, context: Context) -> web.StreamResponse:
    """GET /ready: the gateway has a catalog, and is not stopping."""
    gateway = context.broker
    if gateway.closing.is_set():
        raise LogError(NOT_READY, "The gateway is stopping.")
    gateway.check_ready()
    return _status(context, "ready")


async def metrics(_request: Request, context: Context) -> web.StreamResponse:
    """GET /metrics: everything in Prometheus' text format."""
    return bytes_response(context.metrics.render(), CONTENT_TYPE_LATEST)


_HEALTH: Final = (
    Route(
        "GET",
        "/healthy",
        healthy,
        "Whether the process answers",
        tag="gateway",
        response_type=GatewayStatus,
        serves_always=True,
        any_query=True,
        any_host=True,
    ),
    Route(
        "GET",
        "/ready",
        ready,
        "Whether the gateway has read the catalog once",
        tag="gateway",
        response_type=GatewayStatus,
        errors=(NOT_READY,),
        serves_always=True,
        any_query=True,
        any_host=True,
    ),
    Route(
        "GET",
        "/metrics",
        metrics,
        "Metrics for Prometheus",
        tag="gateway",
        response_media_types=(METRICS_MEDIA_TYPE,),
        serves_always=True,
        any_query=True,
    ),
)

_ROUTES: Final = (
    *(_served(route) for route in (*v2.ROUTES, *v2_consumers.ROUTES) if route.name not in LEFT_OUT),
    *_HEALTH,
)
ROUTES: Final = (*_ROUTES, openapi.route(_ROUTES))
