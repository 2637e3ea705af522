"""Joins byte pieces of many records, record by record, at native speed.

All pieces stand in one buffer, kind after kind, as one Arrow array whose elements are pieces and
the gaps between them. `take` with the pieces' numbers in the records' order copies them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raftlog_spark.codec.varints import WORD_SIZE, Positions, Sizes, Varints, Words

_U = np.uint64


class Pieces(NamedTuple):
    """A piece of every record, as its slice of `data`. Ascending, not overlapping."""

    data: NDArray[np.uint8]
    starts: Positions
    sizes: Positions
    """Sizes of the pieces. -1 is null, without bytes."""

    @classmethod
    def of(cls, column: pa.Array) -> Pieces:
        """The pieces in a binary array's elements."""
        is_valid: NDArray[np.bool_] | None = None
        if column.null_count:
            is_valid = column.is_valid().to_numpy(zero_copy_only=False)
            # Arrow allows bytes behind a null, which become a gap.
        _, offset_buffer, data_buffer = column.buffers()
        count = len(column)
        if not count:
            nothing = np.empty(0, np.int64)
            return cls(np.empty(0, np.uint8), nothing, nothing)
        offsets = np.frombuffer(offset_buffer, np.int32)[column.offset : column.offset + count + 1]
        bounds = offsets.astype(np.int64)
        sizes = np.diff(bounds)
        data = np.frombuffer(data_buffer or b"", np.uint8)
        return cls(data, bounds[:-1], sizes if is_valid is None else np.where(is_valid, sizes, -1))

    def sliced(self, first: int, end: int) -> Pieces:
        """The pieces of the records from `first` to before `end`."""
        return Pieces(self.data, self.starts[first:end], self.sizes[first:end])


def heads(fields: Sequence[Varints]) -> list[Pieces]:
    """Consecutive varints of every record, as few pieces of up to 16 bytes each."""
    pieces: list[Pieces] = []
    low, bits = fields[0]
    bits_max = fields[0].bits_max
    high: Words | None = None
    for field in fields[1:]:
        field_bits_max = field.bits_max
        if bits_max + field_bits_max > 128:
            pieces.append(_rows(low, high, bits))
            low, bits = field
            bits_max, high = field_bits_max, None
            continue
        if bits_max + field_bits_max > 64:
            # numpy defines shifts by 64 and more, and so by wrapped negative numbers, as 0.
            if high is None:
                high = np.zeros(len(bits), np.uint64)
            high |= field.words >> (_U(64) - bits)
            high |= field.words << (bits - _U(64))
        low = low | (field.words << bits)
        bits = bits + field.bits
        bits_max += field_bits_max
    pieces.append(_rows(low, high, bits))
    return pieces


def _rows(low: Words, high: Words | None, bits: Sizes) -> Pieces:
    """Pieces from rows of words of equal length."""
    words = np.ascontiguousarray(low) if high is None else np.stack((low, high), axis=1)
    row_size = WORD_SIZE if high is None else 2 * WORD_SIZE
    starts = np.arange(0, row_size * len(bits), row_size)
    return Pieces(words.view(np.uint8).reshape(-1), starts, (bits >> _U(3)).astype(np.int64))


def joined(kinds: Sequence[Pieces]) -> tuple[NDArray[np.uint8], Positions]:
    """Join the pieces of every kind per record, in the records' order. Returns the bytes and the
    records' bounds, which are their starts, and the end of the last."""
    count = len(kinds[0].sizes)
    if not count:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    numbers = np.empty((count, len(kinds)), np.int32)
    bounds = np.empty(2 * count * len(kinds) + 1, np.int32)
    data: list[NDArray[np.uint8]] = []
    size = elements = 0
    for column, kind in enumerate(kinds):
        # From the first piece to the end of the last, as kinds follow each other without gaps.
        first = int(kind.starts[0])
        sizes = np.maximum(kind.sizes, 0)
        end = int(kind.starts[-1] + sizes[-1])
        data.append(kind.data[first:end])
        starts = kind.starts + (size - first)
        ends = starts + sizes
        size += end - first
        if (ends[:-1] == starts[1:]).all():
            bounds[elements : elements + count] = starts
            numbers[:, column] = np.arange(elements, elements + count)
            elements += count
        else:
            bounds[elements : elements + 2 * count : 2] = starts
            bounds[elements + 1 : elements + 2 * count : 2] = ends
            numbers[:, column] = np.arange(elements, elements + 2 * count, 2)
            elements += 2 * count
    bounds[elements] = size
    everything = pa.Array.from_buffers(
        pa.binary(),
        elements,
        [None, pa.py_buffer(bounds[: elements + 1]), pa.py_buffer(np.concatenate(data))],
    )
    _, offsets, content = everything.take(pa.array(numbers.reshape(-1))).buffers()
    records = np.frombuffer(offsets, np.int32)[: count * len(kinds) + 1 : len(kinds)]
    return np.frombuffer(content or b"", np.uint8), records.astype(np.int64)
