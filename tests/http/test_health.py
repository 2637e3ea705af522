"""A node without a controller serves its partitions, and is not ready."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from raftlog.broker.node import unready
from raftlog.record.errors import NO_CONTROLLER, NOT_READY
from tests.rest.test_app import post, running

from .fakes import FakeNode


def voter_of_three() -> FakeNode:
    node = FakeNode(brokers=3, voters=3)
    node.quorum.connect(2)
    node.quorum.connect(3)
    return node


async def test_lost_quorum_blocks_no_read_and_shows_in_ready() -> None:
    node = voter_of_three()
    await node.metadata.create_topic("t")
    async with running(node) as peer:
        assert (await peer.request("GET", "/ready")).json["status"] == "ready"
        node.quorum.lose_majority()
        reply = await peer.request("GET", "/ready")
        assert reply.error_code == NO_CONTROLLER.code
        assert "it reaches 1 of 3 voters, 2 are needed" in reply.json["message"]
        for path in ("/topics", "/brokers", "/v1/metadata", "/v1/quorum", "/v1/nodes", "/healthy"):
            assert (await peer.request("GET", path)).status == 200, path
        kept = await post(peer, "/v1/delete-records", '{"offsets":{"t":{"0":40}}}')
        assert kept.json["results"][0]["log_start_offset"] == 40
        node.quorum.leader_id = 2
        assert (await peer.request("GET", "/ready")).status == 200


async def test_starting_node_answers_nothing_but_what_it_waits_for() -> None:
    node = voter_of_three()
    node.not_ready = "The node is starting."
    async with running(node) as peer:
        for path in ("/ready", "/topics", "/v1/metadata", "/v1/cluster/settings"):
            reply = await peer.request("GET", path)
            assert (reply.error_code, reply.json["message"]) == (50304, "The node is starting.")
        for path in ("/v1/quorum", "/v1/nodes"):
            assert (await peer.request("GET", path)).status == 200, path


def test_starting_goes_before_having_no_controller() -> None:
    node = voter_of_three()
    node.quorum.lose_majority()
    node.not_ready = "The node is starting."
    error = unready(node.services)
    assert error is not None
    assert error.entry is NOT_READY


def test_elected_controller_is_ready_once_it_is_active() -> None:
    node = voter_of_three()
    assert unready(node.services) is None
    node.quorum.node_id = 9  # is_active compares with it: elected as 1, not active yet
    error = unready(node.services)
    assert error is not None
    assert "not active yet" in error.message


async def test_fenced_node_is_not_ready_and_serves_what_it_has() -> None:
    node = voter_of_three()
    node.metadata.register(1)
    async with running(node) as peer:
        reply = await peer.request("GET", "/ready")
        assert reply.error_code == NOT_READY.code
        assert "Node 1 is fenced: controller 1 has not heard from it" in reply.json["message"]
        assert (await peer.request("GET", "/topics")).status == 200
        node.metadata.unfence(1)
        assert (await peer.request("GET", "/ready")).status == 200


async def test_node_whose_replicas_lag_since_its_start_serves_and_is_not_ready() -> None:
    node = voter_of_three()
    node.catching_up = "2 replicas not in sync yet since the node's start: t-0, t-1."
    async with running(node) as peer:
        reply = await peer.request("GET", "/ready")
        assert (reply.error_code, reply.json["message"]) == (NOT_READY.code, node.catching_up)
        for path in ("/topics", "/healthy"):
            assert (await peer.request("GET", path)).status == 200, path
        node.catching_up = None
        assert (await peer.request("GET", "/ready")).status == 200


async def test_metrics_of_the_quorum() -> None:
    node = voter_of_three()
    node.metadata.register(3)
    async with running(node) as peer:
        body = (await peer.request("GET", "/metrics")).body.decode()
        node.quorum.lose_majority()
        without = (await peer.request("GET", "/metrics")).body.decode()

    def values(text: str) -> dict[str, float]:
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if not sample.labels
        }

    found, lost = values(body), values(without)
    prefix = "raftlog_quorum"
    assert {name.removeprefix(f"{prefix}_"): v for name, v in found.items() if prefix in name} == {
        "term": 7,
        "leader_id": 1,
        "is_leader": 1,
        "commit_index": 119,
        "applied_index": 118,
        "applied_lag": 1,
        "elections_total": 2,
        "fsync_seconds_count": 10,
        "fsync_seconds_sum": 0.5,
        "fsync_seconds_max": 0.25,
        "journal_bytes": 4096,
        "peers_connected": 2,
    }
    controller = "kafka_controller_kafkacontroller"
    assert (found["raftlog_ready"], lost["raftlog_ready"]) == (1, 0)
    assert (lost[f"{prefix}_leader_id"], lost[f"{prefix}_is_leader"]) == (-1, 0)
    assert found[f"{controller}_activecontrollercount"] == 1
    assert lost[f"{controller}_activecontrollercount"] == 0
    assert found[f"{controller}_activebrokercount"] == 2
    assert found[f"{controller}_fencedbrokercount"] == 1
