"""`raftlog completion` prints the script by which a shell completes commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import get_completion_class

if TYPE_CHECKING:
    from click.shell_completion import ShellComplete

SHELLS: Final = ("bash", "zsh", "fish")
_VARIABLE: Final = "_RAFTLOG_COMPLETE"
"""The variable by which click recognises a completion, derived from the program's name."""


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options, for SHELL.

    \b
      bash: eval "$(raftlog completion bash)"     in ~/.bashrc
      zsh:  eval "$(raftlog completion zsh)"      in ~/.zshrc
      fish: raftlog completion fish | source      in ~/.config/fish/config.fish
    """
    found = get_completion_class(shell)
    assert found is not None, shell
    root = context.find_root()
    complete: ShellComplete = found(root.command, {}, "raftlog", _VARIABLE)
    click.echo(complete.source())
