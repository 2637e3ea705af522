"""`raftlog pipeline run`: its arguments for Spark, and its end. Whole runs: tests/spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from raftlog_spark import pipelines
from raftlog_spark.session import JavaError

from raftlog.cli.main import cli


class Pipelines:
    """A fake Spark, which records its arguments and fails as configured."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.servers: str | None = None
        self.failure: Exception | None = None

    def run(self, project: Path, **asked: Any) -> None:
        self.asked = {"project": project, **asked}
        self.servers = os.environ.get("RAFTLOG_SERVERS")
        sys.stdout.write("what Spark prints\n")
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Pipelines:
    found = Pipelines()
    monkeypatch.setattr(pipelines, "run", found.run)
    return found


def run(*arguments: str) -> Result:
    # The runner restores the variables.
    return CliRunner().invoke(cli, ["pipeline", "run", *arguments], env={"RAFTLOG_SERVERS": None})


def test_what_is_not_said_is_left_to_the_spec(spark: Pipelines) -> None:
    assert run("project").exit_code == 0
    assert spark.servers == "127.0.0.1:8082"
    assert spark.asked == {
        "project": Path("project"),
        "master": None,
        "config": {},
        "refresh": (),
        "full_refresh": (),
        "full_refresh_all": False,
        "dry": False,
    }


def test_everything_said_is_handed_on(spark: Pipelines) -> None:
    result = run(
        *("p.yml", "--master", "local[2]", "-X", "a:1,b:2", "--dry-run", "--full-refresh-all"),
        *("--conf", "spark.a=1=2", "--conf", "spark.b="),
        *("--refresh", "x, y", "--refresh", "z", "--full-refresh", "w"),
    )
    assert result.exit_code == 0
    assert spark.servers == "a:1,b:2"
    assert spark.asked == {
        "project": Path("p.yml"),
        "master": "local[2]",
        "config": {"spark.a": "1=2", "spark.b": ""},
        "refresh": ("x", "y", "z"),
        "full_refresh": ("w",),
        "full_refresh_all": True,
        "dry": True,
    }


def test_what_spark_prints_are_messages(spark: Pipelines) -> None:
    result = run("project")
    assert result.stdout == ""
    assert result.stderr == "what Spark prints\n"


@pytest.mark.parametrize(
    ("failure", "code", "message"),
    [
        (pipelines.SpecError("x is no spec"), 2, "raftlog: x is no spec\n"),
        (FileNotFoundError(2, "No such file", "x"), 3, "raftlog: x: No such file\n"),
        (pipelines.PipelineError("it failed"), 1, "raftlog: it failed\n"),
        (pipelines.ExtraMissingError("install it"), 1, "raftlog: install it\n"),
        (JavaError("no Java"), 1, "raftlog: no Java\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_every_expected_failure_has_a_message_and_a_code(
    spark: Pipelines, failure: Exception, code: int, message: str
) -> None:
    spark.failure = failure
    result = run("project")
    assert result.exit_code == code
    assert message in result.stderr


def test_a_bug_in_a_definition_is_not_hidden(spark: Pipelines) -> None:
    spark.failure = ZeroDivisionError("in a definition")
    assert isinstance(run("project").exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--refresh", "a,,b", "name tables"), ("--conf", "spark.a", "is not NAME=VALUE")],
)
def test_what_cannot_be_read_is_wrong_usage(
    spark: Pipelines, option: str, value: str, message: str
) -> None:
    result = run("project", option, value)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not spark.asked


def test_the_command_line_needs_no_spark_until_the_command_runs() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from raftlog.cli.main import cli\n"
        "assert CliRunner().invoke(cli, ['pipeline', 'run', '--help']).exit_code == 0\n"
        "print(*(m for m in ('raftlog_spark', 'pyspark') if m in sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert result.stdout.split() == []
