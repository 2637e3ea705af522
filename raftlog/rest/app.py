"""The server, put together: route table, context, dispatcher, sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raftlog.broker.limits import BytesInFlight
from raftlog.http import health, openapi, peer_route
from raftlog.http.context import ServerContext
from raftlog.http.dispatch import Dispatcher, Guard
from raftlog.http.listener import HttpServer
from raftlog.http.metrics import ServerMetrics
from raftlog.http.routing import Route, Router
from raftlog.http.service_metrics import quorum_metrics, service_metrics
from raftlog.http.settings import ServerSettings
from raftlog.rest import (
    routes,
    v1_admin,
    v1_cluster,
    v1_partitions,
    v1_quorum,
    v1_settings,
    v3_admin,
    v3_broker_configs,
)

if TYPE_CHECKING:
    from raftlog.broker.service import Services
    from raftlog.peer.network import HttpNetwork


def route_table() -> tuple[Route, ...]:
    """Every endpoint for users, the description of them all included."""
    described = (
        *routes.ROUTES,
        *v1_admin.ROUTES,
        *v1_quorum.ROUTES,
        *v1_cluster.ROUTES,
        *v1_partitions.ROUTES,
        *v1_settings.ROUTES,
        *v3_admin.ROUTES,
        *v3_broker_configs.ROUTES,
        *health.ROUTES,
    )
    return (*described, openapi.route(described))


class Server:
    """A running server: the main port, and the health port if there is one."""

    def __init__(
        self, main: HttpServer, watch: HttpServer | None, network: HttpNetwork | None
    ) -> None:
        self._main = main
        self._watch = watch
        self._network = network

    @classmethod
    async def start(
        cls,
        services: Services,
        settings: ServerSettings,
        *,
        guard: Guard | None = None,
        network: HttpNetwork | None = None,
        on_broken_invariant: Callable[[AssertionError], None] | None = None,
    ) -> Server:
        """Listen and serve. Until `services.is_ready` says so, requests are answered NOT_READY.

        `guard` may refuse requests (authorisation, quotas). `network` is what other nodes connect
        to; closing the server closes it, too. `on_broken_invariant` is told of assertions that
        failed in a handler (`network` itself tells those of its receivers). Raises OSError if a
        port cannot be had.
        """
        limits = settings.limits
        metrics = ServerMetrics(limits.topic_labels_max)
        context = ServerContext(
            services=services,
            settings=settings,
            metrics=metrics,
            budget=BytesInFlight(limits.bytes_in_flight_max),
            on_broken_invariant=on_broken_invariant,
            network=network,
        )
        router = Router((*route_table(), peer_route.ROUTE))
        main = await HttpServer.start(
            Dispatcher(router, context, guard), context, settings.host, settings.port
        )
        metrics.add_source(main.connections.metrics)
        metrics.add_source(lambda: service_metrics(services, limits.topic_labels_max))
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
        """Accept nobody more, finish what is in flight within `shutdown_s`, then cut the rest.

        Connections between nodes last until requests have finished, which may need them. The health
        port answers until the main one is closed.
        """
        await self._main.close()
        if self._network is not None:
            await self._network.close()
        if self._watch is not None:
            await self._watch.close()
