"""The whole server: health, metrics, admin calls, and its own description held against it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate
from prometheus_client.parser import text_string_to_metric_families

from raftlog.broker.metrics import OTHER_TOPICS
from raftlog.http.app import PortError, described_routes
from raftlog.http.openapi import PATH_PARAMETERS
from raftlog.http.settings import ServerLimits, ServerSettings
from raftlog.record.types import TopicId
from raftlog.rest.routes import ROUTES
from tests.http.fakes import FakeNode, start_server
from tests.http.http_peers import RawPeer, Reply

ADMIN = "/v3/clusters/-"


@asynccontextmanager
async def running(node: FakeNode, **settings: Any) -> AsyncIterator[RawPeer]:
    server = await start_server(node.services, ServerSettings(port=0, **settings))
    try:
        async with RawPeer.connected(server.port) as peer:
            yield peer
    finally:
        await server.close()


async def post(peer: RawPeer, path: str, body: str, method: str = "POST") -> Reply:
    return await peer.request(method, path, body.encode(), Content_Type="application/json")


# Health


async def test_node_that_starts_is_healthy_but_not_ready() -> None:
    node = FakeNode(not_ready="The node is starting.")
    async with running(node) as peer:
        status = {"status": "healthy", "node_id": 1, "cluster_id": "fake-cluster"}
        assert (await peer.request("GET", "/healthy")).json == status
        reply = await peer.request("GET", "/ready")
        assert (reply.error_code, reply.json["message"]) == (50304, "The node is starting.")
        assert (await peer.request("GET", "/v3/clusters")).error_code == 50304
        node.not_ready = None
        assert (await peer.request("GET", "/ready")).json["status"] == "ready"


async def test_health_port_serves_health_alone() -> None:
    server = await start_server(FakeNode().services, ServerSettings(port=0, health_port=0))
    try:
        assert server.health_port is not None
        async with RawPeer.connected(server.health_port) as peer:
            for path in ("/healthy", "/ready", "/metrics"):
                assert (await peer.request("GET", path)).status == 200
            assert (await peer.request("GET", "/topics")).error_code == 40400
    finally:
        await server.close()


async def test_port_in_use_leaves_nothing_running() -> None:
    first = await start_server(FakeNode().services, ServerSettings(port=0))
    with pytest.raises(PortError):
        await start_server(FakeNode().services, ServerSettings(port=0, health_port=first.port))
    await first.close()


# Metrics


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def test_metrics_count_requests_by_route_and_status() -> None:
    node = FakeNode()
    async with running(node) as peer:
        await node.metadata.create_topic("t", partitions=3)
        for path in ("/topics/a", "/topics/b", "/nowhere/1", "/nowhere/2", "/brokers"):
            await peer.request("GET", path)
        reply = await peer.request("GET", "/metrics")
        assert reply.headers["content-type"].startswith("text/plain")
        found = samples(reply.body)

    def requests(route: str, status: str) -> float:
        return found["raftlog_http_requests_total", (("route", route), ("status", status))]

    assert requests("GET /topics/{topic}", "404") == 2
    assert requests("none", "404") == 2
    assert requests("GET /brokers", "200") == 1
    assert found["raftlog_http_connections", ()] == 1
    assert found["raftlog_http_bytes_in_flight", ()] == 0
    assert found["kafka_server_replicamanager_leadercount", ()] == 3
    assert found["kafka_controller_kafkacontroller_globaltopiccount", ()] == 1
    assert found["process_resident_memory_bytes", ()] > 0
    name = "raftlog_http_request_seconds"
    label = ("route", "GET /topics/{topic}")
    assert found[f"{name}_count", (label,)] == 2
    assert found[f"{name}_bucket", (("le", "+Inf"), label)] == 2


async def test_topic_labels_are_bounded_and_the_rest_is_summed() -> None:
    node = FakeNode()
    for number in range(5):
        topic = await node.metadata.create_topic(f"t{number}")
        node.logs.sizes[topic.topic_id, 0] = 10**number
    node.logs.sizes[TopicId("unknown"), 0] = 7
    async with running(node, limits=ServerLimits(topic_labels_max=2)) as peer:
        found = samples((await peer.request("GET", "/metrics")).body)
    sizes = {
        labels: value for (name, labels), value in found.items() if name == "kafka_log_log_size"
    }
    assert sizes == {
        (("topic", "t3"),): 1000,
        (("topic", "t4"),): 10000,
        (("topic", OTHER_TOPICS),): 118,
    }


# Admin, v3 convention


async def test_topic_lives_from_creation_to_deletion() -> None:
    async with running(FakeNode(brokers=3)) as peer:
        body = (
            '{"topic_name":"t","partitions_count":4,"replication_factor":3,'
            '"configs":[{"name":"retention.ms","value":"1000"}]}'
        )
        created = await post(peer, f"{ADMIN}/topics", body)
        assert created.status == 201
        base = "http://localhost/v3/clusters/fake-cluster"
        topic = created.json
        topic_id = topic.pop("topic_id")
        assert re.fullmatch("[0-9a-f]{32}", topic_id)
        assert topic == {
            "kind": "KafkaTopic",
            "metadata": {
                "self": f"{base}/topics/t",
                "resource_name": "crn:///kafka=fake-cluster/topic=t",
            },
            "cluster_id": "fake-cluster",
            "topic_name": "t",
            "is_internal": False,
            "replication_factor": 3,
            "partitions_count": 4,
            "partitions": {"related": f"{base}/topics/t/partitions"},
            "configs": {"related": f"{base}/topics/t/configs"},
            "partition_reassignments": {"related": f"{base}/topics/t/partitions/-/reassignment"},
            "authorized_operations": [],
        }
        assert (await post(peer, f"{ADMIN}/topics", body)).error_code == 40904
        grown = await post(peer, f"{ADMIN}/topics/t", '{"partitions_count":6}', "PATCH")
        assert grown.json["partitions_count"] == 6
        shrunk = await post(peer, f"{ADMIN}/topics/t", '{"partitions_count":2}', "PATCH")
        assert shrunk.error_code == 42206
        listing = (await peer.request("GET", f"{ADMIN}/topics")).json
        assert listing["kind"] == "KafkaTopicList"
        assert listing["metadata"] == {"self": f"{base}/topics", "next": None}
        assert [item["topic_name"] for item in listing["data"]] == ["t"]
        assert (await peer.request("DELETE", f"{ADMIN}/topics/t")).status == 204
        assert (await peer.request("GET", f"{ADMIN}/topics/t")).error_code == 40401
        assert (await peer.request("DELETE", f"{ADMIN}/topics/t")).error_code == 40401


async def test_validate_only_creates_nothing() -> None:
    async with running(FakeNode()) as peer:
        body = '{"topic_name":"t","partitions_count":2,"validate_only":true}'
        reply = await post(peer, f"{ADMIN}/topics", body)
        assert (reply.status, reply.json["partitions_count"]) == (200, 2)
        assert (await peer.request("GET", f"{ADMIN}/topics/t")).error_code == 40401


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ('{"topic_name":"../../etc"}', 42205),
        ('{"topic_name":""}', 42205),
        ('{"topic_name":"' + "x" * 300 + '"}', 42205),
        ('{"topic_name":"t","partitions_count":0}', 42206),
        ('{"topic_name":"t","partitions_count":99999999999999999999}', 42206),
        ('{"topic_name":"t","partitions_count":100000000}', 42206),
        ('{"topic_name":"t","replication_factor":2}', 42206),
        ('{"topic_name":"t","replication_factor":-1}', 42206),
        ('{"topic_name":"t","configs":[{"name":"nonsense","value":"1"}]}', 42203),
        ('{"topic_name":"t","configs":[{"name":"flush","value":"1"}]}', 42203),
        ('{"topic_name":"t","configs":[{"name":"flush","value":1}]}', 42201),
        (
            '{"topic_name":"t","configs":[{"name":"flush","value":"sync"},'
            '{"name":"flush","value":"async"}]}',
            42201,
        ),
        ('{"topic_name":"t","replicas_assignments":[]}', 42201),
        ('{"name":"t"}', 42201),
        ("", 42201),
    ],
)
async def test_topic_that_cannot_be_is_refused(body: str, code: int) -> None:
    node = FakeNode()
    async with running(node) as peer:
        assert (await post(peer, f"{ADMIN}/topics", body)).error_code == code
        assert not node.metadata.image.topics_by_name


async def test_configs_are_described_set_and_returned_to_default() -> None:
    node = FakeNode()
    await node.metadata.create_topic("t")
    configs = f"{ADMIN}/topics/t/configs"
    async with running(node) as peer:
        before = (await peer.request("GET", f"{configs}/retention.ms")).json
        assert before["kind"] == "KafkaTopicConfig"
        assert before["source"] == "DEFAULT_CONFIG"
        assert before["is_default"]
        assert (await post(peer, f"{configs}/retention.ms", '{"value":"5"}', "PUT")).status == 204
        after = (await peer.request("GET", f"{configs}/retention.ms")).json
        assert (after["value"], after["source"]) == ("5", "DYNAMIC_TOPIC_CONFIG")
        changes = (
            '{"data":[{"name":"retention.ms","operation":"DELETE"},'
            '{"name":"cleanup.policy","value":"compact"}]}'
        )
        assert (await post(peer, f"{configs}:alter", changes)).status == 204
        listing = (await peer.request("GET", configs)).json
        values = {item["name"]: item["value"] for item in listing["data"]}
        assert values["cleanup.policy"] == "compact"
        assert values["retention.ms"] == before["value"]
        assert (await peer.request("DELETE", f"{configs}/cleanup.policy")).status == 204
        assert node.metadata.image.topic("t").configs == {}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ('{"data":[{"name":"retention.ms"}]}', 42201),
        ('{"data":[{"name":"flush","value":"sync"},{"name":"flush","value":"sync"}]}', 42201),
        ('{"data":[{"name":"flush","value":"sync"},{"name":"nonsense","value":"1"}]}', 42203),
        ('{"data":[{"name":"flush","value":"sync","operation":"APPEND"}]}', 42201),
        ('{"data":[{"name":"flush","value":"never"}],"validate_only":true}', 42203),
    ],
)
async def test_config_changes_are_all_made_or_none(body: str, code: int) -> None:
    node = FakeNode()
    await node.metadata.create_topic("t")
    async with running(node) as peer:
        assert (await post(peer, f"{ADMIN}/topics/t/configs:alter", body)).error_code == code
        assert node.metadata.image.topic("t").configs == {}


async def test_unknown_config_topic_and_broker_are_typed_errors() -> None:
    node = FakeNode()
    await node.metadata.create_topic("t")
    async with running(node) as peer:
        for path, code in (
            ("/topics/t/configs/nonsense", 42203),
            ("/topics/missing/configs", 40401),
            ("/topics/missing/partitions", 40401),
            ("/topics/t/partitions/1", 40402),
            ("/topics/t/partitions/-1", 40402),
            ("/topics/t/partitions/x/replicas", 40402),
            ("/topics/t/partitions/0/replicas/9", 40400),
            ("/brokers/9", 40400),
            ("/brokers/x", 40400),
        ):
            assert (await peer.request("GET", ADMIN + path)).error_code == code, path


async def test_partitions_and_replicas_show_leader_and_isr() -> None:
    node = FakeNode(brokers=3)
    await node.metadata.create_topic("t", partitions=2, replication_factor=2)
    row = node.metadata.image.partition("t", 1)
    async with running(node) as peer:
        partitions = (await peer.request("GET", f"{ADMIN}/topics/t/partitions")).json["data"]
        assert [item["partition_id"] for item in partitions] == [0, 1]
        path = f"{ADMIN}/topics/t/partitions/1"
        assert (await peer.request("GET", path)).json == partitions[1]
        replicas = (await peer.request("GET", f"{path}/replicas")).json["data"]
        assert [item["broker_id"] for item in replicas] == list(row.replicas)
        assert [item["is_leader"] for item in replicas] == [True, False]
        assert all(item["is_in_sync"] for item in replicas)
        one = (await peer.request("GET", f"{path}/replicas/{row.leader}")).json
        assert one == replicas[0]


async def test_clusters_and_brokers_are_listed_and_described() -> None:
    async with running(FakeNode(brokers=2)) as peer:
        clusters = (await peer.request("GET", "/v3/clusters")).json
        assert clusters["data"] == [(await peer.request("GET", ADMIN)).json]
        assert clusters["data"][0]["cluster_id"] == "fake-cluster"
        brokers = (await peer.request("GET", f"{ADMIN}/brokers")).json["data"]
        assert [(item["broker_id"], item["port"]) for item in brokers] == [(1, 8081), (2, 8082)]
        assert (await peer.request("GET", f"{ADMIN}/brokers/2")).json == brokers[1]
        assert (await peer.request("GET", "/brokers")).json == {"brokers": [1, 2]}


@pytest.mark.parametrize("host", ['evil"<script>', "a b", "x" * 300, ""])
async def test_garbage_in_the_host_header_is_refused(host: str) -> None:
    async with running(FakeNode()) as peer:
        await peer.send(f"GET /v3/clusters HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert (await peer.reply()).error_code == 42101


# Admin, ours


async def test_metadata_names_leaders_and_unknown_topics() -> None:
    node = FakeNode(brokers=2)
    await node.metadata.create_topic("a", partitions=2, replication_factor=2)
    await node.metadata.create_topic("b")
    async with running(node) as peer:
        view = (await peer.request("GET", "/v1/metadata?topics=a,nope,a")).json
        assert view["cluster_id"] == "fake-cluster"
        assert [broker["broker_id"] for broker in view["brokers"]] == [1, 2]
        known, unknown = view["topics"]
        assert (known["name"], known["error_code"], len(known["partitions"])) == ("a", None, 2)
        row = node.metadata.image.partition("a", 0)
        assert known["partitions"][0] == {
            "partition": 0,
            "leader": row.leader,
            "leader_epoch": 0,
            "replicas": list(row.replicas),
            "isr": list(row.isr),
        }
        assert unknown == {"name": "nope", "topic_id": None, "error_code": 40401, "partitions": []}
        everything = (await peer.request("GET", "/v1/metadata")).json
        assert [topic["name"] for topic in everything["topics"]] == ["a", "b"]


async def test_producer_ids_are_never_the_same() -> None:
    async with running(FakeNode()) as peer:
        replies = [(await peer.request("POST", "/v1/producer-ids")).json for _ in range(3)]
        assert len({reply["producer_id"] for reply in replies}) == 3
        assert all(reply["producer_epoch"] == 0 for reply in replies)


async def test_records_are_deleted_partition_by_partition() -> None:
    node = FakeNode()
    await node.metadata.create_topic("t", partitions=2)
    async with running(node) as peer:
        body = '{"offsets":{"t":{"0":40,"1":-1,"7":0},"nope":{"0":1}}}'
        results = (await post(peer, "/v1/delete-records", body)).json["results"]
        assert [(r["partition"], r["log_start_offset"], r["error_code"]) for r in results] == [
            (0, 40, None),
            (1, 100, None),
            (7, -1, 40402),
            (0, -1, 40401),
        ]
        beyond = await post(peer, "/v1/delete-records", '{"offsets":{"t":{"0":101}}}')
        assert beyond.json["results"][0]["error_code"] == 41601


@pytest.mark.parametrize(
    "body",
    [
        '{"offsets":{"t":{"x":1}}}',
        '{"offsets":{"t":{"-1":1}}}',
        '{"offsets":{"t":{"0":-2}}}',
        '{"offsets":{"t":{"0":9223372036854775808}}}',
        '{"offsets":[]}',
        "{}",
    ],
)
async def test_malformed_deletion_is_refused(body: str) -> None:
    async with running(FakeNode()) as peer:
        assert (await post(peer, "/v1/delete-records", body)).error_code == 42201


async def test_deletion_of_too_many_partitions_is_refused() -> None:
    limits = ServerLimits(partitions_per_request_max=2)
    async with running(FakeNode(), limits=limits) as peer:
        body = '{"offsets":{"t":{"0":1,"1":1,"2":1}}}'
        assert (await post(peer, "/v1/delete-records", body)).error_code == 42201


# OpenAPI


@pytest.fixture(scope="module")
def document() -> Iterator[dict[str, Any]]:
    """What a running server says of itself."""
    import asyncio

    async def fetch() -> dict[str, Any]:
        async with running(FakeNode()) as peer:
            reply = await peer.request("GET", "/openapi.json")
            assert reply.headers["content-type"] == "application/json"
            found = reply.json
            assert isinstance(found, dict)
            return found

    yield asyncio.run(fetch())


def test_openapi_document_is_valid(document: dict[str, Any]) -> None:
    validate(document)


def test_every_route_is_described_and_nothing_else(document: dict[str, Any]) -> None:
    described = {
        f"{method.upper()} {path}"
        for path, operations in document["paths"].items()
        for method in operations
    }
    assert described == {route.name for route in described_routes(ROUTES)}


def test_every_path_parameter_is_described() -> None:
    names = {
        name for route in described_routes(ROUTES) for name in re.findall(r"\{(.+?)\}", route.path)
    }
    assert names == set(PATH_PARAMETERS)


def test_operation_ids_are_unique(document: dict[str, Any]) -> None:
    ids = [
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
    ]
    assert len(ids) == len(set(ids))


async def test_answers_are_as_described(document: dict[str, Any]) -> None:
    """Every route without a body to make up is called; its answer fits its schema."""
    node = FakeNode(brokers=2)
    await node.metadata.create_topic("t", partitions=1)
    values = {"topic": "t", "partition": "0", "cluster": "c", "broker": "1", "config": "flush"}
    admin = [
        r for r in described_routes(ROUTES) if r.tag in ("admin", "node") and r.method == "GET"
    ]
    assert len(admin) > 10
    async with running(node) as peer:
        for route in admin:
            reply = await peer.request("GET", route.path.format(**values))
            responses = document["paths"][route.path]["get"]["responses"]
            content = responses[str(reply.status)]["content"]
            media_type = reply.headers["content-type"].partition(";")[0]
            assert media_type in content, route.name
            if "schema" in content[media_type]:
                schema = {**content[media_type]["schema"], "components": document["components"]}
                OAS31Validator(schema).validate(reply.json)
