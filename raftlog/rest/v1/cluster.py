"""The /v1 routes move leaders and replicas, maintain nodes and decommission them.

A change returns once it is in the metadata and applied on this node. The copying of records and the
moves of leaders then continue in the background. The reads return the progress that this node
knows.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from raftlog.api import cluster as api
from raftlog.broker.admin import DecommissionState
from raftlog.http.body import read_json
from raftlog.http.request import Request, ServerContext, partition_parameter
from raftlog.http.responses import empty_response, json_response
from raftlog.http.routing import QueryParameter, Route
from raftlog.metadata.decisions.reassignment import Move
from raftlog.record import errors
from raftlog.record.types import BrokerId
from raftlog.rest.v1.quorum import node_number

REASSIGNMENTS_LISTED_MAX: Final = 1_000
"""Reassignments in one response. `total` is the number of all reassignments."""


_LEADER = msgspec.json.Decoder(api.LeaderElection)
_REASSIGNMENTS = msgspec.json.Decoder(api.NewReassignments)


async def set_leader(request: Request, context: ServerContext) -> web.StreamResponse:
    """Elect another replica of a partition."""
    body = await read_json(request, context, _LEADER)
    await context.broker.admin.transfer_leader(
        request.principal,
        request.path_parameters["topic"],
        partition_parameter(request),
        None if body.broker is None else BrokerId(body.broker),
        unclean=body.unclean,
    )
    return empty_response()


async def reassign(request: Request, context: ServerContext) -> web.StreamResponse:
    """Start to move partitions."""
    body = await read_json(request, context, _REASSIGNMENTS)
    moves = [
        Move(
            reassignment.topic, reassignment.partition, tuple(map(BrokerId, reassignment.replicas))
        )
        for reassignment in body.reassignments
    ]
    await context.broker.admin.reassign(request.principal, moves)
    return empty_response()


async def list_reassignments(request: Request, context: ServerContext) -> web.StreamResponse:
    """The partitions being moved."""
    moving = context.broker.admin.reassignments(
        request.principal, request.query_parameters.get("topic")
    )
    views: list[api.Reassignment] = []
    total = 0
    for topic, row in moving:
        total += 1
        if total <= REASSIGNMENTS_LISTED_MAX:
            views.append(
                api.Reassignment(
                    topic=topic.name,
                    partition=row.partition,
                    leader=row.leader,
                    replicas=row.replicas,
                    isr=row.isr,
                    adding=row.adding,
                    removing=row.removing,
                )
            )
    return json_response(api.ReassignmentList(total, tuple(views)))


async def cancel_reassignment(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return a partition to the nodes that held it."""
    await context.broker.admin.cancel_reassignment(
        request.principal, request.path_parameters["topic"], partition_parameter(request)
    )
    return empty_response()


async def decommission(request: Request, context: ServerContext) -> web.StreamResponse:
    """Start to empty a node."""
    broker_id = _broker_id(request)
    progress = await context.broker.admin.decommission(request.principal, broker_id)
    return json_response(_view(broker_id, progress))


async def get_decommission(request: Request, context: ServerContext) -> web.StreamResponse:
    """Progress of a node's decommission."""
    broker_id = _broker_id(request)
    progress = context.broker.admin.decommission_progress(request.principal, broker_id)
    return json_response(_view(broker_id, progress))


async def cancel_decommission(request: Request, context: ServerContext) -> web.StreamResponse:
    """Cancel a decommission. The node keeps the replicas it still holds."""
    await context.broker.admin.recommission(request.principal, _broker_id(request))
    return empty_response()


async def begin_maintenance(request: Request, context: ServerContext) -> web.StreamResponse:
    """Begin maintenance. The node resigns every leadership that another node can take."""
    await context.broker.admin.set_maintenance(request.principal, _broker_id(request), wanted=True)
    return empty_response()


async def end_maintenance(request: Request, context: ServerContext) -> web.StreamResponse:
    """End maintenance. The node may lead again."""
    await context.broker.admin.set_maintenance(request.principal, _broker_id(request), wanted=False)
    return empty_response()


def _broker_id(request: Request) -> BrokerId:
    return BrokerId(node_number(request.path_parameters["node"]))


def _view(broker_id: BrokerId, progress: DecommissionState) -> api.DecommissionProgress:
    return api.DecommissionProgress(
        node_id=broker_id,
        decommissioning=progress.is_decommissioning,
        partitions_left=progress.partitions_left,
        partitions_moving=progress.partitions_moving,
        is_empty=progress.partitions_left == 0,
    )


_CHANGE_ERRORS: Final = (errors.ILLEGAL_STATE, errors.NO_CONTROLLER, errors.RETRIABLE)
_PARTITION_ERRORS: Final = (errors.UNKNOWN_TOPIC, errors.UNKNOWN_PARTITION)

_post = partial(Route, "POST", tag="v1")
_get = partial(Route, "GET", tag="v1")
_delete = partial(Route, "DELETE", tag="v1", status=204)
_put = partial(Route, "PUT", tag="v1", status=204)

ROUTES: Final = (
    _post(
        "/v1/topics/{topic}/partitions/{partition}/leader",
        set_leader,
        "Elect another replica as a partition's leader",
        request_type=api.LeaderElection,
        status=204,
        errors=(*_PARTITION_ERRORS, errors.NOT_FOUND, errors.NO_LEADER, *_CHANGE_ERRORS),
    ),
    _post(
        "/v1/reassignments",
        reassign,
        "Move partitions to other nodes",
        request_type=api.NewReassignments,
        status=204,
        errors=(*_PARTITION_ERRORS, errors.INVALID_PARTITIONS, *_CHANGE_ERRORS),
    ),
    _get(
        "/v1/reassignments",
        list_reassignments,
        "Partitions being moved",
        query=(QueryParameter("topic", str, "Only those of this topic."),),
        response_type=api.ReassignmentList,
        errors=(errors.UNKNOWN_TOPIC,),
    ),
    _delete(
        "/v1/reassignments/{topic}/{partition}",
        cancel_reassignment,
        "Cancel the move of a partition",
        errors=(*_PARTITION_ERRORS, *_CHANGE_ERRORS),
    ),
    _post(
        "/v1/nodes/{node}/decommission",
        decommission,
        "Empty a node for good",
        response_type=api.DecommissionProgress,
        errors=(errors.NOT_FOUND, *_CHANGE_ERRORS),
    ),
    _get(
        "/v1/nodes/{node}/decommission",
        get_decommission,
        "Progress of a node's decommission",
        response_type=api.DecommissionProgress,
        errors=(errors.NOT_FOUND,),
    ),
    _delete(
        "/v1/nodes/{node}/decommission",
        cancel_decommission,
        "Cancel a node's decommission",
        errors=(errors.NOT_FOUND, *_CHANGE_ERRORS),
    ),
    _put(
        "/v1/nodes/{node}/maintenance",
        begin_maintenance,
        "Begin maintenance. The node leads only where no other node can",
        errors=(errors.NOT_FOUND, *_CHANGE_ERRORS),
    ),
    _delete(
        "/v1/nodes/{node}/maintenance",
        end_maintenance,
        "Let a node lead again",
        errors=(errors.NOT_FOUND, *_CHANGE_ERRORS),
    ),
)
