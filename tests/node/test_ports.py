"""Ports are taken first, and a start that cannot have them says why and touches nothing."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from raftlog.http.app import Port
from raftlog.node.ports import server_settings, take_ports
from raftlog.node.settings import NodeSettings
from raftlog.node.start import StartError


def settings(port: int, *, health_port: int = -1, host: str = "127.0.0.1") -> NodeSettings:
    return NodeSettings(data_dir="d", listen=f"{host}:{port}", health_port=health_port)


def kafka_settings(address: str, listen: str = "127.0.0.1:0") -> NodeSettings:
    return NodeSettings(data_dir="d", listen=listen, kafka_listen=address)


@asynccontextmanager
async def server(answer: bytes) -> AsyncIterator[int]:
    """A program on a port, with this answer to everything."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as running:
        yield running.sockets[0].getsockname()[1]


async def test_bound_port_refuses_connections_until_it_serves() -> None:
    """A starting node is as good as dead for the others: a connection to it must not hang."""
    port = await Port.bind("127.0.0.1", 0)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port.number)
    await port.serve(asyncio.Protocol)
    _, writer = await asyncio.open_connection("127.0.0.1", port.number)
    writer.close()
    port.close()


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"HTTP/1.1 200 OK\r\nServer: raftlog/0.4\r\n\r\n", "another raftlog node has this port"),
        (b"HTTP/1.1 404 x\r\nserver: nginx\r\n\r\n", r"another process \(nginx\) has this port"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "another program has this port"),
        (b"SSH-2.0-OpenSSH_9\r\n", "another program has this port"),
        (b"x" * 10_000, "another program has this port"),
    ],
)
async def test_taken_port_is_named_with_its_holder_and_the_next_step(
    answer: bytes, what: str
) -> None:
    async with server(answer) as port:
        with pytest.raises(StartError, match=what) as refused:
            await take_ports(settings(port))
        assert f"127.0.0.1:{port}" in str(refused.value)
        assert "--listen HOST:PORT" in str(refused.value)
        with pytest.raises(StartError, match="choose another by --health-port"):
            await take_ports(settings(0, health_port=port))


async def test_port_is_free_again_if_the_health_port_is_taken() -> None:
    async with server(b"") as taken:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            free = probe.getsockname()[1]
        for _ in range(2):
            with pytest.raises(StartError, match="--health-port"):
                await take_ports(settings(free, health_port=taken))
        for _ in range(2):
            with pytest.raises(StartError, match="--kafka-listen"):
                await take_ports(kafka_settings(f"127.0.0.1:{taken}", f"127.0.0.1:{free}"))
        ports = await take_ports(settings(free))
        assert ports.http.main.number == free
        assert ports.kafka is None
        ports.close()


async def test_kafka_port_is_bound_with_the_others_and_refuses_connections() -> None:
    ports = await take_ports(kafka_settings("localhost:0"))
    assert ports.kafka is not None
    host, port = ports.kafka.getsockname()
    assert (host, port) == ("127.0.0.1", ports.kafka_port)
    assert port != ports.http.main.number
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    ports.close()
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize(
    ("address", "is_open"), [("none", False), ("127.0.0.1:1", False), ("0.0.0.0:1", True)]
)
def test_open_access_by_kafka_is_told_to_http_clients(address: str, is_open: bool) -> None:
    assert server_settings(kafka_settings(address)).other_open_access == is_open


async def test_kafka_port_that_cannot_be_had_is_named_with_the_next_step() -> None:
    async with server(b"HTTP/1.1 200 OK\r\nServer: raftlog/0.4\r\n\r\n") as port:
        with pytest.raises(StartError, match="another raftlog node has this port") as refused:
            await take_ports(kafka_settings(f"127.0.0.1:{port}"))
        assert f"127.0.0.1:{port}" in str(refused.value)
        assert "choose another by --kafka-listen HOST:PORT" in str(refused.value)
    with pytest.raises(StartError, match=r"no such address.* by --kafka-advertise"):
        await take_ports(kafka_settings("192.0.2.1:1"))
    with pytest.raises(StartError, match="Choose another address by --kafka-listen"):
        await take_ports(kafka_settings("no.such.host.invalid:1"))


async def test_address_that_this_machine_does_not_have_is_named() -> None:
    with pytest.raises(StartError, match="this machine has no such address"):
        await take_ports(settings(1, host="192.0.2.1"))
    with pytest.raises(StartError, match="Choose another address by --listen"):
        await take_ports(settings(1, host="no.such.host.invalid"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may use every port")
async def test_port_of_root_is_named() -> None:
    with pytest.raises(StartError, match="only root may use this port"):
        await take_ports(settings(1))
