"""Objects of the v3 convention: fields as the Confluent REST Proxy documents them, live links."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from raftlog.metadata.decisions.reassignment import Move
from raftlog.record.types import BrokerId
from raftlog.rest.routes import ROUTES
from raftlog.rest.v3 import listing as v3_listing
from tests.http.fakes import FakeNode
from tests.http.http_peers import RawPeer, Reply, serving
from tests.rest.data_fakes import data_node
from tests.rest.v1.test_quorum import checked

V3 = "/v3/clusters/-"
V3_ROUTES = [route for route in ROUTES if route.path.startswith("/v3")]

DOCUMENTED = {
    "KafkaCluster": {
        "cluster_id", "controller", "brokers", "broker_configs", "topics", "consumer_groups",
        "partition_reassignments",
    },
    "KafkaBroker": {
        "cluster_id", "broker_id", "host", "port", "rack", "configs", "partition_replicas",
    },
    "KafkaTopic": {
        "cluster_id", "topic_name", "is_internal", "replication_factor", "partitions_count",
        "partitions", "configs", "partition_reassignments", "authorized_operations",
    },
    "KafkaPartition": {
        "cluster_id", "topic_name", "partition_id", "leader", "replicas", "reassignment",
    },
    "KafkaReplica": {
        "cluster_id", "topic_name", "partition_id", "broker_id", "is_leader", "is_in_sync",
        "broker",
    },
    "KafkaReassignment": {
        "cluster_id", "topic_name", "partition_id", "adding_replicas", "removing_replicas",
        "replicas",
    },
    "KafkaPartitionWithOffsets": {
        "cluster_id", "topic_name", "partition_id", "earliest_offset", "latest_offset",
    },
    "KafkaTopicConfig": {
        "cluster_id", "topic_name", "name", "value", "is_default", "is_read_only", "is_sensitive",
        "source", "synonyms",
    },
    "KafkaBrokerConfig": {
        "cluster_id", "broker_id", "name", "value", "is_default", "is_read_only", "is_sensitive",
        "source", "synonyms",
    },
    "KafkaClusterConfig": {
        "cluster_id", "config_type", "name", "value", "is_default", "is_read_only",
        "is_sensitive", "source", "synonyms",
    },
}  # fmt: skip
"""Fields besides kind and metadata; of groups in test_v3_groups. Not served: acls."""
OURS = {"KafkaTopic": {"topic_id"}}
SOMETIMES: dict[str, set[str]] = {"KafkaTopicConfig": {"note"}}
"""Fields of ours that only some objects have: of a config without effect, why it is there."""


def objects(document: Any) -> Iterator[dict[str, Any]]:
    """Every object with a kind in an answer, lists left out."""
    if document["kind"].endswith("List"):
        assert set(document) == {"kind", "metadata", "data"}
        assert set(document["metadata"]) == {"self", "next"}
        yield from document["data"]
    else:
        yield document


def links(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        for name, value in document.items():
            if name in {"self", "related"}:
                yield value.removeprefix("http://localhost")
            else:
                yield from links(value)
    elif isinstance(document, list):
        for value in document:
            yield from links(value)


async def cluster_with_moves() -> FakeNode:
    node = FakeNode(brokers=3)
    await node.metadata.create_topic("t", partitions=3, replication_factor=2)
    await node.metadata.create_topic("u", partitions=1, replication_factor=1)
    before = node.metadata.image.topic("t").partitions[1].replicas
    added = next(BrokerId(one) for one in (1, 2, 3) if one not in before)
    await node.metadata.operations.reassign([Move("t", 1, (before[1], added))])
    return node


async def test_every_object_has_the_documented_fields_and_links_that_are_served() -> None:
    node = await cluster_with_moves()
    async with serving(V3_ROUTES, node=node) as server, RawPeer.connected(server.port) as peer:
        to_visit, seen, kinds = ["/v3/clusters"], set[str](), set[str]()
        while to_visit:
            path = to_visit.pop()
            if path in seen:
                continue
            seen.add(path)
            reply = await peer.request("GET", path)
            if reply.status == 404:
                assert path.endswith("/reassignment"), path
                continue
            assert reply.status == 200, path
            for one in objects(reply.json):
                kind = one["kind"]
                kinds.add(kind)
                fields = set(one) - {"kind", "metadata"}
                sometimes = SOMETIMES.get(kind, set())
                assert fields - sometimes == DOCUMENTED[kind] | OURS.get(kind, set()), kind
                assert set(one["metadata"]) == {"self", "resource_name"}
                assert one["metadata"]["resource_name"].startswith("crn:///kafka=fake-cluster")
            to_visit += links(reply.json)
        # Offsets have no link: their route is not among Confluent's relations.
        assert kinds == set(DOCUMENTED) - {"KafkaPartitionWithOffsets"}


async def test_moves_are_listed_for_the_cluster_a_topic_and_a_partition() -> None:
    node = await cluster_with_moves()
    row = node.metadata.image.topic("t").partitions[1]
    template = f"{V3}/topics/{{topic}}/partitions/{{partition}}/reassignment".replace(
        "-", "{cluster}"
    )
    async with serving(V3_ROUTES, node=node) as server, RawPeer.connected(server.port) as peer:

        async def get(path: str) -> Reply:
            return await peer.request("GET", f"{V3}/topics/{path}/reassignment")

        for path, count in (("-/partitions/-", 1), ("t/partitions/-", 1), ("u/partitions/-", 0)):
            listing = checked(await get(path), "get", template)
            assert listing["kind"] == "KafkaReassignmentList"
            assert listing["metadata"]["self"].endswith(f"/topics/{path}/reassignment")
            assert len(listing["data"]) == count
        one = checked(await get("t/partitions/1"), "get", template)
        assert (one["adding_replicas"], one["removing_replicas"]) == (
            list(row.adding),
            list(row.removing),
        )
        assert [one] == (await get("-/partitions/-")).json["data"]
        assert (await get("t/partitions/0")).error_code == 40400
        assert (await get("t/partitions/9")).error_code == 40402
        assert (await get("nope/partitions/-")).error_code == 40401
        assert (await get("-/partitions/0")).error_code == 40401


async def test_replicas_of_a_broker_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await cluster_with_moves()
    expected = {
        (topic.name, row.partition)
        for topic in node.metadata.image.topics_by_name.values()
        for row in topic.partitions
        if 2 in row.replicas
    }
    template = "/v3/clusters/{cluster}/brokers/{broker}/partition-replicas"
    path = f"{V3}/brokers/2/partition-replicas"
    async with serving(V3_ROUTES, node=node) as server, RawPeer.connected(server.port) as peer:
        for slice_size in (200, 1):
            monkeypatch.setattr(v3_listing, "OBJECTS_PER_SLICE", slice_size)
            listing = checked(await peer.request("GET", path), "get", template)
            assert listing["kind"] == "KafkaReplicaList"
            assert {one["broker_id"] for one in listing["data"]} == {2}
            found = {(one["topic_name"], one["partition_id"]) for one in listing["data"]}
            assert found == expected
        missing = await peer.request("GET", f"{V3}/brokers/9/partition-replicas")
        assert missing.error_code == 40400
        assert missing.json["message"] == "There is no broker '9'."


async def test_offsets_of_a_partition_are_those_that_can_be_read() -> None:
    async with data_node() as one:
        await one.peer.request("POST", "/topics/one", b'{"records":[{"value":1},{"value":2}]}')
        reply = await one.peer.request("GET", f"{V3}/topics/one/partitions/0/offset")
        assert set(reply.json) - {"kind", "metadata"} == DOCUMENTED["KafkaPartitionWithOffsets"]
        assert (reply.json["earliest_offset"], reply.json["latest_offset"]) == (0, 2)
        for path, code in (("one/partitions/1", 40402), ("nope/partitions/0", 40401)):
            reply = await one.peer.request("GET", f"{V3}/topics/{path}/offset")
            assert reply.error_code == code


async def create(peer: RawPeer, **body: Any) -> Reply:
    return await peer.request(
        "POST", f"{V3}/topics", json.dumps(body).encode(), Content_Type="application/json"
    )


async def test_replicas_may_be_assigned_at_creation() -> None:
    node = FakeNode(brokers=3)
    async with serving(V3_ROUTES, node=node) as server, RawPeer.connected(server.port) as peer:
        assigned = {"1": [2, 3], "0": [3, 1], "2": [1, 2]}
        dry = await create(peer, topic_name="t", replicas_assignments=assigned, validate_only=True)
        assert (dry.status, dry.json["partitions_count"], dry.json["replication_factor"]) == (
            200,
            3,
            2,
        )
        assert "t" not in node.metadata.image.topics_by_name
        made = await create(peer, topic_name="t", replicas_assignments=assigned)
        assert made.status == 201
        rows = node.metadata.image.topic("t").partitions
        assert [row.replicas for row in rows] == [(3, 1), (2, 3), (1, 2)]
        assert [row.leader for row in rows] == [3, 2, 1]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"replicas_assignments": {"0": [1], "2": [1]}}, 42201),
        ({"replicas_assignments": {"1": [1]}}, 42201),
        ({"replicas_assignments": {"x": [1]}}, 42201),
        ({"replicas_assignments": {"0": [1]}, "partitions_count": 1}, 42201),
        ({"replicas_assignments": {"0": [1]}, "replication_factor": 1}, 42201),
        ({"replicas_assignments": {"0": []}}, 42206),
        ({"replicas_assignments": {"0": [1, 1]}}, 42206),
        ({"replicas_assignments": {"0": [1, 2], "1": [1]}}, 42206),
        ({"replicas_assignments": {"0": [1, 9]}}, 42206),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_assignment_that_cannot_be_is_refused(
    more: dict[str, Any], code: int, validate_only: bool
) -> None:
    node = FakeNode(brokers=2)
    async with serving(V3_ROUTES, node=node) as server, RawPeer.connected(server.port) as peer:
        reply = await create(peer, topic_name="t", validate_only=validate_only, **more)
        assert reply.error_code == code
        assert "t" not in node.metadata.image.topics_by_name
