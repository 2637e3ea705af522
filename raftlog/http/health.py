"""/healthy, /ready and /metrics, for monitoring and load balancers.

`/healthy`: the process answers. `/ready`: the node can do everything, and should get load; see
broker/node.py for the two questions behind that.
"""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from raftlog.api.common import Status
from raftlog.broker.node import unready
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import bytes_response, json_response
from raftlog.http.routing import Route
from raftlog.record.errors import NO_CONTROLLER, NOT_READY, LogError

METRICS_MEDIA_TYPE = "text/plain"


def _status(context: ServerContext, status: str) -> web.StreamResponse:
    broker = context.broker
    return json_response(Status(status, broker.node_id, broker.cluster_id))


async def healthy(_request: Request, context: ServerContext) -> web.StreamResponse:
    """The process answers, whether or not the node serves."""
    return _status(context, "healthy")


async def ready(_request: Request, context: ServerContext) -> web.StreamResponse:
    """The node serves and knows the active controller; otherwise the error has the reason."""
    if context.broker.closing.is_set():
        raise LogError(NOT_READY, "The node is stopping.")
    error = unready(context.broker.services)
    if error is not None:
        raise error
    return _status(context, "ready")


async def metrics(_request: Request, context: ServerContext) -> web.StreamResponse:
    """Everything in Prometheus' text format."""
    broker = context.broker
    broker.topics.keep_topics(broker.services.metadata.image.topics_by_name)
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
        any_query=True,
        any_host=True,
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
        any_query=True,
        any_host=True,
    ),
    Route(
        "GET",
        "/metrics",
        metrics,
        "Metrics for Prometheus",
        tag="node",
        response_media_types=(METRICS_MEDIA_TYPE,),
        serves_always=True,
        any_query=True,
    ),
)
