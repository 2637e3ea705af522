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

from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from raftlog.api.common import Status
from raftlog.http.context import ServerContext
from raftlog.http.request import Request
from raftlog.http.responses import bytes_response, json_response
from raftlog.http.routing import Route
from raftlog.record.errors import NO_CONTROLLER, NOT_READY, LogError

if TYPE_CHECKING:
    from raftlog.broker.service import Services

METRICS_MEDIA_TYPE = "text/plain"


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


def unready(services: Services) -> LogError | None:
    """Why the node is not ready, as the error that says so; None if it is."""
    reason = services.is_ready()
    if reason is not None:
        return LogError(NOT_READY, reason)
    quorum = services.quorum
    leader_id = quorum.leader_id
    if leader_id is None:
        return LogError(
            NO_CONTROLLER,
            f"Node {services.node_id} knows no active controller: {_reach(services)} Its "
            "partitions are served; topics, leaders and settings cannot be changed.",
        )
    if leader_id == services.node_id and not quorum.is_active:
        return LogError(
            NO_CONTROLLER,
            f"Node {services.node_id} has been elected controller and is not active yet.",
        )
    broker = services.metadata.image.brokers.get(services.node_id)
    if broker is not None and broker.fenced:
        return LogError(
            NOT_READY,
            f"Node {services.node_id} is fenced: controller {leader_id} has not heard from it, and "
            "has it lead nothing.",
        )
    return None


def _reach(services: Services) -> str:
    """How many voters this node is in touch with, itself included: what the reader asks next."""
    voters = services.quorum.voters
    peers = services.quorum.peers()
    reached = sum(node_id == services.node_id or node_id in peers for node_id in voters.ids)
    return f"it reaches {reached} of {len(voters.ids)} voters, {voters.majority} are needed."
