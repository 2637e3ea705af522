"""Command groups that import a subcommand's module only when that subcommand is called."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from collections.abc import Mapping


class Lazy(NamedTuple):
    """Where a command lives, and its line in the group's help."""

    module: str
    attribute: str
    summary: str


class LazyGroup(click.Group):
    """A group whose subcommands are named in a table instead of imported."""

    def __init__(
        self, name: str, *, subcommands: Mapping[str, Lazy], help: str, **settings: object
    ) -> None:
        super().__init__(name, help=help, context_settings={"help_option_names": ["-h", "--help"]})
        self._subcommands = subcommands
        assert not settings, settings

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the table's order, which is the order in which people need them."""
        return list(self._subcommands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The named subcommand, imported now."""
        entry = self._subcommands.get(cmd_name)
        if entry is None:
            return None
        command = getattr(import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command), entry
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands without importing any of them."""
        rows = [(name, entry.summary) for name, entry in self._subcommands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
