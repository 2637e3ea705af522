"""Kafka's clients while a coordinator is killed and a producer becomes a zombie.

The long version, with random faults for minutes, is `scripts/soak --workload kafka`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cluster import Cluster, run_workload
from tests.soak.kafka import KafkaRun, is_history, soak
from tests.soak.nemesis import Pace

FAULTS = ("kill coordinator", "zombie client")
PACE = Pace(calm_s=(1.0, 1.0), down_s=(0.2, 0.2), pause_s=(1.0, 1.0))


@pytest.mark.full  # a soak of half a minute; test_kafka_gateway kills a leader
def test_kafka_clients_lose_and_double_nothing_under_faults(tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.mkdir()
    with Cluster(tmp_path / "cluster", 3, kafka=True) as processes:
        processes.start()
        processes.wait_quiet()
        run = run_workload(
            soak(
                processes,
                history,
                kinds=FAULTS,
                seconds=60.0,
                every_s=0.0,
                rate=200.0,
                seed=1,
                pace=PACE,
                log=lambda _text: None,
            )
        )
    assert run.anomalies == []
    assert [fault.kind for fault in run.faults] == list(FAULTS)
    assert run.verdict.fenced == 1
    assert run.writes.acknowledged > 100
    assert run.verdict.processed > 0
    # Both isolation levels by both clients, and three replicas.
    assert len(run.verdict.final_records) == 7
    run.save(history)
    assert is_history(history)
    again = KafkaRun.replay(history)
    assert (again.anomalies, again.verdict.records) == ([], run.verdict.records)
