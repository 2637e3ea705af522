"""`raftlog cluster config`, against a node made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from raftlog.cli.main import cli
from raftlog.metadata.configs.broker import BROKER_CONFIG_TABLE
from tests.cli.test_quorum import serving
from tests.http.fakes import FakeNode

Run = Callable[..., Result]
TIMEOUT = "broker.session.timeout.ms"


@pytest.fixture
def run() -> Iterator[Run]:
    node = FakeNode()
    with serving(node) as address:

        def run_command(*words: str, code: int = 0) -> Result:
            arguments = ("cluster", "config", *words)
            result = CliRunner().invoke(cli, arguments, env={"RAFTLOG_SERVERS": address})
            assert result.exit_code == code, (result.output, result.exception)
            return result

        yield run_command


def test_settings_are_set_read_and_returned_to_their_defaults(run: Run) -> None:
    assert run("get", TIMEOUT).stdout == "1500\n"
    assert run("set", f"{TIMEOUT}=9000", "flush=async").stderr == "2 settings changed\n"
    assert run("get", TIMEOUT).stdout == "9000\n"
    assert run("get", "flush").stdout == "async\n"
    document = json.loads(run("get", TIMEOUT, "--format", "json").stdout)
    assert document == {"name": TIMEOUT, "value": "9000", "source": "cluster"}
    run("set", "--delete", TIMEOUT)
    assert run("get", TIMEOUT).stdout == "1500\n"


def test_list_shows_broker_settings_and_topic_settings_of_the_cluster(run: Run) -> None:
    run("set", f"{TIMEOUT}=9000", "flush=async")
    rows = {row["name"]: row for row in json.loads(run("list", "--format", "json").stdout)}
    assert set(rows) == {*BROKER_CONFIG_TABLE, "flush"}
    assert rows[TIMEOUT]["value"] == "9000"
    assert rows[TIMEOUT]["bounds"] == "1000 to 60000"
    assert rows["disk.reserve.bytes"]["source"] == "default"
    assert TIMEOUT in run("list").stdout


def test_mistakes_are_explained(run: Run) -> None:
    assert "from 1000 to 60000" in run("set", f"{TIMEOUT}=1", code=2).stderr
    assert "no broker or topic config 'nonsense'" in run("get", "nonsense", code=3).stderr
    assert "say what to change" in run("set", code=2).stderr
