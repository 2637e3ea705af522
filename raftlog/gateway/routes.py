"""A gateway serves a node's v2 routes with other handlers, and its own health.

Paths, queries, bodies and errors are described by the node's own table, so the two cannot differ.
`GET /brokers` is left out, because broker ids of different clusters have no meaning together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from raftlog.broker.offsets import NamedOffset
from raftlog.gateway import consumers
from raftlog.gateway.forwarding import list_logs, to_home, to_log
from raftlog.gateway.service import GatewayStatus
from raftlog.http import health, openapi
from raftlog.http.routing import Handler, Route
from raftlog.record.errors import NOT_READY
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
"""Routes with a separate handler. All others are passed on unchanged."""


def _served(route: Route) -> Route:
    """The node's route with the gateway's handler."""
    make = _HANDLERS.get(route.name)
    if make is None:
        make = to_log if "{topic}" in route.path else to_home
    return replace(route, handler=make(route))


_HEALTH: Final = health.routes(
    "gateway", GatewayStatus, "Whether the gateway has read the catalog once", (NOT_READY,)
)

_ROUTES: Final = (
    *(_served(route) for route in (*v2.ROUTES, *v2_consumers.ROUTES) if route.name not in LEFT_OUT),
    *_HEALTH,
)
ROUTES: Final = (*_ROUTES, openapi.route(_ROUTES))
