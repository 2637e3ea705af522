"""Foreign pages do not reach the node through a user's browser; programs do, as ever."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from raftlog.http.browsers import parse_hosts, parse_origins
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import bytes_response, stream_response
from raftlog.http.routing import Route
from raftlog.raft.voters import Voter, VoterSet

from .fakes import FakeNode
from .http_peers import RawPeer, Reply, serving


async def change(_request: Request, _context: ServerContext) -> web.StreamResponse:
    return bytes_response(b"changed", "text/plain")


async def probe(_request: Request, _context: ServerContext) -> web.StreamResponse:
    return bytes_response(b"well", "text/plain")


async def tail(request: Request, _context: ServerContext) -> web.StreamResponse:
    response = stream_response(request, "text/plain")
    await response.prepare(request)
    await response.write(b"first")
    return response


ROUTES = [
    Route("POST", "/change", change, "Change something"),
    Route("DELETE", "/change", change, "Change something"),
    Route("GET", "/tail", tail, "Read on", streams=True),
    Route("GET", "/probe", probe, "Probe", any_host=True),
]
LISTED = "https://console.example.com"


async def send(*headers: str, method: str = "POST", path: str = "/change", **options: Any) -> Reply:
    """The answer to a request with exactly these headers."""
    async with (
        serving(ROUTES, **options) as server,
        RawPeer.connected(server.port) as peer,
    ):
        lines = [f"{method} {path} HTTP/1.1", *headers]
        await peer.send("\r\n".join(lines).encode() + b"\r\n\r\n")
        return await peer.reply()


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8082",
        "127.0.0.1",
        "10.1.2.3:80",
        "[::1]:8082",
        "[2001:db8::7]",
        "localhost",
        "localhost:8082",
        "LocalHost.:8082",
    ],
)
async def test_program_without_browser_headers_is_served(host: str) -> None:
    assert (await send(f"Host: {host}")).body == b"changed"
    # As `curl -d` sends it.
    reply = await send(f"Host: {host}", "Content-Type: application/x-www-form-urlencoded")
    assert reply.status == 200
    assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://localhost:9999",
        "http://127.0.0.1:8082",
        "https://console.example.com.evil.example",
        "http://console.example.com",
        "",
    ],
)
async def test_page_of_a_foreign_origin_is_refused(origin: str) -> None:
    for method, path in [("POST", "/change"), ("DELETE", "/change"), ("GET", "/tail")]:
        reply = await send(
            "Host: localhost:8082",
            f"Origin: {origin}",
            method=method,
            path=path,
            allowed_origins=(LISTED,),
        )
        assert reply.error_code == 40302
        assert "--allowed-origins" in reply.json["message"]
        assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8082", "http://localhost:8082"),
        ("127.0.0.1:8082", "http://127.0.0.1:8082"),
        ("[::1]:8082", "http://[::1]:8082"),
        ("LOCALHOST", "http://localhost"),
        ("localhost", "https://localhost"),
    ],
)
async def test_page_of_this_node_is_served(host: str, origin: str) -> None:
    headers = [f"Host: {host}", f"Origin: {origin}", "Sec-Fetch-Site: same-origin"]
    assert (await send(*headers)).body == b"changed"


@pytest.mark.parametrize(
    ("site", "status"),
    [
        ("cross-site", 403),
        ("same-site", 403),
        ("Cross-Site", 403),
        ("same-origin", 200),
        ("none", 200),
    ],
)
async def test_request_of_another_site_without_an_origin_is_refused(site: str, status: int) -> None:
    reply = await send("Host: localhost", f"Sec-Fetch-Site: {site}", method="GET", path="/tail")
    assert reply.status == status
    if status == 403:
        assert reply.error_code == 40302
        assert "--allowed-origins" in reply.json["message"]


async def test_page_of_a_listed_origin_is_served_and_may_read() -> None:
    headers = ["Host: localhost", f"Origin: {LISTED}", "Sec-Fetch-Site: cross-site"]
    for method, path in [("POST", "/change"), ("GET", "/tail"), ("PUT", "/change")]:
        reply = await send(*headers, method=method, path=path, allowed_origins=(LISTED,))
        assert reply.status == (405 if method == "PUT" else 200)
        assert reply.headers["access-control-allow-origin"] == LISTED
        assert reply.headers["vary"] == "Origin"


async def test_preflight_of_a_listed_origin_names_the_methods() -> None:
    reply = await send(
        "Host: localhost",
        f"Origin: {LISTED}",
        "Access-Control-Request-Method: DELETE",
        "Access-Control-Request-Headers: content-type",
        method="OPTIONS",
        allowed_origins=(LISTED,),
    )
    assert reply.status == 204
    assert reply.headers["access-control-allow-origin"] == LISTED
    assert reply.headers["access-control-allow-methods"] == "DELETE, POST"
    assert reply.headers["access-control-allow-headers"] == "content-type"
    refused = await send(
        "Host: localhost",
        "Origin: https://evil.example",
        "Access-Control-Request-Method: DELETE",
        method="OPTIONS",
        allowed_origins=(LISTED,),
    )
    assert refused.error_code == 40302
    assert (await send("Host: localhost", method="OPTIONS")).error_code == 40501


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:8082",
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8082",
        "evil.localhost.example",
        "1.2.3.4.5",
        "node-1",
        "",
    ],
)
async def test_foreign_host_name_is_refused(host: str) -> None:
    for method, path in [("POST", "/change"), ("GET", "/tail")]:
        reply = await send(f"Host: {host}", method=method, path=path)
        assert reply.error_code == 42101
        assert "--allowed-hosts" in reply.json["message"]
    # A page rebound to this node is of its own origin.
    reply = await send(f"Host: {host}", f"Origin: http://{host}")
    assert reply.error_code == 42101


async def test_listed_host_names_are_served() -> None:
    for host in ("lb.example.com", "LB.Example.com:443", "log.internal"):
        reply = await send(f"Host: {host}", allowed_hosts=("lb.example.com", "Log.Internal"))
        assert reply.status == 200


async def test_names_of_the_clusters_nodes_are_served() -> None:
    node = FakeNode()
    node.quorum.voters = VoterSet((Voter(1, "raft-1.example", 8082), Voter(2, "raft-2", 8082)))
    node.metadata.register(7, host="broker-7.example")
    for host in ("raft-1.example:8082", "raft-2", "broker-7.example:9000"):
        assert (await send(f"Host: {host}", node=node)).status == 200
    assert (await send("Host: broker-8.example", node=node)).error_code == 42101


async def test_name_listened_on_is_served() -> None:
    assert (await send("Host: log-1.example:8082", host="log-1.example")).status == 200


async def test_probes_come_by_any_name() -> None:
    reply = await send("Host: pod-7.svc.cluster.local", method="GET", path="/probe")
    assert reply.body == b"well"
    reply = await send("Host: pod-7", "Origin: https://evil.example", method="GET", path="/probe")
    assert reply.error_code == 40302


async def test_http_1_0_without_a_host_is_served() -> None:
    async with serving(ROUTES) as server, RawPeer.connected(server.port) as peer:
        await peer.send(b"POST /change HTTP/1.0\r\n\r\n")
        assert (await peer.reply()).body == b"changed"


@pytest.mark.parametrize(
    "text", ["example.com", "https://example.com/", "ftp://a", "null", "*", "https://a,,https://b"]
)
def test_bad_origins_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--allowed-origins"):
        parse_origins(text)


@pytest.mark.parametrize("text", ["a:80", "http://a", "*", "a,,b", "*.example.com"])
def test_bad_host_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--allowed-hosts"):
        parse_hosts(text)


def test_settings_are_lists_of_words() -> None:
    assert parse_origins("https://a:8443, http://b") == ("https://a:8443", "http://b")
    assert parse_hosts("a.example, b") == ("a.example", "b")
    assert parse_origins(None) == parse_hosts(None) == ()
