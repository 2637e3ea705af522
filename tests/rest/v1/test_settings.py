"""Settings of the whole cluster over HTTP, and what they mean for topics."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.record.errors import NO_CONTROLLER, LogError
from tests.http.fakes import FakeNode
from tests.http.http_peers import RawPeer, Reply, serving
from tests.rest.v1.test_quorum import ROUTES, checked

PATH = "/v1/cluster/settings"


async def put(peer: RawPeer, body: str) -> Reply:
    return await peer.request("PUT", PATH, body.encode(), Content_Type="application/json")


async def test_settings_are_set_changed_and_returned_to_default() -> None:
    node = FakeNode()
    async with serving(ROUTES, node=node) as server, RawPeer.connected(server.port) as peer:
        empty = checked(await peer.request("GET", PATH), "get", PATH)
        assert empty["values"] == {}
        reply = await put(peer, '{"values":{"retention.ms":"1000","flush":"async"}}')
        first = checked(reply, "put", PATH)
        assert first["values"] == {"retention.ms": "1000", "flush": "async"}
        assert first["index"] > empty["index"]
        second = (await put(peer, '{"values":{"flush":"sync"},"removals":["retention.ms"]}')).json
        assert second["values"] == {"flush": "sync"}
        assert (await peer.request("GET", PATH)).json == second


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ('{"values":{"nonsense":"1"}}', 42203),
        ('{"values":{"retention.ms":"soon"}}', 42203),
        ('{"values":{"flush":"sync"},"removals":["flush"]}', 42203),
        ('{"values":{"retention.ms":1000}}', 42201),
        ('{"value":{}}', 42201),
        ("", 42201),
    ],
)
async def test_illegal_setting_changes_nothing(body: str, code: int) -> None:
    node = FakeNode()
    async with serving(ROUTES, node=node) as server, RawPeer.connected(server.port) as peer:
        assert (await put(peer, body)).error_code == code
    assert node.metadata.image.cluster_settings == {}


async def test_fresh_read_asks_the_quorum_and_the_other_does_not() -> None:
    node = FakeNode()
    async with serving(ROUTES, node=node) as server, RawPeer.connected(server.port) as peer:
        for path, barriers in ((PATH, 0), (f"{PATH}?fresh=false", 0), (f"{PATH}?fresh=true", 1)):
            assert (await peer.request("GET", path)).status == 200
            assert node.quorum.barriers == barriers
        assert (await peer.request("GET", f"{PATH}?fresh=yes")).error_code == 40001


async def test_without_quorum_only_the_fresh_read_fails() -> None:
    node = FakeNode()
    node.quorum.refusal = LogError(NO_CONTROLLER)
    async with serving(ROUTES, node=node) as server, RawPeer.connected(server.port) as peer:
        assert (await peer.request("GET", PATH)).status == 200
        assert (await peer.request("GET", f"{PATH}?fresh=true")).error_code == NO_CONTROLLER.code


async def test_topics_show_the_clusters_setting_and_where_it_comes_from() -> None:
    node = FakeNode()
    await node.metadata.create_topic("plain")
    await node.metadata.create_topic("own", configs={"retention.ms": "5"})
    node.metadata.settings.defaults = {"retention.ms": "7"}

    async def shown(peer: RawPeer, topic: str) -> Any:
        found = (
            await peer.request("GET", f"/v3/clusters/-/topics/{topic}/configs/retention.ms")
        ).json
        return found["value"], found["source"], found["is_default"]

    async with serving(ROUTES, node=node) as server, RawPeer.connected(server.port) as peer:
        assert await shown(peer, "plain") == ("7", "STATIC_BROKER_CONFIG", False)
        assert (await put(peer, '{"values":{"retention.ms":"6"}}')).status == 200
        assert await shown(peer, "plain") == ("6", "DYNAMIC_DEFAULT_BROKER_CONFIG", False)
        assert await shown(peer, "own") == ("5", "DYNAMIC_TOPIC_CONFIG", False)
