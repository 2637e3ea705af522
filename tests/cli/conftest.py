from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from raftlog.cli.main import cli
from tests.cli.node import RunningNode, running_node

Run = Callable[..., Result]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of commands; each test has topics of its own."""
    with running_node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def run(node: RunningNode) -> Run:
    """Run a command in this process against the node; fails unless its exit code is `code`."""

    def run_command(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, arguments, env={"RAFTLOG_SERVERS": node.address})
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return run_command


@pytest.fixture
def topic(run: Run) -> str:
    """A new topic with three partitions."""
    name = f"test-{uuid4().hex}"
    run("topic", "create", name, "--partitions", "3")
    return name


@pytest.fixture
def produce(run: Run, tmp_path: Path) -> Run:
    """Produce lines to a topic: `produce(topic, lines, *options)`."""

    def produce_lines(topic: str, lines: str, *options: str, code: int = 0) -> Result:
        file = tmp_path / f"lines-{uuid4().hex}"
        file.write_text(lines)
        return run("topic", "produce", topic, str(file), *options, code=code)

    return produce_lines
