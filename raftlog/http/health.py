"""/healthy, /ready and /metrics: for those who watch over the process.

Whether a node is ready, and for what.

Two questions, kept apart. While a node starts or stops it answers nothing, because it may not tell
an unknown topic from one it has not read yet (`Services.is_ready`, asked by dispatch.py for every
request). A node that merely knows no active controller has everything it needs to read and write
the partitions it leads: it serves, and only changes of metadata are refused (NO_CONTROLLER, by the
quorum itself). But it is not *ready*: whoever spreads load, or restarts nodes one by one, should
look at the others first. The same holds for a node that is fenced.
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
    """The process answers; whether it can serve is /ready's question."""
    return _status(context, "healthy")


async def ready(_request: Request, context: ServerContext) -> web.StreamResponse:
    """Whether the node can do all that is asked of it; if not, the error says why."""
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
