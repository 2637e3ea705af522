"""/v1 metadata, producer ids and record deletion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from raftlog.api import cluster as api
from raftlog.api.records import DeletedPartition, DeletedRecords, DeleteRecords, ProducerIdentity
from raftlog.http.body import read_json
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import json_response
from raftlog.http.routing import QueryParameter, Route
from raftlog.metadata.image import TopicImage
from raftlog.record import errors
from raftlog.record.errors import LogError
from raftlog.record.types import Offset

NO_CONTROLLER_ID: Final = -1
PARTITIONS_PER_TURN: Final = 5_000
"""Partitions described in one turn of the event loop (3 ms)."""


_TO_PRODUCE = msgspec.json.Decoder(api.TopicsToProduce)
_DELETE_RECORDS = msgspec.json.Decoder(DeleteRecords)


async def get_metadata(request: Request, context: ServerContext) -> web.StreamResponse:
    """Brokers and partitions, of all topics or of those in the query."""
    admin = context.broker.admin
    names = request.query_parameters.get("topics")
    topics: Mapping[str, TopicImage | None]
    if names is None:
        topics = {topic.name: topic for topic in admin.topics(request.principal)}
    else:
        wanted = dict.fromkeys(name for name in names.split(",") if name)
        topics = admin.topics_of(request.principal, wanted)
    return await _metadata(context, topics.items())


async def get_metadata_to_produce(request: Request, context: ServerContext) -> web.StreamResponse:
    """Brokers and partitions of topics to write to. Missing topics are created if allowed."""
    names = list(dict.fromkeys((await read_json(request, context, _TO_PRODUCE)).topics))
    found = await context.broker.produce.topics(request.principal, names)
    return await _metadata(context, zip(names, found, strict=True))


async def _metadata(
    context: ServerContext, topics: Iterable[tuple[str, TopicImage | LogError | None]]
) -> web.StreamResponse:
    admin = context.broker.admin
    views: list[api.MetadataTopic] = []
    count = 0
    for name, topic in topics:
        views.append(_topic_view(name, topic))
        count += 1 + len(views[-1].partitions)
        if count > PARTITIONS_PER_TURN:
            count = 0
            await context.broker.turns.wait()
    controller_id = admin.controller_id()
    return json_response(
        api.MetadataResponse(
            cluster_id=context.broker.cluster_id,
            controller_id=NO_CONTROLLER_ID if controller_id is None else controller_id,
            brokers=[
                api.MetadataBroker(broker_id, broker.host, broker.port, broker.rack)
                for broker_id, broker in sorted(admin.brokers().items())
            ],
            topics=views,
        )
    )


async def allocate_producer_id(request: Request, context: ServerContext) -> web.StreamResponse:
    """Allocate a producer id."""
    identity = await context.broker.produce.allocate_producer_id(request.principal)
    return json_response(ProducerIdentity(*identity))


async def delete_records(request: Request, context: ServerContext) -> web.StreamResponse:
    """Advance log start offsets, with an outcome for each partition."""
    offsets = (await read_json(request, context, _DELETE_RECORDS)).offsets
    targets = [
        (topic, partition, Offset(offset))
        for topic, by_partition in offsets.items()
        for partition, offset in by_partition.items()
    ]
    outcomes = await context.broker.admin.delete_records(request.principal, targets)
    return json_response(
        DeletedRecords(
            [
                _deleted(topic, partition, outcome)
                for (topic, partition, _), outcome in zip(targets, outcomes, strict=True)
            ]
        )
    )


def _deleted(topic: str, partition: int, outcome: Offset | LogError) -> DeletedPartition:
    if isinstance(outcome, LogError):
        return DeletedPartition(
            topic=topic,
            partition=partition,
            log_start_offset=-1,
            error_code=outcome.entry.code,
            message=outcome.message,
        )
    return DeletedPartition(
        topic=topic, partition=partition, log_start_offset=outcome, error_code=None, message=None
    )


def _topic_view(name: str, topic: TopicImage | LogError | None) -> api.MetadataTopic:
    if topic is None:
        return api.MetadataTopic(name, None, errors.UNKNOWN_TOPIC.code, [])
    if isinstance(topic, LogError):
        return api.MetadataTopic(
            name=name,
            topic_id=None,
            error_code=topic.entry.code,
            partitions=[],
            message=topic.message,
        )
    partitions = [
        api.MetadataPartition(
            partition=row.partition,
            leader=row.leader,
            leader_epoch=row.leader_epoch,
            replicas=row.replicas,
            isr=row.isr,
        )
        for row in topic.partitions
    ]
    return api.MetadataTopic(name, topic.topic_id, None, partitions)


_post = partial(Route, "POST", tag="v1")

ROUTES = (
    Route(
        "GET",
        "/v1/metadata",
        get_metadata,
        "Brokers, topics and partition leaders",
        tag="v1",
        query=(
            QueryParameter(
                "topics", str, ("Topic names, separated by commas. The default is all topics.")
            ),
        ),
        response_type=api.MetadataResponse,
    ),
    _post(
        "/v1/metadata",
        get_metadata_to_produce,
        "Metadata of topics to write to. Unknown topics are created if auto.create.topics is on",
        request_type=api.TopicsToProduce,
        response_type=api.MetadataResponse,
        errors=(errors.INVALID_BODY,),
    ),
    _post(
        "/v1/producer-ids",
        allocate_producer_id,
        "Allocate a producer id",
        response_type=ProducerIdentity,
        errors=(errors.RETRIABLE, errors.NO_CONTROLLER),
    ),
    _post(
        "/v1/delete-records",
        delete_records,
        "Delete the oldest records of partitions",
        request_type=DeleteRecords,
        response_type=DeletedRecords,
    ),
)
