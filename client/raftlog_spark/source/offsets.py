"""The offset of a stream, which Spark keeps in its checkpoint, as JSON, for ever.

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

from collections.abc import Mapping
from dataclasses import dataclass, field

from raftlog_spark.errors import RaftlogSparkError
from raftlog_spark.source.start_points import OFFSET_MAX, is_int, parse_partition

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
