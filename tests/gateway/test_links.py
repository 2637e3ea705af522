"""Requests to clusters: other addresses, repeats, bounds, outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from bench.node import free_port
from raftlog.gateway import links as module
from raftlog.gateway.links import Link, Links
from raftlog.http.responses import error_body
from raftlog.record.errors import (
    INTERNAL,
    NO_LEADER,
    NOT_READY,
    RETRIABLE,
    UNKNOWN_TOPIC,
    ErrorEntry,
    LogError,
)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answer(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def error(entry: ErrorEntry) -> bytes:
    return answer(entry.http_status, error_body(entry))


class Node:
    """A listener: each request gets the next of its answers; None breaks the connection."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.requests: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head.decode().split("\r\n")[0])
                data = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if data is None:
                    return
                writer.write(data)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def linked(*nodes: Node) -> AsyncIterator[tuple[Link, Links]]:
    """A link to these nodes, in this order."""
    servers = [await asyncio.start_server(node, "127.0.0.1", 0) for node in nodes]
    links = Links()
    links.start()
    addresses = [f"127.0.0.1:{one.sockets[0].getsockname()[1]}" for one in servers]
    try:
        yield Link(links, "The cluster", addresses), links
    finally:
        await links.close()
        for server in servers:
            server.close()


def dead() -> str:
    return f"127.0.0.1:{free_port()}"


async def test_an_address_that_refuses_is_passed_and_the_one_that_answers_is_kept() -> None:
    node = Node(answer(200, b"{}"))
    async with linked(node) as (link, links):
        [alive] = link.addresses
        refusing = dead()
        link.replace_addresses([refusing, alive])
        assert link.addresses == (alive, refusing), "the one in use stays first"
        other = Link(links, "The cluster", [refusing, alive])
        assert (await other.send("POST", "/x", body=b"1")).status == 200
        assert other.addresses == (alive, refusing)
        assert links.counters.unreachable == 1
        assert (await other.send("POST", "/x", body=b"1")).status == 200
        assert links.counters.unreachable == 1
        assert links.counters.answered == 2


async def test_a_cluster_that_cannot_be_reached_is_named() -> None:
    async with linked() as (_, links):
        address = dead()
        link = Link(links, "The cluster of log 'orders'", [address])
        with pytest.raises(LogError, match=rf"'orders' cannot be reached \({address}") as caught:
            await link.send("POST", "/x")
        assert caught.value.entry is NO_LEADER
        empty = Link(links, "The home cluster", [], unreachable=NOT_READY)
        with pytest.raises(LogError, match="no address") as caught:
            await empty.send("GET", "/x")
        assert caught.value.entry is NOT_READY


async def test_a_broken_connection_is_repeated_only_where_that_is_safe() -> None:
    broken, whole = Node(None), Node(answer(200, b"{}"))
    async with linked(broken, whole) as (link, links):
        with pytest.raises(LogError, match="outcome is unknown") as caught:
            await link.send("POST", "/x", body=b"1")
        assert caught.value.entry is RETRIABLE
        assert whole.requests == []
        assert (await link.send("GET", "/x", may_repeat=True)).status == 200
        assert len(broken.requests) == 2, "no request is repeated by the library"
        assert links.counters.failed == 2


async def test_a_broken_delete_is_not_repeated_by_the_library() -> None:
    node = Node(answer(200, b"{}"), None)
    async with linked(node) as (link, _):
        await link.send("GET", "/x", may_repeat=True)
        with pytest.raises(LogError, match="outcome is unknown"):
            await link.send("DELETE", "/x")
        assert node.requests == ["GET /x HTTP/1.1", "DELETE /x HTTP/1.1"]


async def test_a_node_that_is_not_ready_is_passed() -> None:
    starting, whole = Node(error(NOT_READY)), Node(answer(200, b"{}"))
    async with linked(starting, whole) as (link, _):
        assert (await link.send("POST", "/x", body=b"1")).status == 200
    async with linked(starting) as (link, _):
        reply = await link.send("POST", "/x", body=b"1")
        assert reply.error().entry is NOT_READY


async def test_a_node_that_hangs_is_passed_in_its_part_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ATTEMPT_S", 0.2)
    release = asyncio.Event()

    class Hanging(Node):
        async def __call__(
            self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await release.wait()
            writer.close()

    whole = Node(answer(200, b"{}"))
    async with linked(Hanging(), whole) as (link, _):
        assert (await link.send("GET", "/x", may_repeat=True)).status == 200
        assert (await link.send("GET", "/x", may_repeat=True)).status == 200
        release.set()
        assert len(whole.requests) == 2


async def test_errors_of_nodes_come_as_they_are() -> None:
    async with linked(Node(error(UNKNOWN_TOPIC))) as (link, _):
        reply = await link.send("GET", "/x")
        assert (reply.status, reply.error().entry) == (404, UNKNOWN_TOPIC)
        with pytest.raises(LogError) as caught:
            await link.call("GET", "/x", dict)
        assert caught.value.entry is UNKNOWN_TOPIC
    async with linked(Node(answer(502, b"<html>"))) as (link, _):
        assert (await link.send("GET", "/x")).error().entry is INTERNAL
    async with linked(Node(answer(200, b"[]"))) as (link, _):
        with pytest.raises(LogError, match="another shape"):
            await link.call("GET", "/x", dict)


async def test_answers_are_bounded_and_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_BYTES_MAX", 1_000)
    held: list[int] = []
    async with linked(Node(answer(200, b"x" * 1_000), answer(200, b"x" * 1_001))) as (link, _):
        await link.send("GET", "/x", hold=held.append)
        assert sum(held) == 1_000
        with pytest.raises(LogError, match="more than 1000 bytes"):
            await link.send("GET", "/x")
