import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner, Result

from raftlog import __version__
from raftlog.cli.common.errors import CommandError, ExitCode, from_log_error, from_os_error
from raftlog.cli.groups import Lazy
from raftlog.cli.main import RootGroup, cli
from raftlog.record.errors import (
    ERROR_TABLE,
    INVALID_TOPIC,
    NO_LEADER,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
    LogError,
)

"""Far above the goal of 0.15 s, because the testing machine may be busy; the import test is
exact."""

to_raise: list[BaseException] = []


@click.command()
def failing() -> None:
    raise to_raise.pop()


def run_failing(error: BaseException) -> Result:
    to_raise.append(error)
    table = {"failing": Lazy(__name__, "failing", "")}
    return CliRunner().invoke(RootGroup("test", subcommands=table, help=""), ["failing"])


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (LogError(UNKNOWN_TOPIC, "No t."), 3, "raftlog: No t. (40401)\n  `raftlog topic list`"),
        (FileNotFoundError(2, "No such file", "x"), 3, "raftlog: x: No such file\n"),
        (PermissionError(13, "Denied", "x"), 1, "raftlog: x: Denied\n"),
        (CommandError("bad", hint="do", code=ExitCode.USAGE), 2, "raftlog: bad\n  do\n"),
        (click.UsageError("what?"), 2, "Error: what?"),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
    ],
)
def test_every_expected_failure_ends_in_a_message_and_a_code(
    error: BaseException, code: int, message: str
) -> None:
    result = run_failing(error)
    assert result.exit_code == code
    assert message in result.stderr
    assert result.stdout == ""


def test_unexpected_failures_are_not_hidden() -> None:
    result = run_failing(RuntimeError("bug"))
    assert isinstance(result.exception, RuntimeError)


@pytest.mark.parametrize("entry", ERROR_TABLE.values(), ids=lambda entry: entry.name)
def test_every_error_of_the_table_has_a_code_other_than_success(entry: object) -> None:
    error = from_log_error(LogError(entry))  # type: ignore[arg-type]  # ids lambda is untyped
    assert error.code in set(ExitCode) - {ExitCode.OK, ExitCode.INTERRUPTED}


def test_codes_tell_missing_from_unreachable_from_misused() -> None:
    assert from_log_error(LogError(UNKNOWN_PARTITION)).code == ExitCode.NOT_FOUND
    assert from_log_error(LogError(NO_LEADER)).code == ExitCode.UNREACHABLE
    assert from_log_error(LogError(INVALID_TOPIC)).code == ExitCode.USAGE
    assert from_os_error(OSError("odd")).code == ExitCode.FAILED


def test_version_and_help() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output == f"raftlog {__version__}\n"
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    assert "Exit codes:" in result.output
    assert all(word in result.output for word in ("serve", "topic", "cluster", "quorum"))


@pytest.mark.parametrize("group", ["topic", "group", "txn", "cluster", "quorum"])
def test_every_subcommand_in_the_table_exists_and_explains_itself(group: str) -> None:
    context = click.Context(cli)
    command = cli.get_command(context, group)
    assert isinstance(command, click.Group)
    for name in command.list_commands(context):
        result = CliRunner().invoke(cli, [group, name, "--help"])
        assert result.exit_code == 0, name
        assert result.output.startswith(f"Usage: raftlog {group} {name}")
        assert "--format" in result.output or isinstance(
            command.get_command(context, name), click.Group
        )


def test_unknown_command_is_wrong_usage() -> None:
    result = CliRunner().invoke(cli, ["topik"])
    assert result.exit_code == 2
    assert "no command 'topik'" in result.stderr


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("raftlog.cli.main", ("asyncio", "aiohttp", "rich", "raftlog_client")),
        ("raftlog.cli.serve", ("rich", "raftlog_client")),
        ("raftlog.cli.topic.consume", ("rich", "raftlog.node", "raftlog.http")),
        ("raftlog.cli.topic.produce", ("rich", "raftlog.node", "raftlog.http")),
        ("raftlog.cli.quorum", ("rich", "raftlog.node", "raftlog.http")),
    ],
)
def test_modules_do_not_import_what_their_command_does_not_need(
    module: str, unwanted: tuple[str, ...]
) -> None:
    program = f"import sys, {module}; print(*(m for m in {unwanted} if m in sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert result.stdout.split() == []


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("tpoic", "list"), "There is no command 'tpoic'. Did you mean 'topic'?"),
        (("topic", "lst"), "There is no command 'lst'. Did you mean 'list'?"),
        (("cluster", "config", "sett"), "There is no command 'sett'. Did you mean 'set'?"),
        (("grün",), "There is no command 'grün'."),
        (
            ("consume", "t"),
            "There is no command 'consume'. Did you mean 'topic consume' or 'bench consume'?",
        ),
        (("cluster", "list"), "There is no command 'list'. Did you mean 'config list'?"),
    ],
)
def test_unknown_command_is_answered_with_the_likeliest_one(
    arguments: tuple[str, ...], advice: str
) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"Error: {advice}"


def test_version_as_a_command_and_as_an_option() -> None:
    assert CliRunner().invoke(cli, ["--version"]).stdout == f"raftlog {__version__}\n"
    assert CliRunner().invoke(cli, ["version"]).stdout.startswith(f"raftlog {__version__} (Python ")
    document = json.loads(CliRunner().invoke(cli, ["version", "--format", "json"]).stdout)
    assert document["version"] == __version__
