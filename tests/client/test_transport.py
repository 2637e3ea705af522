"""Addresses, errors of the wire, and the outcome of their requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from raftlog_client import ConnectionLostError, OffsetOutOfRangeError, ServerError
from raftlog_client.errors import server_error
from raftlog_client.transport import (
    JOINED_BYTES_MAX,
    WRITE_PIECE_BYTES,
    NodeAddress,
    Transport,
    parse_bootstrap,
)

from raftlog.api.common import Empty
from raftlog.record.errors import ERROR_TABLE

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@pytest.mark.parametrize(
    ("servers", "addresses"),
    [
        ("h:1", ["h:1"]),
        ("h", ["h:8082"]),
        (" a:1 , b:2,", ["a:1", "b:2"]),
        (["http://a:1/", "[::1]:5", "[::1]"], ["a:1", "[::1]:5", "[::1]:8082"]),
    ],
)
def test_bootstrap_servers_are_understood(servers: Any, addresses: list[str]) -> None:
    assert parse_bootstrap(servers) == addresses


@pytest.mark.parametrize("servers", ["", ",", ":1", "h:", "h:x", "h:0", "a/b:1", []])
def test_malformed_bootstrap_servers_are_refused(servers: Any) -> None:
    with pytest.raises(ValueError, match="bootstrap_servers"):
        parse_bootstrap(servers)


@pytest.mark.parametrize("entry", ERROR_TABLE.values(), ids=lambda entry: str(entry.name))
def test_every_error_of_the_table_becomes_an_exception(entry: Any) -> None:
    error = server_error(entry.code, "why")
    assert (error.code, error.name, str(error)) == (entry.code, entry.name, "why")
    assert (error.retriable, error.outcome_unknown) == (entry.retriable, entry.outcome_unknown)


def test_errors_of_newer_nodes_are_judged_by_their_status() -> None:
    assert isinstance(server_error(41601), OffsetOutOfRangeError)
    unknown = server_error(59999)
    assert unknown.retriable
    assert unknown.outcome_unknown
    assert not server_error(49999).retriable


async def respond(handler: Handler, call: Callable[[Transport, NodeAddress], Any]) -> Any:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
            await writer.drain()
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = Transport(client_id="test", request_timeout_ms=200)
    transport.start()
    try:
        return await call(transport, NodeAddress(f"127.0.0.1:{port}"))
    finally:
        await transport.close()
        server.close()
        await server.wait_closed()


def answering(answer: bytes) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    return handle


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"not http\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{",
    ],
)
async def test_a_broken_answer_leaves_the_outcome_unknown(answer: bytes) -> None:
    with pytest.raises(ConnectionLostError) as lost:
        await respond(answering(answer), lambda t, a: t.call(a, "POST", "/x", Empty, Empty()))
    assert lost.value.outcome_unknown


async def test_silence_ends_with_the_timeout() -> None:
    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    with pytest.raises(ConnectionLostError, match="did not answer within") as lost:
        await respond(silent, lambda t, a: t.call(a, "GET", "/x", Empty))
    assert lost.value.outcome_unknown


async def test_a_refused_connection_reached_nobody() -> None:
    transport = Transport(client_id="test", request_timeout_ms=200)
    transport.start()
    with pytest.raises(ConnectionLostError) as refused:
        await transport.call(NodeAddress("127.0.0.1:1"), "GET", "/x", Empty)
    assert not refused.value.outcome_unknown
    await transport.close()
    with pytest.raises(ConnectionLostError, match="closed"):
        await transport.call(NodeAddress("127.0.0.1:1"), "GET", "/x", Empty)


async def test_an_error_without_our_form_keeps_its_status() -> None:
    answer = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\noops"
    with pytest.raises(ServerError, match=r"answered HTTP 502, .*'oops'") as bad:
        await respond(answering(answer), lambda t, a: t.call(a, "GET", "/x", Empty))
    assert bad.value.outcome_unknown


@pytest.mark.parametrize("size", [10, JOINED_BYTES_MAX + 1, 3 * WRITE_PIECE_BYTES + 1, 3_000_000])
async def test_bodies_of_any_size_arrive_whole(size: int) -> None:
    received = bytearray()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        received.extend(await reader.readexactly(size))
        writer.write(
            b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\nConnection: close\r\n\r\n{"results":[]}'
        )

    data = bytes(range(256)) * (size // 256 + 1)
    parts = [data[:1], bytearray(data[1 : size // 2]), memoryview(data)[max(size // 2, 1) : size]]
    await respond(handle, lambda t, a: t.produce(a, "/v1/produce", parts, size))
    assert received == data[:size]
