"""The `raftlog` command itself, with its subcommands and the end of all errors.

Nothing heavy is imported here, as `raftlog --help` and the shell's completion run it every time.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from raftlog import __version__
from raftlog.cli.common.errors import CommandError, ExitCode, from_log_error, from_os_error
from raftlog.cli.groups import Lazy, LazyGroup
from raftlog.record.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Sequence


class RootGroup(LazyGroup):
    """The top of the command tree, which turns expected failures into messages.

    Each failure gets an exit code.
    """

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run the command line and exit the process with an `ExitCode`."""
        sys.exit(self._run(args, prog_name or "raftlog", complete_var, extra))

    def _run(
        self,
        args: Sequence[str] | None,
        prog_name: str,
        complete_var: str | None,
        extra: dict[str, Any],
    ) -> int:
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except (KeyboardInterrupt, click.Abort):
            return ExitCode.INTERRUPTED
        except (click.ClickException, LogError, OSError) as error:
            return _explained(error)
        return code if isinstance(code, int) else ExitCode.OK

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand. Not in `main`, because click ends the process there for EPIPE."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has closed the pipe. The interpreter must not try to flush the rest at its
            # end, and print a complaint.
            _point_at_nothing(sys.stdout)
            return ExitCode.OK
        return result


def _explained(error: click.ClickException | LogError | OSError) -> int:
    match error:
        case LogError():
            error = from_log_error(error)
        case OSError():
            error = from_os_error(error)
    error.show()
    return error.code if isinstance(error, CommandError) else error.exit_code


def _point_at_nothing(stream: object) -> None:
    fileno = getattr(stream, "fileno", None)
    if fileno is not None:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, fileno())
        os.close(nothing)


cli = RootGroup(
    "raftlog",
    subcommands={
        "serve": Lazy("raftlog.cli.serve", "serve", "Run one node in the foreground."),
        "gateway": Lazy(
            "raftlog.cli.gateway", "gateway", "Serve the logs of many clusters, and groups."
        ),
        "topic": Lazy("raftlog.cli.groups", "topic", "Create, inspect, write and read topics."),
        "group": Lazy("raftlog.cli.groups", "group", "Show consumer groups; set their offsets."),
        "txn": Lazy("raftlog.cli.groups", "txn", "Show transactions; abort one."),
        "cluster": Lazy(
            "raftlog.cli.groups", "cluster", "Show a cluster; run one here; change it."
        ),
        "fleet": Lazy("raftlog.cli.groups", "fleet", "Keep clusters as a file describes them."),
        "quorum": Lazy("raftlog.cli.quorum", "quorum", "Show and change the voters."),
        "bench": Lazy("raftlog.cli.groups", "bench", "Measure a cluster."),
        "pipeline": Lazy("raftlog.cli.pipeline", "pipeline", "Run data pipelines on Spark."),
        "completion": Lazy(
            "raftlog.cli.completion", "completion", "Print the shell's completion script."
        ),
        "version": Lazy("raftlog.cli.version", "version", "Print the version."),
    },
    help="""raftlog: a durable, ordered log service.

    Commands that talk to a cluster find it by --servers or RAFTLOG_SERVERS. The default is the
    node on this machine, 127.0.0.1:8082. Data goes to stdout, messages to stderr.

    \b
    Exit codes: 0 done, 1 refused or failed, 2 wrong usage or input, 3 no such topic, partition,
    group or file, 4 no node reachable or ready in time, 130 Ctrl-C.
    """,
)
click.version_option(__version__, "-V", "--version", message="raftlog %(version)s")(cli)


def main() -> NoReturn:
    """Entry point of the `raftlog` script."""
    _open_standard_streams()
    cli.main()


def _open_standard_streams() -> None:
    """Point each closed standard stream at nothing.

    Otherwise the next file or socket gets its descriptor. A message would then be written into a
    file of the data directory, and the event loop refuses to close such a descriptor.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == number, "the lowest free descriptor"
            setattr(sys, name, open(number, "w" if number else "r"))  # noqa: SIM115, PTH123
