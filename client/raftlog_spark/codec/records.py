"""Finds the starts of records, and reads the records' fields into Arrow arrays.

Records form a chain. Each begins with a varint of its length, and only that leads to the next. One
chain cannot be followed by vector operations, but many can, in step. So a batch gets many *lanes*.
About every `RECORDS_PER_LANE` records a start is guessed (a zero attributes byte after a plausible
length, whose record is followed by another with a larger offset delta), and all lanes of all
batches walk on until they meet the start of the next lane.

The guess is never trusted. A batch counts only if its first lane, which begins with its first
record, ends exactly at the start of the second, and so on to its end, and if the number of records
is the header's. That is the same chain as in a walk record by record. A batch that fails this test
(large records, or a guess inside a value that looks like records) is walked by Python steps, which
also locate the error in a bad batch.

Only the bytes of a selected column are copied. Names and types of the columns are those of Spark's
Kafka source. Every column is nullable, as there, and as in a schema given as `"offset long"`. Spark
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
    Bytes,
    CorruptBatchError,
    Cursor,
    Positions,
    Window,
    past_four,
    signed,
    sizes_of,
    unsigned,
)

RECORDS_PER_LANE: Final = 40
"""Records per lane. Fewer need more guesses. More make longer walks, each step of which costs a few
calls."""
STEPS_MAX: Final = 4 * RECORDS_PER_LANE
"""Steps before a lane is given up, because its neighbours' guesses failed."""
STEPS_PER_LOOK: Final = 8
"""Steps between two checks whether all lanes have arrived."""
RECORD_SIZE_MIN: Final = 7
RECORD_BYTES_LARGE: Final = 3000
"""Mean record size from which Python steps cost little beside the copying of the values."""
RECORDS_FEW: Final = 64
"""Records up to which a walk by Python steps ends before numpy has warmed up."""
GUESS_RECORDS: Final = 2
GUESS_BYTES_MIN: Final = 64
"""Bounds of the search for a guess, in mean records and in bytes."""
GUESS_GAP: Final = 8
"""Where offsets were removed, the largest plausible gap between neighbours, in mean gaps."""


class Bodies(NamedTuple):
    """The records of some batches, in one buffer, in ascending order. Equal lengths."""

    starts: Positions
    ends: Positions
    counts: Positions
    """Records claimed by the header, at least one, at most one for every RECORD_SIZE_MIN bytes."""
    spans: Positions
    """Offsets claimed by the header, more than records if some were removed."""


def _advances() -> NDArray[np.int64]:
    """Map the first two bytes of a record (little endian) to its size. 0 if they lack the size."""
    pairs = np.arange(65536, dtype=np.int64)
    first, second = pairs & 0xFF, pairs >> 8
    is_short = first < 0x80
    zigzag = np.where(is_short, first, (first & 0x7F) | (second << 7))
    sizes = (zigzag >> 1) + np.where(is_short, 1, 2)
    is_sound = (is_short | (second < 0x80)) & (zigzag & 1 == 0) & (zigzag >> 1 >= 6)
    return np.where(is_sound, sizes, 0)


_ADVANCES: Final = _advances()


def record_starts(window: Window, bodies: Bodies) -> Positions:
    """The position of every record, ascending. Raises CorruptBatchError if a body does not hold
    exactly the claimed number of records."""
    count = int(bodies.counts.sum())
    size = int((bodies.ends - bodies.starts).sum())
    if count < RECORDS_FEW or size > count * RECORD_BYTES_LARGE:
        return np.array(_walk_each(window, bodies, range(len(bodies.starts))), np.int64)
    lanes, stops = _lanes(window, bodies, size // count)
    path = _walk_in_step(window, lanes, stops)
    inside = path < stops
    walked = inside.sum(axis=0)
    # A lane that did not arrive has no step outside, and is at its last step.
    ends = path[np.minimum(walked, len(path) - 1), np.arange(len(lanes))]
    first_lanes = np.searchsorted(lanes, bodies.starts)
    found = np.add.reduceat(walked, first_lanes)
    missed = np.add.reduceat(ends != stops, first_lanes)
    failed = np.flatnonzero((found != bodies.counts) | (missed != 0))
    if not len(failed):
        starts: Positions = path.T[inside.T]
        return starts
    for body in failed.tolist():
        next_first = first_lanes[body + 1] if body + 1 < len(first_lanes) else len(lanes)
        inside[:, first_lanes[body] : next_first] = False
    rest = np.array(_walk_each(window, bodies, failed.tolist()), np.int64)
    return np.sort(np.concatenate((path[inside], rest)))


def _lanes(window: Window, bodies: Bodies, mean_size: int) -> tuple[Positions, Positions]:
    """Starts of lanes, ascending (every body's start, and guesses), and their required ends."""
    guessed = _guesses(window, bodies, mean_size)
    lanes = np.unique(np.concatenate((bodies.starts, guessed)))
    body = np.searchsorted(bodies.starts, lanes, side="right") - 1
    stops = bodies.ends[body]
    is_followed = body[1:] == body[:-1]
    stops[:-1][is_followed] = lanes[1:][is_followed]
    return lanes, stops


def _guesses(window: Window, bodies: Bodies, mean_size: int) -> Positions:
    """Positions within bodies, ascending, that look like starts of records."""
    reach = (max(GUESS_RECORDS * mean_size, GUESS_BYTES_MIN) & -8) + 2
    extra = bodies.counts // RECORDS_PER_LANE
    body = np.repeat(np.arange(len(extra)), extra)
    number = np.arange(len(body)) - np.repeat(np.cumsum(extra) - extra, extra) + 1
    step = (bodies.ends - bodies.starts) // (extra + 1)
    places = bodies.starts[body] + number * step[body]
    if not len(places) or window.size < reach:
        return places[:0]
    places = np.minimum(places, window.size - reach)
    shape = (window.size - reach + 1,)
    stretches = np.ndarray(shape, f"V{reach}", window.data, strides=(1,))[places]
    looked_at = stretches.view(np.uint8).reshape(len(places), reach)
    # Attributes are zero, after the last byte of a length, 1 to 127. Such bytes are rare, so the
    # search goes by eights first.
    eights = ((looked_at[:, 2:] == 0) & (looked_at[:, 1:-1] - np.uint8(1) < 0x7F)).reshape(-1, 8)
    some = np.flatnonzero(eights.view(np.uint64))
    which, bit = np.nonzero(eights[some])
    row, column = np.divmod(some[which] * 8 + bit, reach - 2)
    starts = places[row] + column + (looked_at[row, column] < 0x80)
    is_sound = _look_like_records(window, starts, bodies, body[row])
    row, starts = row[is_sound], starts[is_sound]
    is_first = np.ones(len(row), np.bool_)
    is_first[1:] = row[1:] != row[:-1]
    return starts[is_first]


def _look_like_records(
    window: Window, starts: Positions, bodies: Bodies, body: Positions
) -> NDArray[np.bool_]:
    """Whether a record of that body, followed by another, seems to begin at each position."""
    first_sizes, first_deltas, _ = _seen(window, starts)
    nexts = starts + first_sizes
    next_sizes, next_deltas, next_attributes = _seen(window, nexts)
    spans, counts = bodies.spans, bodies.counts
    gaps_max = np.where(spans == counts, 1, GUESS_GAP * spans // counts)[body]
    gaps = next_deltas - first_deltas
    is_alike: NDArray[np.bool_] = (
        (starts > bodies.starts[body])
        & (first_sizes > 0)
        & (next_sizes > 0)
        & (next_attributes == 0)
        & (nexts + next_sizes <= bodies.ends[body])
        & (first_deltas > 0)
        & (next_deltas < spans[body])
        & (gaps > 0)
        & (gaps <= gaps_max)
    )
    return is_alike


def _seen(window: Window, starts: Positions) -> tuple[Positions, Positions, Bytes]:
    """Size, offset delta and attributes of assumed records at these positions."""
    words = window.words(starts)
    sizes = _ADVANCES[(words & np.uint64(0xFFFF)).view(np.int64)]
    length_bits = sizes_of(words) & np.uint64(0x18)  # one or two bytes, longer lengths are skipped
    attributes = (words >> length_bits).astype(np.uint8)
    times = starts + 1 + (length_bits >> np.uint64(3)).view(np.int64)
    deltas = times + (sizes_of(window.words(times)) >> np.uint64(3)).view(np.int64)
    words = window.words(deltas)
    bits = sizes_of(words)
    return sizes, signed(unsigned(words, bits, int(bits.max(initial=8)))), attributes


def _walk_in_step(window: Window, lanes: Positions, stops: Positions) -> Positions:
    """The positions (steps, lanes) of all lanes until all are at their stops.

    Lanes that have arrived walk on into other lanes, harmlessly. A lane that meets a record whose
    first two bytes do not hold its size stays there.
    """
    last = window.size - 2
    pairs: NDArray[np.uint16] = np.ndarray((last + 1,), "<u2", window.data, strides=(1,))
    path = np.empty((STEPS_MAX + 1, len(lanes)), np.int64)
    path[0] = lanes
    for step in range(STEPS_MAX):
        here = path[step]
        np.add(here, _ADVANCES[pairs[np.minimum(here, last)]], out=path[step + 1])
        if step % STEPS_PER_LOOK == 0 and (path[step + 1] >= stops).all():
            return path[: step + 2]
    return path


def _walk_each(window: Window, bodies: Bodies, which: range | list[int]) -> list[int]:
    """The starts of the records of some bodies, one after the other."""
    data = window.data.data
    starts: list[int] = []
    for body in which:
        _walk(
            data, int(bodies.starts[body]), int(bodies.ends[body]), int(bodies.counts[body]), starts
        )
    return starts


def _walk(data: memoryview, position: int, end: int, count: int, starts: list[int]) -> None:
    """Append the starts of one body's records to `starts`."""
    add = starts.append
    for _ in range(count):
        add(position)
        if end - position < RECORD_SIZE_MIN:
            raise CorruptBatchError("its records are fewer than it claims")
        octet = data[position]
        position += 1
        length = octet & 0x7F
        shift = 7
        while octet >= 0x80:
            if shift > 28 or position == end:
                raise CorruptBatchError("a record's length does not end")
            octet = data[position]
            position += 1
            length |= (octet & 0x7F) << shift
            shift += 7
        if length & 1 or length >> 1 < RECORD_SIZE_MIN - 1:
            raise CorruptBatchError("a record's length is too small for any record")
        position += length >> 1
    if position != end:
        raise CorruptBatchError("its records do not end where it does")


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
