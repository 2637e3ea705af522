"""Errors of commands, with a message, the next step and an exit code.

Exit codes are a promise to scripts. `ExitCode` and docs/reference/command-line.md list them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import IO, Any

import click

from raftlog.record import errors as table
from raftlog.record.errors import LogError


class ExitCode(IntEnum):
    """Exit codes, for scripts."""

    OK = 0
    """Done. Also when the reader of the output has closed the pipe (`| head`)."""
    FAILED = 1
    """The cluster refused, or something is broken. The message names it."""
    USAGE = 2
    """The command line, the environment, a file of settings or an input line is wrong."""
    NOT_FOUND = 3
    """No such topic, partition, group, transactional id or file."""
    UNREACHABLE = 4
    """No node could be reached, or none was ready in time.

    The same command may work later.
    """
    INTERRUPTED = 130
    """Ctrl-C."""


class CommandError(click.ClickException):
    """A failure of a command, with the cause and the next step."""

    def __init__(
        self, message: str, *, hint: str | None = None, code: ExitCode = ExitCode.FAILED
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the message to stderr."""
        click.echo(f"raftlog: {self.message}", err=True)
        if self.hint:
            click.echo(f"  {self.hint}", err=True)


_START_HINT = (
    "Is it running? `raftlog serve --data-dir DIR` starts a node; "
    "--servers or RAFTLOG_SERVERS names another."
)
_HINTS: dict[int, tuple[ExitCode, str | None]] = {
    table.NOT_FOUND.code: (ExitCode.NOT_FOUND, None),
    table.UNKNOWN_TOPIC.code: (
        ExitCode.NOT_FOUND,
        "`raftlog topic list` shows the topics, `raftlog topic create NAME` makes one.",
    ),
    table.UNKNOWN_PARTITION.code: (
        ExitCode.NOT_FOUND,
        "`raftlog topic describe NAME` shows its partitions.",
    ),
    table.UNKNOWN_GROUP.code: (
        ExitCode.NOT_FOUND,
        "`raftlog group list` shows the groups; the first member or commit makes one.",
    ),
    table.UNKNOWN_TRANSACTION.code: (
        ExitCode.NOT_FOUND,
        "`raftlog txn list` shows the transactional ids.",
    ),
    table.GROUP_NOT_EMPTY.code: (
        ExitCode.FAILED,
        "`raftlog group describe NAME` shows its members.",
    ),
    table.INVALID_TXN_STATE.code: (ExitCode.FAILED, "`raftlog txn describe ID` shows the state."),
    table.INVALID_GROUP.code: (ExitCode.USAGE, None),
    table.INVALID_TRANSACTIONAL_ID.code: (ExitCode.USAGE, None),
    table.COORDINATOR_LOADING.code: (ExitCode.UNREACHABLE, "Try again in a moment."),
    table.NOT_COORDINATOR.code: (
        ExitCode.UNREACHABLE,
        "`raftlog cluster health` shows what is amiss.",
    ),
    table.TOPIC_EXISTS.code: (
        ExitCode.FAILED,
        "With --if-not-exists that is no error; `raftlog topic describe NAME` shows it.",
    ),
    table.INVALID_TOPIC.code: (ExitCode.USAGE, None),
    table.INVALID_CONFIG.code: (
        ExitCode.USAGE,
        "`raftlog topic describe NAME` shows the settings of a topic, "
        "`raftlog cluster config list` those of all brokers.",
    ),
    table.INVALID_PARTITIONS.code: (ExitCode.USAGE, None),
    table.OFFSET_OUT_OF_RANGE.code: (
        ExitCode.FAILED,
        "`raftlog topic describe NAME` shows the offsets of each partition; "
        "--offset earliest starts at the first record that is left.",
    ),
    table.RECORD_TOO_LARGE.code: (
        ExitCode.FAILED,
        "Split the record, or raise the limit: "
        "`raftlog topic alter-config NAME --set max.message.bytes=N`.",
    ),
    table.UNAUTHORIZED.code: (ExitCode.FAILED, None),
    table.NO_LEADER.code: (ExitCode.UNREACHABLE, "`raftlog cluster health` shows what is amiss."),
    table.NOT_READY.code: (
        ExitCode.UNREACHABLE,
        "`raftlog cluster health` shows the faults, `raftlog quorum describe` the missing voters.",
    ),
    table.NO_CONTROLLER.code: (
        ExitCode.UNREACHABLE,
        "`raftlog quorum describe` shows which voters are missing; with a majority it goes on.",
    ),
    table.OVERLOADED.code: (ExitCode.UNREACHABLE, "Try again, with less at once."),
    table.QUOTA_EXCEEDED.code: (ExitCode.UNREACHABLE, "Try again, with less at once."),
    table.RETRIABLE.code: (ExitCode.UNREACHABLE, "It may or may not have happened; look first."),
    table.REQUEST_TIMEOUT.code: (ExitCode.UNREACHABLE, None),
    table.NOT_ENOUGH_REPLICAS.code: (
        ExitCode.UNREACHABLE,
        "Wait until more replicas are in sync: `raftlog topic describe NAME`.",
    ),
    table.STORAGE_FAILED.code: (
        ExitCode.FAILED,
        "The node's log says what its disk answered; repair it, then start the node again.",
    ),
    table.DISK_FULL.code: (
        ExitCode.FAILED,
        "Free space on the node's disk, or delete what is not needed: `raftlog topic trim-prefix`.",
    ),
}


def unreachable(servers: str, reason: object) -> CommandError:
    """The error for a cluster without a responding node."""
    return CommandError(
        f"no raftlog node answers at {servers}: {reason}",
        hint=_START_HINT,
        code=ExitCode.UNREACHABLE,
    )


def from_log_error(error: LogError) -> CommandError:
    """An error of the table, with the fitting advice."""
    code, hint = _HINTS.get(error.entry.code, (ExitCode.FAILED, None))
    return CommandError(f"{error.message} ({error.entry.code})", hint=hint, code=code)


def from_os_error(error: OSError) -> CommandError:
    """Explain a file without read or write access. Connections have other errors."""
    code = ExitCode.NOT_FOUND if isinstance(error, FileNotFoundError) else ExitCode.FAILED
    where = f"{error.filename}: " if error.filename else ""
    return CommandError(f"{where}{error.strerror or error}", code=code)
