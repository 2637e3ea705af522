"""A gateway process runs the HTTP server, and the tasks behind the catalog."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec
import uvloop

from raftlog import __version__
from raftlog.gateway.following import CatalogFollower, StubKeeper
from raftlog.gateway.routes import ROUTES
from raftlog.gateway.service import Gateway
from raftlog.http.app import HttpServer, Port, PortError, Ports
from raftlog.http.dispatch import Dispatcher
from raftlog.http.metrics import LoopLag, ServerMetrics
from raftlog.http.request import ServerContext
from raftlog.http.routing import Router
from raftlog.http.settings import ServerSettings
from raftlog.peer.dial import join_address
from raftlog.peer.tasks import TaskGroup
from raftlog.world.time import SystemClock

logger = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The settings of one gateway."""

    home: tuple[str, ...]
    """Nodes of the home cluster, `host:port`."""
    server: ServerSettings


class RunningGateway:
    """A serving gateway. `start` creates it and `stop` ends it."""

    def __init__(self, gateway: Gateway, server: HttpServer, tasks: TaskGroup) -> None:
        self.gateway = gateway
        self.server = server
        self._tasks = tasks

    @property
    def address(self) -> str:
        """The address of the HTTP server, as `host:port`."""
        return join_address(self.gateway.settings.host, self.server.port)

    @classmethod
    async def start(
        cls, settings: GatewaySettings, ports: Ports, on_fatal: Callable[[str], None]
    ) -> RunningGateway:
        """Serve, and follow the catalog. Raises OSError if another process took the port."""
        clock = SystemClock()
        gateway = Gateway(settings.home, settings.server, clock)
        server = await start_server(gateway, ports.main, on_fatal)
        lag = LoopLag(clock)
        server.context.metrics.add_source(lag.metrics)
        tasks = TaskGroup(on_fatal)
        follower = CatalogFollower(gateway)
        tasks.spawn(follower.run(), "catalog")
        tasks.spawn(StubKeeper(gateway, follower.changed).run(), "stub-topics")
        tasks.spawn(lag.measure(), "event-loop-lag")
        return cls(gateway, server, tasks)

    async def stop(self) -> None:
        """Stop listening, let requests in flight finish, then close the connections."""
        await self.server.close()
        await self._tasks.close()
        await self.gateway.links.close()


async def start_server(gateway: Gateway, port: Port, on_fatal: Callable[[str], None]) -> HttpServer:
    """Serve the gateway's routes. Raises OSError if another process took the port."""
    gateway.links.start()
    context = ServerContext(
        broker=gateway,
        settings=gateway.settings,
        metrics=ServerMetrics(gateway.topics),
        on_broken_invariant=lambda error: on_fatal(f"An invariant broke: {error}"),
    )
    server = await HttpServer.start(Dispatcher(Router(ROUTES), context), context, port)
    for source in (server.connections.metrics, gateway.metrics):
        context.metrics.add_source(source)
    return server


def run_gateway(settings: GatewaySettings) -> int:
    """Run a gateway until SIGTERM or SIGINT. Returns the process's exit code."""
    limits = settings.server.limits.within_open_files()
    server = msgspec.structs.replace(settings.server, limits=limits)
    try:
        return uvloop.run(_run(replace(settings, server=server)))
    except (OSError, PortError) as error:
        logger.error("the gateway cannot start: %s", error)
        return EXIT_FAILED


async def _run(settings: GatewaySettings) -> int:
    loop = asyncio.get_running_loop()
    fatal: asyncio.Future[str] = loop.create_future()
    stop: asyncio.Future[str] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _resolve, stop, signal.Signals(number).name)
    ports = await Ports.bind(settings.server)
    running = await RunningGateway.start(settings, ports, partial(_resolve, fatal))
    logger.info(
        "raftlog %s gateway of home cluster %s listens on http://%s",
        __version__,
        ",".join(settings.home),
        running.address,
    )
    if settings.server.is_beyond_loopback:
        logger.warning(
            "listening on %s without authentication. Every client that reaches this address can "
            "read and write every log of the catalog. Restrict access by the network.",
            running.address,
        )
    await asyncio.wait((fatal, stop), return_when=asyncio.FIRST_COMPLETED)
    if fatal.done():
        logger.critical("the gateway ends at once: %s", fatal.result())
        logging.shutdown()
        os._exit(EXIT_FAILED)
    logger.info("%s: stopping", stop.result())
    await running.stop()
    logger.info("stopped cleanly")
    return EXIT_OK


def _resolve(future: asyncio.Future[str], reason: str) -> None:
    if not future.done():
        future.set_result(reason)
