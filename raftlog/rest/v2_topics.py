"""v2 description of topics and partitions: GET /topics and below."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from aiohttp import web

from raftlog.http.context import ServerContext
from raftlog.http.request import Request, partition_parameter
from raftlog.http.responses import JSON, json_response, negotiate
from raftlog.metadata.image import PartitionImage, TopicImage
from raftlog.record.types import Offset
from raftlog.rest.v2_produce import V2_MEDIA_TYPE

V2_OFFERED = (V2_MEDIA_TYPE, "application/vnd.kafka+json", JSON)


class ReplicaAnswer(msgspec.Struct, frozen=True):
    """One replica of a partition."""

    broker: int
    leader: bool
    in_sync: bool


class PartitionAnswer(msgspec.Struct, frozen=True):
    """One partition."""

    partition: int
    leader: int
    """Broker id; -1 if there is none."""
    replicas: list[ReplicaAnswer]


class TopicAnswer(msgspec.Struct, frozen=True):
    """One topic."""

    name: str
    configs: Mapping[str, str]
    """What was set on the topic; the rest has its default."""
    partitions: list[PartitionAnswer]


class OffsetsAnswer(msgspec.Struct, frozen=True):
    """What can be read of a partition."""

    beginning_offset: Offset
    """First offset that can be read."""
    end_offset: Offset
    """Offset after the last record that can be read: where the next committed record will be."""


def _partition(image: PartitionImage) -> PartitionAnswer:
    replicas = [
        ReplicaAnswer(broker, broker == image.leader, broker in image.isr)
        for broker in image.replicas
    ]
    return PartitionAnswer(image.partition, image.leader, replicas)


def _topic(request: Request, context: ServerContext) -> TopicImage:
    return context.services.metadata.image.topic(request.path_parameters["topic"])


async def list_topics(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /topics: all names, sorted."""
    names = sorted(context.services.metadata.image.topics_by_name)
    return json_response(names, content_type=negotiate(request, V2_OFFERED))


async def describe_topic(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /topics/{topic}."""
    topic = _topic(request, context)
    answer = TopicAnswer(topic.name, topic.configs, [_partition(row) for row in topic.partitions])
    return json_response(answer, content_type=negotiate(request, V2_OFFERED))


async def list_partitions(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /topics/{topic}/partitions."""
    answer = [_partition(row) for row in _topic(request, context).partitions]
    return json_response(answer, content_type=negotiate(request, V2_OFFERED))


async def describe_partition(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /topics/{topic}/partitions/{partition}."""
    row = _topic(request, context).partition(partition_parameter(request))
    return json_response(_partition(row), content_type=negotiate(request, V2_OFFERED))


async def partition_offsets(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /topics/{topic}/partitions/{partition}/offsets."""
    partition = context.services.partitions.find(
        request.path_parameters["topic"], partition_parameter(request)
    )
    answer = OffsetsAnswer(*await partition.bounds())
    return json_response(answer, content_type=negotiate(request, V2_OFFERED))
