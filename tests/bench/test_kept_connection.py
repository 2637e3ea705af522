"""The outcomes of requests to servers that break off at every point."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from bench.kept_connection import (
    HttpAnswer,
    KeptConnection,
    NotSentError,
    OutcomeLostError,
)
from raftlog.record.errors import ERROR_TABLE
from tests.soak.register_clients import RegisterClient, interpret
from tests.verification.register_history import Kind, Operation, Outcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[str]:
    """The address of a server that closes each connection once the handler has returned."""
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            await handler(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        await asyncio.gather(*serving, return_exceptions=True)


def http(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def test_answers_come_in_order_over_one_connection() -> None:
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for body in (b"first", b"second"):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(http(body))

    async with server(handle) as address:
        connection = KeptConnection(address)
        assert await connection.request("GET", "/", timeout_s=5) == HttpAnswer(200, b"first")
        assert await connection.request("GET", "/", timeout_s=5) == HttpAnswer(200, b"second")
        connection.close()
    assert connections == 1


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200", http(b"answer")[:-1]])
async def test_a_connection_that_ends_before_the_whole_answer_loses_the_outcome(
    sent: bytes,
) -> None:
    requests = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await reader.readuntil(b"\r\n\r\n")
        requests += 1
        writer.write(sent)

    async with server(handle) as address:
        with pytest.raises(OutcomeLostError):
            await KeptConnection(address).request("PUT", "/", b"", timeout_s=5)
    assert requests == 1, "a request is never sent twice"


async def test_silence_loses_the_outcome_and_the_connection() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with server(handle) as address:
        connection = KeptConnection(address)
        with pytest.raises(OutcomeLostError, match="timeout"):
            await connection.request("PUT", "/", timeout_s=0.05)


async def test_nobody_listening_means_not_sent() -> None:
    with pytest.raises(NotSentError):
        await KeptConnection("127.0.0.1:1").request("PUT", "/", timeout_s=5)


def answer(status: int, document: object) -> HttpAnswer:
    return HttpAnswer(status, json.dumps(document).encode())


def test_answers_are_taken_at_their_word() -> None:
    good = answer(200, {"index": 7, "values": {"retention.ms": "12"}})
    result = interpret(Kind.READ, "retention.ms", good)
    assert (result.outcome, result.value, result.index) == (Outcome.OK, 12, 7)
    result = interpret(Kind.READ, "segment.ms", good)
    assert (result.outcome, result.value, result.index) == (Outcome.OK, None, 7)
    result = interpret(Kind.WRITE, "retention.ms", good)
    assert (result.outcome, result.index) == (Outcome.OK, 7)


@pytest.mark.parametrize("code", sorted(ERROR_TABLE))
def test_an_error_fails_a_write_only_if_it_says_that_nothing_happened(code: int) -> None:
    result = interpret(Kind.WRITE, "x", answer(code // 100, {"error_code": code, "message": ""}))
    is_unknown = ERROR_TABLE[code].outcome_unknown
    assert result.outcome is (Outcome.UNKNOWN if is_unknown else Outcome.FAIL)


@pytest.mark.parametrize(
    "strange",
    [
        HttpAnswer(200, b"no json"),
        HttpAnswer(502, b"<html>"),
        answer(200, []),
        answer(500, {"error_code": 99_999}),
    ],
)
def test_an_answer_that_says_nothing_leaves_the_outcome_unknown(strange: HttpAnswer) -> None:
    assert interpret(Kind.WRITE, "x", strange).outcome is Outcome.UNKNOWN


async def test_a_client_goes_on_as_another_after_an_unknown_outcome() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    history: list[Operation] = []
    async with server(handle) as address:
        client = RegisterClient(
            3, {1: address}, history.append, random.Random(1), lambda: 1_000, process_step=10
        )
        await client.write("retention.ms", 1)
        await client.write("retention.ms", 1)
        client.close()
    assert [operation.process for operation in history] == [3, 13]
    assert {operation.outcome for operation in history} == {Outcome.UNKNOWN}
