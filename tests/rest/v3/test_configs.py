"""Configs over the v3 convention: of all brokers, as in force on one, of topics."""

from __future__ import annotations

import json

from raftlog.metadata.configs.broker import BROKER_CONFIG_TABLE, LEASE_BOUND
from raftlog.metadata.configs.topic import TOPIC_CONFIG_TABLE
from raftlog.rest.routes import ROUTES
from tests.http.fakes import FakeNode
from tests.http.http_peers import RawPeer, Reply, serving
from tests.rest.v1.test_quorum import checked

PICKED = [route for route in ROUTES if "configs" in route.path or route.tag == "v1"]
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
        default = {"name": TIMEOUT, "value": "1500", "source": "DEFAULT_CONFIG"}
        assert found["synonyms"] == [
            {"name": TIMEOUT, "value": "9000", "source": "DYNAMIC_DEFAULT_BROKER_CONFIG"},
            default,
        ]
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


async def test_configs_of_all_brokers_are_altered_together_or_not_at_all() -> None:
    node = FakeNode()

    def change(*data: dict[str, str], **more: bool) -> bytes:
        return json.dumps({"data": data, **more}).encode()

    timeout = {"name": TIMEOUT, "value": "9000"}
    async with serving(PICKED, node=node) as server, RawPeer.connected(server.port) as peer:

        async def alter(body: bytes) -> Reply:
            return await peer.request(
                "POST", f"{PATH}:alter", body, Content_Type="application/json"
            )

        assert (await alter(change(timeout, validate_only=True))).status == 204
        assert node.metadata.image.cluster_settings == {}
        bad = {"name": "replica.lag.time.max.ms", "value": "x"}
        for body in (change(timeout, bad), change(timeout, timeout), change({"name": TIMEOUT})):
            assert (await alter(body)).status == 422
        for body in (
            change({"name": "retention.ms", "value": "1"}),
            change(bad, validate_only=True),
        ):
            assert (await alter(body)).error_code == 42203
        assert node.metadata.image.cluster_settings == {}
        assert (await alter(change(timeout))).status == 204
        assert node.metadata.image.cluster_settings == {TIMEOUT: "9000"}
        assert (await alter(change({"name": TIMEOUT, "operation": "DELETE"}))).status == 204
        assert node.metadata.image.cluster_settings == {}


async def test_configs_in_force_on_brokers_are_read_and_changed_for_all_of_them() -> None:
    node = FakeNode(brokers=2)
    brokers = "/v3/clusters/-/brokers"
    template = "/v3/clusters/{cluster}/brokers/{broker}/configs"
    async with serving(PICKED, node=node) as server, RawPeer.connected(server.port) as peer:
        listing = checked(await peer.request("GET", f"{brokers}/2/configs"), "get", template)
        assert listing["kind"] == "KafkaBrokerConfigList"
        assert [config["name"] for config in listing["data"]] == list(BROKER_CONFIG_TABLE)
        assert {config["broker_id"] for config in listing["data"]} == {2}
        one = checked(
            await peer.request("GET", f"{brokers}/2/configs/{TIMEOUT}"),
            "get",
            template + "/{config}",
        )
        base = "http://localhost/v3/clusters/fake-cluster"
        assert one == {
            "kind": "KafkaBrokerConfig",
            "metadata": {
                "self": f"{base}/brokers/2/configs/{TIMEOUT}",
                "resource_name": f"crn:///kafka=fake-cluster/broker=2/config={TIMEOUT}",
            },
            "cluster_id": "fake-cluster",
            "broker_id": 2,
            "name": TIMEOUT,
            "value": "1500",
            "is_default": True,
            "is_read_only": True,
            "is_sensitive": False,
            "source": "DEFAULT_CONFIG",
            "synonyms": [{"name": TIMEOUT, "value": "1500", "source": "DEFAULT_CONFIG"}],
        }
        everywhere = (await peer.request("GET", f"{brokers}/-/configs")).json["data"]
        assert [config["broker_id"] for config in everywhere] == [
            node_id for node_id in (1, 2) for _ in BROKER_CONFIG_TABLE
        ]
        for broker in ("3", "x"):
            assert (await peer.request("GET", f"{brokers}/{broker}/configs")).error_code == 40400
        for method, path in (
            ("PUT", f"{brokers}/2/configs/{TIMEOUT}"),
            ("DELETE", f"{brokers}/2/configs/{TIMEOUT}"),
            ("POST", f"{brokers}/2/configs:alter"),
        ):
            refused = await peer.request(method, path)
            assert refused.error_code == 42203
            assert "/v3/clusters/fake-cluster/broker-configs" in refused.json["message"]


async def test_configs_of_topics_name_their_synonyms_as_brokers_do() -> None:
    node = FakeNode()
    topics = "/v3/clusters/-/topics"
    template = "/v3/clusters/{cluster}/topics/{topic}/configs"
    await node.metadata.create_topic("t", configs={"retention.ms": "5"})
    await node.metadata.create_topic("u")
    await node.metadata.alter_cluster_settings({"retention.ms": "7", "flush": "async"}, [])
    async with serving(PICKED, node=node) as server, RawPeer.connected(server.port) as peer:
        found = {}
        for name in ("retention.ms", "flush", "min.insync.replicas", "segment.ms"):
            config = checked(
                await peer.request("GET", f"{topics}/t/configs/{name}"),
                "get",
                template + "/{config}",
            )
            found[name] = [(one["name"], one["value"], one["source"]) for one in config["synonyms"]]
            assert found[name][0][1:] == (config["value"], config["source"])
        week = str(7 * 24 * 60 * 60 * 1000)
        assert found == {
            "retention.ms": [
                ("retention.ms", "5", "DYNAMIC_TOPIC_CONFIG"),
                ("log.retention.ms", "7", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
                ("log.retention.ms", week, "DEFAULT_CONFIG"),
            ],
            "flush": [
                ("flush", "async", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
                ("flush", "sync", "DEFAULT_CONFIG"),
            ],
            "min.insync.replicas": [("min.insync.replicas", "1", "DEFAULT_CONFIG")],
            "segment.ms": [("log.roll.ms", week, "DEFAULT_CONFIG")],
        }
        listing = checked(await peer.request("GET", f"{topics}/-/configs"), "get", template)
        assert listing["metadata"]["self"].endswith("/topics/-/configs")
        assert {(one["topic_name"], one["name"]) for one in listing["data"]} == {
            (topic, name) for topic in ("t", "u") for name in TOPIC_CONFIG_TABLE
        }


async def test_long_lists_are_sent_in_slices_and_come_whole() -> None:
    node = FakeNode()
    for number in range(40):
        await node.metadata.create_topic(f"t{number:02d}")
    path = "/v3/clusters/-/topics/-/configs"
    async with serving(PICKED, node=node) as server, RawPeer.connected(server.port) as peer:
        assert (await peer.request("HEAD", path)).status == 200
        reply = await peer.request("GET", path)
        assert reply.headers["transfer-encoding"] == "chunked"
        assert reply.json["kind"] == "KafkaTopicConfigList"
        names = [(one["topic_name"], one["name"]) for one in reply.json["data"]]
        assert names == [(f"t{n:02d}", name) for n in range(40) for name in TOPIC_CONFIG_TABLE]


async def test_a_topic_keeps_kafkas_other_configs_and_says_that_they_have_no_effect() -> None:
    node = FakeNode()
    path = "/v3/clusters/-/topics/t/configs"
    template = "/v3/clusters/{cluster}/topics/{topic}/configs"
    await node.metadata.create_topic("t", configs={"segment.jitter.ms": "07"})
    async with serving(PICKED, node=node) as server, RawPeer.connected(server.port) as peer:
        put = await peer.request(
            "PUT", f"{path}/preallocate", b'{"value":"TRUE"}', Content_Type="application/json"
        )
        assert put.status == 204
        wrong = await peer.request(
            "PUT", f"{path}/flush.ms", b'{"value":"soon"}', Content_Type="application/json"
        )
        assert wrong.error_code == 42203
        listing = checked(await peer.request("GET", path), "get", template)
        found = {one["name"]: one for one in listing["data"]}
        assert (found["segment.jitter.ms"]["value"], found["preallocate"]["value"]) == ("7", "true")
        assert found["preallocate"]["synonyms"][1]["name"] == "log.preallocate"
        assert "does not act on it" in found["flush.ms"]["note"]
        assert "note" not in found["retention.ms"]
        assert (await peer.request("DELETE", f"{path}/preallocate")).status == 204
        assert (await peer.request("GET", f"{path}/preallocate")).json["is_default"]
