"""/healthy, /ready and /metrics: for those who watch over the process."""

from __future__ import annotations

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from raftlog.record.errors import NO_CONTROLLER, NOT_READY, LogError
from raftlog.server.context import ServerContext
from raftlog.server.readiness import unready
from raftlog.server.request import Request
from raftlog.server.responses import bytes_response, json_response
from raftlog.server.routing import Route

METRICS_MEDIA_TYPE = "text/plain"


class Status(msgspec.Struct, frozen=True):
    """The answer of a node that is well."""

    status: str
    node_id: int
    cluster_id: str


def _status(context: ServerContext, status: str) -> web.StreamResponse:
    services = context.services
    return json_response(Status(status, services.node_id, services.cluster_id))


async def healthy(_request: Request, context: ServerContext) -> web.StreamResponse:
    """The process answers; whether it can serve is /ready's question."""
    return _status(context, "healthy")


async def ready(_request: Request, context: ServerContext) -> web.StreamResponse:
    """Whether the node can do all that is asked of it; if not, the error says why."""
    if context.closing.is_set():
        raise LogError(NOT_READY, "The node is stopping.")
    error = unready(context.services)
    if error is not None:
        raise error
    return _status(context, "ready")


async def metrics(_request: Request, context: ServerContext) -> web.StreamResponse:
    """Everything in Prometheus' text format."""
    context.metrics.keep_topics(context.services.metadata.image.topics_by_name)
    return bytes_response(context.metrics.render(), CONTENT_TYPE_LATEST)


ROUTES = (
    Route(
        "GET",
        "/healthy",
        healthy,
        "Whether the process answers",
        tag="node",
        response_type=Status,
        serves_always=True,
    ),
    Route(
        "GET",
        "/ready",
        ready,
        "Whether the node serves and knows the active controller",
        tag="node",
        response_type=Status,
        errors=(NOT_READY, NO_CONTROLLER),
        serves_always=True,
    ),
    Route(
        "GET",
        "/metrics",
        metrics,
        "Metrics for Prometheus",
        tag="node",
        response_media_types=(METRICS_MEDIA_TYPE,),
        serves_always=True,
    ),
)
