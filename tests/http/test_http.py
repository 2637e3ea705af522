from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from raftlog.http.body import read_body
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import bytes_response, stream_response
from raftlog.http.routing import Route
from raftlog.http.settings import ServerLimits
from tests.waiting import until

from .http_peers import PATIENCE_S, RawPeer, serving

POST_SLOW = b"POST /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"


class Slow:
    """A handler under the test's control."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.route = Route("POST", "/slow", self.handle, "Answer when told to")

    async def handle(self, request: Request, context: ServerContext) -> web.StreamResponse:
        self.started.set()
        body = await read_body(request, context)
        await self.go_on.wait()
        return bytes_response(body, "text/plain")


async def test_closing_finishes_requests_in_flight_and_accepts_no_more() -> None:
    slow = Slow()
    limits = ServerLimits(shutdown_s=PATIENCE_S)
    async with serving([slow.route], limits) as server, RawPeer.connected(server.port) as peer:
        await peer.send(POST_SLOW + b"body")
        await asyncio.wait_for(slow.started.wait(), PATIENCE_S)
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0.05)
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", server.port)
        assert not closing.done()
        slow.go_on.set()
        reply = await peer.reply()
        assert (reply.status, reply.body) == (200, b"body")
        assert reply.headers["connection"] == "close"
        await asyncio.wait_for(closing, PATIENCE_S)


async def test_body_still_on_its_way_may_arrive_while_closing() -> None:
    slow = Slow()
    slow.go_on.set()
    limits = ServerLimits(shutdown_s=PATIENCE_S)
    async with serving([slow.route], limits) as server, RawPeer.connected(server.port) as peer:
        await peer.send(POST_SLOW + b"bo")
        await asyncio.wait_for(slow.started.wait(), PATIENCE_S)
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0.05)
        await peer.send(b"dy")
        assert (await peer.reply()).body == b"body"
        await asyncio.wait_for(closing, PATIENCE_S)


async def test_a_server_that_leaves_answers_and_ends_each_connection() -> None:
    slow = Slow()
    slow.go_on.set()
    async with serving([slow.route]) as server:
        server.context.broker.leave()
        for _ in range(2):
            async with RawPeer.connected(server.port) as peer:
                await peer.send(POST_SLOW + b"body")
                reply = await peer.reply()
                assert (reply.body, reply.headers["connection"]) == (b"body", "close")
                assert await peer.is_closed()


async def test_a_request_on_its_way_when_the_server_closes_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftlog.http.connections.DRAIN_IDLE_S", PATIENCE_S)
    slow = Slow()
    slow.go_on.set()
    async with serving([slow.route]) as server, RawPeer.connected(server.port) as peer:
        closing = asyncio.create_task(server.close())
        # The server has seen an idle connection by now.
        await asyncio.sleep(0.01)
        await peer.send(POST_SLOW + b"body")
        assert (await peer.reply()).body == b"body"
        await asyncio.wait_for(closing, PATIENCE_S)


async def test_idle_connections_do_not_hold_up_closing() -> None:
    slow = Slow()
    limits = ServerLimits(shutdown_s=60)
    async with (
        serving([slow.route], limits) as server,
        RawPeer.connected(server.port) as fresh,
        RawPeer.connected(server.port) as halfway,
    ):
        await halfway.send(b"GET /slow HT")
        await asyncio.wait_for(server.close(), PATIENCE_S)
        assert await fresh.is_closed()
        assert await halfway.is_closed()


async def test_request_that_does_not_finish_is_cut_after_the_bound() -> None:
    slow = Slow()
    limits = ServerLimits(shutdown_s=0.1)
    async with serving([slow.route], limits) as server, RawPeer.connected(server.port) as peer:
        await peer.send(POST_SLOW + b"body")
        await asyncio.wait_for(slow.started.wait(), PATIENCE_S)
        await asyncio.wait_for(server.close(), PATIENCE_S)
        assert await peer.is_closed()


async def test_reader_that_stalls_does_not_hold_up_closing() -> None:
    async def large(_request: Request, _context: ServerContext) -> web.StreamResponse:
        return bytes_response(bytes(32 << 20), "text/plain")

    limits = ServerLimits(shutdown_s=0.1)
    route = Route("GET", "/large", large, "Large")
    async with serving([route], limits) as server, RawPeer.connected(server.port) as peer:
        await peer.send(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: server.context.broker.bytes_in_flight.used)
        await asyncio.wait_for(server.close(), PATIENCE_S)
        assert len(server.connections._open) == 0


async def test_streams_are_told_that_the_server_closes() -> None:
    async def tail(request: Request, context: ServerContext) -> web.StreamResponse:
        response = stream_response(request, "text/plain")
        await response.prepare(request)
        await response.write(b"first")
        await context.broker.closing.wait()
        await response.write(b"last")
        return response

    route = Route("GET", "/tail", tail, "Tail", streams=True, cancel_on_disconnect=True)
    limits = ServerLimits(shutdown_s=PATIENCE_S)
    async with serving([route], limits) as server, RawPeer.connected(server.port) as peer:
        await peer.send(b"GET /tail HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            await peer.reader.readuntil(b"first\r\n")
            await server.close()
        assert await peer.rest() == b"4\r\nlast\r\n0\r\n\r\n"


async def test_closing_twice_is_allowed() -> None:
    async with serving([]) as server:
        await server.close()
