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
    from raftlog.cli import topic_describe

    whole = topic_describe.topic_document
    monkeypatch.setattr(
        topic_describe, "topic_document", lambda description: with_followers(whole(description))
    )
    states = {
        state.partition: state for state in msgspec.convert(ANSWER, PartitionStatusList).partitions
    }
    told(monkeypatch, states)
    rows = [line.split() for line in run("topic", "describe", topic).stdout.splitlines()]
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
