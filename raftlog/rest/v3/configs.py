"""The v3 convention has configs of topics, of all brokers, and of one broker.

A topic's name `-` means all topics here. Broker configs (metadata/configs/broker.py) hold for the
whole cluster and take effect without a restart, so they are set at `broker-configs` and are
read-only at a broker. Topic configs that are set for the whole cluster are not among them. See
`v1/settings.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from aiohttp import web

from raftlog.api import v3 as api
from raftlog.http.body import read_json
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import empty_response, json_response
from raftlog.http.routing import Handler, Route
from raftlog.metadata.configs.broker import find_broker_config
from raftlog.metadata.configs.topic import ConfigDescription, find_entry
from raftlog.metadata.image import TopicImage
from raftlog.record import errors
from raftlog.record.errors import ErrorEntry, LogError, quoted
from raftlog.record.types import BrokerId
from raftlog.rest.v3.admin import broker_id_parameter
from raftlog.rest.v3.listing import list_response
from raftlog.rest.v3.shapes import Shaper

ALL: Final = "-"
"""Name that stands for all topics or brokers."""

_NEW_VALUE = msgspec.json.Decoder(api.NewConfigValue)
_CHANGES = msgspec.json.Decoder(api.ConfigChanges)

# Configs of topics


async def list_topic_configs(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return every config of a topic, or of all topics."""
    admin, shaper = context.broker.admin, Shaper(request, context)
    name = request.path_parameters["topic"]
    if name == ALL:
        topics = [topic.name for topic in admin.topics(request.principal)]
        objects = _configs_of(request, context, shaper, topics)
        return await list_response(
            request, shaper, "TopicConfig", f"/topics/{ALL}/configs", objects
        )
    topic, described = _described(request, context)
    return await list_response(
        request,
        shaper,
        "TopicConfig",
        f"/topics/{topic.name}/configs",
        [shaper.config(topic, config) for config in described],
    )


def _configs_of(
    request: Request, context: ServerContext, shaper: Shaper, names: Iterable[str]
) -> Iterator[api.TopicConfig]:
    for name in names:
        try:
            topic, described = context.broker.admin.describe_configs(request.principal, name)
        except LogError as error:
            # The topic was deleted during the listing, or the principal may not describe it.
            if error.entry not in (errors.UNKNOWN_TOPIC, errors.FORBIDDEN):
                raise
            continue
        for config in described:
            yield shaper.config(topic, config)


async def get_topic_config(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return one config of a topic."""
    name = _topic_config_name(request)
    topic, described = _described(request, context)
    config = next(config for config in described if config.entry.name == name)
    return json_response(Shaper(request, context).config(topic, config))


def _described(
    request: Request, context: ServerContext
) -> tuple[TopicImage, list[ConfigDescription]]:
    return context.broker.admin.describe_configs(
        request.principal, request.path_parameters["topic"]
    )


async def put_topic_config(request: Request, context: ServerContext) -> web.StreamResponse:
    """Set one config of a topic."""
    name = _topic_config_name(request)
    new = await read_json(request, context, _NEW_VALUE)
    topic = request.path_parameters["topic"]
    await context.broker.admin.alter_configs(request.principal, topic, {name: new.value})
    return empty_response()


async def delete_topic_config(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return one config of a topic to its default."""
    name = _topic_config_name(request)
    topic = request.path_parameters["topic"]
    await context.broker.admin.alter_configs(request.principal, topic, {}, [name])
    return empty_response()


async def alter_topic_configs(request: Request, context: ServerContext) -> web.StreamResponse:
    """Change several configs of a topic, all or none."""
    name = request.path_parameters["topic"]
    changes = await read_json(request, context, _CHANGES)
    values, removals = _values_and_removals(changes.data)
    await context.broker.admin.alter_configs(
        request.principal, name, values, removals, validate_only=changes.validate_only
    )
    return empty_response()


def _topic_config_name(request: Request) -> str:
    return find_entry(request.path_parameters["config"]).name


def _values_and_removals(changes: Iterable[api.ConfigChange]) -> tuple[dict[str, str], list[str]]:
    values: dict[str, str] = {}
    removals: dict[str, None] = {}
    for change in changes:
        if change.name in values or change.name in removals:
            raise LogError(errors.INVALID_BODY, f"The config {quoted(change.name)} is given twice.")
        if change.operation == "DELETE":
            removals[change.name] = None
        elif change.value is None:
            raise LogError(errors.INVALID_BODY, f"The config {quoted(change.name)} has no value.")
        else:
            values[change.name] = change.value
    return values, list(removals)


# Configs of all brokers


async def list_cluster_configs(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return every broker config."""
    shaper = Shaper(request, context)
    configs = context.broker.admin.broker_configs(request.principal)
    data = [shaper.cluster_config(config) for config in configs]
    return json_response(shaper.listing("ClusterConfig", "/broker-configs", data))


async def get_cluster_config(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return one broker config."""
    config = _broker_config(request, context)
    return json_response(Shaper(request, context).cluster_config(config))


async def put_cluster_config(request: Request, context: ServerContext) -> web.StreamResponse:
    """Set one broker config."""
    name = _broker_config_name(request)
    new = await read_json(request, context, _NEW_VALUE)
    await context.broker.admin.alter_cluster_settings(request.principal, {name: new.value}, [])
    return empty_response()


async def delete_cluster_config(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return one broker config to its default."""
    name = _broker_config_name(request)
    await context.broker.admin.alter_cluster_settings(request.principal, {}, [name])
    return empty_response()


async def alter_cluster_configs(request: Request, context: ServerContext) -> web.StreamResponse:
    """Change several broker configs, all or none."""
    changes = await read_json(request, context, _CHANGES)
    values, removals = _values_and_removals(changes.data)
    for name in (*values, *removals):
        find_broker_config(name)
    await context.broker.admin.alter_cluster_settings(
        request.principal, values, removals, validate_only=changes.validate_only
    )
    return empty_response()


def _broker_config_name(request: Request) -> str:
    return find_broker_config(request.path_parameters["config"]).name


def _broker_config(request: Request, context: ServerContext) -> ConfigDescription:
    name = _broker_config_name(request)
    configs = context.broker.admin.broker_configs(request.principal)
    return next(config for config in configs if config.entry.name == name)


# Configs in force on one broker


async def list_broker_configs(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return every config of a broker, or of all brokers."""
    shaper = Shaper(request, context)
    given = request.path_parameters["broker"]
    brokers = context.broker.admin.brokers()
    broker_ids = sorted(brokers) if given == ALL else [broker_id_parameter(request, context)]
    configs = context.broker.admin.broker_configs(request.principal)
    objects = (
        shaper.broker_config(broker_id, config) for broker_id in broker_ids for config in configs
    )
    path = f"/brokers/{ALL if given == ALL else broker_ids[0]}/configs"
    return await list_response(request, shaper, "BrokerConfig", path, objects)


async def get_broker_config(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return one config of a broker."""
    broker_id: BrokerId = broker_id_parameter(request, context)
    config = _broker_config(request, context)
    return json_response(Shaper(request, context).broker_config(broker_id, config))


async def change_broker_configs(request: Request, context: ServerContext) -> web.StreamResponse:
    """Reject a change for one broker, with the next step."""
    broker_id_parameter(request, context)
    raise LogError(
        errors.INVALID_CONFIG,
        "Broker configs hold for all brokers of the cluster: change them at "
        f"/v3/clusters/{context.broker.cluster_id}/broker-configs.",
    )


_CLUSTER: Final = "/v3/clusters/{cluster}"
_TOPIC_CONFIGS: Final = f"{_CLUSTER}/topics/{{topic}}/configs"
_CLUSTER_CONFIGS: Final = f"{_CLUSTER}/broker-configs"
_BROKER_CONFIGS: Final = f"{_CLUSTER}/brokers/{{broker}}/configs"


def _read(
    path: str, handler: Handler, summary: str, answer: object, *failures: ErrorEntry
) -> Route:
    return Route("GET", path, handler, summary, tag="admin", response_type=answer, errors=failures)


def _change(
    method: str,
    path: str,
    handler: Handler,
    summary: str,
    request_type: object,
    *failures: ErrorEntry,
) -> Route:
    return Route(
        method,
        path,
        handler,
        summary,
        tag="admin",
        request_type=request_type,
        status=204,
        errors=(*failures, errors.INVALID_CONFIG, errors.NO_CONTROLLER, errors.RETRIABLE),
    )


ROUTES: Final = (
    _read(
        _TOPIC_CONFIGS,
        list_topic_configs,
        "List a topic's configs. The topic '-' stands for all topics",
        api.Listing[api.TopicConfig],
        errors.UNKNOWN_TOPIC,
    ),
    _change(
        "POST",
        f"{_TOPIC_CONFIGS}:alter",
        alter_topic_configs,
        "Change several configs of a topic, all or none",
        api.ConfigChanges,
        errors.UNKNOWN_TOPIC,
    ),
    _read(
        f"{_TOPIC_CONFIGS}/{{config}}",
        get_topic_config,
        "Describe a topic's config",
        api.TopicConfig,
        errors.UNKNOWN_TOPIC,
        errors.INVALID_CONFIG,
    ),
    _change(
        "PUT",
        f"{_TOPIC_CONFIGS}/{{config}}",
        put_topic_config,
        "Set a topic's config",
        api.NewConfigValue,
        errors.UNKNOWN_TOPIC,
    ),
    _change(
        "DELETE",
        f"{_TOPIC_CONFIGS}/{{config}}",
        delete_topic_config,
        "Return a topic's config to its default",
        None,
        errors.UNKNOWN_TOPIC,
    ),
    _read(
        _CLUSTER_CONFIGS,
        list_cluster_configs,
        "List the configs of all brokers",
        api.Listing[api.ClusterConfig],
    ),
    _change(
        "POST",
        f"{_CLUSTER_CONFIGS}:alter",
        alter_cluster_configs,
        "Change several configs of all brokers",
        api.ConfigChanges,
    ),
    _read(
        f"{_CLUSTER_CONFIGS}/{{config}}",
        get_cluster_config,
        "Describe a config of all brokers",
        api.ClusterConfig,
        errors.INVALID_CONFIG,
    ),
    _change(
        "PUT",
        f"{_CLUSTER_CONFIGS}/{{config}}",
        put_cluster_config,
        "Set a config of all brokers",
        api.NewConfigValue,
    ),
    _change(
        "DELETE",
        f"{_CLUSTER_CONFIGS}/{{config}}",
        delete_cluster_config,
        "Return a config of all brokers to its default",
        None,
    ),
    _read(
        _BROKER_CONFIGS,
        list_broker_configs,
        "List the configs in force on a broker. The broker '-' stands for all brokers",
        api.Listing[api.BrokerConfig],
        errors.NOT_FOUND,
    ),
    _read(
        f"{_BROKER_CONFIGS}/{{config}}",
        get_broker_config,
        "Describe a config in force on a broker",
        api.BrokerConfig,
        errors.NOT_FOUND,
        errors.INVALID_CONFIG,
    ),
    *(
        Route(
            method,
            path,
            change_broker_configs,
            "Rejected, because broker configs hold for all brokers",
            tag="admin",
            status=204,
            errors=(errors.NOT_FOUND, errors.INVALID_CONFIG),
        )
        for method, path in (
            ("POST", f"{_BROKER_CONFIGS}:alter"),
            ("PUT", f"{_BROKER_CONFIGS}/{{config}}"),
            ("DELETE", f"{_BROKER_CONFIGS}/{{config}}"),
        )
    ),
)
