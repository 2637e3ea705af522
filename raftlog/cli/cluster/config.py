"""`raftlog cluster config`: settings of all brokers, and topic configs for the whole cluster."""

from __future__ import annotations

import click

from raftlog.cli.common import output
from raftlog.cli.common.errors import CommandError, ExitCode
from raftlog.cli.common.options import config_pairs, format_option, servers_option
from raftlog.cli.common.session import ask
from raftlog.metadata.configs.broker import BROKER_CONFIG_TABLE, find_cluster_setting
from raftlog.metadata.configs.topic import CONFIG_TABLE
from raftlog.metadata.configs.values import ConfigEntry
from raftlog.record.errors import LogError


@click.command("list")
@servers_option
@format_option
def list_configs(servers: str, output_format: str) -> None:
    """List the broker settings, and the topic settings of the whole cluster."""
    values = _values(servers)
    names = [*BROKER_CONFIG_TABLE, *(name for name in sorted(values) if not _is_broker(name))]
    rows = [_row(name, values) for name in names]
    columns = ("name", "value", "source", "bounds", "meaning")
    if output_format == "json":
        output.write_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        # The meaning is a sentence or two, which is too wide for a table.
        output.write_table(columns[:-1], [row[:-1] for row in rows])


@click.command("get")
@click.argument("name", metavar="NAME")
@servers_option
@format_option
def get_config(name: str, servers: str, output_format: str) -> None:
    """Print the value of one setting, which is the cluster's or the default."""
    values = _values(servers)
    if name not in values:
        try:
            find_cluster_setting(name)
        except LogError as error:
            raise CommandError(
                error.message,
                hint="`raftlog cluster config list` lists the broker settings.",
                code=ExitCode.NOT_FOUND,
            ) from None
    _, value, source, *_ = _row(name, values)
    if output_format == "json":
        output.write_json({"name": name, "value": value, "source": source})
    else:
        click.echo(value)


@click.command("set")
@click.argument("pairs", nargs=-1, metavar="NAME=VALUE…")
@click.option(
    "-d", "--delete", "unset", multiple=True, metavar="NAME", help="Return it to the default."
)
@servers_option
@format_option
def set_configs(
    pairs: tuple[str, ...], unset: tuple[str, ...], servers: str, output_format: str
) -> None:
    """Change settings of the whole cluster, all or none of those given.

    \b
      raftlog cluster config set broker.session.timeout.ms=9000
      raftlog cluster config set log.scrub.bytes.per.second=0 --delete disk.reserve.bytes
    """
    values = config_pairs(pairs)
    if not values and not unset:
        raise click.UsageError("say what to change: NAME=VALUE or --delete NAME")

    ask(servers, lambda admin: admin.alter_cluster_settings(values, unset=unset))
    if output_format == "json":
        output.write_json({"set": values, "deleted": list(unset)})
    else:
        output.message(f"{output.counted(len(values) + len(unset), 'setting')} changed")


def _values(servers: str) -> dict[str, str]:
    """The settings of the cluster, with every change acknowledged before."""
    return dict(ask(servers, lambda admin: admin.describe_cluster_settings(fresh=True)).values)


def _row(name: str, values: dict[str, str]) -> tuple[str, str | None, str, str, str]:
    entry = _entry(name)
    default = None if entry is None else entry.default
    bounds = "" if entry is None or entry.lower is None else f"{entry.lower} to {entry.upper}"
    source = "cluster" if name in values else "default"
    return name, values.get(name, default), source, bounds, "" if entry is None else entry.doc


def _entry(name: str) -> ConfigEntry | None:
    return BROKER_CONFIG_TABLE.get(name) or CONFIG_TABLE.get(name)


def _is_broker(name: str) -> bool:
    return name in BROKER_CONFIG_TABLE
