"""The /v1 routes read and set topic configs of the whole cluster.

They rank below a topic's own configs, and above a node's start settings. A read returns the
settings applied on this node, which may be old on an isolated node. With `?fresh=true` the node
first passes a read barrier of the quorum, so that the response holds every change acknowledged
before the request (linearizable). Such a read fails without a quorum.
"""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from raftlog.api.cluster import ClusterSettings, ClusterSettingsChange
from raftlog.http.body import read_json
from raftlog.http.request import Request, ServerContext, choice_parameter
from raftlog.http.responses import json_response
from raftlog.http.routing import QueryParameter, Route
from raftlog.record.errors import INVALID_CONFIG, NO_CONTROLLER, RETRIABLE

_CHANGE = msgspec.json.Decoder(ClusterSettingsChange)


async def get_settings(request: Request, context: ServerContext) -> web.StreamResponse:
    """The cluster's settings."""
    fresh = choice_parameter(request, "fresh", "false", ("true", "false")) == "true"
    index, values = await context.broker.admin.cluster_settings(
        request.principal, linearizable=fresh
    )
    return json_response(ClusterSettings(values, index))


async def put_settings(request: Request, context: ServerContext) -> web.StreamResponse:
    """Change the cluster's settings. Returns all values right after the change."""
    change = await read_json(request, context, _CHANGE)
    index, values = await context.broker.admin.alter_cluster_settings(
        request.principal, change.values, change.removals
    )
    return json_response(ClusterSettings(values, index))


ROUTES: Final = (
    Route(
        "GET",
        "/v1/cluster/settings",
        get_settings,
        "Topic configs set for the whole cluster",
        tag="v1",
        query=(
            QueryParameter(
                "fresh",
                bool,
                "Whether to read through the quorum (linearizable). Default false.",
                False,
            ),
        ),
        response_type=ClusterSettings,
        errors=(NO_CONTROLLER, RETRIABLE),
    ),
    Route(
        "PUT",
        "/v1/cluster/settings",
        put_settings,
        "Change topic configs of the whole cluster",
        tag="v1",
        request_type=ClusterSettingsChange,
        response_type=ClusterSettings,
        errors=(INVALID_CONFIG, NO_CONTROLLER, RETRIABLE),
    ),
)
