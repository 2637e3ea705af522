from __future__ import annotations

import asyncio
import gzip
import zlib
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from raftlog.http.body import READ_AHEAD_BYTES_MAX, read_body, read_json
from raftlog.http.connections import Connection
from raftlog.http.json_check import check_json
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import bytes_response, json_response
from raftlog.http.routing import Route
from raftlog.http.settings import KIB, MIB, ServerLimits
from raftlog.record.errors import LogError
from tests.waiting import until

from .http_peers import PATIENCE_S, RawPeer, serving


class Point(msgspec.Struct):
    x: int
    y: object = None


POINT = msgspec.json.Decoder(Point)


async def size_of(request: Request, context: ServerContext) -> web.StreamResponse:
    body = await read_body(request, context)
    held = context.broker.bytes_in_flight.used
    return bytes_response(b"%d %d" % (len(body), held), "text/plain")


async def point(request: Request, context: ServerContext) -> web.StreamResponse:
    return json_response((await read_json(request, context, POINT)).x)


ROUTES = [Route("POST", "/size", size_of, "Size"), Route("POST", "/point", point, "Point")]


def limits(**values: Any) -> ServerLimits:
    return ServerLimits(**{"shutdown_s": 0.5, "linger_s": 0.2, **values})


def chunked(*chunks: bytes) -> bytes:
    parts = [b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks]
    return b"".join(parts) + b"0\r\n\r\n"


HEAD = b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
CHUNKED_HEAD = b"POST /size HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("size", [0, 1, 1000, 65_536, 3_000_000])
async def test_body_arrives_whole_and_is_held_until_answered(size: int) -> None:
    async with serving(ROUTES) as server, RawPeer.connected(server.port) as peer:
        reply = await peer.request("POST", "/size", bytes(size))
        assert reply.body == b"%d %d" % (size, size)
        assert server.context.broker.bytes_in_flight.used == 0


async def test_large_body_is_read_with_few_pauses_and_ahead_only_of_what_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, receive_buffer_bytes, one_read_bytes = 8 * MIB, 64 * KIB, 256 * KIB
    running: list[Request] = []
    pauses: list[tuple[int, int]] = []
    pause = Connection.pause_reading

    def count_pause(self: Connection) -> None:
        if running:
            request = running[0]
            pauses.append((request.bytes_held, request.content.total_bytes - request.bytes_held))
        pause(self)

    async def watched(request: Request, context: ServerContext) -> web.StreamResponse:
        running.append(request)
        return await size_of(request, context)

    monkeypatch.setattr(Connection, "pause_reading", count_pause)
    routes = [Route("POST", "/size", watched, "Size")]
    bounds = limits(receive_buffer_bytes=receive_buffer_bytes)
    async with serving(routes, bounds) as server, RawPeer.connected(server.port) as peer:
        reply = await peer.request("POST", "/size", bytes(size))
    assert reply.body == b"%d %d" % (size, size)
    # The first pauses come at small limits; then one for each two READ_AHEAD_BYTES_MAX at most.
    assert len(pauses) <= 3 + size // (2 * READ_AHEAD_BYTES_MAX)
    for held, unread in pauses:
        ahead = min(max(held, receive_buffer_bytes), READ_AHEAD_BYTES_MAX)
        assert unread <= 2 * ahead + one_read_bytes


async def test_chunked_body_arrives_whole() -> None:
    async with serving(ROUTES) as server, RawPeer.connected(server.port) as peer:
        await peer.send(CHUNKED_HEAD + chunked(b"abc", bytes(100_000), b"d"))
        assert (await peer.reply()).body.startswith(b"100004 ")


async def test_declared_length_over_the_limit_is_refused_before_the_body_comes() -> None:
    async with (
        serving(ROUTES, limits(body_bytes_max=1000)) as server,
        RawPeer.connected(server.port) as peer,
    ):
        await peer.send(b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n")
        assert (await peer.reply()).error_code == 41301
        assert await peer.is_closed()


async def test_small_body_over_the_limit_is_refused_and_the_connection_lives() -> None:
    async with (
        serving(ROUTES, limits(body_bytes_max=10)) as server,
        RawPeer.connected(server.port) as peer,
    ):
        assert (await peer.request("POST", "/size", bytes(11))).error_code == 41301
        assert (await peer.request("POST", "/size", bytes(10))).status == 200


async def test_chunked_body_over_the_limit_is_refused_while_it_comes() -> None:
    async with (
        serving(ROUTES, limits(body_bytes_max=100_000)) as server,
        RawPeer.connected(server.port) as peer,
    ):
        await peer.send(CHUNKED_HEAD)

        async def flood() -> None:
            while True:
                await peer.send(b"10000\r\n" + bytes(0x10000) + b"\r\n")

        flooding = asyncio.create_task(flood())
        assert (await peer.reply()).error_code == 41301
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ConnectionError):
                await flooding


async def test_stalled_body_is_answered_408() -> None:
    async with (
        serving(ROUTES, limits(body_receive_s=0.2)) as server,
        RawPeer.connected(server.port) as peer,
    ):
        await peer.send(b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc")
        reply = await peer.reply()
        assert reply.error_code == 40801
        assert "3 bytes" in reply.json["message"]
        assert await peer.is_closed()


async def test_body_slower_than_the_minimum_rate_is_answered_408() -> None:
    bounds = limits(body_receive_s=0.2, body_bytes_per_second_min=1000)
    async with serving(ROUTES, bounds) as server, RawPeer.connected(server.port) as peer:
        await peer.send(
            b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
        )
        reply = asyncio.create_task(peer.reply())
        async with asyncio.timeout(PATIENCE_S):
            while not reply.done():
                peer.writer.write(b"x")
                await asyncio.sleep(0.01)
        assert (await reply).error_code == 40801


async def test_long_body_at_a_good_rate_outlives_the_base_deadline() -> None:
    bounds = limits(body_receive_s=0.2, body_bytes_per_second_min=10_000)
    async with serving(ROUTES, bounds) as server, RawPeer.connected(server.port) as peer:
        await peer.send(b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n")
        for _ in range(20):
            await peer.send(bytes(1000))
            await asyncio.sleep(0.03)
        assert (await peer.reply()).status == 200


async def test_peer_that_leaves_within_its_body_frees_what_it_held() -> None:
    async with serving(ROUTES) as server:
        async with RawPeer.connected(server.port) as peer:
            await peer.send(
                b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000\r\n\r\n"
                + bytes(200_000)
            )
            await until(lambda: server.context.broker.bytes_in_flight.used)
        await until(lambda: server.context.broker.bytes_in_flight.used == 0)


async def test_expect_100_continue_is_asked_for_only_when_the_body_is_wanted() -> None:
    head = HEAD.replace(b"Host", b"Expect: 100-continue\r\nHost")
    async with serving(ROUTES, limits(body_bytes_max=10)) as server:
        async with RawPeer.connected(server.port) as peer:
            await peer.send(head % 5)
            assert (await peer.reply()).status == 100
            await peer.send(b"hello")
            assert (await peer.reply()).body.startswith(b"5 ")
        async with RawPeer.connected(server.port) as peer:
            await peer.send(head % 11)
            assert (await peer.reply()).error_code == 41301


async def test_bodies_together_are_bounded() -> None:
    bounds = limits(bytes_in_flight_max=100_000)
    async with serving(ROUTES, bounds) as server, AsyncExitStack() as stack:
        budget = server.context.broker.bytes_in_flight
        greedy = [
            await stack.enter_async_context(RawPeer.connected(server.port, f"127.0.0.{number}"))
            for number in range(2, 6)
        ]
        late = await stack.enter_async_context(RawPeer.connected(server.port))
        for peer in greedy:
            await peer.send(HEAD % 21_001 + bytes(21_000))
        await until(lambda: budget.used == 84_000)
        reply = await late.request("POST", "/size", bytes(20_000))
        assert reply.error_code == 50305
        assert reply.headers["retry-after"] == "1"
        assert budget.refused == 1
        for peer in greedy:
            await peer.send(b"x")
            assert (await peer.reply()).status == 200
        assert (await late.request("POST", "/size", bytes(20_000))).status == 200


async def test_bodies_of_one_address_leave_room_for_others() -> None:
    bounds = limits(bytes_in_flight_max=100_000)
    async with serving(ROUTES, bounds) as server, AsyncExitStack() as stack:
        budget = server.context.broker.bytes_in_flight
        for _ in range(5):
            peer = await stack.enter_async_context(RawPeer.connected(server.port))
            await peer.send(HEAD % 5_001 + bytes(5_000))
        await until(lambda: budget.used == 25_000)
        same = await stack.enter_async_context(RawPeer.connected(server.port))
        reply = await same.request("POST", "/size", bytes(20_000))
        assert reply.error_code == 42901
        assert "127.0.0.1 hold 25000 bytes in flight" in reply.json["message"]
        other = await stack.enter_async_context(RawPeer.connected(server.port, "127.0.0.2"))
        assert (await other.request("POST", "/size", bytes(20_000))).status == 200


async def test_burst_followed_by_silence_earns_no_time() -> None:
    bounds = limits(body_receive_s=0.3, body_bytes_per_second_min=1000)
    async with serving(ROUTES, bounds) as server, RawPeer.connected(server.port) as peer:
        # At the minimum rate, these bytes take 50 s.
        await peer.send(HEAD % 1_000_000 + bytes(50_000))
        reply = await peer.reply()
        assert reply.error_code == 40801
        assert "50000 bytes" in reply.json["message"]


def bare_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        ("gzip", gzip.compress),
        ("X-GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", bare_deflate),
        ("identity", bytes),
    ],
)
async def test_compressed_body_is_inflated(encoding: str, compress: Any) -> None:
    data = b"raftlog " * 100_000
    async with serving(ROUTES) as server, RawPeer.connected(server.port) as peer:
        reply = await peer.request("POST", "/size", compress(data), Content_Encoding=encoding)
        assert reply.body.startswith(b"%d " % len(data))


async def test_compression_bomb_is_refused_within_its_bound() -> None:
    bomb = gzip.compress(bytes(50 * MIB), compresslevel=1)
    bounds = limits(decompressed_bytes_max=MIB)
    async with serving(ROUTES, bounds) as server, RawPeer.connected(server.port) as peer:
        reply = await peer.request("POST", "/size", bomb, Content_Encoding="gzip")
        assert reply.error_code == 41301
        assert (await peer.request("POST", "/size", b"x")).status == 200


async def test_unknown_content_encoding_is_refused() -> None:
    async with serving(ROUTES) as server, RawPeer.connected(server.port) as peer:
        reply = await peer.request("POST", "/size", b"x", Content_Encoding="br")
        assert reply.error_code == 41501


@pytest.mark.parametrize(
    "body",
    [b"not gzip", gzip.compress(b"x" * 1000)[:-9], gzip.compress(b"x") + b"more"],
    ids=["another format", "cut off", "followed by garbage"],
)
async def test_broken_compression_is_refused(body: bytes) -> None:
    async with serving(ROUTES) as server, RawPeer.connected(server.port) as peer:
        reply = await peer.request("POST", "/size", body, Content_Encoding="gzip")
        assert reply.error_code == 40001


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nul",
        b"[]",
        b'{"x":"1"}',
        b'{"x":1}x',
        b'{"y":1}',
        b'{"x":1e400}',
        b'{"x":1,"y":NaN}',
        b'\xff\xfe{"x":1}',
        b'{"x":1,"y":"\xff"}',
        b'{"x":' + b"9" * 5000 + b"}",
        b'{"x":1,"y":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 1_000_000,
        b'{"a":' * 100_000,
    ],
)
async def test_bad_json_is_answered_422(body: bytes) -> None:
    async with serving(ROUTES) as server, RawPeer.connected(server.port) as peer:
        assert (await peer.request("POST", "/point", body)).error_code == 42201
        assert (await peer.request("POST", "/point", b'{"x":7}')).json == 7


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "", "Application/JSON; a=b"]
)
async def test_json_is_understood_as_curl_sends_it(content_type: str) -> None:
    async with serving(ROUTES) as server, RawPeer.connected(server.port) as peer:
        reply = await peer.request("POST", "/point", b'{"x":7}', Content_Type=content_type)
        assert reply.json == 7


async def test_foreign_content_type_is_refused() -> None:
    async with serving(ROUTES) as server, RawPeer.connected(server.port) as peer:
        reply = await peer.request("POST", "/point", b"<x/>", Content_Type="text/xml")
        assert reply.error_code == 41501


def test_depth_is_that_of_brackets_outside_strings() -> None:
    check_json(b'{"a":[[["]]]}}}"]]]}', 4)
    check_json(b'["' + b"[{" * 500 + b'\\"[[["]', 2)
    check_json(b"[1]," * 5_000, 2)
    with pytest.raises(LogError):
        check_json(b"[[[[[]]]]]", 4)
    with pytest.raises(LogError):
        check_json(b'{"a":{"a":{"a":"}}}"}}}', 2)


JSON = st.recursive(
    st.none() | st.integers() | st.text('[]{}\\"ab'),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('[{\\"a'), inner, max_size=3)
    ),
    max_leaves=30,
)


def depth_of(value: object) -> int:
    match value:
        case dict():
            return 1 + max(map(depth_of, value.values()), default=0)
        case list():
            return 1 + max(map(depth_of, value), default=0)
        case _:
            return 0


@given(value=JSON, depth_max=st.integers(1, 12))
def test_depth_check_agrees_with_counting(value: object, depth_max: int) -> None:
    body = msgspec.json.encode(value)
    if depth_of(value) <= depth_max:
        check_json(body, depth_max)
    else:
        with pytest.raises(LogError):
            check_json(body, depth_max)


async def test_request_without_a_reader_for_its_body_is_answered_and_ended() -> None:
    """The rest of the body is waited for only as long as a peer may linger."""

    async def ignore(_request: Request, _context: ServerContext) -> web.StreamResponse:
        return bytes_response(b"", "text/plain")

    async with (
        serving([Route("POST", "/ignore", ignore, "Ignore")], limits()) as server,
        RawPeer.connected(server.port) as peer,
    ):
        await peer.send(
            b"POST /ignore HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc"
        )
        assert (await peer.reply()).status == 200
        assert await peer.is_closed()
