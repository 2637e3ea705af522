"""A node takes its ports before its directory, so a port conflict leaves no trace."""

from __future__ import annotations

import asyncio
import errno
import socket
from dataclasses import dataclass
from typing import Final

from raftlog.http.app import PortError, Ports
from raftlog.http.browsers import parse_hosts, parse_origins
from raftlog.http.settings import ServerSettings, is_beyond_loopback
from raftlog.node.settings import WILDCARD_HOSTS, NodeSettings, split_address
from raftlog.node.start import StartError
from raftlog.peer.dial import join_address

PROBE_S: Final = 1.0
"""Time to find out what kind of server has a port."""
PROBE_BYTES_MAX: Final = 4 * 1024


def server_settings(settings: NodeSettings) -> ServerSettings:
    """The settings of the node's HTTP server."""
    host, port = settings.listen_address()
    kafka = settings.kafka_listen_address()
    return ServerSettings(
        host=host,
        port=port,
        health_port=settings.health_port,
        allowed_origins=parse_origins(settings.allowed_origins),
        allowed_hosts=parse_hosts(settings.allowed_hosts),
        auto_create_topics=settings.auto_create_topics,
        other_open_access=kafka is not None and is_beyond_loopback(kafka[0]),
        limits=settings.limits,
    )


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The ports of all listeners of a node. Each refuses connections until its listener starts."""

    http: Ports
    kafka: socket.socket | None = None
    """Socket for the Kafka listener, which owns it from its start on. None without a listener."""

    @property
    def kafka_port(self) -> int:
        """The number of the Kafka listener's port. 0 without a listener."""
        return 0 if self.kafka is None else int(self.kafka.getsockname()[1])

    def close(self) -> None:
        """Release the ports."""
        self.http.close()
        if self.kafka is not None:
            self.kafka.close()


async def take_ports(settings: NodeSettings) -> NodePorts:
    """Bind the node's ports. Raises StartError that names the port's holder and the next step."""
    try:
        ports = await Ports.bind(server_settings(settings))
    except PortError as error:
        is_main = error.address == join_address(*settings.listen_address())
        flag = "--listen HOST:PORT" if is_main else "--health-port"
        raise StartError(await _explained(error, flag, "--advertised")) from error
    kafka_listen = settings.kafka_listen_address()
    if kafka_listen is None:
        return NodePorts(ports)
    try:
        return NodePorts(ports, await _bind(*kafka_listen))
    except PortError as error:
        ports.close()
        flag = "--kafka-listen HOST:PORT"
        raise StartError(await _explained(error, flag, "--kafka-advertise")) from error


async def _bind(host: str, port: int) -> socket.socket:
    """A socket at the first address of `host`, an IPv4 address if any. Raises PortError."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(
            found, key=lambda entry: entry[0] != socket.AF_INET
        )
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setblocking(False)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # As for HTTP, `::` does not also take the port of IPv4.
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise PortError(host, port, error) from error
    return bound


async def _explained(error: PortError, flag: str, advertise_flag: str) -> str:
    what = f"cannot listen on {error.address}"
    match error.reason.errno:
        case errno.EADDRINUSE:
            server = await _server_at(error.address)
            has = "another program" if server is None else f"another process ({server})"
            if server is not None and server.startswith("raftlog"):
                has = "another raftlog node"
            return f"{what}: {has} has this port. Stop that process, or choose another by {flag}"
        case errno.EADDRNOTAVAIL:
            return (
                f"{what}: this machine has no such address. Listen on one that it has, or on all "
                f"by 0.0.0.0, and let clients know another name by {advertise_flag}"
            )
        case errno.EACCES:
            return f"{what}: only root may use this port. Choose one from 1024 on by {flag}"
        case _:
            return f"{what}: {error.reason.strerror}. Choose another address by {flag}"


async def _server_at(address: str) -> str | None:
    """The name that the HTTP server at `address` gives itself. None without a server."""
    host, port = split_address(address)
    if host in WILDCARD_HOSTS:
        host = "localhost"
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(host, port, limit=PROBE_BYTES_MAX)
            try:
                writer.write(f"GET /healthy HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    for line in head.decode("latin-1").splitlines():
        name, _, value = line.partition(":")
        if name.lower() == "server" and value.strip().isprintable():
            return value.strip()[:80]
    return None
