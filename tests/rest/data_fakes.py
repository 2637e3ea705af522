"""The REST server of a node with topics in memory, and a peer connected to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from raftlog.broker.authorize import Authorize, allow_all
from raftlog.broker.service import Broker
from raftlog.http.app import HttpServer, Port
from raftlog.http.dispatch import Dispatcher
from raftlog.http.metrics import ServerMetrics
from raftlog.http.request import ServerContext
from raftlog.http.routing import Router
from raftlog.http.settings import ServerLimits, ServerSettings
from raftlog.rest.routes import ROUTES
from tests.broker.data_fakes import DataNode
from tests.http.http_peers import RawPeer


@dataclass
class DataPeer:
    """A node, its server, and a peer of it."""

    node: DataNode
    server: HttpServer
    peer: RawPeer


def few(**values: Any) -> ServerLimits:
    """Limits of a test: these, and no long waits for peers at the end."""
    return ServerLimits(**{"shutdown_s": 1, "linger_s": 0.2, **values})


@asynccontextmanager
async def data_node(
    limits: ServerLimits | None = None, *, auto_create_topics: bool = False
) -> AsyncIterator[DataPeer]:
    """A running node with topics `one` and `six`, and a peer connected to it."""
    node = DataNode()
    await node.metadata.create_topic("one", partitions=1)
    await node.metadata.create_topic("six", partitions=6)
    async with serving(node, limits, auto_create_topics=auto_create_topics) as one:
        yield one


@asynccontextmanager
async def serving(
    node: DataNode,
    limits: ServerLimits | None = None,
    *,
    auto_create_topics: bool = False,
    authorize: Authorize = allow_all,
) -> AsyncIterator[DataPeer]:
    """A server of the node, and a peer connected to it."""
    settings = ServerSettings(port=0, limits=limits or few(), auto_create_topics=auto_create_topics)
    broker = Broker(node.services, settings.for_broker(), authorize)
    context = ServerContext(broker=broker, settings=settings, metrics=ServerMetrics(broker.topics))
    dispatcher = Dispatcher(Router(ROUTES), context)
    server = await HttpServer.start(dispatcher, context, await Port.bind("127.0.0.1", 0))
    try:
        async with RawPeer.connected(server.port) as peer:
            yield DataPeer(node, server, peer)
    finally:
        await server.close()
    assert broker.bytes_in_flight.used == 0, "bytes in flight leaked"
