"""The v3 convention has partitions, their replicas, offsets and reassignments.

`-` as topic or partition means all of them, where a list of several is returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiohttp import web

from raftlog.api.v3 import Listing, Partition, PartitionReassignment, PartitionWithOffsets, Replica
from raftlog.http.request import Request, ServerContext, partition_parameter
from raftlog.http.responses import json_response
from raftlog.http.routing import Handler, Route
from raftlog.metadata.image import PartitionImage, TopicImage
from raftlog.record import errors
from raftlog.record.errors import ErrorEntry, LogError
from raftlog.record.types import BrokerId
from raftlog.rest.v3.admin import broker_id_parameter
from raftlog.rest.v3.listing import list_response
from raftlog.rest.v3.shapes import Shaper

ALL: Final = "-"
"""Topic or partition that stands for all of them."""


async def list_partitions(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return all partitions of a topic."""
    topic, shaper = _topic(request, context), Shaper(request, context)
    objects = (shaper.partition(topic, row) for row in topic.partitions)
    path = f"/topics/{topic.name}/partitions"
    return await list_response(request, shaper, "Partition", path, objects)


async def get_partition(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return one partition."""
    return json_response(Shaper(request, context).partition(*_partition(request, context)))


async def get_offset(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return the readable offsets of a partition."""
    topic, row = _partition(request, context)
    bounds = await context.broker.offsets.bounds(request.principal, topic.name, row.partition)
    return json_response(Shaper(request, context).partition_with_offsets(topic, row, *bounds))


async def list_replicas(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return the replicas of a partition, the preferred leader first."""
    (topic, row), shaper = _partition(request, context), Shaper(request, context)
    data = [shaper.replica(topic, row, broker_id) for broker_id in row.replicas]
    path = f"/topics/{topic.name}/partitions/{row.partition}/replicas"
    return json_response(shaper.listing("Replica", path, data))


async def get_replica(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return one replica of a partition."""
    topic, row = _partition(request, context)
    broker_id = broker_id_parameter(request, context, is_known=False)
    if broker_id not in row.replicas:
        raise LogError(errors.NOT_FOUND, f"Broker {broker_id} holds no replica of that partition.")
    return json_response(Shaper(request, context).replica(topic, row, broker_id))


async def list_replicas_of_broker(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return all replicas that a broker holds, of topics that the principal may describe."""
    broker_id = broker_id_parameter(request, context)
    shaper = Shaper(request, context)
    topics = context.broker.admin.topics(request.principal)
    objects = _replicas_of(shaper, topics, broker_id)
    path = f"/brokers/{broker_id}/partition-replicas"
    return await list_response(request, shaper, "Replica", path, objects)


def _replicas_of(
    shaper: Shaper, topics: list[TopicImage], broker_id: BrokerId
) -> Iterator[Replica]:
    for topic in topics:
        for row in topic.partitions:
            if broker_id in row.replicas:
                yield shaper.replica(topic, row, broker_id)


async def get_reassignment(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return the reassignment of a partition, of a topic's partitions, or of all."""
    shaper = Shaper(request, context)
    name, number = request.path_parameters["topic"], request.path_parameters["partition"]
    if number == ALL:
        moving = context.broker.admin.reassignments(
            request.principal, None if name == ALL else name
        )
        objects = (shaper.reassignment(topic, row) for topic, row in moving)
        path = f"/topics/{name}/partitions/{ALL}/reassignment"
        return await list_response(request, shaper, "Reassignment", path, objects)
    topic, row = _partition(request, context)
    if not row.adding and not row.removing:
        raise LogError(errors.NOT_FOUND, f"{topic.name}-{row.partition} is not being reassigned.")
    return json_response(shaper.reassignment(topic, row))


def _topic(request: Request, context: ServerContext) -> TopicImage:
    return context.broker.admin.topic(request.principal, request.path_parameters["topic"])


def _partition(request: Request, context: ServerContext) -> tuple[TopicImage, PartitionImage]:
    topic = _topic(request, context)
    return topic, topic.partition(partition_parameter(request))


_CLUSTER: Final = "/v3/clusters/{cluster}"
_PARTITIONS: Final = f"{_CLUSTER}/topics/{{topic}}/partitions"
_PARTITION: Final = f"{_PARTITIONS}/{{partition}}"


def _read(
    path: str, handler: Handler, summary: str, answer: object, *failures: ErrorEntry
) -> Route:
    found = [errors.UNKNOWN_TOPIC] if "{topic}" in path else []
    found += [errors.UNKNOWN_PARTITION] if "{partition}" in path else []
    return Route(
        "GET", path, handler, summary, tag="admin", response_type=answer, errors=(*found, *failures)
    )


ROUTES: Final = (
    _read(_PARTITIONS, list_partitions, "List a topic's partitions", Listing[Partition]),
    _read(_PARTITION, get_partition, "Describe a partition", Partition),
    _read(
        f"{_PARTITION}/offset",
        get_offset,
        "The readable offsets of a partition",
        PartitionWithOffsets,
        errors.NO_LEADER,
        errors.STORAGE_FAILED,
    ),
    _read(f"{_PARTITION}/replicas", list_replicas, "List replicas", Listing[Replica]),
    _read(
        f"{_PARTITION}/replicas/{{broker}}",
        get_replica,
        "Describe a replica",
        Replica,
        errors.NOT_FOUND,
    ),
    _read(
        f"{_PARTITION}/reassignment",
        get_reassignment,
        "The move of a partition to other brokers. '-' as partition, or as topic and partition, "
        "lists all that move",
        (PartitionReassignment, Listing[PartitionReassignment]),
        errors.NOT_FOUND,
    ),
    _read(
        f"{_CLUSTER}/brokers/{{broker}}/partition-replicas",
        list_replicas_of_broker,
        "List the replicas of a broker",
        Listing[Replica],
        errors.NOT_FOUND,
    ),
)
