"""Options that several commands share, and the readers of their values.

Positions in a topic as people write them, and the offsets they mean in each partition.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeVar, assert_never

import click
from raftlog_client import Admin, Consumer, TopicPartition

from raftlog.record.errors import UNKNOWN_PARTITION, LogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DEFAULT_SERVERS = "127.0.0.1:8082"
CONFIG_PAIRS_MAX = 1_000

_Command = TypeVar("_Command", bound="Callable[..., Any]")


def servers_option(command: _Command) -> _Command:
    """`--servers`: where the cluster is found; any of its nodes will do."""
    return click.option(
        "-X",
        "--servers",
        envvar="RAFTLOG_SERVERS",
        default=DEFAULT_SERVERS,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT,…",
        callback=_checked_servers,
        help="Nodes to ask, any of the cluster.",
    )(command)


def format_option(command: _Command) -> _Command:
    """`--format text|json`: for people or for programs."""
    return click.option(
        "--format",
        "output_format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="json: one document on stdout.",
    )(command)


def _checked_servers(context: click.Context, parameter: click.Parameter, value: str) -> str:
    servers = [server.strip().removeprefix("http://").rstrip("/") for server in value.split(",")]
    servers = [server for server in servers if server]
    if not servers:
        raise click.BadParameter("name at least one node, as HOST:PORT")
    for server in servers:
        host, separator, port = server.rpartition(":")
        if not (separator and host and port.isascii() and port.isdigit() and int(port) <= 65_535):
            raise click.BadParameter(f"{server!r} is not HOST:PORT")
    return ",".join(servers)


def config_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """`name=value` words as a dictionary; a name given twice is a mistake worth telling."""
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
    """Milliseconds since 1970 (UTC) from such a number or from ISO-8601; no zone means UTC.

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
        # A record may carry any 64-bit number; the calendar ends in the year 9999.
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


POSITION_HELP = """earliest or start; latest or end; N, an offset; +N, N records after the
beginning; -N, the last N records of each partition; @T, the first record at or after a time, in
milliseconds since 1970 or as ISO-8601 (UTC if it names no zone)."""

_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<digits>\d{1,19})")


class Anchor(Enum):
    """What a position is counted from."""

    OFFSET = auto()
    BEGINNING = auto()
    END = auto()
    TIME = auto()


@dataclass(frozen=True, slots=True)
class Position:
    """A place in every partition: an amount (offset, records or milliseconds) from its anchor."""

    anchor: Anchor
    amount: int = 0

    def __str__(self) -> str:
        match self.anchor:
            case Anchor.OFFSET:
                return f"offset {self.amount}"
            case Anchor.BEGINNING:
                return f"{self.amount} records after the beginning"
            case Anchor.END:
                return "the end" if not self.amount else f"the last {self.amount} records"
            case Anchor.TIME:
                return iso_time(self.amount)
            case _:
                assert_never(self.anchor)


EARLIEST = Position(Anchor.BEGINNING)
LATEST = Position(Anchor.END)
_WORDS = {"earliest": EARLIEST, "start": EARLIEST, "latest": LATEST, "end": LATEST}


def parse_position(text: str) -> Position:
    """The position that `text` means, in the grammar of POSITION_HELP; ValueError otherwise."""
    if text in _WORDS:
        return _WORDS[text]
    if text.startswith("@"):
        return Position(Anchor.TIME, timestamp_ms(text[1:]))
    number = _NUMBER.fullmatch(text)
    if number is None:
        raise ValueError(f"{text!r} is no position; a position is {POSITION_HELP}")
    anchor = {"": Anchor.OFFSET, "+": Anchor.BEGINNING, "-": Anchor.END}[number["sign"]]
    return Position(anchor, int(number["digits"]))


class _PositionType(click.ParamType[Position]):
    name = "position"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Position:
        if isinstance(value, Position):
            return value
        try:
            return parse_position(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def position_option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """A click option whose value is a Position."""
    return click.option(*names, type=_PositionType(), metavar="POSITION", **settings)


async def resolve(
    admin: Admin,
    consumer: Consumer[Any, Any],
    topics: Iterable[str],
    partitions: Iterable[int] | None,
    position: Position,
) -> dict[TopicPartition, int]:
    """The offset that a position means in each partition, within what the partition has.

    Only an explicit offset is left as it is, so that the node refuses one that is out of range
    instead of something else being read. Raises ServerError, and LogError for an unknown partition.
    """
    known = await admin.offsets(topics)
    if partitions is not None:
        wanted = {TopicPartition(topic, number) for topic in topics for number in partitions}
        if missing := sorted(wanted - known.keys()):
            raise LogError(
                UNKNOWN_PARTITION,
                f"{missing[0].topic} has no partition {missing[0].partition}.",
            )
        known = {partition: known[partition] for partition in sorted(wanted)}
    match position.anchor:
        case Anchor.OFFSET:
            return dict.fromkeys(known, position.amount)
        case Anchor.BEGINNING:
            return {
                partition: min(offsets.beginning_offset + position.amount, offsets.end_offset)
                for partition, offsets in known.items()
            }
        case Anchor.END:
            return {
                partition: max(offsets.end_offset - position.amount, offsets.beginning_offset)
                for partition, offsets in known.items()
            }
        case Anchor.TIME:
            found = await consumer.offsets_for_times(dict.fromkeys(known, position.amount))
            ends = {partition: offsets.end_offset for partition, offsets in known.items()}
            return ends | {
                partition: place.offset for partition, place in found.items() if place is not None
            }
        case _:
            assert_never(position.anchor)
