"""What operators decide about the cluster: who leads, who holds what, which nodes rest or leave.

Each request is answered when its decision is in the metadata and this node acts by it. Copying
records and moving leaders away then takes as long as it takes; the reads here say how far it is, as
far as this node knows.
"""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from raftlog.api.cluster import (
    DecommissionProgress,
    LeaderElection,
    NewReassignments,
    Reassignment,
    ReassignmentList,
)
from raftlog.http.body import read_json
from raftlog.http.context import ServerContext
from raftlog.http.request import Request, partition_parameter
from raftlog.http.responses import empty_response, json_response
from raftlog.http.routing import QueryParameter, Route
from raftlog.metadata.decommission import evacuation_progress
from raftlog.metadata.image import TopicImage
from raftlog.metadata.reassignment import Move
from raftlog.record.errors import (
    ILLEGAL_STATE,
    INVALID_BODY,
    INVALID_PARTITIONS,
    NO_CONTROLLER,
    NO_LEADER,
    NOT_FOUND,
    RETRIABLE,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
    LogError,
)
from raftlog.record.types import BrokerId
from raftlog.rest.v1_quorum import node_number

REASSIGNMENTS_LISTED_MAX: Final = 1_000
"""In one answer; `total` says how many there are."""


_LEADER = msgspec.json.Decoder(LeaderElection)
_REASSIGNMENTS = msgspec.json.Decoder(NewReassignments)


async def set_leader(request: Request, context: ServerContext) -> web.StreamResponse:
    """Have another replica lead a partition."""
    wish = await read_json(request, context, _LEADER)
    await context.services.metadata.operations.transfer_leader(
        request.path_parameters["topic"],
        partition_parameter(request),
        None if wish.broker is None else BrokerId(wish.broker),
        unclean=wish.unclean,
    )
    return empty_response()


async def reassign(request: Request, context: ServerContext) -> web.StreamResponse:
    """Begin to move partitions."""
    wishes = (await read_json(request, context, _REASSIGNMENTS)).reassignments
    limit = context.limits.partitions_per_request_max
    if len(wishes) > limit:
        raise LogError(INVALID_BODY, f"More than {limit} partitions in one request.")
    moves = [
        Move(wish.topic, wish.partition, tuple(map(BrokerId, wish.replicas))) for wish in wishes
    ]
    await context.services.metadata.operations.reassign(moves)
    return empty_response()


async def list_reassignments(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer what is being moved."""
    image = context.services.metadata.image
    name = request.query_parameters.get("topic")
    topics = [image.topic(name)] if name is not None else _by_name(image.topics_by_name)
    views: list[Reassignment] = []
    total = 0
    for topic in topics:
        for row in topic.partitions:
            if not row.adding and not row.removing:
                continue
            total += 1
            if total <= REASSIGNMENTS_LISTED_MAX:
                views.append(
                    Reassignment(
                        topic=topic.name,
                        partition=row.partition,
                        leader=row.leader,
                        replicas=row.replicas,
                        isr=row.isr,
                        adding=row.adding,
                        removing=row.removing,
                    )
                )
    return json_response(ReassignmentList(total, tuple(views)))


async def cancel_reassignment(request: Request, context: ServerContext) -> web.StreamResponse:
    """Leave a partition to the nodes that held it."""
    await context.services.metadata.operations.cancel_reassignment(
        request.path_parameters["topic"], partition_parameter(request)
    )
    return empty_response()


async def decommission(request: Request, context: ServerContext) -> web.StreamResponse:
    """Begin to empty a node."""
    broker_id = _broker_id(request)
    await context.services.metadata.operations.decommission(broker_id)
    return json_response(_progress(broker_id, context))


async def get_decommission(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer how far a node's decommission is."""
    return json_response(_progress(_broker_id(request), context))


async def cancel_decommission(request: Request, context: ServerContext) -> web.StreamResponse:
    """Let a node keep what it still holds."""
    await context.services.metadata.operations.recommission(_broker_id(request))
    return empty_response()


async def begin_maintenance(request: Request, context: ServerContext) -> web.StreamResponse:
    """Have a node lead nothing that others can."""
    await context.services.metadata.operations.set_maintenance(_broker_id(request), wanted=True)
    return empty_response()


async def end_maintenance(request: Request, context: ServerContext) -> web.StreamResponse:
    """Let a node lead again."""
    await context.services.metadata.operations.set_maintenance(_broker_id(request), wanted=False)
    return empty_response()


def _broker_id(request: Request) -> BrokerId:
    return BrokerId(node_number(request.path_parameters["node"]))


def _by_name(topics: dict[str, TopicImage]) -> list[TopicImage]:
    return [topics[name] for name in sorted(topics)]


def _progress(broker_id: BrokerId, context: ServerContext) -> DecommissionProgress:
    image = context.services.metadata.image
    progress = evacuation_progress(image, broker_id)
    return DecommissionProgress(
        node_id=broker_id,
        decommissioning=image.brokers[broker_id].decommissioning,
        partitions_left=progress.left,
        partitions_moving=progress.moving,
        is_empty=progress.left == 0,
    )


_CHANGE_ERRORS: Final = (ILLEGAL_STATE, NO_CONTROLLER, RETRIABLE)
_PARTITION_ERRORS: Final = (UNKNOWN_TOPIC, UNKNOWN_PARTITION)

ROUTES: Final = (
    Route(
        "POST",
        "/v1/topics/{topic}/partitions/{partition}/leader",
        set_leader,
        "Let another replica lead a partition",
        tag="v1",
        request_type=LeaderElection,
        status=204,
        errors=(*_PARTITION_ERRORS, NOT_FOUND, NO_LEADER, *_CHANGE_ERRORS),
    ),
    Route(
        "POST",
        "/v1/reassignments",
        reassign,
        "Move partitions to other nodes",
        tag="v1",
        request_type=NewReassignments,
        status=204,
        errors=(*_PARTITION_ERRORS, INVALID_PARTITIONS, *_CHANGE_ERRORS),
    ),
    Route(
        "GET",
        "/v1/reassignments",
        list_reassignments,
        "Partitions that are being moved",
        tag="v1",
        query=(QueryParameter("topic", str, "Only those of this topic."),),
        response_type=ReassignmentList,
        errors=(UNKNOWN_TOPIC,),
    ),
    Route(
        "DELETE",
        "/v1/reassignments/{topic}/{partition}",
        cancel_reassignment,
        "Cancel the move of a partition",
        tag="v1",
        status=204,
        errors=(*_PARTITION_ERRORS, *_CHANGE_ERRORS),
    ),
    Route(
        "POST",
        "/v1/nodes/{node}/decommission",
        decommission,
        "Empty a node for good",
        tag="v1",
        response_type=DecommissionProgress,
        errors=(NOT_FOUND, *_CHANGE_ERRORS),
    ),
    Route(
        "GET",
        "/v1/nodes/{node}/decommission",
        get_decommission,
        "How far a node's decommission is",
        tag="v1",
        response_type=DecommissionProgress,
        errors=(NOT_FOUND,),
    ),
    Route(
        "DELETE",
        "/v1/nodes/{node}/decommission",
        cancel_decommission,
        "Cancel a node's decommission",
        tag="v1",
        status=204,
        errors=(NOT_FOUND, *_CHANGE_ERRORS),
    ),
    Route(
        "PUT",
        "/v1/nodes/{node}/maintenance",
        begin_maintenance,
        "Have a node lead nothing that others can",
        tag="v1",
        status=204,
        errors=(NOT_FOUND, *_CHANGE_ERRORS),
    ),
    Route(
        "DELETE",
        "/v1/nodes/{node}/maintenance",
        end_maintenance,
        "Let a node lead again",
        tag="v1",
        status=204,
        errors=(NOT_FOUND, *_CHANGE_ERRORS),
    ),
)
