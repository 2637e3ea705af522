"""Configs of all brokers over the v3 convention."""

from __future__ import annotations

from raftlog.metadata.broker_configs import BROKER_CONFIG_TABLE, LEASE_BOUND
from raftlog.rest.routes import ROUTES
from tests.http.fakes import FakeNode
from tests.http.http_peers import RawPeer, serving
from tests.rest.test_v1_quorum import checked

PICKED = [route for route in ROUTES if "broker-configs" in route.path or route.tag == "v1"]
PATH = "/v3/clusters/-/broker-configs"
TEMPLATE = "/v3/clusters/{cluster}/broker-configs"
TIMEOUT = "broker.session.timeout.ms"


async def test_config_is_listed_set_and_returned_to_its_default() -> None:
    node = FakeNode()
    async with serving(PICKED, node=node) as server, RawPeer.connected(server.port) as peer:
        listing = checked(await peer.request("GET", PATH), "get", TEMPLATE)
        assert listing["kind"] == "KafkaClusterConfigList"
        assert {config["name"] for config in listing["data"]} == set(BROKER_CONFIG_TABLE)
        path = f"{PATH}/{TIMEOUT}"
        reply = await peer.request(
            "PUT", path, b'{"value":"9000"}', Content_Type="application/json"
        )
        assert reply.status == 204
        found = checked(await peer.request("GET", path), "get", TEMPLATE + "/{config}")
        assert found["value"] == "9000"
        assert found["source"] == "DYNAMIC_DEFAULT_BROKER_CONFIG"
        assert found["config_type"] == "BROKER"
        assert not found["is_default"]
        assert (await peer.request("DELETE", path)).status == 204
        assert (await peer.request("GET", path)).json["value"] == "1500"


async def test_unknown_config_and_value_out_of_bounds_are_rejected() -> None:
    node = FakeNode()
    async with serving(PICKED, node=node) as server, RawPeer.connected(server.port) as peer:
        for name in ("retention.ms", LEASE_BOUND, "nonsense"):
            assert (await peer.request("GET", f"{PATH}/{name}")).error_code == 42203
            assert (await peer.request("DELETE", f"{PATH}/{name}")).error_code == 42203
        reply = await peer.request(
            "PUT", f"{PATH}/{TIMEOUT}", b'{"value":"1"}', Content_Type="application/json"
        )
        assert reply.error_code == 42203
        assert "from 1000 to 60000" in reply.json["message"]
    assert node.metadata.image.cluster_settings == {}


async def test_lease_bound_of_the_controller_is_not_shown() -> None:
    node = FakeNode()
    node.metadata.image.cluster_settings = {LEASE_BOUND: "9000", "flush": "sync"}
    async with serving(PICKED, node=node) as server, RawPeer.connected(server.port) as peer:
        assert (await peer.request("GET", "/v1/cluster/settings")).json["values"] == {
            "flush": "sync"
        }
