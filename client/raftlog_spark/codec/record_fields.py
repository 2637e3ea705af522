"""The fields of many records as Arrow arrays, and the columns' types.

Only the bytes of a selected column are copied. Names and types of the columns are those of Spark's
Kafka source. Every column is nullable, as there, and as in a user's schema (`"offset long"`). Spark
accepts a RecordBatch only if its Arrow schema equals the query's, nullability included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raftlog_spark.codec.varints import (
    LENGTHS,
    NO_LENGTH,
    CorruptBatchError,
    Cursor,
    Positions,
    Window,
    past_four,
)

TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(
        pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ),
}
"""Type of each column. `headers` is null for a record without any."""


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The schema of RecordBatches with these columns. Raises KeyError for an unknown column."""
    return pa.schema([pa.field(name, TYPES[name]) for name in columns])


HEADERS_MAX: Final = 10_000
"""Most headers of one record. Empty headers take two bytes each, but many times that in memory, and
a step of the walk."""
HEADER_SIZE_MIN: Final = 2
ACTIVE_FEW: Final = 16
"""Number of records left below which Python steps over headers are faster than numpy's."""


class Slices(NamedTuple):
    """A field's slice of a buffer, for every record. Ascending."""

    starts: Positions
    ends: Positions
    is_there: NDArray[np.bool_] | None
    """The records without null. None if there is no null."""


def taken(buffer: pa.Buffer, slices: Slices) -> pa.Array:
    """The slices as one binary array, with their bytes copied together, without the gaps. Arrow
    sees the buffer as an array of all slices and all gaps, and takes every other element."""
    count = len(slices.starts)
    is_there = slices.is_there
    if is_there is not None and not is_there.any():
        return pa.nulls(count, pa.binary())
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = slices.starts
    bounds[1::2] = slices.ends
    everything = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), buffer]
    )
    values = everything.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
    if is_there is None:
        return values
    _, offsets, content = values.buffers()
    return pa.Array.from_buffers(pa.binary(), count, [_bitmap(is_there), offsets, content])


def _bitmap(is_there: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(is_there, bitorder="little"))


def key_positions(window: Window, starts: Positions) -> Positions:
    """Starts of the records' keys, after length, attributes, timestamp delta and offset delta."""
    # Attributes are also a byte below 128. Mostly all four are in the first eight bytes.
    bits = past_four(window.words(starts))
    if bits is not None:
        return starts + (bits >> np.uint64(3)).view(np.int64)
    cursor = Cursor(window, starts)
    cursor.skip_int()
    cursor.skip_byte()
    cursor.skip_long()
    cursor.skip_int()
    return cursor.positions


def slices_at(window: Window, positions: Positions, limits: Positions) -> Slices:
    """The keys or values whose lengths are at the positions. Raises CorruptBatchError for one that
    does not end before its limit."""
    pairs = window.pairs(positions)
    sizes = LENGTHS[pairs]
    smallest = int(sizes.min(initial=0))
    if smallest == NO_LENGTH:
        cursor = Cursor(window, positions)
        sizes = cursor.read_int()
        starts = cursor.positions
        smallest = int(sizes.min())
        if smallest < -1:
            raise CorruptBatchError("a key or a value has a negative length")
    else:
        pairs >>= np.uint16(7)
        pairs &= np.uint16(1)
        starts = positions + pairs
        starts += 1
    is_there = None
    if smallest < 0:
        is_there = sizes >= 0
        ends = starts + np.maximum(sizes, 0)
    else:
        ends = starts + sizes
    if (ends >= limits).any():
        raise CorruptBatchError("a key or a value is longer than its record")
    return Slices(starts, ends, is_there)


def headers_at(
    window: Window, buffer: pa.Buffer, positions: Positions, ends: Positions
) -> pa.Array:
    """The headers at the positions, null for none. They end with the record.

    Raises CorruptBatchError if they do not, for a key that is null or not UTF-8, and for a record
    of more than HEADERS_MAX headers.
    """
    cursor = Cursor(window, positions)
    counts = cursor.read_int()
    positions = cursor.positions
    if counts.min(initial=0) < 0 or (counts * HEADER_SIZE_MIN > ends - positions).any():
        raise CorruptBatchError("a record has fewer headers than it claims")
    if counts.max(initial=0) > HEADERS_MAX:
        raise CorruptBatchError(f"a record has more than {HEADERS_MAX} headers")
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    keys, values, last = _header_slices(window, counts, offsets, positions, ends)
    if (last != ends).any():
        raise CorruptBatchError("a record does not end with its last header")
    if not offsets[-1]:
        return pa.nulls(len(counts), TYPES["headers"])
    try:
        names = taken(buffer, keys).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise CorruptBatchError("a header's key is not UTF-8") from error
    pairs = pa.StructArray.from_arrays(
        [names, taken(buffer, values)], fields=list(TYPES["headers"].value_type)
    )
    return pa.Array.from_buffers(
        TYPES["headers"],
        len(counts),
        [_bitmap(counts > 0), pa.py_buffer(offsets)],
        children=[pairs],
    )


def _header_slices(
    window: Window,
    counts: Positions,
    offsets: NDArray[np.int32],
    positions: Positions,
    ends: Positions,
) -> tuple[Slices, Slices, Positions]:
    """Keys and values of all headers per record, and each record's end of headers. The first
    headers of all records are read at once, then the second headers, and so on."""
    total = int(offsets[-1])
    keys, values = (
        Slices(np.empty(total, np.int64), np.empty(total, np.int64), np.ones(total, np.bool_))
        for _ in range(2)
    )
    positions = positions.copy()
    active = np.flatnonzero(counts)
    number = 0
    while len(active) >= ACTIVE_FEW:
        slots = offsets[active] + number
        found = slices_at(window, positions[active], ends[active])
        _put(keys, slots, found)
        # The last value may end with its record.
        found = slices_at(window, found.ends, ends[active] + 1)
        _put(values, slots, found)
        positions[active] = found.ends
        number += 1
        active = active[counts[active] > number]
    read_int = _int_reader(window.data.data)
    for record in active.tolist():
        position, end = int(positions[record]), int(ends[record])
        for slot in range(int(offsets[record]) + number, int(offsets[record + 1])):
            for field in (keys, values):
                size, position = read_int(position, end)
                field.starts[slot] = position
                position += max(size, 0)
                if size < -1 or position > end:
                    raise CorruptBatchError("a header is longer than its record")
                field.ends[slot] = position
                _there(field)[slot] = size >= 0
        positions[record] = position
    if not _there(keys).all():
        raise CorruptBatchError("a header's key is null")
    return keys, values, positions


def _there(field: Slices) -> NDArray[np.bool_]:
    assert field.is_there is not None
    return field.is_there


def _put(field: Slices, slots: NDArray[np.int32], found: Slices) -> None:
    """Set some slots of `field` to the slices of `found`."""
    field.starts[slots] = found.starts
    field.ends[slots] = found.ends
    if found.is_there is not None:
        _there(field)[slots] = found.is_there


def _int_reader(data: memoryview) -> Callable[[int, int], tuple[int, int]]:
    """A function from a position and limit to the varint and the next position."""

    def read(position: int, end: int) -> tuple[int, int]:
        payload = shift = 0
        while position < end and shift <= 28:
            octet = data[position]
            position += 1
            payload |= (octet & 0x7F) << shift
            if octet < 0x80:
                return (payload >> 1) ^ -(payload & 1), position
            shift += 7
        raise CorruptBatchError("a header's length does not end")

    return read
