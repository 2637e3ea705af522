"""`raftlog topic describe`, from the leaders' reports of their followers."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from raftlog_client import Admin, ConnectionLostError, ServerError

from raftlog.api.cluster import PartitionStatus, PartitionStatusList, ReplicaStatus
from raftlog.record.errors import UNAUTHORIZED
from tests.cli.conftest import Run

ANSWER = {
    "partitions": [
        {
            "partition": 0,
            "elr": [3],
            "replicas": [
                {"broker_id": 2, "log_end_offset": 90, "lag": 10},
                {"broker_id": 3, "log_end_offset": None, "lag": None},
            ],
            "of_a_newer_release": 1,
        },
        {"partition": 1},
    ]
}


def told(monkeypatch: pytest.MonkeyPatch, outcome: object) -> None:
    """Let the nodes answer so for replicas; and partition 0 have three."""

    async def describe_replicas(_: Admin, __: str) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(Admin, "describe_replicas", describe_replicas)


def with_followers(document: dict[str, Any]) -> dict[str, Any]:
    for partition in document["partitions"]:
        partition["replicas"] = [1, 2, 3]
    return document


def test_lag_and_eligible_replicas_are_shown_as_far_as_known(
    run: Run, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raftlog.cli.topic import describe as topic_describe

    whole = topic_describe.topic_document
    monkeypatch.setattr(
        topic_describe, "topic_document", lambda description: with_followers(whole(description))
    )
    states = {
        state.partition: state for state in msgspec.convert(ANSWER, PartitionStatusList).partitions
    }
    told(monkeypatch, states)
    rows = [line.split() for line in run("topic", "describe", topic).stdout.splitlines()]
    # One follower was heard of.
    assert rows.pop(1)[:5] == ["1", "of", "3", "replicas", "open:"]
    assert rows[1] == [
        "PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN-SYNC", "ELR", "LAG", "BEGINNING", "END",
    ]  # fmt: skip
    assert rows[2][5:] == ["3", "2:10", "3:-", "0", "0"]
    assert rows[3][5:] == ["-", "-", "0", "0"]
    document = json.loads(run("topic", "describe", topic, "--format", "json").stdout)
    assert document["partitions"][0]["elr"] == [3]
    assert document["partitions"][0]["followers"] == [
        {"node_id": 2, "log_end_offset": 90, "lag": 10},
        {"node_id": 3, "log_end_offset": None, "lag": None},
    ]
    assert document["partitions"][1]["elr"] is None


def test_leaders_that_do_not_answer_hide_nothing_else(
    run: Run, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, ConnectionLostError("gone", outcome_unknown=False))
    assert len(run("topic", "describe", topic).stdout.splitlines()) >= 5
    told(monkeypatch, ServerError(UNAUTHORIZED))
    run("topic", "describe", topic, code=1)


def test_one_replica_has_no_followers(run: Run, topic: str) -> None:
    document = json.loads(run("topic", "describe", topic, "--format", "json").stdout)
    assert [partition["followers"] for partition in document["partitions"]] == [[], [], []]
    assert PartitionStatus(0).replicas == ()
    assert ReplicaStatus(1).lag is None


def nodes_say(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    """Let the node describe itself with these values."""
    describe = Admin.describe_each_node

    async def described(admin: Admin) -> Any:
        found = await describe(admin)
        return {number: msgspec.structs.replace(one, **values) for number, one in found.items()}

    monkeypatch.setattr(Admin, "describe_each_node", described)


def test_progress_of_a_creation_and_wrong_clocks_are_shown(
    run: Run, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = json.loads(run("topic", "describe", topic, "--format", "json").stdout)
    assert (whole["replicas"], whole["replicas_open"], whole["clocks"]) == (3, 3, {})
    assert "open" not in run("topic", "describe", topic).stdout
    told(monkeypatch, {0: PartitionStatus(0, 1, 0, (ReplicaStatus(1, True, 0, 0),))})
    nodes_say(monkeypatch, clock_skew_ms=-3_600_000)
    lines = run("topic", "describe", topic).stdout.splitlines()
    assert lines[1] == "  1 of 3 replicas open: the others are being opened, or out of reach"
    assert lines[2] == (
        "  warning: the clock of node 1 is 3,600 s behind the cluster time, the median of the "
        "nodes' clocks: it keeps records longer; set the clock"
    )
    document = json.loads(run("topic", "describe", topic, "--format", "json").stdout)
    assert (document["replicas"], document["replicas_open"]) == (3, 1)
    assert document["clocks"] == {"1": -3_600_000}


def test_health_counts_open_replicas_and_warns_of_wrong_clocks(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes_say(monkeypatch, clock_skew_ms=600_001)
    lines = run("cluster", "health").stdout.splitlines()
    assert lines == [
        "healthy",
        "  warning: the clock of node 1 is 600 s ahead of the cluster time, the median of the "
        "nodes' clocks: it keeps records longer; set the clock",
    ]
    nodes_say(monkeypatch, clock_skew_ms=600_000, opening=200, held=1_000, replicas_open=799)
    lines = run("cluster", "health", code=1).stdout.splitlines()
    assert lines == ["not healthy", "  node 1: 799 of 1,000 replicas open, 200 are being opened"]
    found = json.loads(run("cluster", "health", "--format", "json", code=1).stdout)
    assert found["opening"] == {"1": {"replicas": 1_000, "open": 799, "opening": 200}}
