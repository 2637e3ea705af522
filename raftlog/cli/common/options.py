"""Options that several commands share, and the readers of their values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DEFAULT_SERVERS = "127.0.0.1:8082"
CONFIG_PAIRS_MAX = 1_000

_Command = TypeVar("_Command", bound="Callable[..., Any]")


def servers_option(command: _Command) -> _Command:
    """`--servers` gives nodes of the cluster. Any of its nodes will do."""
    return click.option(
        "-X",
        "--servers",
        envvar="RAFTLOG_SERVERS",
        default=DEFAULT_SERVERS,
        show_envvar=True,
        metavar="HOST:PORT,…",
        callback=_checked_servers,
        help="Nodes of the cluster, of which any will do.",
    )(command)


def format_option(command: _Command) -> _Command:
    """`--format text|json` is for people or for programs."""
    return click.option(
        "--format",
        "output_format",
        type=click.Choice(["text", "json"]),
        default="text",
        help="json: one document on stdout.",
    )(command)


def acks_option(help: str | None = None) -> Callable[[_Command], _Command]:
    """`--acks` names the replicas that acknowledge. `acks_value` is for the client."""
    return click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", help=help)


def acks_value(acks: str) -> Literal["all", 1, 0]:
    """`acks` of a producer."""
    return "all" if acks == "all" else 1 if acks == "1" else 0


def compression_option(help: str | None = None) -> Callable[[_Command], _Command]:
    """`--compression` of record batches."""
    codecs = click.Choice(["none", "gzip", "snappy", "lz4", "zstd"])
    return click.option("-z", "--compression", type=codecs, default="none", help=help)


def _checked_servers(context: click.Context, parameter: click.Parameter, value: str) -> str:
    servers = [server.strip().removeprefix("http://").rstrip("/") for server in value.split(",")]
    servers = [server for server in servers if server]
    if not servers:
        raise click.BadParameter("name at least one node, as HOST:PORT")
    for server in servers:
        host, separator, port = server.rpartition(":")
        is_port = port.isascii() and port.isdigit() and int(port) <= 65_535
        if not (separator and host and is_port) or "/" in host:
            raise click.BadParameter(f"{server!r} is not HOST:PORT")
    return ",".join(servers)


def config_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """Parse `name=value` words as a dictionary. A name given twice is a mistake."""
    configs: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not (separator and name):
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE")
        if name in configs:
            raise click.BadParameter(f"{name} is given twice")
        configs[name] = value
    if len(configs) > CONFIG_PAIRS_MAX:
        raise click.BadParameter(f"more than {CONFIG_PAIRS_MAX} settings")
    return configs


def partition_numbers(text: str) -> list[int]:
    """`0,2,5-7` as sorted numbers without repeats."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, separator, last = part.strip().partition("-")
        try:
            start, end = int(first), int(last if separator else first)
        except ValueError:
            start, end = 0, -1
        if not 0 <= start <= end <= 1_000_000:
            raise click.BadParameter(f"{part!r} is not a partition number or a range like 2-5")
        numbers.update(range(start, end + 1))
    return sorted(numbers)


def timestamp_ms(text: str) -> int:
    """Milliseconds since 1970 (UTC) from a number or ISO-8601. No zone means UTC.

    Raises ValueError with a message for the user.
    """
    if text.removeprefix("-").isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither milliseconds since 1970 nor a time like 2013-01-01T10:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def iso_time(timestamp_ms: int) -> str:
    """ISO-8601 in UTC with milliseconds, the inverse of `timestamp_ms`."""
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        # A record may carry any 64-bit number. The calendar ends in the year 9999.
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"
