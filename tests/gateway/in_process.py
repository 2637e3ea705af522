"""A gateway in the test's own process, before a home node and a node with the logs, in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from raftlog.api.catalog import CatalogEntry, encode_entry
from raftlog.gateway.catalog_view import CatalogView
from raftlog.gateway.process import start_server
from raftlog.gateway.service import Gateway
from raftlog.http.app import HttpServer, Port
from raftlog.http.settings import ServerLimits, ServerSettings
from raftlog.world.time import SystemClock
from tests.http.http_peers import RawPeer
from tests.rest.data_fakes import DataPeer, data_node, few
from tests.rest.v1.test_groups import group_node

LOGS = {"one": 1, "six": 6}
"""Partitions of the logs; the home node has topics of these names, too, as their stubs."""


@dataclass
class GatewayPeer(DataPeer):
    """A node with the logs, and a peer connected to the gateway in front."""

    gateway: Gateway
    home: DataPeer


def entry(log: str, *addresses: str) -> CatalogEntry:
    return CatalogEntry(
        log=log,
        cluster="c",
        cluster_id="other",
        addresses=addresses,
        partitions=LOGS.get(log, 1),
        state="online",
    )


def put(gateway: Gateway, *entries: CatalogEntry) -> None:
    """Have the gateway serve these logs, as its whole catalog."""
    view = CatalogView()
    for one in entries:
        view.apply(one.log.encode(), encode_entry(one))
    gateway.use_catalog(view)
    gateway.stubs = frozenset(one.log for one in entries)
    gateway.catalog_seen_s = gateway.clock.monotonic()


@asynccontextmanager
async def gateway_server(
    home: str, limits: ServerLimits | None = None
) -> AsyncIterator[tuple[Gateway, HttpServer]]:
    """A gateway without a catalog, and without its tasks."""
    settings = ServerSettings(port=0, limits=limits or few())
    gateway = Gateway([home], settings, SystemClock())
    server = await start_server(gateway, await Port.bind("127.0.0.1", 0), pytest.fail)
    try:
        yield gateway, server
    finally:
        await server.close()
        await gateway.links.close()
    assert gateway.bytes_in_flight.used == 0, "bytes in flight leaked"


@asynccontextmanager
async def gateway_node(
    limits: ServerLimits | None = None, **options: Any
) -> AsyncIterator[GatewayPeer]:
    """A gateway for the logs `one` and `six` of another node; `limits` are of both."""
    async with (
        group_node() as home,
        data_node(limits, **options) as logs,
        gateway_server(f"127.0.0.1:{home.server.port}", limits) as (gateway, server),
        RawPeer.connected(server.port) as peer,
    ):
        put(gateway, *(entry(log, f"127.0.0.1:{logs.server.port}") for log in LOGS))
        yield GatewayPeer(logs.node, server, peer, gateway, home)
