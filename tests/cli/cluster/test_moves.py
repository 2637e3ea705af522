"""`raftlog cluster transfer-leadership|reassign|maintenance|decommission`, and what `health` and
`info` say of replicas, against a cluster made up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from raftlog.cli.cluster import moves as cluster_moves
from raftlog.cli.main import cli
from raftlog.metadata.decisions.reassignment import plan_completions
from raftlog.record.types import BrokerId
from tests.cli.test_quorum import serving
from tests.http.fakes import FakeNode
from tests.metadata.strategies import set_row

Run = Callable[..., Result]


@pytest.fixture
def node() -> FakeNode:
    """Four brokers, three of them voters; topic t has two partitions of three replicas each."""
    made = FakeNode(brokers=4, voters=3)
    for number in (2, 3, 4):
        made.quorum.connect(number, match_index=120)
    asyncio.run(_create(made))
    set_row(made.metadata.image, "t", 0, replicas=(1, 2, 3), isr=(1, 2, 3), leader=1)
    set_row(made.metadata.image, "t", 1, replicas=(2, 3, 1), isr=(2, 3, 1), leader=3)
    return made


async def _create(node: FakeNode) -> None:
    await node.metadata.create_topic(
        "t", partitions=2, replication_factor=3, configs={"min.insync.replicas": "2"}
    )


@pytest.fixture
def run(node: FakeNode) -> Iterator[Run]:
    with serving(node) as address:

        def run_command(*arguments: str, code: int = 0) -> Result:
            result = CliRunner().invoke(cli, arguments, env={"RAFTLOG_SERVERS": address})
            assert result.exit_code == code, (result.output, result.exception)
            return result

        yield run_command


def leaders(node: FakeNode) -> list[int]:
    return [row.leader for row in node.metadata.image.topic("t").partitions]


def document(result: Result) -> Any:
    return json.loads(result.stdout)


def test_leaders_return_to_the_preferred_replicas(run: Run, node: FakeNode) -> None:
    done = run("cluster", "transfer-leadership")
    assert (done.stdout, done.stderr) == ("", "1 partition moved\n")
    assert leaders(node) == [1, 2]
    assert run("cluster", "transfer-leadership", "-t", "t").stderr == "0 partitions moved\n"


def test_leadership_moves_to_the_named_node_or_to_another(run: Run, node: FakeNode) -> None:
    run("cluster", "transfer-leadership", "--topic", "t", "--to", "2")
    assert leaders(node) == [2, 2]
    moved = run(
        "cluster", "transfer-leadership", "-t", "t", "-p", "1", "--to", "3", "--format", "json"
    )
    assert document(moved) == {"moved": ["t/1"], "unmoved": {}}
    assert leaders(node) == [2, 3]
    run("cluster", "transfer-leadership", "-t", "t", "-p", "0")
    assert leaders(node)[0] in (1, 3)


def test_leader_that_cannot_be_is_refused_by_name(run: Run, node: FakeNode) -> None:
    set_row(node.metadata.image, "t", 0, replicas=(1, 2, 3), isr=(1,), leader=1)
    refused = run("cluster", "transfer-leadership", "-t", "t", "--to", "2", code=1)
    assert refused.stderr.splitlines() == [
        "t/0: Broker 2 is not in sync with t-0. (40903)",
        "1 partition moved",
    ]
    assert leaders(node) == [1, 2]
    gone = run("cluster", "transfer-leadership", "-t", "t", "-p", "0,7", code=3)
    assert "t has no partition 7" in gone.stderr
    assert "40401" in run("cluster", "transfer-leadership", "-t", "nope", code=3).stderr
    for words in (("--to", "2"), ("-p", "1"), ("--unclean", "-t", "t"), ("--to", "0", "-t", "t")):
        run("cluster", "transfer-leadership", *words, code=2)


def test_leaderless_partition_is_led_only_if_losing_records_is_meant(
    run: Run, node: FakeNode
) -> None:
    set_row(node.metadata.image, "t", 0, replicas=(1, 2, 3), isr=(), leader=-1)
    one = ("cluster", "transfer-leadership", "-t", "t", "-p", "0")
    assert "t/0: it has no leader" in run(*one, code=1).stderr
    asked = run(*one, "--unclean", code=2)
    assert "--no-confirm" in asked.stderr
    assert leaders(node)[0] == -1
    run(*one, "--unclean", "--no-confirm")
    assert leaders(node)[0] in (1, 2, 3)


def test_replicas_are_moved_shown_and_the_move_cancelled(run: Run, node: FakeNode) -> None:
    assert run("cluster", "reassign").stderr == "nothing is being moved\n"
    shown = run("cluster", "reassign", "t/0=4,2,3")
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert lines == [
        ["TOPIC", "PARTITION", "REPLICAS", "IN-SYNC", "ADDING", "REMOVING"],
        ["t", "0", "4,2,3,1", "2,3,1", "4", "1"],
    ]
    as_json = document(run("cluster", "reassign", "--format", "json"))
    assert as_json["total"] == 1
    assert as_json["reassignments"][0]["adding"] == [4]
    assert run("cluster", "reassign", "--cancel", "t/0").stderr == "nothing is being moved\n"
    assert 4 not in node.metadata.image.partition("t", 0).replicas
    assert "40903" in run("cluster", "reassign", "--cancel", "t/0", code=1).stderr


def test_reassign_waits_until_all_has_moved(
    run: Run, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = node.metadata.image
    looked: list[None] = []

    async def catch_up(_: float) -> None:
        looked.append(None)
        row = image.partition("t", 0)
        set_row(
            image, "t", 0, replicas=row.replicas, isr=row.replicas, leader=row.leader,
            adding=row.adding, removing=row.removing,
        )  # fmt: skip
        for command in plan_completions(image):
            node.metadata.run(command)

    monkeypatch.setattr(cluster_moves, "sleep", catch_up)
    assert run("cluster", "reassign", "t/0=4,2,3", "--wait").stderr == "nothing is being moved\n"
    assert looked
    assert sorted(image.partition("t", 0).replicas) == [2, 3, 4]


@pytest.mark.parametrize(
    "words",
    [
        ("t=1,2",),
        ("t/0",),
        ("t/0=",),
        ("t/0=1,x",),
        ("t/0=1,1",),
        ("t/0=1", "t/0=2"),
        ("/0=1",),
        ("t/x=1",),
        ("--cancel",),
        ("--cancel", "t/0=1"),
    ],
)
def test_moves_that_are_none_are_wrong_usage(run: Run, words: tuple[str, ...]) -> None:
    run("cluster", "reassign", *words, code=2)


def test_impossible_move_changes_nothing(run: Run, node: FakeNode) -> None:
    refused = run("cluster", "reassign", "t/1=2,3,4", "t/0=9", code=2)
    assert "9" in refused.stderr
    assert node.metadata.image.partition("t", 1).adding == ()


def test_maintenance_begins_and_ends(run: Run, node: FakeNode) -> None:
    begun = run("cluster", "maintenance", "2", "enable")
    assert "`raftlog cluster maintenance 2 disable`" in begun.stderr
    lines = [line.split() for line in run("cluster", "info").stdout.splitlines()]
    assert [(row[0], row[-1]) for row in lines[2:]] == [
        ("1", "-"), ("2", "maintenance"), ("3", "-"), ("4", "-"),
    ]  # fmt: skip
    ended = run("cluster", "maintenance", "2", "disable", "--format", "json")
    assert document(ended) == {"node_id": 2, "maintenance": False}
    assert not node.metadata.image.brokers[BrokerId(2)].maintenance
    assert "40400" in run("cluster", "maintenance", "9", "enable", code=3).stderr
    run("cluster", "maintenance", "2", "off", code=2)


def test_decommission_shows_how_far_it_is_and_is_cancelled(run: Run, node: FakeNode) -> None:
    begun = run("cluster", "decommission", "3")
    assert "2 replicas of node 3 left to move" in begun.stderr
    rows = [line.split() for line in run("cluster", "info").stdout.splitlines()]
    assert rows[4][-3:] == ["1", "2", "decommission"]
    cancelled = run("cluster", "decommission", "3", "--cancel", "--format", "json")
    assert document(cancelled)["decommissioning"] is False
    assert not any(broker.decommissioning for broker in node.metadata.image.brokers.values())
    run("cluster", "decommission", "3", "--cancel", "--wait", code=2)
    assert "40400" in run("cluster", "decommission", "9", code=3).stderr


def test_decommission_of_an_empty_node_says_what_comes_next(run: Run) -> None:
    done = run("cluster", "decommission", "4", "--wait")
    assert "`raftlog cluster remove-node 4`" in done.stderr


def test_decommission_that_would_leave_too_few_is_refused(run: Run, node: FakeNode) -> None:
    run("cluster", "decommission", "4")
    assert "Add a broker first" in run("cluster", "decommission", "3", code=1).stderr


def test_health_tells_offline_below_minimum_and_under_replicated(run: Run, node: FakeNode) -> None:
    assert run("cluster", "health").stdout == "healthy\n"
    set_row(node.metadata.image, "t", 0, replicas=(1, 2, 3), isr=(1, 2), leader=1)
    found = document(run("cluster", "health", "--format", "json", code=1))
    assert (found["under_replicated"], found["below_min_isr"]) == (["t/0"], [])
    set_row(node.metadata.image, "t", 0, replicas=(1, 2, 3), isr=(1,), leader=1)
    set_row(node.metadata.image, "t", 1, replicas=(2, 3, 1), isr=(), leader=-1)
    assert run("cluster", "health", code=1).stdout.splitlines() == [
        "not healthy",
        "  without a leader: 1 (t/1)",
        "  below min.insync.replicas, acks=all is refused: 2 (t/0, t/1)",
        "  under-replicated: 2 (t/0, t/1)",
    ]
