"""Raw record batches into Arrow, many records at a time.

Batches are gathered into *units* of some megabytes: their headers are read one by one (Python, a
few µs a batch), their records all together (numpy and Arrow, see DESIGN.md). Uncompressed batches
are read where they are; compressed ones are decompressed into one buffer. Only the columns asked
for are computed, and records are not looked at where their batch's header tells all.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from raftlog.record.batch import RECORD_SIZE_MIN, check_batch, iterate_headers
from raftlog.record.compression import Compression, decompress
from raftlog.record.errors import LogError
from raftlog.record.header import HEADER_SIZE, BatchHeader
from raftlog.record.types import Buffer
from raftlog_spark.codec.record_fields import (
    TYPES,
    arrow_schema,
    headers_at,
    key_positions,
    slices_at,
    taken,
)
from raftlog_spark.codec.record_offsets import Bodies, record_starts
from raftlog_spark.codec.varints import CorruptBatchError, Cursor, Positions, Window

__all__ = ["DECOMPRESSED_BYTES_MAX", "CorruptBatchError", "decode"]

DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
"""A batch that holds more is refused. The client's consumer has the same default."""
DECOMPRESSED_BYTES_LIMIT: Final = 2**30
"""A unit with such a batch still has positions of 31 bits, as Arrow's binary arrays have."""
UNIT_BYTES: Final = 3 * 1024 * 1024
"""Size at which a unit is full. Larger: fewer calls. Smaller: what is read stays in the cache."""
SLICE_BYTES: Final = 4 * 1024 * 1024
"""A unit of more than that is given out in slices of at most that, or of one record."""
HEADER_ROWS: Final = 128 * 1024
"""Rows of a RecordBatch where headers tell all."""

_IN_HEADER: Final = frozenset({"topic", "partition", "offset", "timestampType"})
TIMESTAMP_MS_LIMIT: Final = 2**63 // 1000
COMPRESSION_RATIO: Final = 4
"""A guess at what a compressed batch holds, before it is known."""


class _Place(Enum):
    """Where a batch's rows are read from. A unit has batches of one kind."""

    HEADER = 1
    PLAIN = 2
    COMPRESSED = 3


class _Asked(NamedTuple):
    """What a call of `decode` asks for."""

    data: memoryview
    topic: str
    partition: int
    start: int
    end: int
    names: frozenset[str]
    schema: pa.Schema
    decompressed_bytes_max: int


class _Batch(NamedTuple):
    """A batch and where it begins in the data."""

    position: int
    header: BatchHeader


class _Rows(NamedTuple):
    """Rows that are read together, of some batches of a unit."""

    starts: Positions
    """Where their records begin and end, if they are looked at."""
    ends: Positions
    counts: Positions
    """How many are of each batch."""
    offsets: Positions | None
    """Where they are asked for."""


def decode(
    data: bytes | bytearray | memoryview,
    *,
    topic: str,
    partition: int,
    start: int,
    end: int,
    columns: tuple[str, ...],
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """The records of `data` (whole batches as stored) with start <= offset < end, as Arrow.

    Yields RecordBatches of `arrow_schema(columns)` of up to about 4 MB, none empty. Control batches
    give no rows; what was aborted is the caller's to leave out. No RecordBatch refers to `data`.
    Memory: a few times UNIT_BYTES, or a few times the largest batch, which holds at most
    `decompressed_bytes_max` (eight times that, if all of it is smallest records).

    Raises CorruptBatchError for whatever is not a sound batch, its CRC included, or is too large,
    after the rows of units before it. Records of batches outside of the range are not looked at.
    """
    assert 0 < decompressed_bytes_max <= DECOMPRESSED_BYTES_LIMIT
    asked = _Asked(
        memoryview(data),
        topic,
        partition,
        start,
        end,
        frozenset(columns),
        arrow_schema(columns),
        decompressed_bytes_max,
    )
    unit: list[_Batch] = []
    place = _Place.HEADER
    size = 0
    try:
        for position, header in iterate_headers(asked.data):
            if header.next_offset <= start or header.base_offset >= end:
                continue
            _check(asked, position, header)
            if header.is_control or not header.record_count:
                continue
            batch_place = _place(header, asked.names)
            if unit and batch_place is not place:
                yield from _record_batches(unit, place, asked)
                unit, size = [], 0
            place = batch_place
            unit.append(_Batch(position, header))
            size = _size_after(unit, size, place)
            if size >= UNIT_BYTES:
                yield from _record_batches(unit, place, asked)
                unit, size = [], 0
        if unit:
            yield from _record_batches(unit, place, asked)
    except LogError as error:
        raise CorruptBatchError(f"{topic}-{partition}: {error.message}") from error


def _check(asked: _Asked, position: int, header: BatchHeader) -> None:
    """Refuse a batch that is damaged, or that claims more than it can hold."""
    reason: str | None = None
    body_bytes_max = asked.decompressed_bytes_max
    is_too_large = False
    if header.compression is Compression.NONE:
        is_too_large = header.size_bytes - HEADER_SIZE > body_bytes_max
        body_bytes_max = header.size_bytes - HEADER_SIZE
    if not check_batch(asked.data, position, header):
        reason = "it is cut off, or its CRC is wrong"
    elif is_too_large:
        reason = f"it holds more than {asked.decompressed_bytes_max} bytes"
    elif header.record_count > header.last_offset_delta + 1:
        reason = "it claims more records than offsets"
    elif header.record_count * RECORD_SIZE_MIN > body_bytes_max:
        reason = f"there is no room for the {header.record_count} records that it claims"
    elif header.next_offset >= 2**63:
        reason = "its offsets are too large"
    if reason is not None:
        raise CorruptBatchError(
            f"{asked.topic}-{asked.partition}: bad record batch at offset {header.base_offset}: "
            f"{reason}."
        )


def _place(header: BatchHeader, names: frozenset[str]) -> _Place:
    """Where the columns are found. In a compacted batch, only records tell their offsets."""
    rest = names - _IN_HEADER
    if header.is_log_append_time:
        rest -= {"timestamp"}
    if not rest and _is_full(header):
        return _Place.HEADER
    return _Place.PLAIN if header.compression is Compression.NONE else _Place.COMPRESSED


def _is_full(header: BatchHeader) -> bool:
    """Whether no record was removed, so that offsets count up by one, as the node saw to."""
    return header.record_count == header.last_offset_delta + 1


def _size_after(unit: list[_Batch], size: int, place: _Place) -> int:
    """About how large the unit is, of `size` before its last batch was added, in bytes."""
    position, header = unit[-1]
    match place:
        case _Place.HEADER:
            return size + header.record_count * UNIT_BYTES // HEADER_ROWS
        case _Place.PLAIN:
            # With what is left out between its batches.
            return position + header.size_bytes - unit[0].position
        case _Place.COMPRESSED:
            return size + header.size_bytes * COMPRESSION_RATIO


def _record_batches(unit: list[_Batch], place: _Place, asked: _Asked) -> Iterator[pa.RecordBatch]:
    """The rows of a unit."""
    try:
        match place:
            case _Place.HEADER:
                yield from _from_headers(unit, asked)
            case _Place.PLAIN:
                yield from _from_bodies(unit, *_plain(unit, asked), asked)
            case _Place.COMPRESSED:
                for part, window, bodies in _decompressed(unit, asked):
                    yield from _from_bodies(part, window, bodies, asked)
    except CorruptBatchError as error:
        first, last = unit[0].header, unit[-1].header
        raise CorruptBatchError(
            f"{asked.topic}-{asked.partition}: bad record batch at an offset from "
            f"{first.base_offset} to {last.last_offset}: {error}."
        ) from error


def _from_headers(unit: list[_Batch], asked: _Asked) -> Iterator[pa.RecordBatch]:
    """Rows of batches of which nothing is asked but what their headers tell."""
    nowhere = np.empty(0, np.int64)
    starts = np.array([max(batch.header.base_offset, asked.start) for batch in unit], np.int64)
    ends = np.array([min(batch.header.next_offset, asked.end) for batch in unit], np.int64)
    counts = ends - starts
    firsts = np.cumsum(counts) - counts
    total = int(counts.sum())
    for first in range(0, total, HEADER_ROWS):
        last = min(first + HEADER_ROWS, total)
        within = np.clip(firsts + counts, first, last) - np.clip(firsts, first, last)
        offsets = np.arange(first, last) + np.repeat(starts - firsts, within)
        yield _arrow(unit, None, _Rows(nowhere, nowhere, within, offsets), asked)


def _from_bodies(
    unit: list[_Batch], window: Window, bodies: Bodies, asked: _Asked
) -> Iterator[pa.RecordBatch]:
    """Rows of batches whose records have to be read."""
    starts = record_starts(window, bodies)
    ends = np.empty_like(starts)
    ends[:-1] = starts[1:]
    ends[np.cumsum(bodies.counts) - 1] = bodies.ends
    rows = _Rows(starts, ends, bodies.counts, None)
    is_cut = any(
        batch.header.base_offset < asked.start or batch.header.next_offset > asked.end
        for batch in unit
    )
    if is_cut or "offset" in asked.names:
        rows = rows._replace(offsets=_offsets(unit, window, rows))
    if is_cut:
        rows = _cut(rows, asked)
    first, total = 0, len(rows.starts)
    if total and rows.ends[-1] - rows.starts[0] <= SLICE_BYTES:
        yield _arrow(unit, window, rows, asked)
        return
    while first < total:
        limit = rows.starts[first] + SLICE_BYTES
        last = max(int(np.searchsorted(rows.ends, limit, side="right")), first + 1)
        yield _arrow(unit, window, _sliced(rows, first, last), asked)
        first = last


def _cut(rows: _Rows, asked: _Asked) -> _Rows:
    """The rows in the asked range of offsets."""
    assert rows.offsets is not None
    inside = (rows.offsets >= asked.start) & (rows.offsets < asked.end)
    before = np.concatenate(([0], np.cumsum(inside)))
    lasts = np.cumsum(rows.counts)
    counts = before[lasts] - before[lasts - rows.counts]
    return _Rows(rows.starts[inside], rows.ends[inside], counts, rows.offsets[inside])


def _sliced(rows: _Rows, first: int, last: int) -> _Rows:
    """Rows from `first` to before `last`."""
    lasts = np.cumsum(rows.counts)
    counts = np.clip(lasts, first, last) - np.clip(lasts - rows.counts, first, last)
    offsets = None if rows.offsets is None else rows.offsets[first:last]
    return _Rows(rows.starts[first:last], rows.ends[first:last], counts, offsets)


def _plain(unit: list[_Batch], asked: _Asked) -> tuple[Window, Bodies]:
    """The batches' bodies where they are, with all that is between them."""
    first = unit[0].position
    last = unit[-1]
    window = Window(asked.data[first : last.position + last.header.size_bytes])
    ends = np.array([batch.position + batch.header.size_bytes for batch in unit], np.int64) - first
    starts = np.array([batch.position + HEADER_SIZE for batch in unit], np.int64) - first
    return window, Bodies(starts, ends, *_counts_and_spans(unit))


def _decompressed(
    unit: list[_Batch], asked: _Asked
) -> Iterator[tuple[list[_Batch], Window, Bodies]]:
    """The batches' bodies, one after the other; in parts, if they hold more than was thought."""
    part: list[_Batch] = []
    bodies: list[Buffer] = []
    size = 0
    for batch in unit:
        position, header = batch
        body = decompress(
            header.compression,
            asked.data[position + HEADER_SIZE : position + header.size_bytes],
            decompressed_bytes_max=asked.decompressed_bytes_max,
        )
        if header.record_count * RECORD_SIZE_MIN > len(body):
            raise CorruptBatchError(f"{len(body)} bytes cannot hold {header.record_count} records")
        part.append(batch)
        bodies.append(body)
        size += len(body)
        if size >= UNIT_BYTES or batch is unit[-1]:
            ends = np.cumsum([len(body) for body in bodies])
            starts = np.concatenate(([0], ends[:-1]))
            window = Window(bodies[0] if len(bodies) == 1 else b"".join(bodies))
            yield part, window, Bodies(starts, ends, *_counts_and_spans(part))
            part, bodies, size = [], [], 0


def _counts_and_spans(unit: list[_Batch]) -> tuple[Positions, Positions]:
    """Records and offsets of each batch."""
    counts = np.array([batch.header.record_count for batch in unit], np.int64)
    lasts = np.array([batch.header.last_offset_delta for batch in unit], np.int64)
    return counts, lasts + 1


def _offsets(unit: list[_Batch], window: Window, rows: _Rows) -> Positions:
    """The offset of every record of a unit."""
    counts = rows.counts
    bases = np.array([batch.header.base_offset for batch in unit], np.int64)
    firsts = np.cumsum(counts) - counts
    # For full batches the header's word counts, as it does where records are not looked at.
    offsets: Positions = np.arange(len(rows.starts)) + np.repeat(bases - firsts, counts)
    _, spans = _counts_and_spans(unit)
    if (spans == counts).all():
        return offsets
    is_full = np.repeat(spans == counts, counts)
    cursor = Cursor(window, rows.starts)
    cursor.skip_int()
    cursor.skip_byte()
    cursor.skip_long()
    deltas = cursor.read_int()
    is_rising = np.ones(len(deltas), np.bool_)
    is_rising[1:] = deltas[1:] > deltas[:-1]
    is_rising[firsts] = True
    is_sound = is_rising & (deltas >= 0) & (deltas < np.repeat(spans, counts))
    if not (is_full | is_sound).all():
        raise CorruptBatchError("its records' offsets do not go up within its own")
    return np.where(is_full, offsets, np.repeat(bases, counts) + deltas)


def _arrow(unit: list[_Batch], window: Window | None, rows: _Rows, asked: _Asked) -> pa.RecordBatch:
    """The rows with the columns asked for. `window` is None if headers tell all."""
    names, count = asked.names, int(rows.counts.sum())
    found: dict[str, Any] = {}
    if "topic" in names:
        found["topic"] = pa.repeat(pa.scalar(asked.topic, TYPES["topic"]), count)
    if "partition" in names:
        found["partition"] = pa.repeat(pa.scalar(asked.partition, TYPES["partition"]), count)
    if "offset" in names:
        found["offset"] = pa.array(rows.offsets)
    if "timestampType" in names:
        kinds = np.array([batch.header.is_log_append_time for batch in unit], np.int32)
        found["timestampType"] = pa.array(np.repeat(kinds, rows.counts))
    if window is not None and not names <= _IN_HEADER:
        found |= _read_fields(unit, window, rows, names)
    elif "timestamp" in names:
        found["timestamp"] = _timestamps(unit, rows.counts, None)
    columns = [found[name] for name in asked.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=asked.schema)


def _read_fields(
    unit: list[_Batch], window: Window, rows: _Rows, names: frozenset[str]
) -> dict[str, Any]:
    """The columns that are in the records, of which no field is read that is not needed."""
    found: dict[str, Any] = {}
    if "timestamp" in names:
        cursor = Cursor(window, rows.starts)
        cursor.skip_int()
        cursor.skip_byte()
        found["timestamp"] = _timestamps(unit, rows.counts, cursor.read_long())
    if not names & {"key", "value", "headers"}:
        return found
    buffer = pa.py_buffer(window.data)
    keys = slices_at(window, key_positions(window, rows.starts), rows.ends)
    if "key" in names:
        found["key"] = taken(buffer, keys)
    if not names & {"value", "headers"}:
        return found
    values = slices_at(window, keys.ends, rows.ends)
    if "value" in names:
        found["value"] = taken(buffer, values)
    if "headers" in names:
        found["headers"] = headers_at(window, buffer, values.ends, rows.ends)
    return found


def _timestamps(unit: list[_Batch], counts: Positions, deltas: Positions | None) -> pa.Array:
    """Microseconds since the Unix epoch. Raises CorruptBatchError for what these cannot express."""
    is_log_append = np.array([batch.header.is_log_append_time for batch in unit], np.bool_)
    bases = [
        header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms
        for _, header in unit
    ]
    times = np.repeat(np.array(bases, np.int64), counts)
    if deltas is not None:
        # May wrap around, as in other readers, and for the batch's builder.
        times += np.where(np.repeat(is_log_append, counts), 0, deltas)
    if len(times) and not -TIMESTAMP_MS_LIMIT < times.min() <= times.max() < TIMESTAMP_MS_LIMIT:
        raise CorruptBatchError("a timestamp is more than 292,000 years from 1970")
    return pa.array(times * 1000).cast(TYPES["timestamp"])
