"""The v3 admin convention: clusters, brokers, topics, configs, partitions, replicas."""

from __future__ import annotations

import msgspec
from aiohttp import web

from raftlog.api.v3 import (
    Broker,
    Cluster,
    ConfigChanges,
    Listing,
    NewConfigValue,
    NewTopic,
    Partition,
    Replica,
    Topic,
    TopicChange,
    TopicConfig,
)
from raftlog.http.body import read_json
from raftlog.http.request import Request, ServerContext, partition_parameter, whole_number
from raftlog.http.responses import empty_response, json_response
from raftlog.http.routing import Handler, Route
from raftlog.metadata import configs
from raftlog.metadata.configs import ConfigDescription
from raftlog.metadata.image import PartitionImage, TopicImage
from raftlog.record.errors import (
    INVALID_BODY,
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    INVALID_TOPIC,
    NO_CONTROLLER,
    NOT_FOUND,
    TOPIC_EXISTS,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
    LogError,
)
from raftlog.record.types import BrokerId
from raftlog.rest.v3_shapes import Shaper

_NEW_TOPIC = msgspec.json.Decoder(NewTopic)
_TOPIC_CHANGE = msgspec.json.Decoder(TopicChange)
_NEW_VALUE = msgspec.json.Decoder(NewConfigValue)
_CONFIG_CHANGES = msgspec.json.Decoder(ConfigChanges)


async def list_clusters(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer the one cluster, as a list."""
    return json_response(
        Shaper(request, context).cluster_listing(context.broker.admin.controller_id())
    )


async def get_cluster(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer the cluster."""
    return json_response(Shaper(request, context).cluster(context.broker.admin.controller_id()))


async def list_brokers(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer all brokers."""
    shaper = Shaper(request, context)
    brokers = [broker for _, broker in sorted(context.broker.admin.brokers().items())]
    data = [shaper.broker(broker) for broker in brokers]
    return json_response(shaper.listing("Broker", "/brokers", data))


async def get_broker(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer one broker."""
    broker = context.broker.admin.brokers().get(_broker_id(request))
    if broker is None:
        raise _no_broker(request)
    return json_response(Shaper(request, context).broker(broker))


async def list_topics(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer all topics, by name."""
    shaper = Shaper(request, context)
    data = [shaper.topic(topic) for topic in context.broker.admin.topics(request.principal)]
    return json_response(shaper.listing("Topic", "/topics", data))


async def get_topic(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer one topic."""
    return json_response(Shaper(request, context).topic(_topic(request, context)))


async def create_topic(request: Request, context: ServerContext) -> web.StreamResponse:
    """Create a topic, or with `validate_only` decide as a real call would."""
    new = await read_json(request, context, _NEW_TOPIC)
    values = {config.name: config.value for config in new.configs}
    if len(values) != len(new.configs):
        raise LogError(INVALID_BODY, "A config is given twice.")
    topic = await context.broker.admin.create_topic(
        request.principal,
        new.topic_name,
        partitions=new.partitions_count,
        replication_factor=new.replication_factor,
        configs=values,
        validate_only=new.validate_only,
    )
    return json_response(Shaper(request, context).topic(topic), status=201)


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


async def list_configs(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer every config of a topic."""
    topic, described = _configs(request, context)
    shaper = Shaper(request, context)
    data = [shaper.config(topic, config) for config in described]
    return json_response(shaper.listing("TopicConfig", f"/topics/{topic.name}/configs", data))


async def get_config(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer one config of a topic."""
    topic, described = _configs(request, context)
    name = _config_name(request)
    config = next(config for config in described if config.entry.name == name)
    return json_response(Shaper(request, context).config(topic, config))


async def put_config(request: Request, context: ServerContext) -> web.StreamResponse:
    """Set one config of a topic."""
    name = _config_name(request)
    new = await read_json(request, context, _NEW_VALUE)
    topic = request.path_parameters["topic"]
    await context.broker.admin.alter_configs(request.principal, topic, {name: new.value})
    return empty_response()


async def delete_config(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return one config of a topic to its default."""
    name = _config_name(request)
    topic = request.path_parameters["topic"]
    await context.broker.admin.alter_configs(request.principal, topic, {}, [name])
    return empty_response()


async def alter_configs(request: Request, context: ServerContext) -> web.StreamResponse:
    """Change several configs of a topic: all or none."""
    changes = await read_json(request, context, _CONFIG_CHANGES)
    values: dict[str, str] = {}
    removals: list[str] = []
    for change in changes.data:
        if change.name in values or change.name in removals:
            raise LogError(INVALID_BODY, f"The config {change.name[:80]!r} is given twice.")
        if change.operation == "DELETE":
            removals.append(change.name)
        elif change.value is None:
            raise LogError(INVALID_BODY, f"The config {change.name[:80]!r} has no value.")
        else:
            values[change.name] = change.value
    await context.broker.admin.alter_configs(
        request.principal,
        request.path_parameters["topic"],
        values,
        removals,
        validate_only=changes.validate_only,
    )
    return empty_response()


async def list_partitions(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer all partitions of a topic."""
    topic, shaper = _topic(request, context), Shaper(request, context)
    data = [shaper.partition(topic, row) for row in topic.partitions]
    return json_response(shaper.listing("Partition", f"/topics/{topic.name}/partitions", data))


async def get_partition(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer one partition."""
    return json_response(Shaper(request, context).partition(*_partition(request, context)))


async def list_replicas(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer the replicas of a partition, the preferred leader first."""
    (topic, row), shaper = _partition(request, context), Shaper(request, context)
    data = [shaper.replica(topic, row, broker_id) for broker_id in row.replicas]
    path = f"/topics/{topic.name}/partitions/{row.partition}/replicas"
    return json_response(shaper.listing("Replica", path, data))


async def get_replica(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer one replica of a partition."""
    topic, row = _partition(request, context)
    broker_id = _broker_id(request)
    if broker_id not in row.replicas:
        raise LogError(NOT_FOUND, f"Broker {broker_id} holds no replica of that partition.")
    return json_response(Shaper(request, context).replica(topic, row, broker_id))


def _topic(request: Request, context: ServerContext) -> TopicImage:
    return context.broker.admin.topic(request.principal, request.path_parameters["topic"])


def _partition(request: Request, context: ServerContext) -> tuple[TopicImage, PartitionImage]:
    topic = _topic(request, context)
    return topic, topic.partition(partition_parameter(request))


def _configs(
    request: Request, context: ServerContext
) -> tuple[TopicImage, list[ConfigDescription]]:
    return context.broker.admin.describe_configs(
        request.principal, request.path_parameters["topic"]
    )


def _config_name(request: Request) -> str:
    return configs.find_entry(request.path_parameters["config"]).name


def _broker_id(request: Request) -> BrokerId:
    value = whole_number(request.path_parameters["broker"])
    if value is None:
        raise _no_broker(request)
    return BrokerId(value)


def _no_broker(request: Request) -> LogError:
    return LogError(NOT_FOUND, f"There is no broker {request.path_parameters['broker'][:40]!r}.")


_CLUSTERS = "/v3/clusters"
_CLUSTER = f"{_CLUSTERS}/{{cluster}}"
_TOPIC = f"{_CLUSTER}/topics/{{topic}}"
_CONFIGS = f"{_TOPIC}/configs"
_PARTITION = f"{_TOPIC}/partitions/{{partition}}"


def _read(
    path: str, handler: Handler, summary: str, answer: object, *, broker: bool = False
) -> Route:
    errors = [NOT_FOUND] if broker else []
    if "{topic}" in path:
        errors.append(UNKNOWN_TOPIC)
    if "{partition}" in path:
        errors.append(UNKNOWN_PARTITION)
    if "{config}" in path:
        errors.append(INVALID_CONFIG)
    return Route(
        "GET", path, handler, summary, tag="admin", response_type=answer, errors=tuple(errors)
    )


ROUTES = (
    _read(_CLUSTERS, list_clusters, "List clusters", Listing[Cluster]),
    _read(_CLUSTER, get_cluster, "Describe the cluster", Cluster),
    _read(f"{_CLUSTER}/brokers", list_brokers, "List brokers", Listing[Broker]),
    _read(f"{_CLUSTER}/brokers/{{broker}}", get_broker, "Describe a broker", Broker, broker=True),
    _read(f"{_CLUSTER}/topics", list_topics, "List topics", Listing[Topic]),
    _read(_TOPIC, get_topic, "Describe a topic", Topic),
    Route(
        "POST",
        f"{_CLUSTER}/topics",
        create_topic,
        "Create a topic",
        tag="admin",
        request_type=NewTopic,
        response_type=Topic,
        status=201,
        errors=(TOPIC_EXISTS, INVALID_TOPIC, INVALID_PARTITIONS, INVALID_CONFIG, NO_CONTROLLER),
    ),
    Route(
        "PATCH",
        _TOPIC,
        change_topic,
        "Add partitions to a topic",
        tag="admin",
        request_type=TopicChange,
        response_type=Topic,
        errors=(UNKNOWN_TOPIC, INVALID_PARTITIONS, NO_CONTROLLER),
    ),
    Route(
        "DELETE",
        _TOPIC,
        delete_topic,
        "Delete a topic with its records",
        tag="admin",
        status=204,
        errors=(UNKNOWN_TOPIC, NO_CONTROLLER),
    ),
    _read(_CONFIGS, list_configs, "List a topic's configs", Listing[TopicConfig]),
    Route(
        "POST",
        f"{_TOPIC}/configs:alter",
        alter_configs,
        "Change several configs of a topic",
        tag="admin",
        request_type=ConfigChanges,
        status=204,
        errors=(UNKNOWN_TOPIC, INVALID_CONFIG, NO_CONTROLLER),
    ),
    _read(f"{_CONFIGS}/{{config}}", get_config, "Describe a topic's config", TopicConfig),
    Route(
        "PUT",
        f"{_CONFIGS}/{{config}}",
        put_config,
        "Set a topic's config",
        tag="admin",
        request_type=NewConfigValue,
        status=204,
        errors=(UNKNOWN_TOPIC, INVALID_CONFIG, NO_CONTROLLER),
    ),
    Route(
        "DELETE",
        f"{_CONFIGS}/{{config}}",
        delete_config,
        "Return a topic's config to its default",
        tag="admin",
        status=204,
        errors=(UNKNOWN_TOPIC, INVALID_CONFIG, NO_CONTROLLER),
    ),
    _read(f"{_TOPIC}/partitions", list_partitions, "List a topic's partitions", Listing[Partition]),
    _read(_PARTITION, get_partition, "Describe a partition", Partition),
    _read(f"{_PARTITION}/replicas", list_replicas, "List replicas", Listing[Replica]),
    _read(
        f"{_PARTITION}/replicas/{{broker}}", get_replica, "Describe a replica", Replica, broker=True
    ),
)
