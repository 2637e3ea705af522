"""Replication progress of a topic's partitions, as far as this node leads them."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from raftlog.broker.admin import ReplicaProgress
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import json_response
from raftlog.http.routing import Route
from raftlog.record.errors import UNKNOWN_TOPIC


class ReplicaView(msgspec.Struct, frozen=True):
    """One replica. `log_end_offset` and `lag` (records behind the leader's end) are null if this
    node does not lead the partition, or has not heard of the replica yet."""

    broker_id: int
    in_sync: bool
    log_end_offset: int | None
    lag: int | None


class PartitionView(msgspec.Struct, frozen=True):
    """A partition. `elr`: replicas that are not in sync, but have all that was committed."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[ReplicaView, ...]
    elr: tuple[int, ...]
    high_watermark: int | None
    """Null if this node does not lead it."""


class PartitionsView(msgspec.Struct, frozen=True):
    """The partitions of a topic, in order."""

    partitions: list[PartitionView]


async def list_partitions(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /v1/topics/{topic}/partitions."""
    partitions = context.broker.admin.replica_progress(
        request.principal, request.path_parameters["topic"]
    )
    return json_response(PartitionsView([_view(one) for one in partitions]))


def _view(progress: ReplicaProgress) -> PartitionView:
    row, ends = progress.row, progress.log_end_offsets
    return PartitionView(
        partition=row.partition,
        leader=row.leader,
        leader_epoch=row.leader_epoch,
        replicas=tuple(
            ReplicaView(
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
        response_type=PartitionsView,
        errors=(UNKNOWN_TOPIC,),
    ),
)
