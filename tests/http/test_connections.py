"""The limits of connections and heads, each against a real peer that breaks it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raftlog.broker.limits import ADDRESS_SHARE
from raftlog.http.body import read_body
from raftlog.http.connections import (
    NODES_RESERVED_MAX,
    REFUSED_LINGERING_MAX,
    Connection,
)
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import bytes_response, stream_response
from raftlog.http.routing import Route
from raftlog.http.settings import KIB, ServerLimits
from tests.examples import examples
from tests.waiting import until

from .http_peers import PATIENCE_S, RawPeer, serving


async def echo(request: Request, context: ServerContext) -> web.StreamResponse:
    return bytes_response(await read_body(request, context), "text/plain")


async def node_answer(_request: Request, _context: ServerContext) -> web.StreamResponse:
    return bytes_response(b"a node", "text/plain")


async def endless(request: Request, context: ServerContext) -> web.StreamResponse:
    response = stream_response(request, "text/plain")
    await response.prepare(request)
    while True:
        await response.write(bytes(64 * KIB))


ECHO = Route("POST", "/echo", echo, "Answer the body")
GET = Route("GET", "/echo", echo, "Answer nothing")
PEER = Route("GET", "/v1/internal/quorum", node_answer, "A node", serves_always=True)
ENDLESS = Route("GET", "/endless", endless, "Never stop", streams=True)

AIOHTTP_PRIVATE_NAMES = (
    "_buffer_paused",
    "_close",
    "_current_request",
    "_force_close",
    "_message_tail",
    "_messages",
    "_pause_reading_for_buffer",
    "_reading_paused",
    "_request_count",
    "_task_handler",
    "_upgraded",
    "_waiter",
)
"""Private state of aiohttp's RequestHandler that `Connection` reads."""

REQUEST = b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n"


def limits(**values: float) -> ServerLimits:
    return ServerLimits(**{"shutdown_s": 0.5, "linger_s": 0.3, **values})  # type: ignore[arg-type] # counts and seconds alike


def test_aiohttp_still_has_the_private_names_we_rely_on() -> None:
    assert [name for name in AIOHTTP_PRIVATE_NAMES if not hasattr(web.RequestHandler, name)] == []


async def test_keep_alive_serves_many_requests_on_one_connection() -> None:
    async with serving([ECHO]) as server, RawPeer.connected(server.port) as peer:
        for number in range(3):
            reply = await peer.request("POST", "/echo", str(number).encode())
            assert (reply.status, reply.body) == (200, str(number).encode())
            assert "connection" not in reply.headers


async def test_connection_close_is_honoured() -> None:
    async with serving([ECHO]) as server, RawPeer.connected(server.port) as peer:
        reply = await peer.request("POST", "/echo", b"x", Connection="close")
        assert reply.headers["connection"] == "close"
        assert await peer.is_closed()


async def test_http_1_0_closes_unless_it_asks_for_keep_alive() -> None:
    async with serving([GET]) as server:
        async with RawPeer.connected(server.port) as peer:
            await peer.send(b"GET /echo HTTP/1.0\r\n\r\n")
            assert (await peer.reply()).status == 200
            assert await peer.is_closed()
        async with RawPeer.connected(server.port) as peer:
            for _ in range(2):
                await peer.send(b"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
                assert (await peer.reply()).headers["connection"] == "keep-alive"


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving([ECHO]) as server, RawPeer.connected(server.port) as peer:
        parts = [
            f"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n{n:03}".encode()
            for n in range(100)
        ]
        await peer.send(b"".join(parts))
        for number in range(100):
            assert (await peer.reply()).body == f"{number:03}".encode()


async def test_pipelined_bodies_behind_a_busy_handler_are_not_read_without_bound() -> None:
    busy = asyncio.Event()

    async def wait(request: Request, context: ServerContext) -> web.StreamResponse:
        await busy.wait()
        return await echo(request, context)

    size = 60 * KIB
    head = f"POST /wait HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode()
    async with (
        serving([Route("POST", "/wait", wait, "Wait")], limits()) as server,
        RawPeer.connected(server.port) as peer,
    ):
        sending = asyncio.create_task(peer.send((head + bytes(size)) * 200))
        await asyncio.sleep(0.3)
        (connection,) = server.connections.connections
        assert isinstance(connection, Connection)
        assert sum(body.total_bytes for _, body in connection._messages) < 700 * KIB
        assert not sending.done()
        busy.set()
        for _ in range(200):
            assert len((await peer.reply()).body) == size
        await sending


async def test_head_that_never_ends_is_answered_408() -> None:
    async with (
        serving([GET], limits(header_receive_s=0.2)) as server,
        RawPeer.connected(server.port) as peer,
    ):
        await peer.send(b"GET /echo HTTP/1.1\r\n")
        reply = await peer.reply()
        assert reply.error_code == 40801
        assert reply.headers["connection"] == "close"
        assert await peer.is_closed()


async def test_trickling_head_does_not_buy_time() -> None:
    """Each byte is progress; the deadline is for the whole head all the same."""
    async with (
        serving([GET], limits(header_receive_s=0.3)) as server,
        RawPeer.connected(server.port) as peer,
    ):
        assert (await peer.request("GET", "/echo")).status == 200
        await peer.send(b"GET /echo HTTP/1.1\r\nHost: localhost\r\nX: ")
        reply = asyncio.create_task(peer.reply())
        async with asyncio.timeout(PATIENCE_S):
            while not reply.done():
                peer.writer.write(b"X")
                await asyncio.sleep(0.02)
        assert (await reply).error_code == 40801


async def test_slow_head_within_the_deadline_is_served() -> None:
    async with (
        serving([GET], limits(header_receive_s=5)) as server,
        RawPeer.connected(server.port) as peer,
    ):
        for start in range(0, len(REQUEST), 7):
            await peer.send(REQUEST[start : start + 7])
            await asyncio.sleep(0)
        assert (await peer.reply()).status == 200


async def test_idle_connection_is_closed_in_silence() -> None:
    async with (
        serving([GET], limits(keep_alive_s=0.2)) as server,
        RawPeer.connected(server.port) as fresh,
        RawPeer.connected(server.port) as used,
    ):
        assert (await used.request("GET", "/echo")).status == 200
        assert await fresh.is_closed()
        assert await used.is_closed()


async def test_long_request_is_not_idle() -> None:
    async def slow(_request: Request, _context: ServerContext) -> web.StreamResponse:
        await asyncio.sleep(0.5)
        return bytes_response(b"", "text/plain")

    route = Route("GET", "/slow", slow, "Answer late")
    bounds = limits(keep_alive_s=0.1, header_receive_s=0.1)
    async with serving([route], bounds) as server, RawPeer.connected(server.port) as peer:
        assert (await peer.request("GET", "/slow")).status == 200


@pytest.mark.parametrize("piece_bytes", [100, 1_000_000])
async def test_oversized_head_is_answered_431(piece_bytes: int) -> None:
    async with (
        serving([GET], limits(header_bytes_max=4 * KIB)) as server,
        RawPeer.connected(server.port) as peer,
    ):
        fields = b"".join(b"X-%d: %s\r\n" % (n, b"v" * 500) for n in range(20))
        data = REQUEST[:-2] + fields + b"\r\n"
        for start in range(0, len(data), piece_bytes):
            peer.writer.write(data[start : start + piece_bytes])
            await asyncio.sleep(0)
        assert (await peer.reply()).error_code == 43101
        assert await peer.is_closed()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 10_000 + b"\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost: localhost\r\n" + b"a" * 10_000 + b": x\r\n\r\n",
    ],
)
async def test_oversized_line_is_answered_431(head: bytes) -> None:
    async with serving([GET], limits()) as server, RawPeer.connected(server.port) as peer:
        await peer.send(head)
        assert (await peer.reply()).error_code == 43101
        assert await peer.is_closed()


async def test_head_that_grows_too_large_is_answered_before_it_ends() -> None:
    async with (
        serving([GET], limits(header_bytes_max=4 * KIB, header_receive_s=60)) as server,
        RawPeer.connected(server.port) as peer,
    ):
        await peer.send(b"GET /echo HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 5 * KIB)
        assert (await peer.reply()).error_code == 43101


async def test_endless_head_is_cut_off_while_it_is_still_sent() -> None:
    async with (
        serving([GET], limits(header_bytes_max=4 * KIB)) as server,
        RawPeer.connected(server.port) as peer,
    ):
        await peer.send(b"GET /echo HTTP/1.1\r\n")

        async def flood() -> None:
            while True:
                await peer.send(b"A: b\r\n" * 1_000)

        flooding = asyncio.create_task(flood())
        assert (await peer.reply()).status in (400, 431)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ConnectionError):
                await flooding


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello over tls",
        b"NONSENSE\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET  HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    ],
)
async def test_malformed_http_is_answered_400_and_closed(data: bytes) -> None:
    async with serving([ECHO, GET], limits()) as server, RawPeer.connected(server.port) as peer:
        await peer.send(data)
        assert (await peer.reply()).error_code == 40001
        assert await peer.is_closed()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (b"Content-Length: abc\r\n", "Invalid character in Content-Length."),
        (
            b"Transfer-Encoding: chunked, gzip\r\n",
            "Invalid `Transfer-Encoding` header value.",
        ),
        (b"Accept: a\x00b\r\n", "Invalid header value char, in Accept."),
        (b"no colon\r\n", "Invalid header token."),
        (b"X-Long: " + b"a" * 9_000 + b"\r\n", "The header X-Long is larger than 8192 bytes."),
        (b"Accept: " + b"a" * 90_000 + b"\r\n", "The header Accept is larger than 8192 bytes."),
        (b"a" * 9_000 + b": x\r\n", "A header is larger than 8192 bytes."),
        (
            b"".join(b"X-%d: %s\r\n" % (n, b"v" * 500 * (n + 1)) for n in range(15)),
            "The request headers are larger than 32768 bytes; the largest is X-14.",
        ),
    ],
)
async def test_errors_of_headers_name_the_header(fields: bytes, message: str) -> None:
    async with serving([GET], limits()) as server, RawPeer.connected(server.port) as peer:
        await peer.send(REQUEST[:-2] + fields + b"\r\n")
        assert (await peer.reply()).json["message"] == message


async def test_errors_of_request_lines_say_so() -> None:
    async with serving([GET], limits()) as server:
        async with RawPeer.connected(server.port) as peer:
            await peer.send(b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            message = (await peer.reply()).json["message"]
            assert message == "The request line is larger than 8192 bytes."
        async with RawPeer.connected(server.port) as peer:
            await peer.send(b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n")
            assert (await peer.reply()).json["message"] == "Invalid HTTP version."


async def test_a_long_header_that_began_in_an_earlier_piece_is_not_taken_for_the_request_line() -> (
    None
):
    async with serving([GET], limits()) as server, RawPeer.connected(server.port) as peer:
        await peer.send(REQUEST[:-2] + b"X-Long: a")
        await until(lambda: any(one._head_bytes for one in server.connections._open))
        await peer.send(b"b" * 9_000)
        message = (await peer.reply()).json["message"]
        assert message == "A header is larger than 8192 bytes."


async def test_too_many_headers_are_refused() -> None:
    async with (
        serving([GET], limits(header_count_max=8)) as server,
        RawPeer.connected(server.port) as peer,
    ):
        await peer.send(REQUEST[:-2] + b"A: b\r\n" * 8 + b"\r\n")
        assert (await peer.reply()).error_code == 40001


async def test_broken_chunk_fails_its_own_request_once() -> None:
    async with serving([ECHO], limits()) as server, RawPeer.connected(server.port) as peer:
        await peer.send(
            b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        await peer.send(b"3\r\nabc\r\n")
        await asyncio.sleep(0.05)
        await peer.send(b"nonsense\r\n")
        reply = await peer.reply()
        assert reply.error_code == 40001
        assert "framing" in reply.json["message"]
        assert await peer.is_closed()


async def test_connections_over_the_total_are_told_and_closed() -> None:
    async with serving([GET], limits(connections_max=2)) as server:
        async with (
            RawPeer.connected(server.port) as first,
            RawPeer.connected(server.port) as second,
        ):
            assert (await first.request("GET", "/echo")).status == 200
            assert (await second.request("GET", "/echo")).status == 200
            async with RawPeer.connected(server.port) as third:
                reply = await third.reply()
                assert reply.error_code == 50305
                assert reply.headers["retry-after"] == "1"
                assert await third.is_closed()
            assert (await first.request("GET", "/echo")).status == 200
        await until(lambda: len(server.connections._open) == 0)
        async with RawPeer.connected(server.port) as later:
            assert (await later.request("GET", "/echo")).status == 200


async def test_connections_over_an_address_s_share_leave_room_for_others() -> None:
    async with (
        serving([GET], limits(connections_per_address_max=1)) as server,
        RawPeer.connected(server.port) as first,
    ):
        assert (await first.request("GET", "/echo")).status == 200
        async with RawPeer.connected(server.port) as second:
            assert (await second.reply()).error_code == 42901
        async with RawPeer.connected(server.port, host="127.0.0.2") as other:
            assert (await other.request("GET", "/echo")).status == 200
        await until(lambda: len(server.connections._open) == 1)
        async with RawPeer.connected(server.port, host="127.0.0.2") as again:
            assert (await again.request("GET", "/echo")).status == 200


async def test_silent_connections_leave_the_places_reserved_for_nodes() -> None:
    """The oldest silent connection goes, of one address as of many."""
    bounds = limits(connections_max=1, linger_s=5, header_receive_s=60)
    network: Any = object()  # nothing of it is used before a node's request
    async with (
        serving([GET, PEER], bounds, network=network) as server,
        RawPeer.connected(server.port) as user,
        AsyncExitStack() as stack,
    ):
        assert (await user.request("GET", "/echo")).status == 200
        share = NODES_RESERVED_MAX // ADDRESS_SHARE
        silent = [
            await stack.enter_async_context(RawPeer.connected(server.port)) for _ in range(share)
        ]
        node = await stack.enter_async_context(RawPeer.connected(server.port))
        assert (await silent[0].reply()).error_code == 50305
        assert (await node.request("GET", "/v1/internal/quorum")).body == b"a node"
        # Other addresses have places of their own, until all are taken.
        for number in range(2, 2 + ADDRESS_SHARE):
            for _ in range(share):
                peer = RawPeer.connected(server.port, f"127.0.0.{number}")
                await stack.enter_async_context(peer)
        assert len(server.connections._reserved) <= NODES_RESERVED_MAX
        late = await stack.enter_async_context(RawPeer.connected(server.port, "127.0.0.9"))
        assert (await late.request("GET", "/v1/internal/quorum")).body == b"a node"


async def test_requests_of_one_address_leave_room_for_others() -> None:
    release = asyncio.Event()

    async def wait(_request: Request, _context: ServerContext) -> web.StreamResponse:
        await release.wait()
        return bytes_response(b"", "text/plain")

    routes = [
        Route("GET", "/wait", wait, "Wait"),
        Route("GET", "/probe", echo, "Probe", serves_always=True),
    ]
    bounds = limits(requests_in_flight_max=8)
    async with serving(routes, bounds) as server, AsyncExitStack() as stack:
        in_flight = server.context.broker.requests_in_flight
        waiting = [
            await stack.enter_async_context(RawPeer.connected(server.port)) for _ in range(2)
        ]
        for peer in waiting:
            await peer.send(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: in_flight.used == 2)
        same = await stack.enter_async_context(RawPeer.connected(server.port))
        assert (await same.request("GET", "/wait")).error_code == 42901
        assert (await same.request("GET", "/probe")).status == 200
        other = await stack.enter_async_context(RawPeer.connected(server.port, "127.0.0.2"))
        await other.send(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: in_flight.used == 3)
        release.set()
        for peer in (*waiting, other):
            assert (await peer.reply()).status == 200
        await until(lambda: in_flight.used == 0)


async def test_reader_below_the_minimum_rate_is_cut_off() -> None:
    """Each slice comes within the stall time; all together would take an hour."""
    size = 64 * 1024 * KIB

    async def large(_request: Request, _context: ServerContext) -> web.StreamResponse:
        return bytes_response(bytes(size), "application/octet-stream")

    route = Route("GET", "/large", large, "Answer much")
    bounds = limits(write_stall_s=1, body_bytes_per_second_min=8 * 1024 * KIB)
    async with serving([route], bounds) as server, RawPeer.connected(server.port) as peer:
        await peer.send(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            while not server.connections.stalled_readers:
                await peer.reader.read(64 * KIB)
                await asyncio.sleep(0.1)
        await until(lambda: len(server.connections._open) == 0)


async def test_refused_connections_cannot_pile_up() -> None:
    bounds = limits(connections_max=1, linger_s=5)
    async with serving([GET], bounds) as server, RawPeer.connected(server.port) as first:
        assert (await first.request("GET", "/echo")).status == 200
        peers = [
            await asyncio.open_connection("127.0.0.1", server.port)
            for _ in range(REFUSED_LINGERING_MAX + 10)
        ]
        await asyncio.gather(*(reader.read(1) for reader, _ in peers), return_exceptions=True)
        assert server.connections.refused_count <= REFUSED_LINGERING_MAX
        for _, writer in peers:
            writer.close()


async def test_stalled_reader_is_cut_off() -> None:
    async with (
        serving([ENDLESS], limits(write_stall_s=0.3)) as server,
        RawPeer.connected(server.port) as peer,
    ):
        await peer.send(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: server.connections.stalled_readers == 1)
        await until(lambda: len(server.connections._open) == 0)


async def test_large_answer_to_a_stalled_reader_is_not_handed_over_whole() -> None:
    size = 64 * 1024 * KIB

    async def large(_request: Request, _context: ServerContext) -> web.StreamResponse:
        return bytes_response(bytes(size), "application/octet-stream")

    route = Route("GET", "/large", large, "Answer much")
    bounds = limits(write_stall_s=0.5)
    async with serving([route], bounds) as server, RawPeer.connected(server.port) as peer:
        await peer.send(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: server.context.broker.bytes_in_flight.used == size)
        (connection,) = server.connections.connections
        assert connection.transport is not None
        assert connection.transport.get_write_buffer_size() <= 512 * KIB
        await until(lambda: len(server.connections._open) == 0)


async def test_slow_but_steady_reader_gets_all_of_a_large_answer() -> None:
    body = bytes(range(256)) * 4 * KIB * 4

    async def large(_request: Request, _context: ServerContext) -> web.StreamResponse:
        return bytes_response(body, "application/octet-stream")

    route = Route("GET", "/large", large, "Answer much")
    bounds = limits(write_stall_s=1)
    async with serving([route], bounds) as server, RawPeer.connected(server.port) as peer:
        reply = await peer.request("GET", "/large")
        assert reply.body == body


async def test_handler_that_only_reads_stops_when_its_peer_leaves() -> None:
    stopped = asyncio.Event()
    started = asyncio.Event()

    async def wait(_request: Request, _context: ServerContext) -> web.StreamResponse:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    route = Route("GET", "/wait", wait, "Wait for ever", cancel_on_disconnect=True)
    async with serving([route], limits()) as server:
        async with RawPeer.connected(server.port) as peer:
            await peer.send(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.wait_for(started.wait(), PATIENCE_S)
        await asyncio.wait_for(stopped.wait(), PATIENCE_S)


async def test_handler_that_writes_goes_on_when_its_peer_leaves() -> None:
    started, gone, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def write(_request: Request, _context: ServerContext) -> web.StreamResponse:
        started.set()
        await gone.wait()
        await asyncio.sleep(0)
        finished.set()
        return bytes_response(b"", "text/plain")

    async with serving([Route("POST", "/write", write, "Write")], limits()) as server:
        async with RawPeer.connected(server.port) as peer:
            await peer.send(b"POST /write HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.wait_for(started.wait(), PATIENCE_S)
        await until(lambda: len(server.connections._open) == 0)
        gone.set()
        await asyncio.wait_for(finished.wait(), PATIENCE_S)


async def test_websocket_is_exempt_from_head_and_idle_deadlines() -> None:
    async def socket(request: Request, _context: ServerContext) -> web.StreamResponse:
        response = web.WebSocketResponse()
        await response.prepare(request)
        async for message in response:
            await response.send_bytes(message.data)
        return response

    bounds = limits(keep_alive_s=0.1, header_receive_s=0.1, header_bytes_max=KIB)
    route = Route("GET", "/socket", socket, "Echo", streams=True)
    async with (
        serving([route], bounds) as server,
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{server.port}/socket") as peer,
    ):
        await asyncio.sleep(0.4)
        for _ in range(2):
            await peer.send_bytes(bytes(10 * KIB))
            assert await peer.receive_bytes(timeout=PATIENCE_S) == bytes(10 * KIB)


HTTP_BYTES = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.sampled_from(
            [
                b"GET /echo HTTP/1.1\r\n",
                b"POST /echo HTTP/1.1\r\n",
                b"Host: localhost\r\n",
                b"Content-Length: 5\r\n",
                b"Content-Length: 5, 5\r\n",
                b"Transfer-Encoding: chunked\r\n",
                b"Transfer-Encoding: gzip, chunked\r\n",
                b"Content-Encoding: gzip\r\n",
                b"Expect: 100-continue\r\n",
                b"Upgrade: websocket\r\nConnection: Upgrade\r\n",
                b"Connection: close\r\n",
                b"\r\n",
                b"5\r\nhello\r\n",
                b"0\r\n\r\n",
                b"hello",
                b"\x00\xff",
                b" folded\r\n",
                b"OPTIONS * HTTP/1.1\r\n",
                b"CONNECT t:80 HTTP/1.1\r\n",
                b"GET http://t/echo?a=%zz#f HTTP/1.1\r\n",
                b"GET /%ff%fe HTTP/1.1\r\n",
                b"GET /echo?a=1&a=2 HTTP/1.1\r\n",
            ]
        ),
        max_size=12,
    ).map(b"".join),
)


async def test_random_bytes_never_give_a_500_nor_hurt_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bounds = limits(header_receive_s=0.05, body_receive_s=0.05, keep_alive_s=0.05, linger_s=0.05)
    loop = asyncio.get_running_loop()
    async with serving([ECHO, GET], bounds) as server:

        async def attack(data: bytes) -> bytes:
            async with RawPeer.connected(server.port) as peer:
                await peer.send(data)
                return await peer.rest()

        @settings(
            max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck)
        )
        @given(data=HTTP_BYTES)
        def attacked(data: bytes) -> None:
            answer = asyncio.run_coroutine_threadsafe(attack(data), loop).result(PATIENCE_S)
            assert b" 500 " not in answer
            assert b"Traceback" not in answer
            assert not answer or answer.startswith(b"HTTP/1.")

        await asyncio.to_thread(attacked)
        async with RawPeer.connected(server.port) as peer:
            assert (await peer.request("GET", "/echo")).status == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
