"""Positions in a topic as people write them, and their offsets in each partition."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, assert_never

import click
from raftlog_client import Admin, Consumer, TopicPartition

from raftlog.cli.common.options import iso_time, timestamp_ms
from raftlog.record.errors import UNKNOWN_PARTITION, LogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from raftlog.api.records import Isolation

POSITION_HELP = """earliest or start; latest or end; N, an offset; +N, N records after the
beginning; -N, the last N offsets of each partition (of records, also removed ones, and of
transaction markers); @T, the first record at or after a time: in ISO-8601 (UTC if it names no
zone), in seconds since 1970 (ten digits) or milliseconds (thirteen, or any other number), or before
now (-90s, -15m, -1h30m, -7d, -2w)."""

_EXAMPLES = "a position is, say, earliest, latest, 42, -10, @2026-01-31T10:00 or @-1h (see --help)"
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<digits>[0-9]{1,19})")
_EPOCH_SECONDS = re.compile(r"[0-9]{10}")
_AGO = re.compile(r"-(?:[0-9]{1,9}(?:ms|[smhdw]))+")
_AMOUNT = re.compile(r"([0-9]{1,9})(ms|[smhdw])")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}


class Anchor(Enum):
    """The base of a position."""

    OFFSET = auto()
    BEGINNING = auto()
    END = auto()
    TIME = auto()


@dataclass(frozen=True, slots=True)
class Position:
    """A place in every partition, as an amount from its anchor.

    The amount is an offset, records or milliseconds.
    """

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


def parse_position(text: str, now_ms: int) -> Position:
    """Parse a position in the grammar of POSITION_HELP. Raises ValueError."""
    if text in _WORDS:
        return _WORDS[text]
    if text.startswith("@"):
        return Position(Anchor.TIME, _time_ms(text[1:], now_ms))
    number = _NUMBER.fullmatch(text)
    if number is None:
        raise ValueError(f"{text!r} is no position; {_EXAMPLES}")
    anchor = {"": Anchor.OFFSET, "+": Anchor.BEGINNING, "-": Anchor.END}[number["sign"]]
    return Position(anchor, int(number["digits"]))


def _time_ms(text: str, now_ms: int) -> int:
    if _EPOCH_SECONDS.fullmatch(text):
        return int(text) * 1_000
    if _AGO.fullmatch(text):
        ago_ms = sum(int(amount) * _UNIT_MS[unit] for amount, unit in _AMOUNT.findall(text))
        return max(now_ms - ago_ms, 0)
    try:
        return timestamp_ms(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time; {_EXAMPLES}") from None


class _PositionType(click.ParamType[Position]):
    name = "position"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Position:
        if isinstance(value, Position):
            return value
        try:
            return parse_position(str(value), round(time.time() * 1_000))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def position_option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """A click option with a Position as its value."""
    return click.option(*names, type=_PositionType(), metavar="POSITION", **settings)


async def resolve(
    admin: Admin,
    consumer: Consumer[Any, Any],
    topics: Iterable[str],
    partitions: Iterable[int] | None,
    position: Position,
    *,
    isolation: Isolation = "read_uncommitted",
) -> dict[TopicPartition, int]:
    """The offset of a position in each partition, within the range of readers.

    The range depends on the isolation. An explicit offset stays unchanged, so that the node rejects
    an offset out of range instead of reading other records. Raises ServerError, and LogError for an
    unknown partition.
    """
    known = await admin.offsets(topics)
    ends = {partition: offsets.end_for(isolation) for partition, offsets in known.items()}
    if partitions is not None:
        wanted = {TopicPartition(topic, number) for topic in topics for number in partitions}
        if missing := sorted(wanted - known.keys()):
            raise LogError(
                UNKNOWN_PARTITION, f"{missing[0].topic} has no partition {missing[0].partition}."
            )
        known = {partition: known[partition] for partition in sorted(wanted)}
    match position.anchor:
        case Anchor.OFFSET:
            return dict.fromkeys(known, position.amount)
        case Anchor.BEGINNING:
            return {
                partition: min(offsets.beginning_offset + position.amount, ends[partition])
                for partition, offsets in known.items()
            }
        case Anchor.END:
            return {
                partition: offsets.before_end(position.amount, isolation)
                for partition, offsets in known.items()
            }
        case Anchor.TIME:
            found = await consumer.offsets_for_times(dict.fromkeys(known, position.amount))
            return {
                partition: ends[partition] if place is None else place.offset
                for partition, place in found.items()
            }
        case _:
            assert_never(position.anchor)
