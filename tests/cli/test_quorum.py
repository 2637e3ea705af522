"""`raftlog quorum`, and the quorum in `raftlog cluster`, against a fake cluster."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from raftlog.cli.common.errors import ExitCode
from raftlog.cli.main import cli
from raftlog.http.app import Server
from raftlog.http.settings import ServerLimits, ServerSettings
from raftlog.node.directory import METADATA_DIRECTORY, claim, load_state
from raftlog.node.settings import NodeSettings
from raftlog.raft.log.store import QuorumStore
from raftlog.record.errors import ILLEGAL_STATE, LogError
from raftlog.record.types import BrokerId
from raftlog.world.randomness import SystemRandomness
from raftlog.world.real_disk import FileSystemDisk
from tests.http.fakes import FakeNode, start_server

Run = Callable[..., Result]


@contextmanager
def serving(node: FakeNode) -> Iterator[str]:
    """The node's address, while it serves on a thread of its own: commands run an event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> Server:
        settings = ServerSettings(port=0, limits=ServerLimits(shutdown_s=1, linger_s=0.2))
        server = await start_server(node.services, settings)
        for number in node.metadata.image.brokers:
            node.metadata.register(number, server.port)
            node.metadata.unfence(number)
        return server

    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
        try:
            yield f"127.0.0.1:{server.port}"
        finally:
            asyncio.run_coroutine_threadsafe(server.close(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture
def node() -> FakeNode:
    """Node 1 leads three voters; 4 is an observer. All are connected."""
    made = FakeNode(brokers=4, voters=3)
    for number, match_index in ((2, 120), (3, 100), (4, 119)):
        made.quorum.connect(number, match_index=match_index)
    return made


@pytest.fixture
def run(node: FakeNode) -> Iterator[Run]:
    with serving(node) as address:

        def run_command(*arguments: str, code: int = 0) -> Result:
            result = CliRunner().invoke(cli, arguments, env={"RAFTLOG_SERVERS": address})
            assert result.exit_code == code, (result.output, result.exception)
            return result

        yield run_command


def test_describe_shows_leader_members_and_lag(run: Run) -> None:
    lines = run("quorum", "describe").stdout.splitlines()
    assert lines[0] == "cluster fake-cluster, term 7, as node 1 sees it"
    assert lines[1] == "leader 1"
    assert lines[2] == "log: last entry 120, committed 119, applied 118"
    table = [line.split() for line in lines[3:]]
    assert table[0] == [
        "NODE", "HOST", "PORT", "ROLE", "CONNECTED", "MATCH", "LAG", "HEARD-MS", "DIRECTORY",
    ]  # fmt: skip
    assert [(row[0], row[3], row[4], row[6]) for row in table[1:]] == [
        ("1", "leader", "yes", "0"),
        ("2", "voter", "yes", "0"),
        ("3", "voter", "yes", "20"),
        ("4", "observer", "yes", "1"),
    ]
    document = json.loads(run("quorum", "describe", "--format", "json").stdout)
    assert document["leader_id"] == 1
    assert [voter["lag"] for voter in document["voters"]] == [0, 0, 20]


def test_describe_without_a_leader_names_the_missing_nodes(run: Run, node: FakeNode) -> None:
    node.quorum.lose_majority()
    lines = run("quorum", "describe").stdout.splitlines()
    assert lines[1] == "no leader: node 1 reaches 1 of 3 voters, 2 are needed"
    assert [line.split()[4] for line in lines[4:]] == ["yes", "no", "no"]


def test_votes_and_leadership_are_changed(run: Run, node: FakeNode) -> None:
    assert run("quorum", "add-voter", "4").stderr == "node 4 has a vote now\n"
    assert run("quorum", "remove-voter", "3").stderr == "node 3 has no vote now\n"
    assert run("quorum", "transfer", "2").stderr == "node 2 leads\n"
    assert run("quorum", "transfer").stderr == "node 1 leads\n"
    assert node.quorum.asked == [
        ("add", 4), ("remove", 3), ("transfer", 2), ("transfer", None),
    ]  # fmt: skip
    added = run("quorum", "add-voter", "4", "--format", "json")
    assert json.loads(added.stdout) == {"node_id": 4, "is_voter": True}
    assert added.stderr == ""
    led = run("quorum", "transfer", "2", "--format", "json")
    assert json.loads(led.stdout) == {"leader_id": 2}


def test_refusals_say_why_and_have_codes(run: Run, node: FakeNode) -> None:
    refused = run("quorum", "remove-voter", "9", code=1)
    assert refused.stderr == "raftlog: Node 9 is not a voter. (40903)\n"
    node.quorum.refusal = LogError(ILLEGAL_STATE, "Node 4 does not catch up.")
    assert "Node 4 does not catch up. (40903)" in run("quorum", "add-voter", "4", code=1).stderr
    for word in ("0", "x", "-1"):
        run("quorum", "add-voter", "--", word, code=2)


def test_info_shows_roles_and_fences(run: Run, node: FakeNode) -> None:
    node.metadata.register(3, 1)
    node.metadata.unwritable = {BrokerId(2)}
    lines = [line.split() for line in run("cluster", "info").stdout.splitlines()]
    assert lines[1] == [
        "NODE", "HOST", "PORT", "RACK", "ROLE", "FENCED", "WRITES", "LEADS", "HOLDS", "REQUEST",
    ]  # fmt: skip
    assert [(row[0], *row[4:7]) for row in lines[2:]] == [
        ("1", "leader", "no", "yes"),
        ("2", "voter", "no", "no"),
        ("3", "voter", "yes", "yes"),
        ("4", "observer", "no", "yes"),
    ]
    document = json.loads(run("cluster", "info", "--format", "json").stdout)
    assert document["controller_id"] == 1
    assert [broker["broker_id"] for broker in document["brokers"]] == [1, 2, 3, 4]
    assert [row["fenced"] for row in document["nodes"]] == [False, False, True, False]


def test_node_is_removed(run: Run, node: FakeNode) -> None:
    node.metadata.register(4)
    removed = run("cluster", "remove-node", "4")
    assert removed.stderr.startswith("node 4 is forgotten: with an empty data directory")
    assert removed.stdout == ""
    node.metadata.register(4)
    as_json = run("cluster", "remove-node", "4", "--format", "json")
    assert json.loads(as_json.stdout) == {"node_id": 4, "is_registered": False}
    assert as_json.stderr == ""
    assert 4 not in node.metadata.image.brokers


def test_node_that_is_needed_or_unknown_is_not_removed(run: Run, node: FakeNode) -> None:
    hint = "  `raftlog cluster info` shows which nodes live and vote."
    message, told = run("cluster", "remove-node", "4", code=1).stderr.splitlines()
    assert message.startswith("raftlog: Broker 4 is alive: stop it first")
    assert told == hint
    node.metadata.register(3)
    refused = run("cluster", "remove-node", "3", code=1).stderr
    assert "`raftlog quorum remove-voter 3`" in refused
    unknown = run("cluster", "remove-node", "9", code=3).stderr.splitlines()
    assert unknown == ["raftlog: There is no broker 9. (40400)", hint]
    for word in ("0", "x", "-1"):
        run("cluster", "remove-node", "--", word, code=2)


def test_health_is_well_with_a_leader_and_all_voters(run: Run) -> None:
    assert run("cluster", "health").stdout == "healthy\n"


def test_health_warns_of_a_cluster_of_three_nodes_and_one_vote() -> None:
    lone = FakeNode(brokers=3, voters=1)
    for number in (2, 3):
        lone.quorum.connect(number, match_index=100)
    with serving(lone) as address:
        found = CliRunner().invoke(cli, ["cluster", "health", "-X", address])
        assert found.exit_code == 0, found.output
        assert found.stdout.splitlines() == [
            "healthy",
            "  warning: 1 of 3 nodes has a vote: the whole cluster stops with node 1. "
            "Give votes to 2 more by `raftlog quorum add-voter N`",
        ]
        document = json.loads(
            CliRunner().invoke(cli, ["cluster", "health", "-X", address, "--format", "json"]).stdout
        )
        assert document["healthy"] is True
        assert len(document["warnings"]) == 1
        described = CliRunner().invoke(cli, ["quorum", "describe", "-X", address]).stdout
        assert "warning: 1 of 3 nodes has a vote" in described


def test_health_tells_of_fenced_nodes_and_missing_voters(run: Run, node: FakeNode) -> None:
    node.metadata.register(3, 1)
    node.metadata.unwritable = {BrokerId(2)}
    del node.quorum.connected[3]
    lines = run("cluster", "health", code=1).stdout.splitlines()
    assert lines[:4] == [
        "not healthy",
        "  quorum: node 1 does not reach voter 3",
        "  fenced: node 3",
        "  disk full, or hangs: node 2",
    ]
    assert lines[4].startswith("  node 3: does not answer")


def test_health_without_quorum_names_it_and_exits_with_1(run: Run, node: FakeNode) -> None:
    node.quorum.lose_majority()
    found = json.loads(run("cluster", "health", "--format", "json", code=1).stdout)
    assert found["healthy"] is False
    assert found["quorum"] == [
        "there is no active controller",
        "node 1 does not reach voter 2",
        "node 1 does not reach voter 3",
    ]
    assert all("knows no active controller" in why for why in found["not_ready"].values())
    assert len(found["not_ready"]) == 4


def test_node_that_waits_for_a_quorum_can_be_asked_why(
    run: Run, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog.cli.common.session.UNREADY_PATIENCE_S", 0.2)
    node.not_ready = "The node waits for a quorum."
    node.quorum.lose_majority()
    assert "no leader" in run("quorum", "describe").stdout
    lines = run("cluster", "health", code=1).stdout.splitlines()
    assert "  quorum: there is no active controller" in lines
    assert "  node 1: The node waits for a quorum." in lines


def test_survivor_of_a_lost_majority_becomes_the_only_voter(tmp_path: Path) -> None:
    disk = FileSystemDisk(tmp_path)
    given = NodeSettings(
        data_dir=str(tmp_path), node_id=2, listen="0.0.0.0:7", voters="1@a:7,2@b:7,3@c:7"
    )
    claim(disk, given, load_state(disk), SystemRandomness())
    voters = given.voter_set()
    assert voters is not None
    store = QuorumStore(disk, METADATA_DIRECTORY)
    store.load(voters)
    store.close()
    disk.close()

    def recover(*words: str) -> dict[str, Any]:
        done = CliRunner().invoke(
            cli, ["quorum", "recover", "--data-dir", str(tmp_path), "--format", "json", *words]
        )
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    before = recover("--show")
    assert [voter["node_id"] for voter in before["voters"]["voters"]] == [1, 2, 3]
    assert before["sole_voter"]["host"] == "b"
    refused = CliRunner().invoke(cli, ["quorum", "recover", "--data-dir", str(tmp_path)])
    assert refused.exit_code == ExitCode.USAGE and "--no-confirm" in refused.output
    assert recover("--show") == before
    recover("--no-confirm")
    after = recover("--show")
    assert [voter["node_id"] for voter in after["voters"]["voters"]] == [2]
    assert (after["last_index"], after["last_term"]) == (
        before["last_index"] + 1,
        before["last_term"] + 1,
    )


def test_recovery_of_a_directory_without_a_node_or_of_a_running_one_is_refused(
    tmp_path: Path,
) -> None:
    words = ["quorum", "recover", "--data-dir", str(tmp_path), "--no-confirm"]
    empty = CliRunner().invoke(cli, words)
    assert empty.exit_code == ExitCode.FAILED and "no node that was in a cluster" in empty.output
    disk = FileSystemDisk(tmp_path)
    running = CliRunner().invoke(cli, words)
    assert running.exit_code == ExitCode.FAILED
    assert "in use by another raftlog process" in running.output
    disk.close()
