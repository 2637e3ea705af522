"""`raftlog serve` runs one node until SIGTERM or Ctrl-C.

The node's log is lines on stderr, for a person or, as JSON, for a collector.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
import orjson

from raftlog.cli.common import output
from raftlog.cli.common.errors import CommandError, ExitCode
from raftlog.cli.common.options import iso_time
from raftlog.cli.settings import (
    Given,
    Setting,
    combine,
    descriptions,
    from_environment,
    from_file,
    from_flags,
    from_memory,
    settings_of,
    unknown_variables,
)
from raftlog.node.directory import IdentityError, remembered_settings
from raftlog.node.process import NodeSettings, run_node
from raftlog.node.replacement import NoteVote
from raftlog.node.settings import shown

_HELP = """Run one node in the foreground, until SIGTERM or Ctrl-C.

Every setting can be given as a flag, as the environment variable of the same name
(--listen is RAFTLOG_LISTEN) and as a key of a TOML file (--config). A flag goes before the
environment, the environment before the file, the file before what the data directory
remembers of the last start (node id, addresses, rack), that before the default. Nested
settings are tables of the file: --log-level is `level` in the table [log].

The first start begins a cluster of this node alone, or of the --voters given, or joins one
that exists. A restart needs the data directory alone.

\b
  raftlog serve --data-dir /var/lib/raftlog
  raftlog serve --data-dir D --node-id 4 --listen h4:8082 --join h1:8082 --cluster-secret-file F
  raftlog serve --data-dir NEW --replace 3 --listen h3:8082 --join h1:8082 …
  raftlog serve --config /etc/raftlog.toml --listen 0.0.0.0:8082
  raftlog serve --data-dir D --kafka-listen 127.0.0.1:9092
"""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Level and form of the node's log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level of written messages."""
    format: Literal["text", "json"] = "text"
    """json: one object per line, with time, level, logger and message."""


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO raftlog.node.process: message`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, followed by its traceback if any."""
        # UTC, because logs of several machines are read together.
        time = iso_time(int(record.created * 1000))
        line = f"{time} {record.levelname} {record.name}: {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per message."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        document: dict[str, Any] = {
            "time": iso_time(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(document, default=str).decode()


def configure_log(settings: LogSettings) -> None:
    """Send all messages of this process to stderr, by these settings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)


class ServeSettings(NodeSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the node, and of the process."""

    log: LogSettings = LogSettings()
    """The log on stderr."""


class ServeCommand(click.Command):
    """The command with an option for each setting of a node."""

    def __init__(self) -> None:
        self.settings = list(settings_of(ServeSettings))
        self._option_of: dict[str, Setting] = {}
        options: list[click.Parameter] = [
            click.Option(
                ["--config", "config_file"],
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                envvar="RAFTLOG_CONFIG",
                help="TOML file of settings.",
            ),
            click.Option(
                ["--show-settings", "show_settings"],
                is_flag=True,
                help="Print the settings that would be used, as JSON, and exit.",
            ),
        ]
        for setting in self.settings:
            option = _option(setting)
            assert option.name is not None
            self._option_of[option.name] = setting
            options.append(option)
        super().__init__("serve", params=options, callback=self._serve, help=_HELP)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by table, with the descriptions in the settings' source."""
        texts: dict[type[msgspec.Struct], dict[str, str]] = {}
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            assert isinstance(parameter, click.Option)
            setting = self._option_of.get(parameter.name or "")
            title = "Options"
            if setting is not None:
                known = texts.setdefault(setting.owner, descriptions(setting.owner))
                parameter.help = _help(setting, known.get(setting.path[-1], ""))
                if len(setting.path) > 1:
                    title = f"Table [{'.'.join(setting.path[:-1])}]"
            if record := parameter.get_help_record(ctx):
                sections.setdefault(title, []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def _serve(self, config_file: Path | None, show_settings: bool, **flags: Any) -> int:
        try:
            settings = self._settings(config_file, flags)
            # The check comes before the node tries, as a wrong address is a mistake of the command
            # line.
            settings.check()
        except ValueError as error:
            raise CommandError(
                str(error), hint="`raftlog serve --help` lists the settings.", code=ExitCode.USAGE
            ) from error
        if show_settings:
            output.write_json(msgspec.to_builtins(shown(settings)))
            return ExitCode.OK
        configure_log(settings.log)
        return run_node(settings, _take_place)

    def _settings(self, config_file: Path | None, flags: dict[str, Any]) -> ServeSettings:
        for name in unknown_variables(self.settings, os.environ):
            output.message(f"raftlog: {name} is not a setting; it is ignored")
        by_key = {self._option_of[name].key: value for name, value in flags.items()}
        given = [
            *from_flags(self.settings, by_key),
            *from_environment(self.settings, os.environ),
            *(from_file(self.settings, config_file) if config_file else ()),
        ]
        remembered = list(self._remembered(given))
        if all(value.setting.key != "node_id" for value in (*given, *remembered)):
            # The lost node's number is also the new node's.
            node_id = next(setting for setting in self.settings if setting.key == "node_id")
            lost = [value for value in given if value.setting.key == "replace"]
            given += [dataclasses.replace(value, setting=node_id) for value in lost]
        return combine(ServeSettings, iter(given), iter(remembered))

    def _remembered(self, given: list[Given]) -> Iterator[Given]:
        """The settings remembered by the data directory, which suffices for a restart."""
        first = {value.setting.key: value.value for value in reversed(given)}
        data_dir = first.get("data_dir")
        if not isinstance(data_dir, str):
            return iter(())
        try:
            values = remembered_settings(
                Path(data_dir), listen=first.get("listen"), kafka_listen=first.get("kafka_listen")
            )
        except IdentityError as error:
            raise CommandError(str(error)) from error
        return from_memory(self.settings, values, data_dir)


async def _take_place(
    addresses: Sequence[str], node_id: int, directory_id: str, note_vote: NoteVote
) -> None:
    # The import is here, so that no other start pays for the client.
    from raftlog.cluster.errors import ClusterError  # noqa: PLC0415
    from raftlog.cluster.membership import take_lost_place  # noqa: PLC0415

    try:
        await take_lost_place(addresses, node_id, directory_id, note_vote)
    except ClusterError as error:
        raise ValueError(str(error)) from error


def _option(setting: Setting) -> click.Option:
    # No defaults here. An option without a value must stay None, or would hide the file.
    name = "_".join(setting.path)
    if setting.is_switch:
        flags = f"{setting.flag}/--no-{setting.flag[2:]}"
        return click.Option([flags, name], default=None, is_flag=True)
    return click.Option(
        [setting.flag, name],
        type=click.Choice(setting.choices) if setting.choices else click.STRING,
        multiple=setting.is_mapping,
        default=None,
        metavar=_metavar(setting),
    )


def _metavar(setting: Setting) -> str | None:
    if setting.choices:
        return None
    if setting.is_mapping:
        return "NAME=VALUE"
    return "NUMBER" if isinstance(setting.default, int | float) else "TEXT"


def _help(setting: Setting, text: str) -> str:
    if setting.default in (None, msgspec.NODEFAULT, {}):
        return text
    default = str(setting.default).lower() if setting.is_switch else setting.default
    return f"{text}  [default: {default}]"


serve = ServeCommand()
