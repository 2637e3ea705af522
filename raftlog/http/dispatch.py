"""The dispatcher routes a request, calls the handler, and turns failures into errors.

One function does it for every request, in place of a chain of middlewares.
"""

from __future__ import annotations

import asyncio
import logging
from difflib import get_close_matches
from typing import Final

from aiohttp import web

from raftlog.broker.shared import ListenedService
from raftlog.http.browsers import BrowserGuard, preflight_headers
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import (
    JSON,
    Answer,
    empty_response,
    error_response,
    method_not_allowed,
    prefers,
)
from raftlog.http.routing import Route, Router, WrongMethod
from raftlog.record.errors import BAD_REQUEST, INTERNAL, ErrorEntry, LogError

ANSWER_COUNTED_BYTES: Final = 16 * 1024
"""Bytes over which a response counts as in flight until the reader has taken it."""

logger = logging.getLogger(__name__)


class Dispatcher:
    """Responds to requests by the route table."""

    def __init__(self, router: Router, context: ServerContext[ListenedService]) -> None:
        self._find = router.find
        self._context = context
        settings = context.settings
        self._check_browser = BrowserGuard(
            settings.allowed_origins, (*settings.allowed_hosts, settings.host), context.broker.hosts
        ).check
        # The event loop's own clock stands still during callbacks, and counts milliseconds.
        self._time = context.broker.clock.monotonic

    async def __call__(self, request: Request) -> web.StreamResponse:
        """The response to a request. An exception ends the connection."""
        context = self._context
        started = self._time()
        route: Route | None = None
        try:
            path, _, request.query_text = request.raw_path.partition("?")
            if not path.startswith("/") or "#" in request.raw_path:
                path = _unusual_target(request)
            found = self._find(request.method, path)
            if isinstance(found, WrongMethod):
                request.cors_headers = self._check_browser(request, any_host=False)
                response = self._wrong_method(request, found.allow)
            else:
                route = found.route
                request.cors_headers = self._check_browser(request, any_host=route.any_host)
                request.path_parameters = found.path_parameters
                if not route.serves_always:
                    context.broker.check_ready()
                    context.admit(request)
                if request.query_text and not route.any_query:
                    _check_query(request, route)
                request.cancel_on_disconnect = route.cancel_on_disconnect
                response = await route.handler(request, context)
        except LogError as error:
            response = self._failed(request, route, error.entry, error.message)
        except (ConnectionError, asyncio.CancelledError):
            context.metrics.aborted(route.name if route else None)
            context.release(request)
            raise
        except Exception as error:
            logger.exception("%s failed", route.name if route else request.method)
            if isinstance(error, AssertionError) and context.on_broken_invariant is not None:
                context.on_broken_invariant(error)
            response = self._failed(request, route, INTERNAL)
        if isinstance(response, Answer) and len(response.content) > ANSWER_COUNTED_BYTES:
            # A slow reader makes this node keep the response, which leaves less room for bodies.
            context.hold_anyway(request, len(response.content))
        if request.cors_headers and not response.prepared:
            response.headers.update(request.cors_headers)
        if request.must_close or context.broker.is_leaving:
            response.force_close()
        name = route.name if route else None
        context.metrics.answered(name, response.status, self._time() - started)
        return response

    def _wrong_method(self, request: Request, allow: str) -> web.StreamResponse:
        """405, or 204 for the preflight request of an allowed origin's page."""
        if (
            request.method == "OPTIONS"
            and request.cors_headers
            and "Access-Control-Request-Method" in request.headers
        ):
            return empty_response(headers=preflight_headers(request, allow))
        return method_not_allowed(request.method, allow)

    def _failed(
        self, request: Request, route: Route | None, entry: ErrorEntry, message: str | None = None
    ) -> web.StreamResponse:
        """The error response. If a response has already begun, cut the connection instead."""
        if request.writer.output_size > 0:
            self._context.release(request)
            raise ConnectionResetError("failed after the response had begun")
        media_type = JSON if route is None else route.error_media_type
        if media_type != JSON and prefers(request, JSON, over=media_type):
            media_type = JSON
        return error_response(entry, message, content_type=media_type)


def _check_query(request: Request, route: Route) -> None:
    """Raise LogError BAD_REQUEST for a parameter that the route does not have.

    A misspelt parameter would otherwise silently mean its default.
    """
    for name in request.query_parameters:
        if name not in route.query_names:
            close = get_close_matches(name[:40], sorted(route.query_names), 1)
            if close:
                advice = f"did you mean {close[0]}?"
            elif route.query_names:
                advice = f"there are {', '.join(sorted(route.query_names))}."
            else:
                advice = "there are none."
            raise LogError(BAD_REQUEST, f"There is no query parameter {name[:40]!r} here; {advice}")


def _unusual_target(request: Request) -> str:
    """The path of a target in absolute form or with a fragment. RFC 9112, section 3.2."""
    url = request.rel_url
    request.query_text = url.raw_query_string
    if not url.raw_path.startswith("/"):
        raise LogError(BAD_REQUEST, "The request target is not a path.")
    return url.raw_path
