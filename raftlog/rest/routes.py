"""All routes of the REST conventions, as the node gives them to the HTTP server."""

from __future__ import annotations

from typing import Final

from raftlog.http.routing import Route
from raftlog.rest import (
    v1_admin,
    v1_batches,
    v1_cluster,
    v1_offsets,
    v1_partitions,
    v1_quorum,
    v1_settings,
    v1_tail,
    v2,
    v3_admin,
    v3_broker_configs,
    v3_produce,
)

ROUTES: Final[tuple[Route, ...]] = (
    *v2.ROUTES,
    *v3_produce.ROUTES,
    *v1_batches.ROUTES,
    *v1_offsets.ROUTES,
    *v1_tail.ROUTES,
    *v1_admin.ROUTES,
    *v1_quorum.ROUTES,
    *v1_cluster.ROUTES,
    *v1_partitions.ROUTES,
    *v1_settings.ROUTES,
    *v3_admin.ROUTES,
    *v3_broker_configs.ROUTES,
)
