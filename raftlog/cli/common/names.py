"""Arguments that the shell completes with the cluster's group and transactional ids."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from raftlog.cli.common.options import DEFAULT_SERVERS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftlog_client import Admin

COMPLETION_PATIENCE_MS: Final = 1_500
"""Milliseconds of a completion, during which a person waits for the names."""
COMPLETIONS_MAX: Final = 500

_Command = TypeVar("_Command", bound="Callable[..., Any]")


def group_argument(command: _Command) -> _Command:
    """The argument GROUP, completed with the names of the groups."""
    return click.argument("group", metavar="GROUP", shell_complete=_groups)(command)


def transactional_id_argument(command: _Command) -> _Command:
    """The argument ID, completed with the transactional ids."""
    return click.argument("transactional_id", metavar="ID", shell_complete=_transactional_ids)(
        command
    )


def _groups(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    async def names(admin: Admin) -> list[str]:
        return [group.group for group in (await admin.list_groups()).groups]

    return _completed(context, incomplete, names)


def _transactional_ids(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    async def names(admin: Admin) -> list[str]:
        found = await admin.list_transactions()
        return [transaction.transactional_id for transaction in found.transactions]

    return _completed(context, incomplete, names)


def _completed(
    context: click.Context, incomplete: str, names: Callable[[Admin], Awaitable[list[str]]]
) -> list[str]:
    """The names with this beginning. Empty without a response, as a shell shows no errors."""
    # Each completion is a separate process. Only those with names pay for the client.
    import asyncio  # noqa: PLC0415 - see above
    import logging  # noqa: PLC0415 - see above

    from raftlog_client import Admin, RaftlogClientError  # noqa: PLC0415 - see above

    logging.disable()
    servers = context.params.get("servers") or os.environ.get("RAFTLOG_SERVERS") or DEFAULT_SERVERS

    async def find() -> list[str]:
        async with (
            asyncio.timeout(COMPLETION_PATIENCE_MS / 1000),
            Admin(
                bootstrap_servers=servers,
                bootstrap_timeout_ms=COMPLETION_PATIENCE_MS,
                request_timeout_ms=COMPLETION_PATIENCE_MS,
            ) as admin,
        ):
            return await names(admin)

    try:
        found = asyncio.run(find())
    except (RaftlogClientError, TimeoutError, ValueError):
        return []
    return sorted(name for name in found if name.startswith(incomplete))[:COMPLETIONS_MAX]
