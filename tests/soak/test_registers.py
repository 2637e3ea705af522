"""The soak against a fake cluster: planted anomalies are found, and no others."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import NoLeaderError
from tests.bench.fakes import fake_cluster
from tests.soak.nemesis import KINDS, RECORD_GROUPS, REGISTER_GROUPS, Nemesis, Pace, endless_kinds
from tests.soak.registers import LeaderWatch, RegistersRun, availability, judge, soak
from tests.verification.register_history import Kind, Operation, Outcome

SOAK_S = 4.0
RATE = 200.0
QUICK = Pace(calm_s=(0.1, 0.2), down_s=(0.1, 0.1), pause_s=(0.1, 0.1))


def random_kinds() -> Iterator[str]:
    return endless_kinds(REGISTER_GROUPS, random.Random(1))


def test_a_linearizable_cluster_passes_under_kills_and_pauses(tmp_path: Path) -> None:
    with fake_cluster(tmp_path) as cluster:
        cluster.start()
        found = asyncio.run(
            soak(cluster, tmp_path, kinds=random_kinds(), seconds=SOAK_S, rate=RATE, seed=1)
        )
    assert found.anomalies == []
    assert found.faults
    assert all(fault.whole >= fault.healed > fault.struck for fault in found.faults)
    replayed = RegistersRun.replay(tmp_path)
    assert (replayed.history, replayed.anomalies) == (found.history, [])
    outcomes = {operation.outcome for operation in found.history}
    assert Outcome.OK in outcomes and len(outcomes) > 1
    share, _gap_s = availability(found.history)
    assert share > 0


def test_stale_reads_are_found(tmp_path: Path) -> None:
    with fake_cluster(tmp_path, "stale-reads") as cluster:
        cluster.start()
        found = asyncio.run(
            soak(cluster, tmp_path, kinds=random_kinds(), seconds=SOAK_S, rate=RATE, seed=1)
        )
    assert any("no order of these operations is possible" in text for text in found.anomalies)
    assert any("is before it in the log" in text for text in found.anomalies)
    assert judge(RegistersRun.replay(tmp_path).history)


def test_a_cluster_without_a_leader_fails_with_the_status_of_its_nodes(tmp_path: Path) -> None:
    with fake_cluster(tmp_path, "silent") as cluster:
        cluster.open()
        cluster.wait_answering()
        with pytest.raises(NoLeaderError, match="'leader_id': None"):
            cluster.wait_active(1.0)


def test_a_killed_leader_is_replaced_and_restarts_from_its_directory(tmp_path: Path) -> None:
    with fake_cluster(tmp_path) as cluster:
        cluster.start()
        assert cluster.leader() == 1
        cluster.kill(1)
        assert not cluster.nodes[1].is_running
        assert cluster.wait_active() == 2
        cluster.revive(1)
        assert cluster.wait_quiet() == 1


def test_a_node_that_ends_by_itself_is_an_anomaly(tmp_path: Path) -> None:
    with fake_cluster(tmp_path) as cluster:
        cluster.start()
        os.kill(cluster.nodes[2].pid, signal.SIGKILL)
        nemesis = Nemesis(cluster, (), random.Random(1), QUICK)
        fault = asyncio.run(nemesis.strike("kill controller"))
    (anomaly,) = nemesis.anomalies
    assert "node 2 has ended by itself" in anomaly
    assert fault.whole == 0


def test_given_kinds_strike_in_order_and_end_the_run(tmp_path: Path) -> None:
    kinds = ["kill controller", "pause quorum follower", "kill all"]
    with fake_cluster(tmp_path) as cluster:
        cluster.start()
        found = asyncio.run(
            soak(cluster, tmp_path, kinds=kinds, seconds=60.0, rate=RATE, seed=1, pace=QUICK)
        )
    assert found.anomalies == []
    assert [fault.kind for fault in found.faults] == kinds
    killed, paused, all_killed = found.faults
    assert killed.victims == (1,)
    assert paused.victims in {(2,), (3,)}
    assert all_killed.victims == (1, 2, 3)


def test_every_group_strikes_as_often_as_the_others() -> None:
    assert {kind for group in RECORD_GROUPS.values() for kind in group} <= set(KINDS)
    found = list(itertools.islice(endless_kinds(RECORD_GROUPS, random.Random(1)), 400))
    for group, kinds in RECORD_GROUPS.items():
        assert sum(kind in kinds for kind in found) == 100, group


def test_two_active_leaders_of_one_term_are_an_anomaly() -> None:
    watch = LeaderWatch({}, active_by_term={3: {1}, 4: {2, 3}, 5: {1}})
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
