"""The HTTP server assembles sockets, the sweep, and an orderly close.

`Server` is what the node starts. It has the main port with the listeners' routes, and the health
port if the settings name a health port. `HttpServer` is one port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raftlog.broker.service import Broker
from raftlog.broker.shared import ListenedService
from raftlog.http import health, openapi, peer_route
from raftlog.http.connections import ConnectionServer
from raftlog.http.dispatch import Dispatcher
from raftlog.http.metrics import (
    LoopLag,
    ServerMetrics,
    Source,
    coordinator_metrics,
    quorum_metrics,
    service_metrics,
)
from raftlog.http.request import ServerContext
from raftlog.http.routing import Route, Router
from raftlog.http.settings import ServerSettings
from raftlog.peer.dial import join_address

if TYPE_CHECKING:
    from raftlog.peer.network import HttpNetwork


class Port:
    """A bound port. It refuses connections until `serve`."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._make_protocol: Callable[[], asyncio.Protocol] | None = None

    @classmethod
    async def bind(cls, host: str, port: int, backlog: int = 1_024) -> Port:
        """Bind `host` and `port`. 0 picks a free port. Raises OSError if the port is taken."""
        bound = cls()
        bound._server = await asyncio.get_running_loop().create_server(
            bound._protocol, host, port, backlog=backlog, reuse_address=True, start_serving=False
        )
        return bound

    @property
    def number(self) -> int:
        """The port's number."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def serve(self, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        """Listen. Raises OSError if another process listens there since the port was bound."""
        assert self._server is not None
        self._make_protocol = make_protocol
        await self._server.start_serving()

    def close(self) -> None:
        """Stop listening."""
        assert self._server is not None
        self._server.close()

    def _protocol(self) -> asyncio.Protocol:
        assert self._make_protocol is not None, "a connection before `serve`"
        return self._make_protocol()


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one server, bound before anything else is touched."""

    main: Port
    health: Port | None
    """Port that serves only /healthy, /ready and /metrics."""

    @classmethod
    async def bind(cls, settings: ServerSettings) -> Ports:
        """Bind the ports of the settings. Raises PortError."""
        main = await _bind(settings.host, settings.port, settings.backlog)
        if settings.health_port < 0:
            return cls(main, None)
        try:
            return cls(main, await _bind(settings.host, settings.health_port, settings.backlog))
        except PortError:
            main.close()
            raise

    def close(self) -> None:
        """Stop listening."""
        self.main.close()
        if self.health is not None:
            self.health.close()


class PortError(Exception):
    """A port cannot be bound. `address` is the port's address, `reason` the system's."""

    def __init__(self, host: str, port: int, reason: OSError) -> None:
        self.address = join_address(host, port)
        self.reason = reason
        super().__init__(f"cannot listen on {self.address}: {reason.strerror}")


async def _bind(host: str, port: int, backlog: int) -> Port:
    try:
        return await Port.bind(host, port, backlog)
    except OSError as error:
        raise PortError(host, port, error) from error


class HttpServer:
    """One listening port. `HttpServer.start` opens it and `close` ends it."""

    def __init__(
        self, context: ServerContext[ListenedService], connections: ConnectionServer, listener: Port
    ) -> None:
        self.context = context
        self.connections = connections
        self.port = listener.number
        """The port it listens on."""
        self._listener = listener
        self._sweeper = asyncio.create_task(self._sweep(), name="http-sweep")

    @classmethod
    async def start(
        cls, dispatcher: Dispatcher, context: ServerContext[ListenedService], listener: Port
    ) -> HttpServer:
        """Listen on a bound port. Raises OSError if another process already listens on it."""
        connections = ConnectionServer(dispatcher, context)
        await listener.serve(connections)
        return cls(context, connections, listener)

    async def close(self) -> None:
        """Stop listening, let requests in flight finish for `shutdown_s`, then cut the rest."""
        self.context.broker.leave()
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
    """Every endpoint for users, which are `routes`, health, and the description of them all."""
    described = (*routes, *health.ROUTES)
    return (*described, openapi.route(described))


class Server:
    """A running server with the main port, and the health port if there is one."""

    def __init__(
        self,
        broker: Broker,
        main: HttpServer,
        watch: HttpServer | None,
        network: HttpNetwork | None,
    ) -> None:
        self._broker = broker
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
        ports: Ports,
        network: HttpNetwork | None = None,
        on_broken_invariant: Callable[[AssertionError], None] | None = None,
    ) -> Server:
        """Serve `routes`, with NOT_READY until `broker.check_ready()` passes.

        `network` accepts the connections of other nodes. Closing the server also closes it.
        `on_broken_invariant` is called with assertions that failed in a handler (`network` reports
        those of its receivers itself). Raises OSError if another process listens on a port.
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
        main = await HttpServer.start(Dispatcher(router, context), context, ports.main)
        metrics.add_source(main.connections.metrics)
        services = broker.services
        metrics.add_source(lambda: service_metrics(services, settings.limits.topic_labels_max))
        labels_max = settings.limits.topic_labels_max
        metrics.add_source(lambda: coordinator_metrics(services, labels_max))
        metrics.add_source(lambda: quorum_metrics(services))
        if ports.health is None:
            return cls(broker, main, None, network)
        try:
            watch = await HttpServer.start(
                Dispatcher(Router(health.ROUTES), context), context, ports.health
            )
        except OSError:
            await main.close()
            raise
        return cls(broker, main, watch, network)

    @property
    def port(self) -> int:
        """The main port."""
        return self._main.port

    @property
    def health_port(self) -> int | None:
        """The health port, if there is one."""
        return self._watch.port if self._watch else None

    def add_metrics(self, source: Source) -> None:
        """Add the families of another listener to the metrics page."""
        self._main.context.metrics.add_source(source)

    def leave(self) -> None:
        """Serve on, and end each connection with its next response."""
        self._broker.leave()

    async def close(self) -> None:
        """Stop listening, finish requests in flight within `shutdown_s`, then cut the rest.

        Connections between nodes last until requests have finished, which may need the quorum. The
        health port serves until the main port is closed.
        """
        await self._main.close()
        if self._network is not None:
            await self._network.close()
        if self._watch is not None:
            await self._watch.close()
        self._lag.cancel()
        await asyncio.gather(self._lag, return_exceptions=True)
        self._broker.close()
