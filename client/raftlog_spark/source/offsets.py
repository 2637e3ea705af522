"""The points where a query starts and ends, and the offset of a stream.

The start or end of a query is earliest, latest, offsets or times. `planning` resolves it into
offsets, with the cluster's responses. The JSON is that of Spark's Kafka source,
`{"topic": {"0": 23, "1": -2}}`, where -2 is earliest and -1 latest.

Spark keeps the offset of a stream in its checkpoint, as JSON, for ever:
`{"v": 1, "from": {...}, "offsets": {"topic": {"0": 30}}, "topicIds": {"topic": "..."}}`

`offsets` are exclusive ends. `from` has the first offset of every partition that does not start at
the previous offset's end: all partitions in the first batch, later new partitions, and partitions
that lost records or belong to a recreated topic. So a batch is described by its end alone where the
previous offset has no entry, and a replay reads the same range, whatever the log looks like by
then. `topicIds` distinguish a topic from a later one of the same name.

A stream that has not begun has the offset `{"v": 1}`: its first batch decides the start, and keeps
it. Spark reads that offset more than once, and it must not change in between.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from raftlog_spark.errors import RaftlogSparkError

OFFSET_EARLIEST = -2
OFFSET_LATEST = -1
OFFSET_MAX = (1 << 63) - 1
PARTITION_MAX = (1 << 31) - 1
JSON_BYTES_MAX = 16 << 20

Strategy = Literal["error", "latest"]


@dataclass(frozen=True, slots=True)
class Everywhere:
    """The same end of every partition."""

    end: Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class EachOffset:
    """An offset for every partition of the query. -2 is earliest, -1 is latest."""

    offsets: Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class SameTime:
    """The first record in every partition with a timestamp not before this time. `missing` is the
    behaviour for a partition without such a record."""

    time_ms: int
    missing: Strategy


@dataclass(frozen=True, slots=True)
class EachTime:
    """A time for every partition of the query, otherwise as `SameTime`."""

    times_ms: Mapping[str, Mapping[int, int]]
    missing: Strategy


StartPoint = Everywhere | EachOffset | SameTime | EachTime
EARLIEST = Everywhere("earliest")
LATEST = Everywhere("latest")


def parse_offsets(value: str) -> StartPoint:
    """Parse `earliest`, `latest`, or offsets as JSON. Raises ValueError if the text is none of
    these."""
    if value.lower() == "earliest":
        return EARLIEST
    if value.lower() == "latest":
        return LATEST
    hint = 'must be earliest, latest, or JSON such as {"topic": {"0": 23, "1": -2}}'
    return EachOffset(_table(value, lowest=OFFSET_EARLIEST, hint=hint))


def parse_times(value: str) -> dict[str, dict[int, int]]:
    """Parse timestamps (ms since 1970 UTC) of each partition. Raises ValueError if the text is not
    such JSON."""
    hint = 'must be JSON with milliseconds since 1970, such as {"topic": {"0": 1700000000000}}'
    return _table(value, lowest=0, hint=hint)


def parse_assign(value: str) -> dict[str, tuple[int, ...]]:
    """Parse the partitions of each topic, `{"topic": [0, 1]}`, into ascending order. Raises
    ValueError if the text is not such JSON."""
    hint = 'must be JSON such as {"topic": [0, 1]}'
    parsed = load_json(value, hint)
    if not isinstance(parsed, dict) or not parsed:
        raise ValueError(hint)
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, partitions in parsed.items():
        if not topic or not isinstance(partitions, list) or not partitions:
            raise ValueError(hint)
        if not all(is_int(item, 0, PARTITION_MAX) for item in partitions):
            raise ValueError(f"{hint}: the partitions of {topic!r} are not all numbers")
        assigned[topic] = tuple(sorted(set(partitions)))
    return assigned


def load_json(value: str, hint: str) -> object:
    """Parse JSON without duplicate keys. Raises ValueError, with the hint, if not JSON, too large,
    too deep, or with a duplicate key."""

    def without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError(f"{hint}: a key comes twice")
        return found

    if len(value) > JSON_BYTES_MAX:
        raise ValueError(f"{hint}: it is longer than {JSON_BYTES_MAX} bytes")
    try:
        return json.loads(value, object_pairs_hook=without_repeats)
    except RecursionError as error:
        raise ValueError(f"{hint}: it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{hint}: {error}") from error


def is_int(value: object, lowest: int, highest: int) -> bool:
    """Whether the value is a whole number in that range. JSON's true is no number."""
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest


def parse_partition(text: str) -> int | None:
    """The partition number of a JSON key. None for any spelling but the canonical."""
    if not re.fullmatch(r"0|[1-9][0-9]{0,9}", text) or int(text) > PARTITION_MAX:
        return None
    return int(text)


def _table(value: str, *, lowest: int, hint: str) -> dict[str, dict[int, int]]:
    parsed = load_json(value, hint)
    if not isinstance(parsed, dict) or not parsed:
        raise ValueError(hint)
    table: dict[str, dict[int, int]] = {}
    for topic, entries in parsed.items():
        if not topic or not isinstance(entries, dict) or not entries:
            raise ValueError(hint)
        table[topic] = {}
        for key, number in entries.items():
            partition = parse_partition(key)
            if partition is None or not is_int(number, lowest, OFFSET_MAX):
                raise ValueError(f"{hint}: not so for {topic!r}, {key!r}: {number!r}")
            table[topic][partition] = number
    return table


VERSION = 1

Partition = tuple[str, int]
JsonOffset = dict[str, object]


class OffsetFormatError(RaftlogSparkError):
    """A checkpoint's offset is not from this source, or from a newer version."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The progress of a stream. Every key of `starts` is one of `ends`, and start <= end. `begun`
    is false for one offset only, `INITIAL`. A stream may begin without any partition."""

    ends: Mapping[Partition, int] = field(default_factory=dict)
    starts: Mapping[Partition, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    begun: bool = True


INITIAL = StreamOffset(begun=False)


def to_json(offset: StreamOffset) -> JsonOffset:
    """The offset as JSON. Equal offsets give equal text, because Spark compares the text."""
    if not offset.begun:
        return {"v": VERSION}
    return {
        "v": VERSION,
        "from": _nested(offset.starts),
        "offsets": _nested(offset.ends),
        "topicIds": dict(sorted(offset.topic_ids.items())),
    }


def from_json(value: object) -> StreamOffset:
    """The offset of a JSON value. Raises OffsetFormatError if the value is no offset."""
    if not isinstance(value, dict) or "v" not in value:
        raise OffsetFormatError(
            "this checkpoint's offset is not raftlog's: a checkpoint belongs to one query with "
            "its sources; start with a new checkpointLocation"
        )
    version = value["v"]
    if version != VERSION or isinstance(version, bool):
        raise OffsetFormatError(
            f"this checkpoint's offset has version {version!r}, this raftlog reads {VERSION}: "
            "use the raftlog that wrote it, or a newer one"
        )
    if len(value) == 1:
        return INITIAL
    if sorted(value) != ["from", "offsets", "topicIds", "v"]:
        raise _damaged(f"its fields are {sorted(map(str, value))}")
    ends = _flat(value["offsets"], "offsets")
    starts = _flat(value["from"], "from")
    ids = value["topicIds"]
    if not isinstance(ids, dict) or not all(
        isinstance(topic, str) and isinstance(topic_id, str) for topic, topic_id in ids.items()
    ):
        raise _damaged("topicIds does not map topics to ids")
    for partition, start in starts.items():
        if partition not in ends or start > ends[partition]:
            raise _damaged(f"{partition} begins at {start}, which is not before its end")
    if {topic for topic, _ in ends} - set(ids):
        raise _damaged("a topic has no id")
    return StreamOffset(ends, starts, dict(ids))


def _nested(flat: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(flat.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested


def _flat(value: object, name: str) -> dict[Partition, int]:
    if not isinstance(value, dict):
        raise _damaged(f"{name} is not an object")
    flat: dict[Partition, int] = {}
    for topic, table in value.items():
        if not isinstance(topic, str) or not isinstance(table, dict):
            raise _damaged(f"{name} does not map topics to partitions")
        for key, offset in table.items():
            partition = parse_partition(key) if isinstance(key, str) else None
            if partition is None or not is_int(offset, 0, OFFSET_MAX):
                raise _damaged(f"{name} has {key!r}: {offset!r} for topic {topic!r}")
            flat[topic, partition] = offset
    return flat


def _damaged(what: str) -> OffsetFormatError:
    return OffsetFormatError(
        f"this checkpoint's offset is damaged ({what}): start with a new checkpointLocation, and "
        "with startingOffsets where the old one ended"
    )
