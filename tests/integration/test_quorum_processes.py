"""Clusters of real processes: killed, paused, restarted, joined; and nodes that must stay outside.

The long version, with random faults for minutes, is `scripts/soak --workload registers`.
"""

from __future__ import annotations

import asyncio
import shutil
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench.cluster import Cluster
from bench.node import LoneNode, MeasuredNode
from raftlog.cli.main import cli
from tests.processes import make_whole
from tests.soak.nemesis import Pace
from tests.soak.registers import soak
from tests.verification.register_history import Kind, Outcome
from tests.waiting import wait_for_log, wait_until

FAULTS = ["kill controller", "pause controller", "kill quorum follower"]
PACE = Pace(calm_s=(0.5, 2.0), down_s=(1.0, 1.0), pause_s=(2.0, 2.0))
SECRET_VARIABLE = "RAFTLOG_CLUSTER_SECRET"
SETTINGS = "/v1/cluster/settings"
FRESH = f"{SETTINGS}?fresh=true"


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three voters; tests use `cluster`. The tests change the settings of the whole cluster."""
    with Cluster(tmp_path_factory.mktemp("quorum") / "cluster", 3) as processes:
        processes.start()
        yield processes


@pytest.fixture
def cluster(processes: Cluster) -> Cluster:
    """Three voters with an active leader, all ready."""
    make_whole(processes)
    return processes


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three voters that a test does not leave as it found them."""
    with Cluster(tmp_path / "cluster", 3) as processes:
        processes.start()
        yield processes


@pytest.fixture
def strangers() -> Iterator[list[LoneNode]]:
    """Processes outside the cluster, ended with the test."""
    started: list[LoneNode] = []
    yield started
    for node in started:
        node.kill()


def stranger_of(
    cluster: Cluster,
    directory: Path,
    node_id: int,
    *arguments: str,
    secret: str | None = None,
) -> LoneNode:
    """A node unknown to the cluster's manager, with the cluster's secret."""
    return LoneNode(
        directory,
        "sync",
        arguments=("--node-id", str(node_id), *arguments),
        environment={SECRET_VARIABLE: secret or cluster.secret},
    )


def set_value(node: MeasuredNode, name: str, value: int) -> None:
    node.request("PUT", SETTINGS, {"values": {name: str(value)}})


def fresh_values(node: MeasuredNode) -> dict[str, str]:
    values: dict[str, str] = node.request("GET", FRESH)["values"]
    return values


def members(cluster: Cluster, node_id: int, role: str) -> list[int]:
    """Voters or observers, as one node sees them."""
    view: Any = cluster.quorum(node_id)
    return [] if view is None else sorted(member["node_id"] for member in view[role])


def wait_for_voters(cluster: Cluster, node_id: int, expected: list[int]) -> None:
    wait_until(
        lambda: members(cluster, node_id, "voters") == expected,
        f"voters {expected} at node {node_id}",
    )


def is_ready(node: MeasuredNode) -> bool:
    try:
        node.request("GET", "/ready", timeout_s=2)
    except (urllib.error.URLError, OSError):
        return False
    return True


@pytest.mark.full  # histories of the simulator have these faults
def test_kills_and_pauses_leave_a_linearizable_history(cluster: Cluster, tmp_path: Path) -> None:
    found = asyncio.run(
        soak(cluster, tmp_path, kinds=FAULTS, seconds=60.0, rate=200.0, seed=3, pace=PACE)
    )
    assert found.anomalies == [], cluster.log_ends()
    assert [fault.kind for fault in found.faults] == FAULTS
    assert found.elections >= 1
    acknowledged = [
        operation
        for operation in found.history
        if operation.outcome is Outcome.OK and operation.index is not None
    ]
    assert {operation.kind for operation in acknowledged} == {Kind.READ, Kind.WRITE}
    assert {operation.node for operation in acknowledged} == {1, 2, 3}


def test_a_cluster_killed_as_a_whole_restarts_from_its_data_directories(
    cluster: Cluster,
) -> None:
    before = cluster.quorum(1)
    assert before is not None
    set_value(cluster.nodes[2], "retention.ms", 123_456)
    cluster.kill(1, 2, 3)
    cluster.restart(1, 2, 3)
    cluster.wait_active()
    for node in cluster.nodes.values():
        node.wait_ready()
        assert fresh_values(node)["retention.ms"] == "123456"
    after = cluster.quorum(1)
    assert after is not None
    assert after["cluster_id"] == before["cluster_id"]
    assert after["term"] > before["term"]


def test_two_of_three_go_on_and_one_alone_changes_nothing(cluster: Cluster) -> None:
    leader = cluster.wait_active()
    first, second = sorted(set(cluster.nodes) - {leader})
    cluster.kill(leader)
    cluster.wait_active()
    set_value(cluster.nodes[first], "retention.ms", 1_001)
    cluster.kill(second)
    survivor = cluster.nodes[first]
    with pytest.raises((urllib.error.HTTPError, TimeoutError)):
        survivor.request("PUT", SETTINGS, {"values": {"retention.ms": "1002"}}, timeout_s=5)
    with pytest.raises((urllib.error.HTTPError, TimeoutError)):
        survivor.request("GET", FRESH, timeout_s=5)
    cluster.restart(leader, second)
    cluster.wait_active()
    # The isolated node's write was never acknowledged: applied or not, both are right.
    value = wait_until(lambda: fresh_values(survivor).get("retention.ms"), "fresh read")
    assert value in {"1001", "1002"}


@pytest.mark.full  # another cluster; simulation/test_cluster_voters has the steps
def test_a_new_node_joins_as_observer_gets_a_vote_and_gives_it_back(
    own_cluster: Cluster,
) -> None:
    set_value(own_cluster.nodes[1], "retention.ms", 4_321)
    fourth = own_cluster.join()
    assert fresh_values(fourth)["retention.ms"] == "4321"
    wait_until(lambda: members(own_cluster, 1, "observers") == [4], "observer 4")
    nodes = fourth.request("GET", "/v1/nodes")["nodes"]
    assert {node["node_id"]: node["is_voter"] for node in nodes} == {
        1: True,
        2: True,
        3: True,
        4: False,
    }
    fourth.request("POST", "/v1/quorum/voters", {"node_id": 4})
    for node_id in own_cluster.nodes:
        wait_for_voters(own_cluster, node_id, [1, 2, 3, 4])
    own_cluster.kill(4)
    own_cluster.revive(4)
    own_cluster.wait_quiet()
    own_cluster.nodes[2].request("DELETE", "/v1/quorum/voters/4", None)
    for node_id in own_cluster.nodes:
        wait_for_voters(own_cluster, node_id, [1, 2, 3])
    assert fresh_values(fourth)["retention.ms"] == "4321"


def test_leadership_moves_on_request(cluster: Cluster) -> None:
    leader = cluster.wait_active()
    other = next(node_id for node_id in sorted(cluster.nodes) if node_id != leader)
    cluster.nodes[leader].request("POST", "/v1/quorum/transfer", {"node_id": other})
    wait_until(lambda: cluster.leader() == other, f"leader {other}")


def test_a_node_with_another_secret_stays_outside_and_says_why(
    cluster: Cluster, strangers: list[LoneNode], tmp_path: Path
) -> None:
    join = ("--join", cluster.nodes[1].address)
    secret = "not the secret of this cluster"
    stranger = stranger_of(cluster, tmp_path / "stranger", 9, *join, secret=secret)
    strangers.append(stranger)
    stranger.launch()
    wait_for_log(stranger, "secret")
    assert not is_ready(stranger)
    assert members(cluster, 1, "observers") == []
    assert cluster.secret not in stranger.log.read_text()
    assert "not the secret of this cluster" not in stranger.log.read_text()


def test_a_second_node_of_a_known_id_stays_outside_and_says_why(
    cluster: Cluster, strangers: list[LoneNode], tmp_path: Path
) -> None:
    join = ("--join", cluster.nodes[1].address)
    stranger = stranger_of(cluster, tmp_path / "second-node2", 2, *join)
    strangers.append(stranger)
    stranger.launch()
    wait_for_log(stranger, "node id 2 is in use twice")
    assert not is_ready(stranger)
    set_value(cluster.nodes[2], "retention.ms", 5_555)


@pytest.mark.full  # another cluster; simulation/test_cluster_strangers has the case
def test_a_node_of_another_cluster_stays_outside_and_both_say_why(
    own_cluster: Cluster, strangers: list[LoneNode], tmp_path: Path
) -> None:
    alone = stranger_of(own_cluster, tmp_path / "other-cluster", 1)
    strangers.append(alone)
    alone.start()
    # At the address of node 1 the others now reach node 1 of the other cluster.
    alone.move_to(own_cluster.nodes[1].port)
    own_cluster.kill(1)
    alone.launch()
    wait_for_log(own_cluster.nodes[2], "cluster", "node 1")
    own_cluster.wait_active()
    set_value(own_cluster.nodes[2], "retention.ms", 6_666)
    assert "retention.ms" not in fresh_values(alone)


@pytest.mark.full  # another cluster; simulation/test_cluster_strangers has the case
def test_a_wiped_disk_is_refused_and_the_others_go_on(own_cluster: Cluster) -> None:
    wiped = own_cluster.nodes[3]
    own_cluster.kill(3)
    shutil.rmtree(wiped.data_dir)
    wiped.relaunch()
    wait_for_log(wiped, "node 3", "data directory")
    assert not is_ready(wiped)
    own_cluster.wait_active()
    set_value(own_cluster.nodes[1], "retention.ms", 7_777)
    assert fresh_values(own_cluster.nodes[2])["retention.ms"] == "7777"
    view = own_cluster.quorum(1)
    assert view is not None
    assert [member["connected"] for member in view["voters"] if member["node_id"] == 3] == [False]


def test_a_lost_disk_is_replaced_by_the_command_in_its_log(
    own_cluster: Cluster, strangers: list[LoneNode], tmp_path: Path
) -> None:
    def raftlog(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(
            cli, words, env={"RAFTLOG_SERVERS": own_cluster.nodes[leader].address}
        )
        assert done.exit_code == code, done.output
        return done.output

    leader = own_cluster.wait_active()
    wiped, other = sorted(set(own_cluster.nodes) - {leader})
    node = own_cluster.nodes[wiped]
    raftlog("topic", "create", "t", "-p", "6", "-r", "3")
    for number in range(6):
        node.request("POST", "/topics/t", {"records": [{"value": number, "partition": number}]})
    own_cluster.kill(wiped)
    shutil.rmtree(node.data_dir)
    node.relaunch()
    wait_for_log(node, f"`raftlog serve --replace {wiped} --join …`")
    assert not is_ready(node)
    node.kill()

    # The manager would start it with the options of its first start.
    addresses = ",".join(own_cluster.nodes[each].address for each in (leader, other))
    back = stranger_of(
        own_cluster, tmp_path / "back", wiped, "--replace", str(wiped), "--join", addresses
    )
    strangers.append(back)
    back.start()
    for node_id in (leader, other):
        wait_for_voters(own_cluster, node_id, [1, 2, 3])
    assert raftlog("cluster", "health") == "healthy\n"
    assert (back.data_dir / "directory.json").exists()
    # Its vote and its replicas count: another node may go.
    own_cluster.kill(other)
    for number in range(6):
        back.request("POST", "/topics/t", {"records": [{"value": number, "partition": number}]})
    set_value(back, "retention.ms", 8_888)


def test_a_node_that_is_alive_is_not_replaced(
    cluster: Cluster, strangers: list[LoneNode], tmp_path: Path
) -> None:
    arguments = ("--replace", "3", "--join", cluster.servers)
    second = stranger_of(cluster, tmp_path / "second", 3, *arguments)
    strangers.append(second)
    second.launch()
    wait_for_log(second, "node 3 is alive, so it cannot be replaced")
    assert members(cluster, 1, "voters") == [1, 2, 3]
    assert is_ready(cluster.nodes[3])
