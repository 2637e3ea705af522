from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from aiohttp import web

from raftlog.http.body import read_body
from raftlog.http.request import Request, ServerContext, integer_parameter
from raftlog.http.responses import (
    WRITE_SLICE_BYTES,
    bytes_response,
    empty_response,
    json_response,
    stream_response,
)
from raftlog.http.routing import QueryParameter, Route
from raftlog.record.errors import OFFSET_OUT_OF_RANGE, LogError

from .fakes import FakeNode
from .http_peers import RawPeer, serving


async def show(request: Request, _context: ServerContext) -> web.StreamResponse:
    return json_response([dict(request.path_parameters), dict(request.query_parameters)])


def failing(error: Callable[[], BaseException]) -> Route:
    async def fail(_request: Request, _context: ServerContext) -> web.StreamResponse:
        raise error()

    return Route("GET", "/fail", fail, "Fail")


SHOW = Route("GET", "/things/{thing}/parts/{part}", show, "Show", any_query=True)
DROP = Route("DELETE", "/things/{thing}", show, "Drop")
PLAIN = Route("GET", "/plain", show, "Plain")
WATCH = Route("GET", "/watch", show, "Watch", streams=True)
ROUTES = [SHOW, DROP, PLAIN, WATCH]


@pytest.mark.parametrize(
    ("target", "path_parameters", "query_parameters"),
    [
        ("/things/a/parts/b", {"thing": "a", "part": "b"}, {}),
        ("/things/a%2Fb/parts/%C3%A9%20", {"thing": "a/b", "part": "é "}, {}),
        (
            "/things/a/parts/b?x=1&y=%20+&z=",
            {"thing": "a", "part": "b"},
            {"x": "1", "y": "  ", "z": ""},
        ),
        ("/th%69ngs/parts/parts/parts", {"thing": "parts", "part": "parts"}, {}),
        ("http://elsewhere:1/things/a/parts/b?q=1", {"thing": "a", "part": "b"}, {"q": "1"}),
        ("/things/a/parts/b?q=1#fragment", {"thing": "a", "part": "b"}, {"q": "1"}),
        ("/things/../parts/..", {"thing": "..", "part": ".."}, {}),
    ],
)
async def test_path_and_query_reach_the_handler(
    target: str, path_parameters: dict[str, str], query_parameters: dict[str, str]
) -> None:
    async with serving(ROUTES) as server, RawPeer.connected(server.port) as peer:
        assert (await peer.request("GET", target)).json == [path_parameters, query_parameters]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "//",
        "/things",
        "/things/a/parts",
        "/things/a/parts/",
        "/things//parts/b",
        "/things/a/parts/b/",
        "/things/a/parts/b/c",
        "/Plain",
        "/plain/",
        "/" + "a/" * 1000,
        "*",
    ],
)
async def test_unknown_path_is_404(path: str) -> None:
    method = "OPTIONS" if path == "*" else "GET"
    async with serving(ROUTES) as server, RawPeer.connected(server.port) as peer:
        reply = await peer.request(method, path)
        assert reply.error_code in (40400, 40001 if path == "*" else 40400)


@pytest.mark.parametrize("path", ["/things/%ff/parts/b", "/%c3/x"])
async def test_path_that_is_not_utf8_is_400(path: str) -> None:
    async with serving(ROUTES) as server, RawPeer.connected(server.port) as peer:
        assert (await peer.request("GET", path)).error_code == 40001


@pytest.mark.parametrize("query", ["a=1&a=2", "a=%ff", "&".join(f"a{n}=1" for n in range(100))])
async def test_query_that_is_not_clear_is_400(query: str) -> None:
    async with serving(ROUTES) as server, RawPeer.connected(server.port) as peer:
        assert (await peer.request("GET", f"/plain?{query}")).error_code == 40001


async def test_wrong_method_is_405_and_names_the_right_ones() -> None:
    async with serving(ROUTES) as server, RawPeer.connected(server.port) as peer:
        for method in ("GET", "POST", "PUT", "PATCH", "OPTIONS", "TRACE", "HEAD", "MKCOL"):
            reply = await peer.request(method, "/things/a")
            assert reply.status == 405
            assert reply.headers["allow"] == "DELETE"
        reply = await peer.request("POST", "/plain")
        assert (reply.error_code, reply.headers["allow"]) == (40501, "GET, HEAD")


async def test_head_has_the_headers_of_get_and_no_body() -> None:
    async with serving(ROUTES) as server, RawPeer.connected(server.port) as peer:
        full = await peer.request("GET", "/plain")
        head = await peer.request("HEAD", "/plain")
        assert head.status == 200
        assert head.headers["content-length"] == full.headers["content-length"] == "8"
        assert (await peer.request("HEAD", "/missing")).status == 404
        assert (await peer.request("GET", "/plain")).body == full.body


async def test_head_is_not_offered_for_streams() -> None:
    async with serving(ROUTES) as server, RawPeer.connected(server.port) as peer:
        reply = await peer.request("HEAD", "/watch")
        assert (reply.status, reply.headers["allow"]) == (405, "GET")


async def test_typed_error_is_answered_as_the_table_says() -> None:
    route = failing(lambda: LogError(OFFSET_OUT_OF_RANGE, "Valid offsets are 3 to 7."))
    async with serving([route]) as server, RawPeer.connected(server.port) as peer:
        reply = await peer.request("GET", "/fail")
        assert reply.error_code == 41601
        assert reply.json["message"] == "Valid offsets are 3 to 7."
        assert (await peer.request("GET", "/fail")).error_code == 41601


@pytest.mark.parametrize("error", [ValueError, TimeoutError, KeyError, RecursionError])
async def test_unexpected_exception_is_logged_and_answered_without_its_text(
    error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving([failing(lambda: error("secret"))]) as server,
        RawPeer.connected(server.port) as peer,
    ):
        reply = await peer.request("GET", "/fail")
        assert reply.error_code == 50002
        assert b"secret" not in reply.body
        assert (await peer.request("GET", "/fail")).error_code == 50002
    assert any("secret" in (record.exc_text or "") for record in caplog.records)


async def test_broken_invariant_is_reported_to_the_node() -> None:
    told: list[AssertionError] = []
    route = failing(lambda: AssertionError("high watermark fell"))
    async with (
        serving([route], on_broken_invariant=told.append) as server,
        RawPeer.connected(server.port) as peer,
    ):
        assert (await peer.request("GET", "/fail")).error_code == 50002
    assert [str(error) for error in told] == ["high watermark fell"]


async def test_failure_after_the_answer_began_cuts_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(request: Request, context: ServerContext) -> web.StreamResponse:
        await read_body(request, context)
        response = stream_response(request, "text/plain")
        await response.prepare(request)
        await response.write(b"part")
        raise LogError(OFFSET_OUT_OF_RANGE)

    route = Route("POST", "/fail", fail, "Fail late", streams=True)
    async with serving([route]) as server, RawPeer.connected(server.port) as peer:
        await peer.send(b"POST /fail HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody")
        received = await peer.rest()
        assert received.endswith(b"4\r\npart\r\n")
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


async def test_node_that_is_not_ready_answers_only_what_always_serves() -> None:
    node = FakeNode(not_ready="The node is starting.")
    health = Route("GET", "/health", show, "Health", serves_always=True)
    async with (
        serving([PLAIN, health], node=node) as server,
        RawPeer.connected(server.port) as peer,
    ):
        reply = await peer.request("GET", "/plain")
        assert (reply.error_code, reply.json["message"]) == (50304, "The node is starting.")
        assert reply.headers["retry-after"] == "1"
        assert (await peer.request("GET", "/health")).status == 200
        node.not_ready = None
        assert (await peer.request("GET", "/plain")).status == 200


async def test_no_content_has_no_body_and_no_length() -> None:
    async def nothing(_request: Request, _context: ServerContext) -> web.StreamResponse:
        return empty_response()

    async with (
        serving([Route("DELETE", "/x", nothing, "Nothing")]) as server,
        RawPeer.connected(server.port) as peer,
    ):
        for _ in range(2):
            reply = await peer.request("DELETE", "/x")
            assert reply.status == 204
            assert "content-length" not in reply.headers


async def test_headers_a_handler_gives_are_sent_and_cannot_be_forged() -> None:
    async def tell(request: Request, _context: ServerContext) -> web.StreamResponse:
        value = request.query_parameters["value"]
        return bytes_response(b"x", "text/plain", headers={"X-Value": value})

    async with (
        serving([Route("GET", "/tell", tell, "Tell", any_query=True)]) as server,
        RawPeer.connected(server.port) as peer,
    ):
        assert (await peer.request("GET", "/tell?value=1")).headers["x-value"] == "1"
        reply = await peer.request("GET", "/tell?value=1%0d%0aX-Forged:%20yes")
        assert reply.status == 500
        assert "x-forged" not in reply.headers


async def test_large_answer_is_held_until_it_is_read() -> None:
    size = WRITE_SLICE_BYTES * 8

    async def large(_request: Request, _context: ServerContext) -> web.StreamResponse:
        return bytes_response(bytes(size), "text/plain")

    async with (
        serving([Route("GET", "/large", large, "Large")]) as server,
        RawPeer.connected(server.port) as peer,
    ):
        assert len((await peer.request("GET", "/large")).body) == size
        await asyncio.sleep(0)
        assert (await peer.request("HEAD", "/large")).headers["content-length"] == str(size)


async def test_misspelt_query_parameter_is_refused_with_the_likely_one() -> None:
    async def limited(request: Request, _context: ServerContext) -> web.StreamResponse:
        return bytes_response(
            str(integer_parameter(request, "max_bytes", 7)).encode(), "text/plain"
        )

    query = (QueryParameter("max_bytes", int, "Bytes."), QueryParameter("offset", int, "Start."))
    routes = [
        Route("GET", "/limited", limited, "Read", query=query),
        Route("GET", "/plain", limited, "Read"),
        Route("GET", "/probe", limited, "Probe", any_query=True),
    ]
    async with serving(routes) as server, RawPeer.connected(server.port) as peer:
        assert (await peer.request("GET", "/limited?max_bytes=3")).body == b"3"
        for path, advice in [
            ("/limited?max_byte=3", "did you mean max_bytes?"),
            ("/limited?max_bytes=3&Offset=1", "did you mean offset?"),
            ("/limited?zzz=", "there are max_bytes, offset."),
            ("/plain?x=1", "there are none."),
        ]:
            reply = await peer.request("GET", path)
            assert reply.error_code == 40001
            assert reply.json["message"].endswith(advice)
        assert (await peer.request("GET", "/probe?x=1")).status == 200
