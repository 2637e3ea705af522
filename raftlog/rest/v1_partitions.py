"""How far the replicas of a topic's partitions are: what only each partition's leader knows."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from raftlog.api.cluster import PartitionStatus, PartitionStatusList, ReplicaStatus
from raftlog.http.context import ServerContext
from raftlog.http.request import Request
from raftlog.http.responses import json_response
from raftlog.http.routing import Route
from raftlog.metadata.image import PartitionImage
from raftlog.record.errors import UNKNOWN_TOPIC
from raftlog.replication.partition import Partition


async def list_partitions(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /v1/topics/{topic}/partitions."""
    services = context.services
    topic = services.metadata.image.topic(request.path_parameters["topic"])
    views = [
        _view(row, services.replicas.replica(topic.topic_id, row.partition))
        for row in topic.partitions
    ]
    return json_response(PartitionStatusList(views))


def _view(row: PartitionImage, here: Partition | None) -> PartitionStatus:
    led = here if here is not None and here.is_leader else None
    ends: dict[int, int] = {}
    log_end = 0
    if led is not None and led.leader_role is not None:
        log_end = led.log_end_offset
        ends = {
            broker_id: follower.durable_end
            for broker_id, follower in led.leader_role.state.followers.items()
            if follower.durable_end >= 0
        }
        ends[row.leader] = log_end
    return PartitionStatus(
        partition=row.partition,
        leader=row.leader,
        leader_epoch=row.leader_epoch,
        replicas=tuple(
            ReplicaStatus(
                broker_id=broker_id,
                in_sync=broker_id in row.isr,
                log_end_offset=ends.get(broker_id),
                lag=max(0, log_end - ends[broker_id]) if broker_id in ends else None,
            )
            for broker_id in row.replicas
        ),
        elr=tuple(row.elr),
        high_watermark=None if led is None else led.high_watermark,
    )


ROUTES: Final = (
    Route(
        "GET",
        "/v1/topics/{topic}/partitions",
        list_partitions,
        "How far the replicas of a topic are, as far as this node leads it",
        tag="v1",
        response_type=PartitionStatusList,
        errors=(UNKNOWN_TOPIC,),
    ),
)
