"""`raftlog cluster up` and its relatives, as far as they need no node. (With real nodes:
tests/integration/test_cluster_up.py.)"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from raftlog.cli.cluster.local import _absolute
from raftlog.cli.main import cli
from raftlog.cluster import manifest as manifests
from raftlog.cluster.layout import Layout, tail
from raftlog.cluster.manifest import Plan

Run = Callable[..., Result]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "a cluster"


@pytest.fixture
def run(directory: Path) -> Iterator[Run]:
    def run_command(command: str, *arguments: str, code: int = 0) -> Result:
        words = ["cluster", command, "--dir", str(directory), *arguments]
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    yield run_command
    run_command("down", code=0 if (directory / "cluster.json").exists() else 1)


@pytest.mark.parametrize("words", [("status",), ("down",), ("add-node",), ("replace-node", "1")])
def test_where_there_is_no_cluster_up_is_advised(
    run: Run, directory: Path, words: tuple[str, ...]
) -> None:
    error = run(*words, code=1).stderr
    assert f"there is no cluster in {directory}" in error
    assert "raftlog cluster up --dir" in error


def test_cluster_that_is_down_is_shown_and_down_is_no_error(run: Run, directory: Path) -> None:
    layout = Layout.at(directory)
    layout.prepare()
    made = manifests.new_manifest(Plan(), [23_001, 23_002], "2026-01-01", [23_003, 23_004])
    layout.save_manifest(made)
    shown = run("status", code=1)
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert lines[0][-4:] == ["by", "nobody,", "controller", "none"]
    assert lines[1][:4] == ["NODE", "ADDRESS", "KAFKA", "STATE"]
    assert [(row[0], row[1], row[2], row[3]) for row in lines[2:]] == [
        ("1", "127.0.0.1:23001", "127.0.0.1:23003", "stopped"),
        ("2", "127.0.0.1:23002", "127.0.0.1:23004", "stopped"),
    ]
    # The directory's name has a space in it: the printed line can be pasted.
    assert f"raftlog cluster up --dir '{directory}'" in shown.stderr
    document = json.loads(run("status", "--format", "json", code=1).stdout)
    assert (document["whole"], document["manager_pid"]) == (False, None)
    assert document["nodes"][0]["kafka"] == "127.0.0.1:23003"
    assert run("down").stderr == "the cluster was not running\n"
    assert json.loads(run("down", "--format", "json").stdout) == {"stopped": False}
    assert "is not running" in run("add-node", code=1).stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--nodes", "0"), 2, "--nodes"),
        (("--nodes", "33"), 2, "--nodes"),
        (("--base-port", "65536"), 2, "--base-port"),
        (("--base-port", "65535"), 1, "no 3 ports from 65535"),
        (("--kafka-base-port", "65536"), 2, "--kafka-base-port"),
        (("--base-port", "0", "--kafka-base-port", "65535"), 1, "no 3 ports from 65535"),
        (("--no-kafka", "--kafka-base-port", "9092"), 1, "exclude each other"),
        (("--flush", "never"), 2, "--flush"),
        (("--", "--data-dir", "/x"), 1, "--data-dir is set by the manager"),
        (("--", "--voters=1@x:1"), 1, "--voters is set by the manager"),
    ],
)
def test_wrong_requests_are_refused(
    run: Run, directory: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    assert message in run("up", *words, code=code).stderr
    assert not (directory / "cluster.json").exists()


@pytest.mark.parametrize("how", [(), ("--detach",)])
def test_nodes_that_cannot_start_say_why_and_nothing_is_left(
    run: Run, directory: Path, how: tuple[str, ...]
) -> None:
    """Every node dies of an unknown setting, like a mistyped one."""
    words = ("--nodes", "1", "--base-port", "0", *how, "--", "--no-such-setting", "1")
    error = run("up", *words, code=1).stderr
    assert "--no-such-setting" in error
    assert "tried more slowly" in error
    assert "raftlog cluster status" in error
    assert run("down").stderr == "the cluster was not running\n"


def test_manager_that_dies_at_once_is_explained_by_its_log(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (sys.executable, "-c", "import sys; sys.exit('no memory for me')")
    monkeypatch.setattr("raftlog.cluster.commands.MANAGER", program)
    error = run("up", "--detach", code=1).stderr
    assert "ended without an answer" in error
    assert "no memory for me" in error
    assert tail(Layout.at(directory).manager_log, 1) == ["no memory for me"]


def test_path_of_a_settings_file_counts_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    words = ("--config", "a.toml", "--config=b.toml", "--log-level", "warning", "--config")
    assert _absolute(words) == (
        "--config", "/a.toml", "--config=/b.toml", "--log-level", "warning", "--config",
    )  # fmt: skip
