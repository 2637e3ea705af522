"""Consumer instances on real nodes: any node serves them, and none of their nodes is theirs alone.

Each life of the cluster: an instance is created through one node, read through another, and its
coordinator is killed. No record is lost, the instance is still there, and so is its membership.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

from bench.cluster import Cluster, ClusterNode
from tests.integration.test_groups import PARTITIONS, fill

INSTANCE = "/consumers/g/instances/i"
TIMEOUT_S = 60.0


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three voters with an active leader, all ready."""
    with Cluster(tmp_path_factory.mktemp("data") / "cluster", 3) as processes:
        processes.start()
        yield processes


class Reader:
    """A client of the instance, which goes on after errors."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.errors: list[str] = []

    def read(self, node: ClusterNode) -> None:
        try:
            records = node.request("GET", f"{INSTANCE}/records?timeout=1000")
        except (HTTPError, URLError, OSError) as error:
            text = error.read().decode() if isinstance(error, HTTPError) else str(error)
            self.errors.append(text)
            return
        self.values += [int(record["value"]) for record in records]

    def read_until(self, count: int, *nodes: ClusterNode) -> None:
        """Read through these nodes in turn until so many different values came."""
        deadline = time.monotonic() + TIMEOUT_S
        while len(set(self.values)) < count:
            assert time.monotonic() < deadline, (len(set(self.values)), self.errors[-3:])
            for node in nodes:
                self.read(node)


def produce(cluster: Cluster, first: int, count: int) -> None:
    asyncio.run(fill(cluster.servers, "t", first, count))


def view(node: ClusterNode) -> Any:
    return node.request("GET", "/v1/groups/g")


def retried(node: ClusterNode, method: str, path: str, body: Any = None) -> Any:
    """The answer, once the group has a coordinator again."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return node.request(method, path, body)
        except HTTPError as error:
            if error.code != 503 or time.monotonic() > deadline:
                raise


@pytest.mark.parametrize(
    "commits",
    [
        pytest.param(True, id="auto commit"),
        # Another cluster, and the same fault.
        pytest.param(False, id="commits by itself", marks=pytest.mark.full),
    ],
)
def test_a_killed_coordinator_costs_no_record_and_no_instance(
    cluster: Cluster, commits: bool
) -> None:
    nodes = list(cluster.nodes.values())
    nodes[0].create_topic("t", PARTITIONS)
    created = nodes[0].request(
        "POST",
        "/consumers/g",
        {
            "name": "i",
            "format": "json",
            "auto.offset.reset": "earliest",
            "auto.commit.enable": commits,
            "auto.commit.interval.ms": 100,
        },
    )
    assert created["instance_id"] == "i"
    nodes[1].request("POST", f"{INSTANCE}/subscription", {"topics": ["t"]})
    produce(cluster, 0, 300)
    reader = Reader()
    reader.read_until(300, nodes[1], nodes[2])
    assert sorted(reader.values) == list(range(300)), "no fault, hence nothing twice"
    if not commits:
        nodes[0].request("POST", f"{INSTANCE}/offsets")
    produce(cluster, 300, 300)
    reader.read(nodes[0])
    before = view(nodes[0])

    coordinator = cluster.nodes[before["coordinator"]]
    survivors = [node for node in nodes if node is not coordinator]
    coordinator.kill()
    produce(cluster, 600, 300)
    reader.read_until(900, *survivors)

    for node in survivors:
        subscribed = retried(node, "GET", f"{INSTANCE}/subscription")
        assert subscribed == {"topics": ["t"]}
        assigned = retried(node, "GET", f"{INSTANCE}/assignments")["partitions"]
        assert len(assigned) == PARTITIONS
    after = view(survivors[0])
    assert after["coordinator"] != before["coordinator"]
    assert [one["member_id"] for one in after["members"]] == [
        one["member_id"] for one in before["members"]
    ]
    assert set(reader.values) == set(range(900))

    retried(survivors[0], "POST", f"{INSTANCE}/offsets")
    found = view(survivors[1])["offsets"]
    assert [one["offset"] for one in found] == [150] * PARTITIONS
    survivors[1].request("DELETE", INSTANCE)
    assert view(survivors[0])["members"] == []
