"""Our own administrative calls, and the v2 convention's list of brokers."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from aiohttp import web

from raftlog.api.cluster import (
    BrokerIds,
    MetadataBroker,
    MetadataPartition,
    MetadataResponse,
    MetadataTopic,
)
from raftlog.api.records import DeletedPartition, DeletedRecords, DeleteRecords, ProducerIdentity
from raftlog.http.body import read_json
from raftlog.http.context import ServerContext
from raftlog.http.request import Request
from raftlog.http.responses import json_response
from raftlog.http.routing import QueryParameter, Route
from raftlog.metadata.image import TopicImage
from raftlog.record.errors import (
    INVALID_BODY,
    NO_CONTROLLER,
    RETRIABLE,
    UNKNOWN_TOPIC,
    LogError,
)
from raftlog.record.types import Offset

DELETIONS_AT_ONCE: Final = 32
"""Partitions whose records are deleted at the same time for one request."""

NO_CONTROLLER_ID: Final = -1


_DELETE_RECORDS = msgspec.json.Decoder(DeleteRecords)


async def list_broker_ids(_request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer the numbers of all brokers."""
    return json_response(BrokerIds(sorted(context.services.metadata.image.brokers)))


async def get_metadata(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer brokers and partitions, of all topics or of those asked for."""
    image = context.services.metadata.image
    controller_id = context.services.quorum.leader_id
    names = request.query_parameters.get("topics")
    if names is None:
        asked = sorted(image.topics_by_name)
    else:
        asked = list(dict.fromkeys(name for name in names.split(",") if name))
    return json_response(
        MetadataResponse(
            cluster_id=context.services.cluster_id,
            controller_id=NO_CONTROLLER_ID if controller_id is None else controller_id,
            brokers=[
                MetadataBroker(broker_id, broker.host, broker.port, broker.rack)
                for broker_id, broker in sorted(image.brokers.items())
            ],
            topics=[_topic_view(name, image.topics_by_name.get(name)) for name in asked],
        )
    )


async def allocate_producer_id(_request: Request, context: ServerContext) -> web.StreamResponse:
    """Give a producer its id."""
    return json_response(ProducerIdentity(*await context.services.metadata.allocate_producer_id()))


async def delete_records(request: Request, context: ServerContext) -> web.StreamResponse:
    """Move log start offsets, each partition for itself."""
    asked = (await read_json(request, context, _DELETE_RECORDS)).offsets
    wants = [
        (topic, partition, offset)
        for topic, offsets in asked.items()
        for partition, offset in offsets.items()
    ]
    limit = context.limits.partitions_per_request_max
    if len(wants) > limit:
        raise LogError(INVALID_BODY, f"More than {limit} partitions in one request.")
    results: list[DeletedPartition] = []
    for start in range(0, len(wants), DELETIONS_AT_ONCE):
        group = wants[start : start + DELETIONS_AT_ONCE]
        results += await asyncio.gather(*(_delete(context, *want) for want in group))
    return json_response(DeletedRecords(results))


async def _delete(
    context: ServerContext, topic: str, partition: int, before: int
) -> DeletedPartition:
    try:
        found = context.services.partitions.find(topic, partition)
        start = await found.delete_records(Offset(before))
    except LogError as error:
        return DeletedPartition(topic, partition, -1, error.entry.code, error.message)
    return DeletedPartition(topic, partition, start, None, None)


def _topic_view(name: str, topic: TopicImage | None) -> MetadataTopic:
    if topic is None:
        return MetadataTopic(name, None, UNKNOWN_TOPIC.code, [])
    partitions = [
        MetadataPartition(row.partition, row.leader, row.leader_epoch, row.replicas, row.isr)
        for row in topic.partitions
    ]
    return MetadataTopic(name, topic.topic_id, None, partitions)


ROUTES = (
    Route("GET", "/brokers", list_broker_ids, "List brokers", tag="v2", response_type=BrokerIds),
    Route(
        "GET",
        "/v1/metadata",
        get_metadata,
        "Brokers, topics and partition leaders",
        tag="v1",
        query=(
            QueryParameter("topics", str, "Topic names, separated by commas; all if left out."),
        ),
        response_type=MetadataResponse,
    ),
    Route(
        "POST",
        "/v1/producer-ids",
        allocate_producer_id,
        "Allocate a producer id",
        tag="v1",
        response_type=ProducerIdentity,
        errors=(RETRIABLE, NO_CONTROLLER),
    ),
    Route(
        "POST",
        "/v1/delete-records",
        delete_records,
        "Delete the oldest records of partitions",
        tag="v1",
        request_type=DeleteRecords,
        response_type=DeletedRecords,
    ),
)
