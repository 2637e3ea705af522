"""The HTTP server, put together: sockets, sweep, and closing in good order.

`Server` is what the node starts: the main port with the listeners' routes, and the health port if
the settings name one. `HttpServer` is one port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from raftlog.broker.service import Broker
from raftlog.http import health, openapi, peer_route
from raftlog.http.connections import ConnectionServer
from raftlog.http.dispatch import Dispatcher
from raftlog.http.metrics import LoopLag, ServerMetrics, quorum_metrics, service_metrics
from raftlog.http.request import ServerContext
from raftlog.http.routing import Route, Router
from raftlog.http.settings import ServerSettings

if TYPE_CHECKING:
    from raftlog.peer.network import HttpNetwork


class HttpServer:
    """One listening port: made by `HttpServer.start`, ended by `close`."""

    def __init__(
        self, context: ServerContext, connections: ConnectionServer, listener: asyncio.Server
    ) -> None:
        self.context = context
        self.connections = connections
        self.port: int = listener.sockets[0].getsockname()[1]
        """The port it listens on."""
        self._listener = listener
        self._sweeper = asyncio.create_task(self._sweep(), name="http-sweep")

    @classmethod
    async def start(
        cls, dispatcher: Dispatcher, context: ServerContext, host: str, port: int
    ) -> HttpServer:
        """Listen on `host` and `port` (0: a free one). Raises OSError if the port is taken."""
        connections = ConnectionServer(dispatcher, context)
        listener = await asyncio.get_running_loop().create_server(
            connections, host, port, backlog=context.settings.backlog, reuse_address=True
        )
        return cls(context, connections, listener)

    async def close(self) -> None:
        """Stop listening, let requests in flight finish for `shutdown_s`, then cut the rest."""
        self.context.broker.closing.set()
        self._listener.close()
        await self.connections.drain(self.context.limits.shutdown_s)
        self._sweeper.cancel()
        await asyncio.gather(self._sweeper, return_exceptions=True)

    async def _sweep(self) -> None:
        interval_s = self.connections.sweep_interval_s
        while True:
            await asyncio.sleep(interval_s)
            self.connections.sweep()


def described_routes(routes: Sequence[Route]) -> tuple[Route, ...]:
    """Every endpoint for users: `routes`, health, and the description of them all."""
    described = (*routes, *health.ROUTES)
    return (*described, openapi.route(described))


class Server:
    """A running server: the main port, and the health port if there is one."""

    def __init__(
        self, main: HttpServer, watch: HttpServer | None, network: HttpNetwork | None
    ) -> None:
        self._main = main
        self._watch = watch
        self._network = network
        lag = LoopLag(main.context.broker.clock)
        main.context.metrics.add_source(lag.metrics)
        self._lag = asyncio.create_task(lag.measure(), name="event-loop-lag")

    @classmethod
    async def start(
        cls,
        broker: Broker,
        settings: ServerSettings,
        routes: Sequence[Route],
        *,
        network: HttpNetwork | None = None,
        on_broken_invariant: Callable[[AssertionError], None] | None = None,
    ) -> Server:
        """Listen and serve `routes`; answer NOT_READY until `broker.check_ready()` passes.

        `network` accepts the connections of other nodes; closing the server closes it, too.
        `on_broken_invariant` is called with assertions that failed in a handler (`network` reports
        those of its receivers itself). Raises OSError if a port is taken.
        """
        metrics = ServerMetrics(broker.topics)
        context = ServerContext(
            broker=broker,
            settings=settings,
            metrics=metrics,
            on_broken_invariant=on_broken_invariant,
            network=network,
        )
        router = Router((*described_routes(routes), peer_route.ROUTE))
        main = await HttpServer.start(
            Dispatcher(router, context), context, settings.host, settings.port
        )
        metrics.add_source(main.connections.metrics)
        services = broker.services
        metrics.add_source(lambda: service_metrics(services, settings.limits.topic_labels_max))
        metrics.add_source(lambda: quorum_metrics(services))
        if settings.health_port < 0:
            return cls(main, None, network)
        try:
            watch = await HttpServer.start(
                Dispatcher(Router(health.ROUTES), context),
                context,
                settings.host,
                settings.health_port,
            )
        except OSError:
            await main.close()
            raise
        return cls(main, watch, network)

    @property
    def port(self) -> int:
        """The main port."""
        return self._main.port

    @property
    def health_port(self) -> int | None:
        """The health port, if there is one."""
        return self._watch.port if self._watch else None

    async def close(self) -> None:
        """Stop listening, finish requests in flight within `shutdown_s`, then cut the rest.

        Connections between nodes last until requests have finished, which may need the quorum. The
        health port answers until the main one is closed.
        """
        await self._main.close()
        if self._network is not None:
            await self._network.close()
        if self._watch is not None:
            await self._watch.close()
        self._lag.cancel()
        await asyncio.gather(self._lag, return_exceptions=True)
        self._main.context.broker.close()
