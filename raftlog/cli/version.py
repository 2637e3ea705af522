"""`raftlog version`: the version of this command and of the Python that runs it."""

from __future__ import annotations

import platform

import click

from raftlog import __version__
from raftlog.cli.common import output
from raftlog.cli.common.options import format_option


@click.command()
@format_option
def version(output_format: str) -> None:
    """Print the version of raftlog, as --version does, and of Python."""
    python = platform.python_version()
    if output_format == "json":
        output.write_json({"version": __version__, "python": python})
    else:
        click.echo(f"raftlog {__version__} (Python {python})")
