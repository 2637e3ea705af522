"""A node as one process: the core, and the HTTP server in front of it.

The server listens before the node is registered, because the other nodes connect there; users get
"starting" until the node serves. After a failure of the metadata quorum, or a broken invariant, a
node ends at once, uncleanly: its further work could not be trusted.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvloop

from raftlog import __version__
from raftlog.broker.service import Broker
from raftlog.http.app import Server
from raftlog.http.settings import ServerSettings
from raftlog.node.assembly import NodeCore
from raftlog.node.directory import IdentityError, load_state, remember
from raftlog.node.secret import obtain_secret
from raftlog.node.settings import NodeSettings
from raftlog.node.start import decide_start
from raftlog.peer.dial import join_address
from raftlog.peer.network import HttpNetwork
from raftlog.record.errors import LogError
from raftlog.rest.routes import ROUTES as REST_ROUTES
from raftlog.world import Clock, Disk, DiskError, Randomness
from raftlog.world.memory import keep_large_blocks
from raftlog.world.randomness import SystemRandomness
from raftlog.world.real_disk import FileSystemDisk
from raftlog.world.time import SystemClock

__all__ = ["IdentityError", "Node", "NodeCore", "NodeSettings", "run_node"]

logger = logging.getLogger(__name__)

GC_THRESHOLDS = (4_000, 10, 500)
"""New objects until the collector examines these, and such looks until it examines all since the
last: at most 40,000 objects, some 20 ms. With 400,000 the collector held the event loop for 200 ms
while partitions were opened. A full collection stays as rare as 20,000,000 new objects."""
SWITCH_INTERVAL_S = 0.0005
EXIT_OK = 0
EXIT_FAILED = 1


class Node:
    """One running node: the core and the server in front of it."""

    def __init__(self, settings: NodeSettings, core: NodeCore, server: Server) -> None:
        self.settings = settings
        self.core = core
        self.server = server

    @property
    def address(self) -> str:
        """The address of the listener, as `host:port`."""
        return join_address(self.settings.listen_address()[0], self.server.port)

    @classmethod
    async def start(
        cls,
        settings: NodeSettings,
        disk: Disk,
        clock: Clock,
        randomness: Randomness,
        on_fatal: Callable[[str], None],
    ) -> Node:
        """Recover, listen, register, serve.

        Waits for a majority of the voters without a limit. Raises LogError, DiskError, OSError,
        IdentityError or ValueError: the node has not started.
        """
        host, port = settings.listen_address()
        # A port of the system's choice is chosen first: the quorum must know where this node is.
        port = port or _free_port(host)
        address = join_address(*settings.advertised_address(port))
        state = await disk.run(lambda: load_state(disk))
        start = decide_start(settings, state)
        secret = await disk.run(
            lambda: obtain_secret(settings, start, Path(settings.data_dir), randomness)
        )
        network = HttpNetwork(
            secret, on_broken_invariant=lambda error: on_fatal(f"An invariant broke: {error}")
        )
        core = await NodeCore.open(
            settings,
            state=state,
            start=start,
            address=address,
            disk=disk,
            clock=clock,
            randomness=randomness,
            network=network,
            on_fatal=on_fatal,
        )
        server_settings = ServerSettings(
            host=host,
            port=port,
            health_port=settings.health_port,
            auto_create_topics=settings.auto_create_topics,
            limits=settings.limits,
        )
        # One broker for every listener: limits, batches and metrics are common to all.
        broker = Broker(core.services, server_settings.for_broker())
        server = await Server.start(
            broker,
            server_settings,
            REST_ROUTES,
            network=network,
            on_broken_invariant=lambda error: on_fatal(f"An invariant broke: {error}"),
        )
        # The node listens there, so other nodes will find it there after a crash, too.
        await disk.run(lambda: remember(disk, settings))
        await core.serve(address, settings.rack)
        return cls(settings, core, server)

    async def stop(self) -> None:
        """Stop cleanly: hand over, stop serving, then checkpoint and close."""
        await self.core.leave()
        await self.server.close()
        await self.core.close()


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def run_node(settings: NodeSettings) -> int:
    """Run a node until SIGTERM or SIGINT; return the process's exit code."""
    # The imported modules live as long as the node. Without the freeze the collector would scan
    # them with every request of a few hundred records.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    keep_large_blocks()
    # A finished sync must not wait 5 ms for a busy event loop before its thread can report.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        Path(settings.data_dir).mkdir(parents=True, exist_ok=True)
        return uvloop.run(_run(settings))
    except (LogError, DiskError, OSError, IdentityError, ValueError) as error:
        logger.error("the node cannot start: %s", error)
        return EXIT_FAILED


async def _run(settings: NodeSettings) -> int:
    loop = asyncio.get_running_loop()
    fatal: asyncio.Future[str] = loop.create_future()
    stop: asyncio.Future[str] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _resolve, stop, signal.Signals(number).name)
    disk = FileSystemDisk(settings.data_dir)
    starting = loop.create_task(
        Node.start(settings, disk, SystemClock(), SystemRandomness(), partial(_resolve, fatal))
    )
    await asyncio.wait((starting, fatal, stop), return_when=asyncio.FIRST_COMPLETED)
    if fatal.done():
        _end(fatal.result())
    if not starting.done():
        # Nothing acknowledged depends on the process yet.
        logger.info("%s: stopping before the start was complete", stop.result())
        logging.shutdown()
        os._exit(EXIT_OK)
    node = starting.result()
    logger.info(
        "raftlog %s: node %d of cluster %s serves at http://%s (flush=%s, data in %s)",
        __version__,
        settings.node_id,
        node.core.services.cluster_id,
        node.address,
        settings.flush,
        settings.data_dir,
    )
    await asyncio.wait((fatal, stop), return_when=asyncio.FIRST_COMPLETED)
    if fatal.done():
        _end(fatal.result())
    logger.info("%s: stopping", stop.result())
    await node.stop()
    disk.close()
    logger.info("stopped cleanly")
    return EXIT_OK


def _end(reason: str) -> None:
    logger.critical("the node ends at once: %s", reason)
    logging.shutdown()
    os._exit(EXIT_FAILED)


def _resolve(future: asyncio.Future[str], reason: str) -> None:
    if not future.done():
        future.set_result(reason)
