"""Run one command's coroutine against a cluster, and explain the client's errors."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import asynccontextmanager
from errno import errorcode
from typing import TYPE_CHECKING, Any, TypeVar

from raftlog_client import Admin, ConnectionLostError, RaftlogClientError, ServerError

from raftlog.cli.common.errors import CommandError, ExitCode, from_log_error, unreachable
from raftlog.record.errors import LogError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

_Result = TypeVar("_Result")


CONNECT_PATIENCE_S = 2.0
"""Seconds for a connection, long enough for a node that is just starting."""
CONNECT_RETRY_S = 0.1
UNREADY_PATIENCE_S = 5.0
"""Seconds for a request to nodes that may not be ready, nor become so."""


def run(servers: str, main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run the coroutine. Return its result.

    Client errors become CommandErrors. Ctrl-C cancels first.
    """
    # Warnings of the client (an unreachable node) are also for the user.
    logging.basicConfig(level=logging.WARNING, format="raftlog: %(message)s")
    try:
        return asyncio.run(_connected(servers, main))
    except RaftlogClientError as error:
        raise explained(servers, error) from error


def ask(
    servers: str, request: Callable[[Admin], Awaitable[_Result]], *, unready: bool = False
) -> _Result:
    """Run one request of an admin client. With `unready`, see `unready_too`."""

    async def main() -> _Result:
        async with unready_too(servers) if unready else Admin(bootstrap_servers=servers) as admin:
            return await request(admin)

    return run(servers, main())


@asynccontextmanager
async def unready_too(servers: str) -> AsyncIterator[Admin]:
    """An admin client for requests that nodes serve before they are ready.

    These are about the quorum and the nodes.
    """
    # A node without a quorum rejects all other requests, and the user waits for the cause.
    admin = Admin(bootstrap_servers=servers, request_timeout_ms=UNREADY_PATIENCE_S * 1000)
    await admin.start(needs_ready_node=False)
    try:
        yield admin
    finally:
        await admin.close()


async def _connected(servers: str, main: Coroutine[Any, Any, _Result]) -> _Result:
    # The client is patient, like a program's library. A user with a mistyped address needs the
    # error at once.
    try:
        await _find_one(servers.split(","))
    except BaseException:
        main.close()
        raise
    return await main


async def _find_one(servers: list[str]) -> None:
    """Return as soon as one server accepts a connection.

    Raises CommandError if none does in time.
    """
    deadline_s = time.monotonic() + CONNECT_PATIENCE_S
    while True:
        attempts = [asyncio.ensure_future(_connect(server)) for server in servers]
        try:
            reasons = []
            for attempt in asyncio.as_completed(attempts, timeout=CONNECT_PATIENCE_S):
                reason = await attempt
                if reason is None:
                    return
                reasons.append(reason)
        except TimeoutError:
            reasons = ["it does not answer"]
        finally:
            for attempt in attempts:
                attempt.cancel()
            await asyncio.gather(*attempts, return_exceptions=True)
        if time.monotonic() + CONNECT_RETRY_S > deadline_s:
            raise unreachable(",".join(servers), reasons[0])
        await asyncio.sleep(CONNECT_RETRY_S)


async def _connect(server: str) -> str | None:
    """None if the server accepts a connection, else the reason."""
    host, _, port = server.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError as error:
        # asyncio's own text repeats the address. A failed lookup of a name has no errno.
        if error.errno is not None and error.errno in errorcode:
            return os.strerror(error.errno)
        return error.strerror or str(error)
    writer.close()
    return None


def explained(servers: str, error: RaftlogClientError) -> CommandError:
    """The client's error in the words and exit codes of the command line."""
    if isinstance(error, ServerError):
        return from_log_error(LogError(error.entry, str(error)))
    if isinstance(error, ConnectionLostError):
        return unreachable(servers, error.reason.rstrip("."))
    code = ExitCode.UNREACHABLE if error.retriable else ExitCode.FAILED
    hint = "It may or may not have been written." if error.outcome_unknown else None
    message = " ".join([str(error), *getattr(error, "__notes__", ())])
    return CommandError(message, hint=hint, code=code)
