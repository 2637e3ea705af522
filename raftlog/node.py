"""A node, put together: disk, quorum, logs, partitions, HTTP server, in the order of safety.

Start: lock the data directory → recover the metadata → register this start (a new broker epoch,
and with it a new leader epoch for every partition it leads) → recover the logs → serve.
Stop: stop serving → sync and checkpoint the logs, with the marker of a clean stop → close the
metadata. A node whose metadata log failed, or in which an invariant broke, ends at once, uncleanly:
what it would still do could not be trusted.
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
from typing import Annotated, Literal

import msgspec
import uvloop
from msgspec import Meta

from raftlog import __version__
from raftlog.metadata.apply import ApplyResult
from raftlog.metadata.commands import ClusterCreated, RegisterBroker
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.quorum import LocalQuorum
from raftlog.record.errors import DISK_FULL, LogError
from raftlog.record.types import BrokerId
from raftlog.replication.cluster_metadata import ClusterMetadata, propose
from raftlog.replication.manager import ReplicaManager
from raftlog.replication.services import Services
from raftlog.replication.topic_settings import TopicSettings
from raftlog.server.app import Server
from raftlog.server.settings import ServerLimits, ServerSettings, check_bounds
from raftlog.storage.manager import REPLICAS, LogManager
from raftlog.world import Clock, Disk, DiskError, Randomness
from raftlog.world.real_clock import SystemClock
from raftlog.world.real_disk import FileSystemDisk
from raftlog.world.real_randomness import SystemRandomness

logger = logging.getLogger(__name__)

METADATA_DIRECTORY = "metadata"
IDENTITY_FILE = "directory.json"
WILDCARD_HOSTS = ("0.0.0.0", "::")
REGISTRATION_RETRY_S = 2.0
GC_ALLOCATIONS = 20_000
"""Allocations between two looks of the garbage collector: about those of 20 requests."""
SWITCH_INTERVAL_S = 0.0005
EXIT_OK = 0
EXIT_FAILED = 1


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a node is started: what flags, environment and file amount to."""

    data_dir: str
    """The node's own directory; created if missing."""
    node_id: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1
    """Number of this node, unique in its cluster."""
    listen: str = "127.0.0.1:8082"
    """`host:port` to serve on; port 0 takes a free one."""
    advertised: str | None = None
    """`host:port` that clients are told; by default the address listened on."""
    health_port: Annotated[int, Meta(ge=-1, le=65_535)] = -1
    """Separate port for /healthy, /ready and /metrics; -1: none."""
    rack: str | None = None
    """Where the node stands; replicas are spread over racks."""
    flush: Literal["sync", "async"] = "sync"
    """What acks=all waits for, unless a topic says otherwise (promises 1 and 2)."""
    partitions_default: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Partitions of a topic that is created without saying how many."""
    auto_create_topics: bool = False
    """Whether producing to an unknown topic creates it."""
    topic_defaults: dict[str, str] = {}
    """Topic configs for all topics that do not set them."""
    limits: ServerLimits = ServerLimits()
    """What one peer, and all together, may make the server hold or wait for."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def listen_address(self) -> tuple[str, int]:
        """Host and port to listen on. Raises ValueError."""
        return split_address(self.listen)

    def advertised_address(self, port: int) -> tuple[str, int]:
        """Host and port that clients are told, if `port` is the one listened on."""
        if self.advertised is not None:
            return split_address(self.advertised)
        host = self.listen_address()[0]
        # Nobody can connect to "all addresses of this machine"; its name is the best we know.
        return (socket.gethostname() if host in WILDCARD_HOSTS else host), port


class _Identity(msgspec.Struct, frozen=True):
    """Who a data directory belongs to, so that it is never served under another node's id."""

    directory_id: str
    node_id: int


class IdentityError(Exception):
    """The data directory is another node's."""


class Core:
    """A node without its sockets: metadata, logs and partitions over a world."""

    def __init__(
        self,
        services: Services,
        quorum: LocalQuorum[ApplyResult],
        directory_id: str,
        on_fatal: Callable[[str], None],
    ) -> None:
        self._on_fatal = on_fatal
        self._registering: asyncio.Task[None] | None = None
        self.services = services
        self.quorum = quorum
        self.directory_id = directory_id
        self.not_ready: str | None = "The node is starting."

    @classmethod
    async def open(
        cls,
        settings: NodeSettings,
        disk: Disk,
        clock: Clock,
        randomness: Randomness,
        on_fatal: Callable[[str], None],
    ) -> Core:
        """Recover the metadata. `on_fatal` is given the reason if the node must end.

        Raises LogError, DiskError or IdentityError.
        """
        node_id = BrokerId(settings.node_id)
        identity = await disk.run(lambda: _claim(disk, settings.node_id, randomness))
        state_machine = MetadataStateMachine()
        quorum = await LocalQuorum.open(disk, METADATA_DIRECTORY, state_machine)
        quorum.on_failed(on_fatal)
        topic_settings = TopicSettings(
            {"flush": settings.flush, **settings.topic_defaults}, settings.partitions_default
        )
        logs = await LogManager.open(disk, clock)
        replicas = ReplicaManager(state_machine, logs, node_id, topic_settings)
        metadata = ClusterMetadata(
            state_machine=state_machine,
            quorum=quorum,
            broker_id=node_id,
            randomness=randomness,
            settings=topic_settings,
            settled=replicas.settled,
        )
        services = Services(
            replicas=replicas,
            metadata=metadata,
            logs=logs,
            clock=clock,
            randomness=randomness,
            node_id=node_id,
            cluster_id=await _cluster_id(state_machine, quorum, clock, randomness),
            is_ready=lambda: core.not_ready,
        )
        core = cls(services, quorum, identity.directory_id, on_fatal)
        return core

    async def serve(self, host: str, port: int, rack: str | None) -> None:
        """Register this start under the address clients are told, and open the replicas.

        Raises LogError if the cluster refuses this node.
        """
        registration = RegisterBroker(
            broker_id=self.services.node_id,
            directory_id=self.directory_id,
            incarnation=self.services.randomness.token(16).hex(),
            host=host,
            port=port,
            software_version=__version__,
            rack=rack,
        )
        replicas = self.services.replicas
        try:
            (await propose(self.quorum, registration)).broker()
        except LogError as error:
            if error.entry is not DISK_FULL:
                raise
            # The old leader epochs must not take new records; reading does not need a new one.
            logger.error("the disk is full: serving reads only until there is room")
            replicas.refuse_writes(error)
            self._registering = asyncio.create_task(self._register_later(registration))
        await replicas.start()
        await self.services.logs.start()
        self.not_ready = None

    async def _register_later(self, registration: RegisterBroker) -> None:
        while True:
            await self.services.clock.sleep(REGISTRATION_RETRY_S)
            try:
                (await propose(self.quorum, registration)).broker()
            except LogError as error:
                if error.entry is DISK_FULL:
                    continue
                self._on_fatal(f"The cluster refuses this node: {error}")
                return
            logger.info("there is room on the disk again: taking writes")
            self.services.replicas.refuse_writes(None)
            return

    async def close(self) -> None:
        """Stop cleanly: everything acknowledged is durable, and the next start need not look."""
        self.not_ready = "The node is stopping."
        if self._registering is not None:
            self._registering.cancel()
        await self.services.replicas.close()
        await self.services.logs.close()
        await self.quorum.close()


class Node:
    """One running node: the core and the server in front of it."""

    def __init__(self, settings: NodeSettings, core: Core, server: Server) -> None:
        self.settings = settings
        self.core = core
        self.server = server

    @property
    def address(self) -> str:
        """Where it serves, as `host:port`."""
        host = self.settings.listen_address()[0]
        return f"[{host}]:{self.server.port}" if ":" in host else f"{host}:{self.server.port}"

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

        Raises LogError, DiskError, OSError, IdentityError or ValueError: it has not started.
        """
        host, port = settings.listen_address()
        core = await Core.open(settings, disk, clock, randomness, on_fatal)
        server = await Server.start(
            core.services,
            ServerSettings(
                host=host,
                port=port,
                health_port=settings.health_port,
                auto_create_topics=settings.auto_create_topics,
                limits=settings.limits,
            ),
            on_broken_invariant=lambda error: on_fatal(f"An invariant broke: {error}"),
        )
        await core.serve(*settings.advertised_address(server.port), settings.rack)
        return cls(settings, core, server)

    async def stop(self) -> None:
        """Stop cleanly, users first."""
        await self.server.close()
        await self.core.close()


def split_address(address: str) -> tuple[str, int]:
    """`host:port` as a pair; `[v6]:port` too. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{address!r} is not an address of the form host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _claim(disk: Disk, node_id: int, randomness: Randomness) -> _Identity:
    if disk.exists(IDENTITY_FILE):
        file = disk.open(IDENTITY_FILE)
        try:
            identity = msgspec.json.decode(file.read(0, file.size), type=_Identity)
        except msgspec.DecodeError as error:
            raise IdentityError(
                f"{IDENTITY_FILE} in the data directory is damaged: {error}"
            ) from error
        finally:
            file.close()
        if identity.node_id != node_id:
            raise IdentityError(
                f"The data directory belongs to node {identity.node_id}, not to node {node_id}."
            )
        if disk.list_directory(REPLICAS) and not disk.exists(METADATA_DIRECTORY):
            raise IdentityError(
                f"The data directory holds replicas, but its {METADATA_DIRECTORY} is missing: "
                "restore it. Starting without it would begin another cluster over this data."
            )
        return identity
    if disk.exists(METADATA_DIRECTORY):
        raise IdentityError(f"The data directory holds a node's data, but no {IDENTITY_FILE}.")
    identity = _Identity(randomness.token(16).hex(), node_id)
    disk.replace(IDENTITY_FILE, msgspec.json.encode(identity))
    return identity


async def _cluster_id(
    state_machine: MetadataStateMachine,
    quorum: LocalQuorum[ApplyResult],
    clock: Clock,
    randomness: Randomness,
) -> str:
    known = state_machine.image.cluster_id
    if known is not None:
        return known
    created = ClusterCreated(cluster_id=randomness.token(16).hex(), created_ms=clock.time_ms())
    await propose(quorum, created)
    return created.cluster_id


def run_node(settings: NodeSettings) -> int:
    """Run a node until it is told to stop (SIGTERM, SIGINT); return the process's exit code."""
    # All that was imported lives as long as the node. Left among what the collector looks at, it is
    # looked at again with every request of a few hundred records.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 20, 50)
    # A sync that returns must not wait 5 ms for a busy event loop to let its thread say so.
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
    disk = FileSystemDisk(settings.data_dir)
    node = await Node.start(
        settings, disk, SystemClock(), SystemRandomness(), partial(_tell, fatal)
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _tell, stop, signal.Signals(number).name)
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
        logger.critical("the node ends at once: %s", fatal.result())
        logging.shutdown()
        os._exit(EXIT_FAILED)
    logger.info("%s: stopping", stop.result())
    await node.stop()
    disk.close()
    logger.info("stopped cleanly")
    return EXIT_OK


def _tell(future: asyncio.Future[str], reason: str) -> None:
    if not future.done():
        future.set_result(reason)
