"""The node gives all routes of the REST conventions to the HTTP server.

A path with a cluster id is served only for the node's own cluster, which `-` also names. A request
meant for another cluster must not read or delete the topics of this cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import Final

from aiohttp import web

from raftlog.http.request import Request, ServerContext
from raftlog.http.routing import Route
from raftlog.record.errors import NOT_FOUND, LogError, quoted
from raftlog.rest.v1 import admin as v1_admin
from raftlog.rest.v1 import batches as v1_batches
from raftlog.rest.v1 import cluster as v1_cluster
from raftlog.rest.v1 import groups as v1_groups
from raftlog.rest.v1 import instances as v1_instances
from raftlog.rest.v1 import offsets as v1_offsets
from raftlog.rest.v1 import partitions as v1_partitions
from raftlog.rest.v1 import quorum as v1_quorum
from raftlog.rest.v1 import settings as v1_settings
from raftlog.rest.v1 import tail as v1_tail
from raftlog.rest.v1 import transactions as v1_transactions
from raftlog.rest.v2 import consumers as v2_consumers
from raftlog.rest.v2 import topics as v2
from raftlog.rest.v3 import admin as v3_admin
from raftlog.rest.v3 import configs as v3_configs
from raftlog.rest.v3 import groups as v3_groups
from raftlog.rest.v3 import partitions as v3_partitions
from raftlog.rest.v3 import produce as v3_produce

THIS_CLUSTER: Final = "-"
"""Cluster id that every node accepts as its own."""


def _for_this_cluster(route: Route) -> Route:
    """The route, with 404 for the id of a foreign cluster."""
    if "{cluster}" not in route.path:
        return route
    handler = route.handler

    def checked(request: Request, context: ServerContext) -> Awaitable[web.StreamResponse]:
        own, given = context.broker.cluster_id, request.path_parameters["cluster"]
        if given not in (THIS_CLUSTER, own):
            raise LogError(
                NOT_FOUND,
                f"There is no cluster {quoted(given)} here: this node belongs to {own}, which "
                f"'{THIS_CLUSTER}' names, too.",
            )
        return handler(request, context)

    errors = tuple(dict.fromkeys((*route.errors, NOT_FOUND)))
    return replace(route, handler=checked, errors=errors)


_ALL: Final[tuple[Route, ...]] = (
    *v2.ROUTES,
    *v2_consumers.ROUTES,
    *v3_produce.ROUTES,
    *v1_batches.ROUTES,
    *v1_offsets.ROUTES,
    *v1_groups.ROUTES,
    *v1_instances.ROUTES,
    *v1_tail.ROUTES,
    *v1_transactions.ROUTES,
    *v1_admin.ROUTES,
    *v1_quorum.ROUTES,
    *v1_cluster.ROUTES,
    *v1_partitions.ROUTES,
    *v1_settings.ROUTES,
    *v3_admin.ROUTES,
    *v3_configs.ROUTES,
    *v3_partitions.ROUTES,
    *v3_groups.ROUTES,
)

ROUTES: Final[tuple[Route, ...]] = tuple(map(_for_this_cluster, _ALL))
