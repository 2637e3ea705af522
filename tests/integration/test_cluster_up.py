"""`raftlog cluster up` and its relatives, with real nodes, as a person would type them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

RAFTLOG = (sys.executable, "-m", "raftlog.cli")
TIMEOUT_S = 90.0


class Commands:
    """Runs `raftlog cluster …` for one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run(self, command: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        ended = subprocess.run(
            [*RAFTLOG, "cluster", command, *arguments, "--dir", str(self.directory)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={k: v for k, v in os.environ.items() if not k.startswith("RAFTLOG_")},
        )
        assert ended.returncode == code, (ended.stdout, ended.stderr, self.logs())
        return ended

    def document(self, command: str, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(command, *arguments, "--format", "json", code=code).stdout)

    def up(self, *arguments: str) -> Any:
        return self.document("up", "--detach", *arguments)

    def node(self, node_id: int) -> Any:
        """One node's part of the status, whatever the exit code."""
        ended = subprocess.run(
            [*RAFTLOG, "cluster", "status", "--format", "json", "--dir", str(self.directory)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        nodes = json.loads(ended.stdout)["nodes"]
        return next(node for node in nodes if node["node_id"] == node_id)

    def logs(self) -> str:
        logs = sorted((self.directory / "logs").glob("*.log"))
        return "\n".join(f"--- {log}\n{log.read_text()[-2000:]}" for log in logs)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path / "cluster")
    yield commands
    if (commands.directory / "cluster.json").exists():
        commands.run("down")


def raftlog(*arguments: str) -> str:
    """The output of a successful command."""
    ended = subprocess.run(
        [*RAFTLOG, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    return ended.stdout


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids(status: Any) -> list[int]:
    return [node["pid"] for node in status["nodes"]]


def test_cluster_heals_a_killed_node_and_starts_again_from_its_directory(
    cluster: Commands,
) -> None:
    status = cluster.up("--nodes", "3", "--base-port", "0")
    assert status["whole"]
    assert [node["ready"] for node in status["nodes"]] == [True] * 3
    info = json.loads(
        raftlog("cluster", "info", "--servers", status["servers"], "--format", "json")
    )
    listeners = [node["kafka"] for node in status["nodes"]]
    assert [node["kafka"] for node in info["nodes"]] == listeners
    assert len({*listeners, *status["servers"].split(",")}) == 6
    killed = status["nodes"][1]
    os.kill(killed["pid"], signal.SIGKILL)

    def back() -> bool:
        node = cluster.node(2)
        return bool(node["ready"] and node["restarts"] == 1 and node["pid"] != killed["pid"])

    wait_until(back, "node 2 in its second life")
    assert cluster.node(2)["last_end"] == "was ended by SIGKILL"
    # A second `up` changes nothing.
    again = cluster.up()
    assert again["manager_pid"] == status["manager_pid"]
    assert cluster.document("down") == {"stopped": True}
    assert not any(map(runs, pids(again)))
    # `down` returns before the manager's process is reaped.
    wait_until(lambda: not runs(status["manager_pid"]), "the manager's end")
    assert cluster.document("down") == {"stopped": False}
    assert cluster.document("status", code=1)["manager_pid"] is None
    started = cluster.up()
    assert started["servers"] == status["servers"]
    assert cluster.document("status")["whole"]


@pytest.mark.full  # starts five nodes; tests/cluster has the steps
def test_node_is_added_and_a_lost_one_replaced(cluster: Commands) -> None:
    status = cluster.up("--base-port", "0")
    assert cluster.document("add-node")["node_id"] == 4
    lost = cluster.directory / "node-2"
    assert lost.is_dir()
    raftlog("topic", "create", "t", "-p", "4", "-r", "3", "--servers", status["servers"])
    done = cluster.document("replace-node", "2")
    assert done["node_id"] == 2
    assert lost.is_dir()
    assert (cluster.directory / "lost" / "node-2.1" / "directory.json").exists()
    assert not runs(status["nodes"][1]["pid"])
    servers = done["servers"]
    assert len(servers.split(",")) == 4
    info = json.loads(raftlog("cluster", "info", "--servers", servers, "--format", "json"))
    votes = {node["node_id"]: node["is_voter"] for node in info["nodes"]}
    assert votes == {1: True, 2: True, 3: True, 4: False}
    assert sum(node["held"] for node in info["nodes"]) == 12
    raftlog("cluster", "health", "--servers", servers)


@pytest.mark.full  # tests/cluster takes fake nodes over
def test_nodes_outlive_a_killed_manager_and_the_next_takes_them_over(cluster: Commands) -> None:
    status = cluster.up("--base-port", "0")
    os.kill(status["manager_pid"], signal.SIGKILL)
    wait_until(lambda: not runs(status["manager_pid"]), "end of the manager")
    assert [node["state"] for node in cluster.document("status", code=1)["nodes"]] == [
        "unmanaged"
    ] * 3
    taken_over = cluster.up()
    assert taken_over["manager_pid"] != status["manager_pid"]
    assert pids(taken_over) == pids(status)
    os.kill(taken_over["manager_pid"], signal.SIGKILL)
    wait_until(lambda: not runs(taken_over["manager_pid"]), "end of the manager")
    assert cluster.document("down") == {"stopped": True}
    assert not any(map(runs, pids(status)))


def test_foreground_manager_stops_its_nodes_on_a_signal(cluster: Commands) -> None:
    with subprocess.Popen(
        [*RAFTLOG, "cluster", "up", "--nodes", "1", "--base-port", "0",
         "--dir", str(cluster.directory), "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as manager:  # fmt: skip
        try:
            assert manager.stdout is not None
            status = json.loads(manager.stdout.readline())
            assert status["manager_pid"] == manager.pid
            manager.send_signal(signal.SIGINT)
            _, output = manager.communicate(timeout=TIMEOUT_S)
        finally:
            manager.kill()
    assert manager.returncode == 0, output
    assert "stopping node 1" in output
    assert not any(map(runs, pids(status)))


def test_taken_port_is_named_and_nothing_is_left_running(cluster: Commands) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for how in ((), ("--detach",)):
            refused = cluster.run("up", "--nodes", "1", "--base-port", str(port), *how, code=1)
            assert f"port {port} of 127.0.0.1" in refused.stderr
            assert "--base-port" in refused.stderr
    assert not (cluster.directory / "cluster.json").exists()
