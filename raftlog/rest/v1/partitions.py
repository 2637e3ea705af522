"""Replication progress of a topic's partitions, as far as this node leads them."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from raftlog.api.cluster import PartitionStatus, PartitionStatusList, ReplicaStatus
from raftlog.broker.admin import ReplicaProgress
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import json_response
from raftlog.http.routing import Route
from raftlog.record.errors import UNKNOWN_TOPIC

PARTITIONS_PER_TURN_MAX: Final = 1_000
"""Partitions shaped in one turn of the event loop. A topic may have 10,000."""


async def list_partitions(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /v1/topics/{topic}/partitions."""
    partitions = context.broker.admin.replica_progress(
        request.principal, request.path_parameters["topic"]
    )
    views: list[PartitionStatus] = []
    for start in range(0, len(partitions), PARTITIONS_PER_TURN_MAX):
        views += map(_view, partitions[start : start + PARTITIONS_PER_TURN_MAX])
        await asyncio.sleep(0)
    return json_response(PartitionStatusList(views))


def _view(progress: ReplicaProgress) -> PartitionStatus:
    row, ends = progress.row, progress.log_end_offsets
    return PartitionStatus(
        partition=row.partition,
        leader=row.leader,
        leader_epoch=row.leader_epoch,
        replicas=tuple(
            ReplicaStatus(
                broker_id=broker_id,
                in_sync=broker_id in row.isr,
                log_end_offset=ends.get(broker_id),
                lag=max(0, progress.log_end_offset - ends[broker_id])
                if broker_id in ends
                else None,
            )
            for broker_id in row.replicas
        ),
        elr=tuple(row.elr),
        high_watermark=progress.high_watermark,
    )


ROUTES: Final = (
    Route(
        "GET",
        "/v1/topics/{topic}/partitions",
        list_partitions,
        "Replication progress of a topic's partitions, as far as this node leads them",
        tag="v1",
        response_type=PartitionStatusList,
        errors=(UNKNOWN_TOPIC,),
    ),
)
