"""`raftlog bench` on a real node, with small loads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from raftlog_client import Admin, RaftlogClientError

from tests.cli.conftest import Run

LATENCY_FIELDS = ("Avg", "Max", "50pct", "75pct", "95pct", "99pct", "99.9pct", "99.99pct")


def measured(run: Run, *words: str) -> Any:
    """The figures of a run; the topics and groups that it made are gone."""
    before = made(run)
    done = run("bench", *words, "--format", "json")
    assert made(run) == before
    assert "created topic raftlog-bench-" in done.stderr
    assert "deleted topic raftlog-bench-" in done.stderr
    return json.loads(done.stdout)


def made(run: Run) -> list[str]:
    names = [one["name"] for one in json.loads(run("topic", "list", "--format", "json").stdout)]
    groups = json.loads(run("group", "list", "--format", "json").stdout)["groups"]
    every = [*names, *(one["group"] for one in groups)]
    return sorted(name for name in every if name.startswith("raftlog-bench-"))


def check_latency(document: Any, prefix: str) -> None:
    values = [document[f"{prefix}{name}"] for name in LATENCY_FIELDS]
    assert all(value > 0 for value in values)
    assert document[f"{prefix}50pct"] <= document[f"{prefix}99pct"] <= document[f"{prefix}Max"]


def test_produce_at_full_speed(run: Run) -> None:
    document = measured(run, "produce", "--records", "50000", "--record-bytes", "200")
    assert document["workload"] == "produce"
    assert (document["messageSize"], document["partitions"]) == (200, 6)
    assert document["publishErrors"] == 0
    assert document["publishRateMB"] == pytest.approx(document["publishRate"] * 200 / 1e6)
    check_latency(document, "publishLatency")


def test_produce_at_a_rate_counts_from_the_due_time(run: Run) -> None:
    document = measured(run, "produce", "--rate", "200", "--seconds", "0.5")
    assert (document["rate"], document["publishErrors"]) == (200, 0)
    assert document["publishRate"] == 200
    check_latency(document, "publishLatency")
    assert "endToEndLatencyAvg" not in document


@pytest.mark.parametrize("how", [(), ("--in-group",)])
def test_consume_reads_what_it_wrote(run: Run, how: tuple[str, ...]) -> None:
    document = measured(run, "consume", "--records", "30000", *how)
    assert (document["messageSize"], document["inGroup"]) == (100, bool(how))
    assert document["consumeRate"] > 0


def test_end_to_end(run: Run) -> None:
    document = measured(run, "end-to-end", "--rate", "200", "--seconds", "0.5", "-p", "2")
    assert (document["partitions"], document["publishErrors"]) == (2, 0)
    check_latency(document, "endToEndLatency")
    # No record arrives before it was written.
    assert document["endToEndLatencyMax"] > 0


def test_groups(run: Run) -> None:
    document = measured(
        run, "groups", "--members", "3", "-p", "6", "--trials", "2", "--clients", "4",
        "--seconds", "0.5",
    )  # fmt: skip
    for prefix in ("joinLatency", "leaveLatency", "loneCommitLatency", "commitLatency"):
        check_latency(document, prefix)
    assert document["commitRate"] > 0
    assert document["keptPartitionGap"] > 0


def test_transactions(run: Run) -> None:
    document = measured(run, "transactions", "--producers", "3", "--seconds", "0.5")
    check_latency(document, "loneTransactionLatency")
    check_latency(document, "transactionLatency")
    assert document["transactionRate"] > 0
    assert (document["records"], document["spread"], document["producers"]) == (10, 3, 3)


def test_topic_that_is_given_stays(run: Run, topic: str) -> None:
    done = run("bench", "produce", "--topic", topic, "--records", "10")
    assert done.stderr == ""
    assert done.stdout.startswith("produce: messageSize 100, partitions 3, records 10, ")
    assert len(run("topic", "consume", topic).stdout.splitlines()) >= 11
    read = run("bench", "consume", "--topic", topic)
    assert "records/s" in read.stdout


def test_topic_is_deleted_after_a_failure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = made(run)
    run("bench", "groups", "--members", "5", "-p", "2", code=1)
    assert made(run) == before

    async def fail(_: Admin, __: str) -> None:
        raise RaftlogClientError("no way")

    monkeypatch.setattr(Admin, "delete_topic", fail)
    left = run("bench", "transactions", "--spread", "5", "-p", "2", code=1)
    assert "is left: no way" in left.stderr
    assert "--spread 5 needs a topic of as many partitions" in left.stderr


def test_runs_without_bound_are_refused(run: Run) -> None:
    refused = run("bench", "end-to-end", "--rate", "100000", "--seconds", "3600", code=2)
    assert "more than 5,000,000 records" in refused.stderr
    run("bench", "produce", "--rate", "10", "--compression", "zstd", code=2)
