"""The soak against a fake cluster: it must find what is wrong, and only that."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from bench.cluster_processes import NoLeaderError
from bench.nemesis import Fault, FaultKind, Nemesis, Plan, Target, Watch
from bench.quorum_soak import availability, judge, soak
from tests.bench.fakes import fake_cluster
from tests.verification.register_history import Kind, Operation, Outcome, read_history

SOAK_S = 4.0


def test_a_linearizable_cluster_passes_under_kills_and_pauses(tmp_path: Path) -> None:
    with fake_cluster(tmp_path) as cluster:
        cluster.start()
        found = asyncio.run(soak(cluster, SOAK_S, tmp_path / "history", seed=1))
    assert found.anomalies == []
    assert found.faults
    assert len(found.recovery_s) == len(found.faults)
    assert list(read_history(tmp_path / "history")) == found.history
    outcomes = {operation.outcome for operation in found.history}
    assert Outcome.OK in outcomes and len(outcomes) > 1
    share, _gap_s = availability(found.history)
    assert share > 0


def test_stale_reads_are_found(tmp_path: Path) -> None:
    with fake_cluster(tmp_path, "stale-reads") as cluster:
        cluster.start()
        found = asyncio.run(soak(cluster, SOAK_S, tmp_path / "history", seed=1))
    assert any("no order of these operations is possible" in text for text in found.anomalies)
    assert any("is before it in the log" in text for text in found.anomalies)
    assert judge(list(read_history(tmp_path / "history")))


def test_a_cluster_that_never_has_a_leader_is_told_with_what_its_nodes_said(
    tmp_path: Path,
) -> None:
    with fake_cluster(tmp_path, "silent") as cluster:
        for node in cluster.nodes.values():
            cluster.directory.mkdir(exist_ok=True)
            node.launch()
        with pytest.raises(NoLeaderError, match="'leader_id': None"):
            cluster.wait_active(1.0)


def test_a_leader_that_was_killed_is_replaced_and_restarts_from_its_directory(
    tmp_path: Path,
) -> None:
    with fake_cluster(tmp_path) as cluster:
        cluster.start()
        assert cluster.leader() == 1
        cluster.kill(1)
        assert cluster.wait_active() == 2
        cluster.restart(1)
        cluster.nodes[1].wait_ready()
        assert cluster.wait_quiet() == 1


def test_a_node_that_ends_by_itself_is_an_anomaly(tmp_path: Path) -> None:
    with fake_cluster(tmp_path) as cluster:
        cluster.start()
        cluster.nodes[2].process.kill()
        cluster.nodes[2].process.wait()
        nemesis = Nemesis(cluster, random.Random(1))
        asyncio.run(nemesis.apply(Fault(FaultKind.KILL, (1,), 0.0)))
    (anomaly,) = nemesis.anomalies
    assert "node 2 has ended by itself" in anomaly
    assert nemesis.recovery_s == []


def test_a_plan_is_carried_out_in_order_and_ends_the_run(tmp_path: Path) -> None:
    plan = [
        Plan(FaultKind.KILL, Target.LEADER, 0.1),
        Plan(FaultKind.PAUSE, Target.FOLLOWER, 0.1),
        Plan(FaultKind.KILL, Target.ALL, 0.1),
    ]
    with fake_cluster(tmp_path) as cluster:
        cluster.start()
        found = asyncio.run(soak(cluster, 60.0, tmp_path / "history", seed=1, plan=plan))
    assert found.anomalies == []
    killed, paused, all_killed = found.faults
    assert killed == Fault(FaultKind.KILL, (1,), 0.1)
    assert paused.kind is FaultKind.PAUSE and paused.node_ids in {(2,), (3,)}
    assert all_killed.node_ids == (1, 2, 3)


def test_two_active_leaders_of_one_term_are_an_anomaly() -> None:
    watch = Watch({}, active_by_term={3: {1}, 4: {2, 3}, 5: {1}})
    assert watch.elections == 3
    assert watch.anomalies() == ["Nodes [2, 3] were all the active leader of term 4."]


def test_availability_counts_windows_with_an_acknowledged_write() -> None:
    def write(second: float, outcome: Outcome) -> Operation:
        time_ns = int(second * 1e9)
        return Operation(
            process=1,
            kind=Kind.WRITE,
            key="x",
            value=1,
            invoked_ns=time_ns,
            returned_ns=time_ns,
            outcome=outcome,
        )

    history = [
        write(0.0, Outcome.OK),
        write(0.1, Outcome.OK),
        write(0.7, Outcome.UNKNOWN),
        write(1.2, Outcome.FAIL),
        write(1.9, Outcome.OK),
    ]
    share, gap_s = availability(history)
    assert share == 0.5
    assert gap_s == pytest.approx(1.8)
