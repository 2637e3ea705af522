"""The v3 admin convention has clusters, brokers and topics."""

from __future__ import annotations

import msgspec
from aiohttp import web

from raftlog.api.v3 import Broker, Cluster, Listing, NewTopic, Topic, TopicChange
from raftlog.http.body import read_json
from raftlog.http.request import Request, ServerContext, whole_number
from raftlog.http.responses import empty_response, json_response
from raftlog.http.routing import Handler, Route
from raftlog.metadata.commands import Assignments
from raftlog.metadata.image import TopicImage
from raftlog.record import errors
from raftlog.record.errors import ErrorEntry, LogError, quoted
from raftlog.record.types import BrokerId
from raftlog.rest.v3.listing import list_response
from raftlog.rest.v3.shapes import Shaper

_NEW_TOPIC = msgspec.json.Decoder(NewTopic)
_TOPIC_CHANGE = msgspec.json.Decoder(TopicChange)


async def list_clusters(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return the one cluster, as a list."""
    return json_response(
        Shaper(request, context).cluster_listing(context.broker.admin.controller_id())
    )


async def get_cluster(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return the cluster."""
    return json_response(Shaper(request, context).cluster(context.broker.admin.controller_id()))


async def list_brokers(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return all brokers."""
    shaper = Shaper(request, context)
    brokers = [broker for _, broker in sorted(context.broker.admin.brokers().items())]
    data = [shaper.broker(broker) for broker in brokers]
    return json_response(shaper.listing("Broker", "/brokers", data))


async def get_broker(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return one broker."""
    broker = context.broker.admin.brokers()[broker_id_parameter(request, context)]
    return json_response(Shaper(request, context).broker(broker))


async def list_topics(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return all topics, by name."""
    shaper = Shaper(request, context)
    topics = context.broker.admin.topics(request.principal)
    return await list_response(request, shaper, "Topic", "/topics", map(shaper.topic, topics))


async def get_topic(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return one topic."""
    return json_response(Shaper(request, context).topic(_topic(request, context)))


async def create_topic(request: Request, context: ServerContext) -> web.StreamResponse:
    """Create a topic, or with `validate_only` check only whether a call would succeed."""
    new = await read_json(request, context, _NEW_TOPIC)
    values = {config.name: config.value for config in new.configs}
    if len(values) != len(new.configs):
        raise LogError(errors.INVALID_BODY, "A config is given twice.")
    assignments = _assignments(new)
    topic = await context.broker.admin.create_topic(
        request.principal,
        new.topic_name,
        partitions=new.partitions_count,
        replication_factor=new.replication_factor,
        configs=values,
        assignments=assignments,
        validate_only=new.validate_only,
    )
    status = 200 if new.validate_only else 201
    return json_response(Shaper(request, context).topic(topic), status=status)


def _assignments(new: NewTopic) -> Assignments | None:
    given = new.replicas_assignments
    if not given:
        return None
    if new.partitions_count is not None or new.replication_factor is not None:
        raise LogError(
            errors.INVALID_BODY,
            "replicas_assignments sets the numbers of partitions and replicas. Leave out "
            "partitions_count and replication_factor.",
        )
    if set(given) != set(range(len(given))):
        raise LogError(
            errors.INVALID_BODY,
            "replicas_assignments must name the partitions from 0, without a gap.",
        )
    return tuple(tuple(map(BrokerId, given[number])) for number in range(len(given)))


async def change_topic(request: Request, context: ServerContext) -> web.StreamResponse:
    """Add partitions to a topic."""
    change = await read_json(request, context, _TOPIC_CHANGE)
    topic = await context.broker.admin.add_partitions(
        request.principal, request.path_parameters["topic"], change.partitions_count
    )
    return json_response(Shaper(request, context).topic(topic))


async def delete_topic(request: Request, context: ServerContext) -> web.StreamResponse:
    """Delete a topic with its records."""
    await context.broker.admin.delete_topic(request.principal, request.path_parameters["topic"])
    return empty_response()


def _topic(request: Request, context: ServerContext) -> TopicImage:
    return context.broker.admin.topic(request.principal, request.path_parameters["topic"])


def broker_id_parameter(
    request: Request, context: ServerContext, *, is_known: bool = True
) -> BrokerId:
    """The broker id in the path. Raises LogError NOT_FOUND unless it is a known broker's."""
    text = request.path_parameters["broker"]
    value = whole_number(text)
    if value is None or (is_known and value not in context.broker.admin.brokers()):
        raise LogError(errors.NOT_FOUND, f"There is no broker {quoted(text)}.")
    return BrokerId(value)


_CLUSTERS = "/v3/clusters"
_CLUSTER = f"{_CLUSTERS}/{{cluster}}"
_TOPIC = f"{_CLUSTER}/topics/{{topic}}"


def _read(
    path: str, handler: Handler, summary: str, answer: object, *failures: ErrorEntry
) -> Route:
    return Route("GET", path, handler, summary, tag="admin", response_type=answer, errors=failures)


ROUTES = (
    _read(_CLUSTERS, list_clusters, "List clusters", Listing[Cluster]),
    _read(_CLUSTER, get_cluster, "Describe the cluster", Cluster),
    _read(f"{_CLUSTER}/brokers", list_brokers, "List brokers", Listing[Broker]),
    _read(
        f"{_CLUSTER}/brokers/{{broker}}", get_broker, "Describe a broker", Broker, errors.NOT_FOUND
    ),
    _read(f"{_CLUSTER}/topics", list_topics, "List topics", Listing[Topic]),
    _read(_TOPIC, get_topic, "Describe a topic", Topic, errors.UNKNOWN_TOPIC),
    Route(
        "POST",
        f"{_CLUSTER}/topics",
        create_topic,
        "Create a topic. With validate_only (200), check the request and create no topic",
        tag="admin",
        request_type=NewTopic,
        response_type=Topic,
        status=201,
        errors=(
            errors.TOPIC_EXISTS,
            errors.INVALID_TOPIC,
            errors.INVALID_PARTITIONS,
            errors.INVALID_CONFIG,
            errors.NOT_ENOUGH_REPLICAS,
            errors.NO_CONTROLLER,
        ),
    ),
    Route(
        "PATCH",
        _TOPIC,
        change_topic,
        "Add partitions to a topic",
        tag="admin",
        request_type=TopicChange,
        response_type=Topic,
        errors=(errors.UNKNOWN_TOPIC, errors.INVALID_PARTITIONS, errors.NO_CONTROLLER),
    ),
    Route(
        "DELETE",
        _TOPIC,
        delete_topic,
        "Delete a topic with its records",
        tag="admin",
        status=204,
        errors=(errors.UNKNOWN_TOPIC, errors.NO_CONTROLLER),
    ),
)
