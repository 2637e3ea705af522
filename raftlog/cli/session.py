"""Run one command's coroutine against a cluster, and explain the client's errors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from raftlog_client import ConnectionLostError, RaftlogClientError, ServerError

from raftlog.cli.errors import CommandError, ExitCode, from_log_error, unreachable
from raftlog.record.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Coroutine

_Result = TypeVar("_Result")


def run(servers: str, main: Coroutine[Any, Any, _Result]) -> _Result:
    """The coroutine's result. Client errors become CommandErrors; Ctrl-C cancels it first."""
    try:
        return asyncio.run(main)
    except RaftlogClientError as error:
        raise explained(servers, error) from error


def explained(servers: str, error: RaftlogClientError) -> CommandError:
    """What the client met, in the words and the exit code of the command line."""
    if isinstance(error, ServerError):
        return from_log_error(LogError(error.entry, str(error)))
    if isinstance(error, ConnectionLostError):
        return unreachable(servers, error)
    code = ExitCode.UNREACHABLE if error.retriable else ExitCode.FAILED
    hint = "It may or may not have been written." if error.outcome_unknown else None
    return CommandError(str(error), hint=hint, code=code)
