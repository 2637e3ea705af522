"""The server, put together: route table, context, dispatcher, sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raftlog.server import admin_v1, admin_v3, data_routes, health, openapi
from raftlog.server.budget import BytesInFlight
from raftlog.server.cluster_metrics import service_metrics
from raftlog.server.context import ServerContext
from raftlog.server.dispatch import Dispatcher, Guard
from raftlog.server.http import HttpServer
from raftlog.server.metrics import ServerMetrics
from raftlog.server.routing import Route, Router
from raftlog.server.settings import ServerSettings

if TYPE_CHECKING:
    from raftlog.replication.services import Services


def route_table() -> tuple[Route, ...]:
    """Every endpoint, the description of them all included."""
    routes = (*data_routes.ROUTES, *admin_v1.ROUTES, *admin_v3.ROUTES, *health.ROUTES)
    return (*routes, openapi.route(routes))


class Server:
    """A running server: the main port, and the health port if there is one."""

    def __init__(self, main: HttpServer, watch: HttpServer | None) -> None:
        self._main = main
        self._watch = watch

    @classmethod
    async def start(
        cls,
        services: Services,
        settings: ServerSettings,
        *,
        guard: Guard | None = None,
        on_broken_invariant: Callable[[AssertionError], None] | None = None,
    ) -> Server:
        """Listen and serve. Until `services.is_ready` says so, requests are answered NOT_READY.

        `guard` may refuse requests (authorisation, quotas). `on_broken_invariant` is told of
        assertions that failed in a handler. Raises OSError if a port cannot be had.
        """
        limits = settings.limits
        metrics = ServerMetrics(limits.topic_labels_max)
        context = ServerContext(
            services=services,
            settings=settings,
            metrics=metrics,
            budget=BytesInFlight(limits.bytes_in_flight_max),
            on_broken_invariant=on_broken_invariant,
        )
        main = await HttpServer.start(
            Dispatcher(Router(route_table()), context, guard), context, settings.host, settings.port
        )
        metrics.add_source(main.connections.metrics)
        metrics.add_source(lambda: service_metrics(services, limits.topic_labels_max))
        if settings.health_port < 0:
            return cls(main, None)
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
        return cls(main, watch)

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

        The health port answers until the main one is closed.
        """
        await self._main.close()
        if self._watch is not None:
            await self._watch.close()
