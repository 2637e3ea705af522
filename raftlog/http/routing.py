"""The route table and the router map a request to its handler.

How to add an endpoint
1. Write `async def handler(request: Request, context: ServerContext) -> web.StreamResponse`.
   Path parameters are in `request.path_parameters` (decoded), the query in
   `request.query_parameters`. `request.py` reads numbers and choices. `body.py` reads bodies
   (`read_body`, `read_json`). `responses.py` makes responses (`json_response`). Call an operation
   of `context.broker` with `request.principal`. Raise LogError for every failure. dispatch.py
   responds with its entry of the error table. Any other exception becomes 50002.
2. Add a `Route` to the `ROUTES` of your module, which rest/routes.py joins into the table. Its
   query, types and errors are published by /openapi.json.

Matching is exact. A path is split at `/`, each segment is decoded once and compared with literals.
A `{name}` takes any one non-empty segment, without regular expressions or URL objects. Routes may
ignore empty segments at their end. A node of the tree holds literals or one parameter, never both,
so no user-chosen name (a topic called `partitions`) can shadow a route.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from aiohttp import web

from raftlog.record.errors import BAD_REQUEST, NOT_FOUND, ErrorEntry, LogError

if TYPE_CHECKING:
    from raftlog.http.request import Request, ServerContext

Handler: TypeAlias = Callable[["Request", "ServerContext[Any]"], Awaitable[web.StreamResponse]]
"""A handler of one service. The routes of a table have handlers for their server's service."""

JSON = "application/json"
SEGMENTS_MAX = 32
"""Segments of a path. Every route is far shorter."""


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """One query parameter in OpenAPI's description. `type` is any type msgspec can describe."""

    name: str
    type: object
    description: str
    default: object = None


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One endpoint, with method and path, its handler, and its description.

    Routes compare by identity, which makes a cheap key.
    """

    method: str
    path: str
    """Template such as `/topics/{topic}/partitions/{partition}`."""
    handler: Handler
    summary: str
    tag: str = "other"
    """Group of the endpoint in the description."""
    query: tuple[QueryParameter, ...] = ()
    request_type: object = None
    """Type of the body (any type msgspec can describe), or None without a body."""
    request_media_types: tuple[str, ...] = (JSON,)
    body_required: bool = True
    response_type: object = None
    """Type of a success's body, or a tuple of types. None stands for no JSON body."""
    response_media_types: tuple[str, ...] = (JSON,)
    status: int = 200
    """Status of success."""
    errors: tuple[ErrorEntry, ...] = ()
    """Errors to describe, besides those of every request."""
    error_media_type: str = JSON
    """Media type of an error's body."""
    streams: bool = False
    """Whether the response has no known end or size. Such a route has no HEAD."""
    serves_always: bool = False
    """Whether a node that is not ready also serves the route."""
    any_query: bool = False
    """Whether undescribed query parameters are ignored, for probes and scrapers."""
    any_host: bool = False
    """Whether any Host header is accepted, for probes, and for nodes, which prove themselves."""
    cancel_on_disconnect: bool = False
    """Whether to cancel the handler once the peer has left. It suits reads that wait, never
    writes."""
    ignores_empty: bool = False
    """Whether empty segments behind the path's last parameter are ignored, as in `/a/{name}/`. Some
    clients of a convention write them."""
    query_names: frozenset[str] = field(init=False)
    """Names of the accepted query parameters. Others are rejected."""
    name: str = field(init=False)
    """Method and template, as the label of metrics and logs."""

    def __post_init__(self) -> None:
        """Build the name once, because every request counts under it."""
        object.__setattr__(
            self, "query_names", frozenset(parameter.name for parameter in self.query)
        )
        object.__setattr__(self, "name", f"{self.method} {self.path}")


@dataclass(slots=True)
class _Node:
    literals: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    routes: dict[str, tuple[Route, tuple[str, ...]]] = field(default_factory=dict)
    allow: str = ""
    ignores_empty: bool = False


@dataclass(frozen=True, slots=True)
class Match:
    """A route and the values of its path parameters."""

    route: Route
    path_parameters: dict[str, str]


@dataclass(frozen=True, slots=True)
class WrongMethod:
    """The path exists with the methods of `allow`, in the format of the Allow header."""

    allow: str


class Router:
    """Finds the route for a method and a raw path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self.routes = tuple(routes)
        for route in self.routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        if not route.path.startswith("/") or route.path.count("/") > SEGMENTS_MAX:
            raise ValueError(f"{route.name}: not a path")
        node = self._root
        names = []
        tail: list[_Node] = []
        for segment in route.path[1:].split("/"):
            if segment.startswith("{") and segment.endswith("}"):
                if node.literals:
                    raise ValueError(f"{route.name}: {segment} would shadow literals")
                node.parameter = node.parameter or _Node()
                names.append(segment[1:-1])
                node = node.parameter
                tail = []
            else:
                if node.parameter:
                    raise ValueError(f"{route.name}: a parameter would shadow {segment}")
                node = node.literals.setdefault(segment, _Node())
            tail.append(node)
        for behind in tail:
            behind.ignores_empty |= route.ignores_empty
        entry = (route, tuple(names))
        if route.method in node.routes:
            raise ValueError(f"{route.name} is in the table twice")
        node.routes[route.method] = entry
        if route.method == "GET" and not route.streams:
            node.routes.setdefault("HEAD", entry)
        node.allow = ", ".join(sorted(node.routes))

    def find(self, method: str, path: str) -> Match | WrongMethod:
        """The route for a raw path (without query), or LogError NOT_FOUND or BAD_REQUEST."""
        node = self._root
        values = []
        for raw in path[1:].split("/", SEGMENTS_MAX):
            segment = _decoded(raw) if "%" in raw else raw
            child = node.literals.get(segment)
            if child is None:
                child = node.parameter
                if not segment and node.ignores_empty:
                    continue
                if child is None or not segment:
                    raise LogError(NOT_FOUND)
                values.append(segment)
            node = child
        entry = node.routes.get(method)
        if entry is None:
            if not node.routes:
                raise LogError(NOT_FOUND)
            return WrongMethod(node.allow)
        route, names = entry
        return Match(route, dict(zip(names, values, strict=True)))


def _decoded(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise LogError(BAD_REQUEST, "The path is not percent-encoded UTF-8.") from None
