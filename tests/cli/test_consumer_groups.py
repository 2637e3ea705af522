"""`raftlog group`, and reading in a group, on a real node."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from raftlog_client import Admin

from raftlog.api.groups import (
    AssignedPartitions,
    GroupDescription,
    GroupList,
    GroupMember,
    GroupOffset,
)
from tests.cli.conftest import Run


@pytest.fixture
def group() -> str:
    return f"group-{uuid4().hex}"


@pytest.fixture
def consumed(run: Run, produce: Run, topic: str, group: str) -> str:
    """A group that has read six of nine records: all of two partitions."""
    for partition in range(3):
        produce(topic, "a\nb\nc\n", "--partition", str(partition))
    read = run("topic", "consume", topic, "--group", group, "--count", "6")
    assert read.stdout.split() == ["a", "b", "c", "a", "b", "c"]
    return group


def described(run: Run, group: str) -> Any:
    return json.loads(run("group", "describe", group, "--format", "json").stdout)


def offsets(run: Run, group: str) -> dict[int, int]:
    rows = described(run, group)["offsets"]
    return {row["partition"]: row["offset"] for row in rows if row["offset"] >= 0}


def test_group_goes_on_where_it_stopped(run: Run, topic: str, consumed: str) -> None:
    rest = run("topic", "consume", topic, "--group", consumed)
    assert rest.stdout.split() == ["a", "b", "c"]
    assert run("topic", "consume", topic, "--group", consumed).stdout == ""
    assert offsets(run, consumed) == {0: 3, 1: 3, 2: 3}


def test_first_read_of_a_group_begins_where_offset_says(run: Run, topic: str, group: str) -> None:
    late = ("topic", "consume", topic, "--group", group, "--offset", "latest", "--count", "0")
    assert run(*late).stdout == ""
    for words in (("--until", "2"), ("--partition", "0"), ("--offset", "5")):
        run("topic", "consume", topic, "--group", group, *words, code=2)


def test_list_and_describe_show_offsets_and_lag(run: Run, topic: str, consumed: str) -> None:
    rows = [line.split() for line in run("group", "list").stdout.splitlines()]
    assert rows[0] == ["GROUP", "KIND", "STATE", "MEMBERS", "COORDINATOR"]
    assert [consumed, "consumer", "empty", "0", "1"] in rows
    listed = json.loads(run("group", "list", "--format", "json").stdout)
    assert consumed in [one["group"] for one in listed["groups"]]
    assert listed["incomplete"] == []
    document = described(run, consumed)
    assert (document["state"], document["lag"]) == ("empty", 3)
    lines = run("group", "describe", consumed).stdout.splitlines()
    assert lines[0].startswith(f"{consumed}  (kind consumer, state empty, epoch ")
    assert lines[0].endswith("coordinator 1, lag 3)")
    assert lines[2].split() == ["TOPIC", "PARTITION", "OFFSET", "END", "LAG", "MEMBER", "CLIENT"]
    assert sorted(line.split()[2:5] for line in lines[3:]) == [
        ["0", "3", "3"],
        ["3", "3", "0"],
        ["3", "3", "0"],
    ]


def test_members_and_unknown_offsets_are_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def describe(_: Admin, group: str) -> GroupDescription:
        owned = [AssignedPartitions("orders", "id", [0, 1])]
        goal = [AssignedPartitions("orders", "id", [0])]
        members = [
            GroupMember("m1", 4, None, "app", "10.0.0.1", "stable", ["orders"], None, owned, goal),
            GroupMember("m2", 4, "i", "app", "10.0.0.2", "stable", [], "or.*", goal, goal),
        ]
        rows = [GroupOffset("orders", 0, 5, 9, 4, "m1"), GroupOffset("orders", 1, -1, -1, -1)]
        return GroupDescription(
            group, "consumer", "reconciling", 4, "uniform", 2, members, rows
        )  # fmt: skip

    monkeypatch.setattr(Admin, "describe_group", describe)
    lines = [line.split() for line in run("group", "describe", "g").stdout.splitlines()]
    assert " ".join(lines[0]) == (
        "g (kind consumer, state reconciling, epoch 4, assignor uniform, coordinator 2, lag 4)"
    )
    assert lines[3:5] == [
        ["orders", "0", "5", "9", "4", "m1", "app"],
        ["orders", "1", "-", "-", "-", "-", "-"],
    ]
    assert lines[7:] == [
        ["m1", "-", "app", "10.0.0.1", "4", "stable", "2", "of", "1", "orders"],
        ["m2", "i", "app", "10.0.0.2", "4", "stable", "1", "/or.*/"],
    ]


def test_groups_of_silent_coordinators_are_missed_aloud(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed(_: Admin) -> GroupList:
        return GroupList([], ["__consumer_offsets-3: no leader"])

    monkeypatch.setattr(Admin, "list_groups", listed)
    assert run("group", "list").stderr == (
        "raftlog: the list is incomplete: __consumer_offsets-3: no leader\n"
    )


def test_seek_shows_first_and_sets_then(run: Run, topic: str, consumed: str) -> None:
    before = offsets(run, consumed)
    planned = run("group", "seek", consumed, topic, "--to", "1", "--dry-run")
    lines = [line.split() for line in planned.stdout.splitlines()]
    assert lines[0] == ["TOPIC", "PARTITION", "BEFORE", "OFFSET", "ERROR"]
    assert [line[3] for line in lines[1:]] == ["1", "1", "1"]
    assert planned.stderr == "3 offsets would be set; nothing is\n"
    assert offsets(run, consumed) == before
    run("group", "seek", consumed, topic, "--to", "3")
    done = run("group", "seek", consumed, f"{topic}/0", f"{topic}/1", "--shift", "-2")
    assert done.stderr == "2 offsets set\n"
    assert offsets(run, consumed) == {0: 1, 1: 1, 2: 3}
    run("group", "seek", consumed, topic, "--to", "earliest")
    assert offsets(run, consumed) == {0: 0, 1: 0, 2: 0}
    as_json = run("group", "seek", consumed, "--to", "@2100-01-01", "--format", "json")
    assert json.loads(as_json.stdout)["is_done"]
    assert offsets(run, consumed) == {0: 3, 1: 3, 2: 3}


def test_seek_to_the_offsets_of_another_group(run: Run, topic: str, consumed: str) -> None:
    other = f"group-{uuid4().hex}"
    run("topic", "consume", topic, "--group", other, "--count", "1")
    run("group", "seek", other, topic, "--to", "2")
    run("group", "seek", consumed, topic, "--like", other)
    assert offsets(run, consumed) == {0: 2, 1: 2, 2: 2}


def test_seek_needs_one_target_and_real_partitions(run: Run, topic: str, consumed: str) -> None:
    for words in ((), ("--to", "1", "--shift", "2"), ("--to", "-5"), ("--to", "soon")):
        run("group", "seek", consumed, *words, code=2)
    run("group", "seek", consumed, f"{topic}/x", "--to", "1", code=2)
    run("group", "seek", consumed, "nope", "--to", "1", code=3)
    failed = run("group", "seek", consumed, f"{topic}/7", "--to", "1", code=1)
    assert failed.stdout.splitlines()[1].split()[:4] == [topic, "7", "-", "-"]


def test_offsets_and_groups_are_deleted(run: Run, topic: str, consumed: str) -> None:
    done = run("group", "offset-delete", consumed, f"{topic}/0")
    assert done.stderr == f"{consumed} has no offsets of {topic}/0 any more\n"
    assert 0 not in offsets(run, consumed)
    run("group", "delete", consumed)
    gone = run("group", "describe", consumed, code=3)
    assert "`raftlog group list` shows the groups" in gone.stderr
    run("group", "delete", consumed, "--format", "json", code=3)
