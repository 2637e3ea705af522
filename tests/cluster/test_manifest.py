from __future__ import annotations

import json

import pytest

from raftlog.cluster import manifest as manifests
from raftlog.cluster.errors import ClusterError
from raftlog.cluster.manifest import Manifest, Plan

CREATED = "2026-01-01T00:00:00+00:00"


def three(**chosen: object) -> Manifest:
    plan = Plan(**chosen)  # type: ignore[arg-type]  # names and types are the tests' own
    return manifests.new_manifest(plan, [9001, 9002, 9003], CREATED)


def arguments(manifest: Manifest, node_id: int, *, has_begun: bool = False) -> list[str]:
    return manifests.serve_arguments(
        manifest, manifest.node(node_id), "/d/node", "/d/secret", has_begun=has_begun
    )


def test_nodes_of_a_new_cluster_are_its_voters() -> None:
    made = three()
    assert made.voters == "1@127.0.0.1:9001,2@127.0.0.1:9002,3@127.0.0.1:9003"
    assert made.addresses == ("127.0.0.1:9001", "127.0.0.1:9002", "127.0.0.1:9003")
    words = arguments(made, 2)
    assert words[words.index("--voters") + 1] == made.voters
    assert words[words.index("--node-id") + 1] == "2"
    assert words[words.index("--listen") + 1] == "127.0.0.1:9002"
    assert "--join" not in words


def test_node_that_has_begun_is_started_from_its_directory_alone() -> None:
    words = arguments(three(flush="async", arguments=("--log-level", "warning")), 1, has_begun=True)
    assert words == ["--data-dir", "/d/node", "--flush", "async", "--log-level", "warning"]


def test_added_node_joins_by_the_addresses_of_all_others() -> None:
    grown, entry = manifests.with_new_node(three(), 9010)
    assert (entry.node_id, entry.port, entry.directory) == (4, 9010, "node-4")
    words = arguments(grown, 4)
    assert words[words.index("--join") + 1] == "127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003"
    assert "--voters" not in words


KAFKA_PORTS = (9101, 9102, 9103)


def three_with_kafka() -> Manifest:
    return manifests.with_kafka(three(), KAFKA_PORTS)


def test_kafka_listener_of_each_node_has_a_port_of_its_own() -> None:
    made = manifests.new_manifest(Plan(), [9001, 9002, 9003], CREATED, KAFKA_PORTS)
    assert made == three_with_kafka()
    assert made.kafka_address(made.node(2)) == "127.0.0.1:9102"
    for has_begun in (False, True):
        words = arguments(made, 2, has_begun=has_begun)
        assert words[words.index("--kafka-listen") + 1] == "127.0.0.1:9102"
    assert manifests.decoded(manifests.encoded(made), "f") == made
    grown, entry = manifests.with_new_node(made, 9004, 9104)
    assert grown.kafka_ports == (*KAFKA_PORTS, 9104)
    assert grown.kafka_address(entry) == "127.0.0.1:9104"


def test_listeners_that_ended_are_ended_in_the_nodes_memory_too() -> None:
    without = manifests.revised(three_with_kafka(), Plan(kafka=False))
    assert without.kafka_ports == ()
    words = arguments(without, 1, has_begun=True)
    assert words[words.index("--kafka-listen") + 1] == "none"
    assert manifests.revised(without, Plan()) == without
    assert manifests.with_kafka(without, KAFKA_PORTS) == three_with_kafka()
    # Nothing to forget where there has been none.
    assert manifests.revised(three(), Plan(kafka=False)) == three()


def test_manifest_without_kafka_ports_is_read_and_gets_them_on_request_only() -> None:
    """Such as earlier releases have written."""
    document = json.loads(manifests.encoded(three()))
    del document["kafka_ended"]
    for entry in document["nodes"]:
        del entry["kafka_port"]
    found = manifests.decoded(json.dumps(document).encode(), "f")
    assert found == three()
    assert "--kafka-listen" not in arguments(found, 1)
    assert not manifests.needs_kafka_ports(found, Plan())
    assert manifests.needs_kafka_ports(found, Plan(kafka=True))
    assert manifests.needs_kafka_ports(found, Plan(kafka_base_port=0))
    assert not manifests.needs_kafka_ports(three_with_kafka(), Plan(kafka=True))


def test_kafka_ports_follow_the_others() -> None:
    assert manifests.default_kafka_base_port(manifests.BASE_PORT_DEFAULT) == 9092
    assert manifests.default_kafka_base_port(65_500) < 65_500


def test_kafka_ports_do_not_change() -> None:
    made = three_with_kafka()
    assert manifests.revised(made, Plan(kafka=True, kafka_base_port=9101)) == made
    with pytest.raises(ClusterError, match="by the ports 9101, 9102, 9103") as caught:
        manifests.revised(made, Plan(kafka_base_port=9092))
    assert "--kafka-base-port" in (caught.value.hint or "")


def test_id_of_a_node_that_is_gone_is_not_given_again() -> None:
    grown, _ = manifests.with_new_node(three(), 9010)
    again, entry = manifests.with_new_node(manifests.without_node(grown, 4), 9011)
    assert entry.node_id == 5
    # The first voters all started with the same list, present or not.
    assert manifests.without_node(again, 1).voters == three().voters


def test_only_node_cannot_go() -> None:
    alone = manifests.new_manifest(Plan(), [9001], CREATED)
    with pytest.raises(ClusterError, match="only one"):
        manifests.without_node(alone, 1)


def test_number_of_nodes_is_bounded() -> None:
    full = manifests.new_manifest(Plan(), list(range(9001, 9001 + manifests.NODES_MAX)), CREATED)
    with pytest.raises(ClusterError, match="at most"):
        manifests.with_new_node(full, 9999)


def test_manifest_survives_its_file() -> None:
    made = manifests.with_stopped(three(flush="async"), 2, stopped=True)
    assert manifests.decoded(manifests.encoded(made), "f") == made


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"\xff", manifests.encoded(three()).replace(b"9001", b"99999")]
)
def test_damaged_manifest_is_refused_by_name(content: bytes) -> None:
    with pytest.raises(ClusterError, match=r"/x/cluster\.json"):
        manifests.decoded(content, "/x/cluster.json")


def test_manifest_of_a_newer_format_is_not_guessed_at() -> None:
    newer = manifests.encoded(three()).replace(b'"version": 1', b'"version": 2')
    with pytest.raises(ClusterError):
        manifests.decoded(newer, "f")


@pytest.mark.parametrize(
    ("plan", "word"),
    [
        (Plan(nodes=5), "add-node"),
        (Plan(host="10.0.0.1"), "--host"),
        (Plan(base_port=8082), "--base-port"),
    ],
)
def test_what_cannot_change_is_refused_with_what_to_do(plan: Plan, word: str) -> None:
    with pytest.raises(ClusterError) as caught:
        manifests.revised(three(), plan)
    assert word in (caught.value.hint or "")


def test_what_may_change_changes_and_the_rest_stays() -> None:
    made = three(flush="async", arguments=("--rack", "a"))
    assert manifests.revised(made, Plan()) == made
    assert manifests.revised(made, Plan(nodes=3, base_port=9001, host="127.0.0.1")) == made
    changed = manifests.revised(made, Plan(flush="sync", arguments=()))
    assert (changed.flush, changed.arguments, changed.nodes) == ("sync", (), made.nodes)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(nodes=0),
        Plan(nodes=manifests.NODES_MAX + 1),
        Plan(base_port=65_536),
        Plan(kafka_base_port=65_536),
        Plan(kafka=False, kafka_base_port=9092),
        Plan(arguments=("--data-dir", "/x")),
        Plan(arguments=("--kafka-listen", "0.0.0.0:1")),
        Plan(arguments=("--listen=0.0.0.0:1",)),
    ],
)
def test_impossible_plans_are_refused(plan: Plan) -> None:
    with pytest.raises(ClusterError):
        plan.check()


def test_stopped_node_is_remembered_and_named_last() -> None:
    stopped = manifests.with_stopped(three(), 1, stopped=True)
    assert stopped.node(1).stopped
    assert stopped.addresses == ("127.0.0.1:9002", "127.0.0.1:9003", "127.0.0.1:9001")
    with pytest.raises(ClusterError, match="no node 9"):
        manifests.with_stopped(stopped, 9, stopped=True)
