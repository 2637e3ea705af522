"""Decodes raw record batches into Arrow, many records at a time.

Batches form *units* of some megabytes. Headers are read one by one (Python, a few µs a batch),
records all together (numpy and Arrow, docs/decisions/spark-codec.md). Uncompressed batches are read
in place. Compressed batches are decompressed into one buffer. Only the selected columns are
computed, and records are skipped where the batch's header has all values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raftlog.record.batch import RECORD_SIZE_MIN, check_batch, iterate_headers
from raftlog.record.compression import Compression, decompress
from raftlog.record.errors import LogError
from raftlog.record.header import HEADER_SIZE, BatchHeader
from raftlog.record.isolation import TransactionFilter
from raftlog.record.types import AbortedTransaction, Buffer
from raftlog_spark.codec.records import (
    TYPES,
    Bodies,
    arrow_schema,
    headers_at,
    key_positions,
    record_starts,
    slices_at,
    taken,
)
from raftlog_spark.codec.varints import CorruptBatchError, Cursor, Positions, Window

__all__ = ["DECOMPRESSED_BYTES_MAX", "CorruptBatchError", "decode"]

DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest decompressed batch. The client's consumer has the same default."""
DECOMPRESSED_BYTES_LIMIT: Final = 2**30
"""Largest batch in a unit. Positions still fit 31 bits, as in Arrow's binary arrays."""
UNIT_BYTES: Final = 3 * 1024 * 1024
"""Bytes of a full unit. A larger unit needs fewer calls. A smaller unit stays in the cache."""
SLICE_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of a slice of a larger unit, unless it has a single record."""
HEADER_ROWS: Final = 128 * 1024
"""Rows of a RecordBatch computed from headers alone."""

_IN_HEADER: Final = frozenset({"topic", "partition", "offset", "timestampType"})
TIMESTAMP_MS_MIN: Final = -62_135_596_800_000
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
"""Spark's timestamps are of the years 1 to 9999."""
COMPRESSION_RATIO: Final = 4
"""Estimated ratio of decompressed to compressed size."""


class _Place(Enum):
    """The source of a batch's rows. All batches of a unit have the same."""

    HEADER = 1
    PLAIN = 2
    COMPRESSED = 3


class _Query(NamedTuple):
    """The arguments of a call of `decode`."""

    data: memoryview
    topic: str
    partition: int
    start: int
    end: int
    names: frozenset[str]
    schema: pa.Schema
    decompressed_bytes_max: int


class _Batch(NamedTuple):
    """A batch and its position in the data."""

    position: int
    header: BatchHeader


class _Rows(NamedTuple):
    """Rows that are read together, of some batches of a unit."""

    starts: Positions
    """Starts and ends of their records, if records are read."""
    ends: Positions
    counts: Positions
    """Rows by batch."""
    offsets: Positions | None
    """Only if the column is selected."""


def decode(
    data: bytes | bytearray | memoryview,
    *,
    topic: str,
    partition: int,
    start: int,
    end: int,
    columns: tuple[str, ...],
    aborted: Sequence[AbortedTransaction] = (),
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """The records of `data` (whole batches as stored) with start <= offset < end, as Arrow.

    Yields RecordBatches of `arrow_schema(columns)` of up to about 4 MB, none empty. Control batches
    give no rows, nor do the `aborted` transactions. No RecordBatch refers to `data`. Takes memory
    of a few times UNIT_BYTES, or a few times the largest batch, which holds at most
    `decompressed_bytes_max` (eight times that, if all records are of the smallest size).

    Raises CorruptBatchError for any unsound batch, its CRC included, or a too large batch, after
    the rows of earlier units. Records of batches outside of the range are not read.
    """
    assert 0 < decompressed_bytes_max <= DECOMPRESSED_BYTES_LIMIT
    query = _Query(
        data=memoryview(data),
        topic=topic,
        partition=partition,
        start=start,
        end=end,
        names=frozenset(columns),
        schema=arrow_schema(columns),
        decompressed_bytes_max=decompressed_bytes_max,
    )
    is_readable = TransactionFilter(aborted).is_readable
    unit: list[_Batch] = []
    place = _Place.HEADER
    size = 0
    try:
        for position, header in iterate_headers(query.data):
            is_wanted = header.next_offset > start and header.base_offset < end
            if is_wanted:
                _check(query, position, header)
            # Batches before the range may also begin and end transactions.
            if not (is_readable(header) and is_wanted and header.record_count):
                continue
            batch_place = _place(header, query.names)
            if unit and batch_place is not place:
                yield from _record_batches(unit, place, query)
                unit, size = [], 0
            place = batch_place
            unit.append(_Batch(position, header))
            size = _size_after(unit, size, place)
            if size >= UNIT_BYTES:
                yield from _record_batches(unit, place, query)
                unit, size = [], 0
        if unit:
            yield from _record_batches(unit, place, query)
    except LogError as error:
        raise CorruptBatchError(f"{topic}-{partition}: {error.message}") from error


def _check(query: _Query, position: int, header: BatchHeader) -> None:
    """Reject a batch that is damaged, or claims more records than it can hold."""
    reason: str | None = None
    body_bytes_max = query.decompressed_bytes_max
    is_too_large = False
    if header.compression is Compression.NONE:
        is_too_large = header.size_bytes - HEADER_SIZE > body_bytes_max
        body_bytes_max = header.size_bytes - HEADER_SIZE
    if not check_batch(query.data, position, header):
        reason = "it is cut off, or its CRC is wrong"
    elif is_too_large:
        reason = f"it holds more than {query.decompressed_bytes_max} bytes"
    elif header.record_count > header.last_offset_delta + 1:
        reason = "it claims more records than offsets"
    elif header.record_count * RECORD_SIZE_MIN > body_bytes_max:
        reason = f"there is no room for the {header.record_count} records that it claims"
    elif header.next_offset >= 2**63:
        reason = "its offsets are too large"
    if reason is not None:
        raise CorruptBatchError(
            f"{query.topic}-{query.partition}: bad record batch at offset {header.base_offset}: "
            f"{reason}."
        )


def _place(header: BatchHeader, names: frozenset[str]) -> _Place:
    """The source of the batch's columns. In a compacted batch, only records have their offsets."""
    rest = names - _IN_HEADER
    if header.is_log_append_time:
        rest -= {"timestamp"}
    if not rest and _is_full(header):
        return _Place.HEADER
    return _Place.PLAIN if header.compression is Compression.NONE else _Place.COMPRESSED


def _is_full(header: BatchHeader) -> bool:
    """Whether no record was removed, so offsets count up by one, as the node ensured."""
    return header.record_count == header.last_offset_delta + 1


def _size_after(unit: list[_Batch], size: int, place: _Place) -> int:
    """Estimated bytes of the unit. `size` excludes the last batch."""
    position, header = unit[-1]
    match place:
        case _Place.HEADER:
            return size + header.record_count * UNIT_BYTES // HEADER_ROWS
        case _Place.PLAIN:
            # Including skipped batches in between.
            return position + header.size_bytes - unit[0].position
        case _Place.COMPRESSED:
            return size + header.size_bytes * COMPRESSION_RATIO


def _record_batches(unit: list[_Batch], place: _Place, query: _Query) -> Iterator[pa.RecordBatch]:
    """The rows of a unit."""
    try:
        match place:
            case _Place.HEADER:
                yield from _from_headers(unit, query)
            case _Place.PLAIN:
                yield from _from_bodies(unit, *_plain(unit, query), query)
            case _Place.COMPRESSED:
                for part, window, bodies in _decompressed(unit, query):
                    yield from _from_bodies(part, window, bodies, query)
    except CorruptBatchError as error:
        first, last = unit[0].header, unit[-1].header
        raise CorruptBatchError(
            f"{query.topic}-{query.partition}: bad record batch at an offset from "
            f"{first.base_offset} to {last.last_offset}: {error}."
        ) from error


def _from_headers(unit: list[_Batch], query: _Query) -> Iterator[pa.RecordBatch]:
    """Rows computed from the batches' headers alone."""
    nowhere = np.empty(0, np.int64)
    starts = np.array([max(batch.header.base_offset, query.start) for batch in unit], np.int64)
    ends = np.array([min(batch.header.next_offset, query.end) for batch in unit], np.int64)
    counts = ends - starts
    firsts = np.cumsum(counts) - counts
    total = int(counts.sum())
    for first in range(0, total, HEADER_ROWS):
        last = min(first + HEADER_ROWS, total)
        within = np.clip(firsts + counts, first, last) - np.clip(firsts, first, last)
        offsets = np.arange(first, last) + np.repeat(starts - firsts, within)
        yield _arrow(unit, None, _Rows(nowhere, nowhere, within, offsets), query)


def _from_bodies(
    unit: list[_Batch], window: Window, bodies: Bodies, query: _Query
) -> Iterator[pa.RecordBatch]:
    """Rows read from the batches' records."""
    starts = record_starts(window, bodies)
    ends = np.empty_like(starts)
    ends[:-1] = starts[1:]
    ends[np.cumsum(bodies.counts) - 1] = bodies.ends
    rows = _Rows(starts, ends, bodies.counts, None)
    is_cut = any(
        batch.header.base_offset < query.start or batch.header.next_offset > query.end
        for batch in unit
    )
    if is_cut or "offset" in query.names:
        rows = rows._replace(offsets=_offsets(unit, window, rows))
    if is_cut:
        rows = _cut(rows, query)
    first, total = 0, len(rows.starts)
    if total and rows.ends[-1] - rows.starts[0] <= SLICE_BYTES:
        yield _arrow(unit, window, rows, query)
        return
    while first < total:
        limit = rows.starts[first] + SLICE_BYTES
        last = max(int(np.searchsorted(rows.ends, limit, side="right")), first + 1)
        yield _arrow(unit, window, _sliced(rows, first, last), query)
        first = last


def _cut(rows: _Rows, query: _Query) -> _Rows:
    """The rows in the range of offsets."""
    assert rows.offsets is not None
    inside = (rows.offsets >= query.start) & (rows.offsets < query.end)
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


def _plain(unit: list[_Batch], query: _Query) -> tuple[Window, Bodies]:
    """The batches' bodies in place, including the bytes in between."""
    first = unit[0].position
    last = unit[-1]
    window = Window(query.data[first : last.position + last.header.size_bytes])
    ends = np.array([batch.position + batch.header.size_bytes for batch in unit], np.int64) - first
    starts = np.array([batch.position + HEADER_SIZE for batch in unit], np.int64) - first
    return window, Bodies(starts, ends, *_counts_and_spans(unit))


def _decompressed(
    unit: list[_Batch], query: _Query
) -> Iterator[tuple[list[_Batch], Window, Bodies]]:
    """The decompressed bodies, one after the other. In parts if larger than estimated."""
    part: list[_Batch] = []
    bodies: list[Buffer] = []
    size = 0
    for batch in unit:
        position, header = batch
        body = decompress(
            header.compression,
            query.data[position + HEADER_SIZE : position + header.size_bytes],
            decompressed_bytes_max=query.decompressed_bytes_max,
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
    # For full batches the header counts, as for batches without a read of records.
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


def _arrow(unit: list[_Batch], window: Window | None, rows: _Rows, query: _Query) -> pa.RecordBatch:
    """The rows with the selected columns. `window` is None if headers have all values."""
    names, count = query.names, int(rows.counts.sum())
    found: dict[str, Any] = {}
    if "topic" in names:
        found["topic"] = pa.repeat(pa.scalar(query.topic, TYPES["topic"]), count)
    if "partition" in names:
        found["partition"] = pa.repeat(pa.scalar(query.partition, TYPES["partition"]), count)
    if "offset" in names:
        found["offset"] = pa.array(rows.offsets)
    if "timestampType" in names:
        kinds = np.array([batch.header.is_log_append_time for batch in unit], np.int32)
        found["timestampType"] = pa.array(np.repeat(kinds, rows.counts))
    if window is not None and not names <= _IN_HEADER:
        found |= _read_fields(unit, window, rows, names)
    elif "timestamp" in names:
        found["timestamp"] = _timestamps(unit, rows.counts, None)
    columns = [found[name] for name in query.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=query.schema)


def _read_fields(
    unit: list[_Batch], window: Window, rows: _Rows, names: frozenset[str]
) -> dict[str, Any]:
    """The columns read from records. Unselected fields are skipped."""
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
    """Microseconds since the Unix epoch, or null where Spark has no such time.

    A producer may send any number of 64 bits, and older releases stored each.
    """
    is_log_append = np.array([batch.header.is_log_append_time for batch in unit], np.bool_)
    bases = [
        header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms
        for _, header in unit
    ]
    times = np.repeat(np.array(bases, np.int64), counts)
    if deltas is not None:
        # May wrap around, as in other readers, and for the batch's builder.
        times += np.where(np.repeat(is_log_append, counts), 0, deltas)
    is_absurd: NDArray[np.bool_] | None = None
    if len(times) and not TIMESTAMP_MS_MIN <= times.min() <= times.max() <= TIMESTAMP_MS_MAX:
        is_absurd = (times < TIMESTAMP_MS_MIN) | (times > TIMESTAMP_MS_MAX)
    return pa.array(times * 1000, mask=is_absurd).cast(TYPES["timestamp"])
