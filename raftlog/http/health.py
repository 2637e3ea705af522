"""Monitoring and load balancers use /healthy, /ready and /metrics.

`/healthy` checks only that the process responds. `/ready` checks that the service can do
everything, and should get load. See broker/node.py for the two checks that a node has behind that.
"""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from raftlog.api.common import Status
from raftlog.broker.shared import ListenedService
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import bytes_response, json_response
from raftlog.http.routing import Route
from raftlog.record.errors import NO_CONTROLLER, NOT_READY, ErrorEntry, LogError

METRICS_MEDIA_TYPE = "text/plain"


async def healthy(_request: Request, context: ServerContext[ListenedService]) -> web.StreamResponse:
    """The process responds, whether or not the service serves."""
    return json_response(context.broker.status("healthy"))


async def ready(_request: Request, context: ServerContext[ListenedService]) -> web.StreamResponse:
    """The service can do everything. Otherwise the error has the reason."""
    broker = context.broker
    if broker.is_leaving:
        raise LogError(NOT_READY, f"The {broker.noun} is stopping.")
    broker.check_whole()
    return json_response(broker.status("ready"))


async def metrics(_request: Request, context: ServerContext[ListenedService]) -> web.StreamResponse:
    """Everything in Prometheus' text format."""
    context.broker.keep_metrics()
    return bytes_response(context.metrics.render(), CONTENT_TYPE_LATEST)


def routes(
    tag: str, response_type: type, ready_summary: str, errors: tuple[ErrorEntry, ...]
) -> tuple[Route, ...]:
    """The three routes of a service."""
    return (
        Route(
            "GET",
            "/healthy",
            healthy,
            "Whether the process responds",
            tag=tag,
            response_type=response_type,
            serves_always=True,
            any_query=True,
            any_host=True,
        ),
        Route(
            "GET",
            "/ready",
            ready,
            ready_summary,
            tag=tag,
            response_type=response_type,
            errors=errors,
            serves_always=True,
            any_query=True,
            any_host=True,
        ),
        Route(
            "GET",
            "/metrics",
            metrics,
            "Metrics for Prometheus",
            tag=tag,
            response_media_types=(METRICS_MEDIA_TYPE,),
            serves_always=True,
            any_query=True,
        ),
    )


ROUTES = routes(
    "node",
    Status,
    "Whether the node serves and knows the active controller",
    (NOT_READY, NO_CONTROLLER),
)
