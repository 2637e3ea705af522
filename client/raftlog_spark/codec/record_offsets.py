"""Finds the start of every record of a batch.

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
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raftlog_spark.codec.varints import (
    Bytes,
    CorruptBatchError,
    Positions,
    Window,
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
