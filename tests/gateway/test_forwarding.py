"""The gateway's additions to the v2 convention: the catalog, its own health, its own failures."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest
from openapi_spec_validator import validate

from raftlog.api.instances import EndReadResponse
from raftlog.gateway.routes import LEFT_OUT, ROUTES
from raftlog.gateway.service import Gateway
from raftlog.record.errors import NOT_READY, RETRIABLE, LogError
from raftlog.rest.v2 import consumers as v2_consumers
from raftlog.rest.v2 import topics as v2
from tests.gateway.in_process import entry, gateway_node, gateway_server, put
from tests.http.http_peers import RawPeer, Reply
from tests.rest.v2.test_consumers import Client, produce
from tests.waiting import until

V2 = "application/vnd.kafka.v2+json"


async def post(peer: RawPeer, path: str, body: Any, **headers: str) -> Reply:
    return await peer.request("POST", path, json.dumps(body).encode(), **headers)


async def test_logs_are_those_of_the_catalog() -> None:
    async with gateway_node() as one:
        assert (await one.peer.request("GET", "/topics")).json == ["one", "six"]
        reply = await one.peer.request("GET", "/topics/none")
        assert reply.error_code == 40401
        assert reply.headers["content-type"] == V2
        assert b"'none'" in reply.body
        put(one.gateway, entry("six", "127.0.0.1:1"))
        assert (await one.peer.request("GET", "/topics")).json == ["six"]
        assert (await post(one.peer, "/topics/one", {"records": []})).error_code == 40401


async def test_a_log_that_the_cluster_does_not_have_is_the_clusters_to_name() -> None:
    async with gateway_node() as one:
        [address] = one.gateway.catalog.find("one").addresses
        put(one.gateway, entry("gone", address))
        assert (await one.peer.request("GET", "/topics/gone")).error_code == 40401


async def test_other_addresses_of_a_log_are_used_from_the_change_on() -> None:
    async with gateway_node() as one:
        [address] = one.gateway.catalog.find("one").addresses
        put(one.gateway, entry("one", "127.0.0.1:1"))
        assert (await one.peer.request("GET", "/topics/one")).error_code == 50301
        put(one.gateway, entry("one", address))
        assert (await one.peer.request("GET", "/topics/one")).status == 200


async def test_compressed_bodies_are_passed_on() -> None:
    async with gateway_node() as one:
        body = gzip.compress(b'{"records":[{"value":1}]}')
        reply = await one.peer.request("POST", "/topics/one", body, Content_Encoding="gzip")
        assert reply.status == 200, reply.body
        found = (await one.peer.request("GET", "/topics/one/partitions/0/records")).json
        assert [row["value"] for row in found] == [1]


async def test_head_has_no_body() -> None:
    async with gateway_node() as one:
        reply = await one.peer.request("HEAD", "/topics/one")
        assert reply.status == 200
        assert int(reply.headers["content-length"]) > 0
        assert (await one.peer.request("GET", "/topics")).status == 200


async def test_a_long_poll_ends_when_the_gateway_stops() -> None:
    async with gateway_node() as one:
        path = "/topics/one/partitions/0/records?timeout=60000"
        asked = asyncio.create_task(one.peer.request("GET", path))
        await until(lambda: one.gateway.requests_in_flight.used)
        await one.server.close()
        reply = await asked
        assert reply.error_code == 50304
        assert "retry-after" in reply.headers


async def test_without_a_catalog_nothing_is_served_and_the_reason_is_given() -> None:
    async with gateway_server("127.0.0.1:1") as (gateway, server):
        gateway.catalog_failure = "the home cluster sleeps"
        async with RawPeer.connected(server.port) as peer:
            for path in ("/topics", "/topics/one", "/ready"):
                reply = await peer.request("GET", path)
                assert reply.error_code == 50304
                assert b"sleeps" in reply.body
            reply = await peer.request("GET", "/healthy")
            assert reply.json == {
                "status": "healthy",
                "logs": 0,
                "catalog_age_s": -1.0,
                "catalog_failure": "the home cluster sleeps",
                "logs_without_groups": {},
            }
            put(gateway)
            assert (await peer.request("GET", "/ready")).json["status"] == "ready"
            assert (await peer.request("GET", "/topics")).json == []


async def test_host_names_are_those_that_are_allowed() -> None:
    async with gateway_node() as one:
        await one.peer.send(b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert (await one.peer.reply()).error_code == 42101
        await one.peer.send(b"GET /healthy HTTP/1.1\r\nHost: any.example\r\n\r\n")
        assert (await one.peer.reply()).status == 200


async def test_every_route_of_the_convention_is_described_and_served() -> None:
    served = {route.name for route in ROUTES}
    wanted = {route.name for route in (*v2.ROUTES, *v2_consumers.ROUTES)}
    assert wanted - served == set(LEFT_OUT)
    async with gateway_node() as one:
        document = (await one.peer.request("GET", "/openapi.json")).json
        validate(document)
        assert set(document["paths"]) == {route.path for route in ROUTES}


async def test_metrics_show_the_catalog_and_the_calls() -> None:
    async with gateway_node() as one:
        await one.peer.request("GET", "/topics/one")
        text = (await one.peer.request("GET", "/metrics")).body.decode()
        assert 'raftlog_gateway_logs{state="online"} 2.0' in text
        assert "raftlog_gateway_cluster_answers_total 1.0" in text
        assert 'raftlog_http_requests_total{route="GET /topics/{topic}",status="200"} 1.0' in text


# Groups


async def test_an_instance_has_the_address_of_the_gateway() -> None:
    async with gateway_node() as one:
        reply = await post(one.peer, "/consumers/a%2Fb", {"name": "i j"}, Content_Type=V2)
        assert reply.json == {
            "instance_id": "i j",
            "base_uri": "http://localhost/consumers/a%2Fb/instances/i%20j",
        }


async def test_only_logs_of_the_catalog_are_assigned() -> None:
    async with gateway_node() as one:
        client = Client(one)
        await client.create()
        put(one.gateway, entry("six", "127.0.0.1:1"))
        body = {"partitions": [{"topic": "one", "partition": 0}]}
        assert (await client.post("/assignments", body)).error_code == 40401


async def test_partitions_of_a_log_that_is_not_served_keep_their_positions() -> None:
    async with gateway_node() as one:
        client = Client(one)
        await client.create(**{"auto.commit.enable": "false"})
        await client.subscribe("one", "six")
        await produce(one, "one", 1)
        assert await client.values("timeout=5000") == [1]
        entries = [one.gateway.catalog.find(log) for log in ("one", "six")]
        await produce(one, "one", 2)
        put(one.gateway)
        assert await client.values("timeout=300") == []
        put(one.gateway, *entries)
        assert await client.values("timeout=5000") == [2]


async def test_records_are_answered_if_the_move_of_positions_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gateway_node() as one:
        client = Client(one)
        await client.create()
        await client.subscribe("one")
        await produce(one, "one", 1)
        fail_calls(monkeypatch, one.gateway, EndReadResponse, LogError(RETRIABLE))
        assert await client.values("timeout=5000") == [1]
        monkeypatch.undo()
        assert await client.values("timeout=5000") == [1], "read twice rather than never"
        fail_calls(monkeypatch, one.gateway, EndReadResponse, LogError(NOT_READY))
        await produce(one, "one", 2)
        assert (await client.get("/records?timeout=5000")).error_code == 50304
        monkeypatch.undo()
        assert await client.values("timeout=5000") == [2]


def fail_calls(
    monkeypatch: pytest.MonkeyPatch, gateway: Gateway, kind: type[Any], error: LogError
) -> None:
    """Have calls to the home cluster for this kind of answer fail."""
    call = gateway.home.call

    async def failing(method: str, target: str, wanted: type[Any], *args: Any, **kw: Any) -> Any:
        if wanted is kind:
            raise error
        return await call(method, target, wanted, *args, **kw)

    monkeypatch.setattr(gateway.home, "call", failing)


async def test_a_log_without_a_stub_is_not_read_by_groups() -> None:
    async with gateway_node() as one:
        client = Client(one)
        await client.create()
        await client.subscribe("one", "six")
        await produce(one, "one", 1)
        await produce(one, "six", 2, partition=0)
        one.gateway.stubs = frozenset(["six"])
        one.gateway.without_stub = {"one": "rename it"}
        assert await client.values("timeout=5000") == [2]
        reply = await client.get("/records?timeout=200")
        assert reply.error_code == 50304
        assert b"rename it" in reply.body


async def test_a_read_that_waits_holds_no_bytes() -> None:
    async with gateway_node() as one:
        client = Client(one)
        await client.create()
        await client.subscribe("six")
        read = asyncio.create_task(client.get("/records?timeout=60000"))
        counters = one.gateway.links.counters
        seen = counters.answered
        # A pass over six partitions each second, with an empty answer of each.
        await until(lambda: counters.answered >= seen + 20)
        await until(lambda: one.gateway.bytes_in_flight.used == 0)
        await one.server.close()
        assert (await read).json == []
