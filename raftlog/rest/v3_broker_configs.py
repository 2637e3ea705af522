"""Cluster-wide broker configs by the v3 convention: list, read, set, return to the default.

The configs are those of metadata/broker_configs.py. A change takes effect on all brokers without a
restart. Topic configs that are set for the whole cluster are not among them: see v1_settings.
"""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from raftlog.api.v3 import BrokerConfig, Listing, NewConfigValue
from raftlog.http.body import read_json
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import empty_response, json_response
from raftlog.http.routing import Route
from raftlog.metadata.broker_configs import find_broker_config
from raftlog.record.errors import INVALID_CONFIG, NO_CONTROLLER, RETRIABLE
from raftlog.rest.v3_shapes import Shaper

_PATH: Final = "/v3/clusters/{cluster}/broker-configs"
_NEW_VALUE = msgspec.json.Decoder(NewConfigValue)


async def list_broker_configs(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer every broker config."""
    shaper = Shaper(request, context)
    data = [
        shaper.broker_config(config)
        for config in context.broker.admin.broker_configs(request.principal)
    ]
    return json_response(shaper.listing("ClusterConfig", "/broker-configs", data))


async def get_broker_config(request: Request, context: ServerContext) -> web.StreamResponse:
    """Answer one broker config."""
    name = _config_name(request)
    configs = context.broker.admin.broker_configs(request.principal)
    config = next(config for config in configs if config.entry.name == name)
    return json_response(Shaper(request, context).broker_config(config))


async def put_broker_config(request: Request, context: ServerContext) -> web.StreamResponse:
    """Set one broker config."""
    name = _config_name(request)
    new = await read_json(request, context, _NEW_VALUE)
    await context.broker.admin.alter_cluster_settings(request.principal, {name: new.value}, [])
    return empty_response()


async def delete_broker_config(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return one broker config to its default."""
    name = _config_name(request)
    await context.broker.admin.alter_cluster_settings(request.principal, {}, [name])
    return empty_response()


def _config_name(request: Request) -> str:
    return find_broker_config(request.path_parameters["config"]).name


ROUTES: Final = (
    Route(
        "GET",
        _PATH,
        list_broker_configs,
        "List the configs of all brokers",
        tag="admin",
        response_type=Listing[BrokerConfig],
    ),
    Route(
        "GET",
        f"{_PATH}/{{config}}",
        get_broker_config,
        "Describe a config of all brokers",
        tag="admin",
        response_type=BrokerConfig,
        errors=(INVALID_CONFIG,),
    ),
    Route(
        "PUT",
        f"{_PATH}/{{config}}",
        put_broker_config,
        "Set a config of all brokers",
        tag="admin",
        request_type=NewConfigValue,
        status=204,
        errors=(INVALID_CONFIG, NO_CONTROLLER, RETRIABLE),
    ),
    Route(
        "DELETE",
        f"{_PATH}/{{config}}",
        delete_broker_config,
        "Return a config of all brokers to its default",
        tag="admin",
        status=204,
        errors=(INVALID_CONFIG, NO_CONTROLLER, RETRIABLE),
    ),
)
