"""A node process has the core, the HTTP server, and an optional Kafka listener.

The server listens before the node is registered, because the other nodes connect there. Users get
"starting" until the node serves. After a failure of the metadata quorum, or a broken invariant, a
node ends at once, uncleanly, as its further work could not be trusted.
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
from typing import TYPE_CHECKING

import msgspec
import uvloop

from raftlog import __version__
from raftlog.broker.service import Broker
from raftlog.http.app import Server
from raftlog.http.settings import is_beyond_loopback
from raftlog.node.assembly import NodeCore
from raftlog.node.directory import IdentityError, load_state, remember, warn_if_shared
from raftlog.node.ports import NodePorts, server_settings, take_ports
from raftlog.node.replacement import TakePlace
from raftlog.node.secret import (
    REREAD_S,
    SecretFile,
    Secrets,
    keep_secrets,
    obtain_secrets,
)
from raftlog.node.settings import NodeSettings
from raftlog.node.start import decide_start
from raftlog.peer.auth import derive_key
from raftlog.peer.dial import join_address
from raftlog.peer.network import HttpNetwork
from raftlog.peer.tasks import TaskGroup
from raftlog.record.errors import LogError
from raftlog.rest.routes import ROUTES as REST_ROUTES
from raftlog.world import Clock, Disk, DiskError, Randomness
from raftlog.world.memory import keep_large_blocks
from raftlog.world.randomness import SystemRandomness
from raftlog.world.real_disk import FileSystemDisk
from raftlog.world.time import SystemClock

if TYPE_CHECKING:
    from raftlog.kafka.listener import KafkaListener

__all__ = ["IdentityError", "Node", "NodeCore", "NodeSettings", "run_node"]

logger = logging.getLogger(__name__)

GC_THRESHOLDS = (4_000, 10, 500)
"""New objects per first-generation pass, and passes per pass of the next generation. A pass of the
second generation examines at most 40,000 objects, in some 20 ms. With 400,000 the collector held
the event loop for 200 ms while partitions were opened. A full collection stays as rare as
20,000,000 new objects."""
SWITCH_INTERVAL_S = 0.0005
PRIVATE_UMASK = 0o077
EXIT_OK = 0
EXIT_FAILED = 1


class Node:
    """A running node has the core and the listeners in front of it."""

    def __init__(
        self,
        settings: NodeSettings,
        core: NodeCore,
        server: Server,
        tasks: TaskGroup,
        *,
        kafka: KafkaListener | None = None,
        kafka_port: int = 0,
    ) -> None:
        """`kafka` is the Kafka listener, if there is one, and `kafka_port` its port."""
        self.settings = settings
        self.core = core
        self.server = server
        self.kafka = kafka
        self._kafka_port = kafka_port
        self._tasks = tasks

    @property
    def address(self) -> str:
        """The address of the HTTP server, as `host:port`."""
        return join_address(self.settings.listen_address()[0], self.server.port)

    @property
    def kafka_address(self) -> str | None:
        """The address of the Kafka listener, as `host:port`. None without a listener."""
        listen = self.settings.kafka_listen_address()
        return None if listen is None else join_address(listen[0], self._kafka_port)

    @classmethod
    async def start(
        cls,
        settings: NodeSettings,
        ports: NodePorts,
        disk: Disk,
        *,
        clock: Clock,
        randomness: Randomness,
        on_fatal: Callable[[str], None],
        take_place: TakePlace | None = None,
    ) -> Node:
        """Recover, listen, register, serve. `take_place` is for a start in a lost node's place.

        Waits for a majority of the voters without a limit. The node has not started if this raises
        LogError, DiskError, OSError, IdentityError or ValueError.
        """
        address = join_address(*settings.advertised_address(ports.http.main.number))
        kafka_port = ports.kafka_port
        state = await disk.run(lambda: load_state(disk))
        start = decide_start(settings, state)
        data_dir = Path(settings.data_dir)
        secrets, keys = await disk.run(
            lambda: _with_keys(obtain_secrets(settings, start, data_dir, randomness))
        )
        network = HttpNetwork(
            keys, on_broken_invariant=lambda error: on_fatal(f"An invariant broke: {error}")
        )
        secret_file = SecretFile(settings, data_dir, secrets)
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
            take_place=take_place,
        )
        await disk.run(lambda: keep_secrets(data_dir, secrets))
        # Every listener uses the same broker, so limits, batches and metrics are common to all.
        http_settings = server_settings(settings)
        broker = Broker(core.services, http_settings.for_broker())
        server = await Server.start(
            broker,
            http_settings,
            REST_ROUTES,
            ports=ports.http,
            network=network,
            on_broken_invariant=lambda error: on_fatal(f"An invariant broke: {error}"),
        )
        if http_settings.is_beyond_loopback:
            _warn_of_open_access(http_settings.host, server.port)
        kafka = None
        if ports.kafka is not None:
            kafka = await _start_kafka(broker, settings, ports.kafka, on_fatal)
            server.add_metrics(kafka.metric_families)
        # The node listens there, so other nodes will also find it there after a crash.
        await disk.run(lambda: remember(disk, settings))
        tasks = TaskGroup(on_fatal)
        # Before the node takes part, so a wrong secret can be mended while it waits for the others.
        tasks.spawn(follow_secret(secret_file, network, disk, clock), "cluster-secret")
        await core.serve(address, settings.rack, settings.kafka_advertised(kafka_port))
        return cls(settings, core, server, tasks, kafka=kafka, kafka_port=kafka_port)

    async def stop(self) -> None:
        """Hand over, stop serving, then checkpoint and close."""
        self.server.leave()
        await self._tasks.close()
        await self.core.leave()
        if self.kafka is not None:
            # First: the server's close ends the connections to other nodes, and the broker.
            await self.kafka.close()
        await self.server.close()
        await self.core.close()


async def _start_kafka(
    broker: Broker, settings: NodeSettings, bound: socket.socket, on_fatal: Callable[[str], None]
) -> KafkaListener:
    """Start the Kafka listener on its bound socket. Raises OSError."""
    # Here, so that a node without the listener does not pay for its codecs.
    from raftlog.kafka.listener import KafkaListener  # noqa: PLC0415
    from raftlog.kafka.settings import KafkaSettings  # noqa: PLC0415

    port = int(bound.getsockname()[1])
    address = settings.kafka_advertised(port)
    is_gateway = address is not None and address.is_gateway
    listener = KafkaListener(
        broker,
        KafkaSettings(
            connections_max=settings.limits.connections_max,
            gateway=(address.host, address.port) if address and is_gateway else None,
        ),
        lambda error: on_fatal(f"An invariant broke: {error}"),
    )
    await listener.start(bound)
    listen = settings.kafka_listen_address()
    if listen is not None and is_beyond_loopback(listen[0]):
        _warn_of_open_access(listen[0], port)
    return listener


def _warn_of_open_access(host: str, port: int) -> None:
    logger.warning(
        "listening on %s without authentication. Every client that reaches this address can"
        " read, write and delete everything. Restrict access by the network",
        join_address(host, port),
    )


async def follow_secret(file: SecretFile, network: HttpNetwork, disk: Disk, clock: Clock) -> None:
    """Use each new content of the secret's file, without end."""
    while not file.is_fixed:
        await clock.sleep(REREAD_S)
        secrets = await disk.run(file.reread)
        if secrets is None:
            continue
        _, keys = await disk.run(partial(_with_keys, secrets))
        ended = network.replace_keys(keys)
        logger.info(
            "the cluster's secret has changed: accepting %d, proving by the first in %s; "
            "%d connections by a removed one are dialled again",
            len(keys),
            file.path,
            ended,
        )


def _with_keys(secrets: Secrets) -> tuple[Secrets, tuple[bytes, ...]]:
    """The secrets and their keys. Blocks for some 0.1 s."""
    return secrets, tuple(map(derive_key, secrets))


def run_node(settings: NodeSettings, take_place: TakePlace) -> int:
    """Run a node until SIGTERM or SIGINT. Returns the process's exit code. `take_place` is for a
    start in a lost node's place."""
    # The imported modules live as long as the node. Without the freeze the collector would scan
    # them with every request of a few hundred records.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    keep_large_blocks()
    # A finished sync must not wait 5 ms for a busy event loop before its thread can report.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # What a node writes is for its owner alone.
    os.umask(PRIVATE_UMASK)
    settings = msgspec.structs.replace(settings, limits=settings.limits.within_open_files())
    try:
        return uvloop.run(_run(settings, take_place))
    except (LogError, DiskError, OSError, IdentityError, ValueError) as error:
        logger.error("the node cannot start: %s", error)
        return EXIT_FAILED


async def _run(settings: NodeSettings, take_place: TakePlace) -> int:
    loop = asyncio.get_running_loop()
    fatal: asyncio.Future[str] = loop.create_future()
    stop: asyncio.Future[str] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _resolve, stop, signal.Signals(number).name)
    # First of all, because a second start by mistake must not touch the directory.
    ports = await take_ports(settings)
    disk = FileSystemDisk(settings.data_dir)
    warn_if_shared(disk.root)
    starting = loop.create_task(
        Node.start(
            settings,
            ports,
            disk,
            clock=SystemClock(),
            randomness=SystemRandomness(),
            on_fatal=partial(_resolve, fatal),
            take_place=take_place,
        )
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
        "raftlog %s: node %d of cluster %s serves at http://%s%s (flush=%s, data in %s)",
        __version__,
        settings.node_id,
        node.core.services.cluster_id,
        node.address,
        "" if node.kafka_address is None else f", and Kafka clients at {node.kafka_address}",
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
