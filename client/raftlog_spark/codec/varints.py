"""Varints of many records at once, zigzag, seven bits a byte, least significant first.

A varint is read from the eight bytes at its position, gathered as one little-endian word per
record. Its terminator is the lowest byte without the high bit, so size and value come from a few
operations on all words, without a loop. No record field but a timestamp delta may be longer than
five bytes. The rest of such a delta is read separately.

`joined` joins byte pieces of many records, record by record, at native speed. All pieces stand in
one buffer, kind after kind, as one Arrow array whose elements are pieces and the gaps between them.
`take` with the pieces' numbers in the records' order copies them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raftlog_spark.errors import RaftlogSparkError

Bytes: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint64]
Positions: TypeAlias = NDArray[np.int64]
Sizes: TypeAlias = NDArray[np.uint64]

WORD_SIZE: Final = 8
INT_SIZE_MAX: Final = 5

_U: Final = np.uint64
_ONE: Final = _U(1)
_HIGH_BITS: Final = _U(0x8080808080808080)
_LOW_BITS: Final = _U(0x7F7F7F7F7F7F7F7F)
_ALL_BITS: Final = _U(0xFFFFFFFFFFFFFFFF)


class CorruptBatchError(RaftlogSparkError, ValueError):
    """Bytes that are no sound record batch. The message names position and reason."""


class Window:
    """A byte buffer from which words are gathered at any positions, its very end included."""

    __slots__ = ("_last", "_pairs", "_words", "data", "size")

    def __init__(self, buffer: Any) -> None:
        data: Bytes = np.frombuffer(buffer, np.uint8)
        self.size = len(data)
        """Bytes in the buffer."""
        if len(data) < WORD_SIZE:
            data = np.concatenate((data, np.zeros(WORD_SIZE, np.uint8)))
        self.data = data
        # One word per byte position, overlapping, without a copy.
        self._words: Words = np.ndarray((len(data) - WORD_SIZE + 1,), "<u8", data, strides=(1,))
        self._pairs: NDArray[np.uint16] = np.ndarray((len(data) - 1,), "<u2", data, strides=(1,))
        self._last = len(data) - WORD_SIZE

    def pairs(self, positions: Positions) -> NDArray[np.uint16]:
        """Two bytes from each position. Bytes after the end read as zero."""
        if positions.max(initial=0) <= self._last:
            return self._pairs[positions]
        return self.words(positions).astype(np.uint16)

    def words(self, positions: Positions) -> Words:
        """Eight bytes from each position. Bytes after the end read as zero."""
        if positions.max(initial=0) <= self._last:
            return self._words[positions]
        clipped = np.minimum(positions, self._last)
        words: Words = self._words[clipped]
        # A position near the end has its bytes in the upper part of the last word. Bytes after the
        # end are shifted out, which numpy defines as zero.
        missing = (positions - clipped).view(np.uint64)
        return words >> (np.minimum(missing, _U(WORD_SIZE)) << _U(3))


def sizes_of(words: Words) -> Sizes:
    """Eight times the size of each word's first varint. 64 also without a terminator. Bits, because
    every use is a shift."""
    stops = ~words
    stops &= _HIGH_BITS
    lowest = stops & (~stops + _ONE)
    lowest <<= _ONE
    lowest -= _ONE  # All bits up to the terminator's, or all bits without a terminator.
    return np.bitwise_count(lowest).astype(np.uint64)


def past_four(words: Words) -> Sizes | None:
    """Bits of each word's first four varints. None if a word has fewer."""
    stops = ~words
    stops &= _HIGH_BITS
    for _ in range(3):
        stops &= stops - _ONE  # Clears the lowest terminator.
    if not stops.all():
        return None
    stops ^= stops - _ONE  # All bits up to the fourth terminator's.
    return np.bitwise_count(stops).astype(np.uint64)


def unsigned(words: Words, bits: Sizes, bits_max: int) -> Words:
    """The varints' payloads, still zigzag. `bits_max` is the largest of `bits`, at most 64."""
    # Sizes are 8 to 64, so this shift is under 64.
    payload = words & (_ALL_BITS >> (_U(64) - bits))
    if bits_max <= 8:
        return payload
    if bits_max <= 16:
        return (payload & _U(0x7F)) | ((payload >> _ONE) & _U(0x3F80))
    payload &= _LOW_BITS
    # Pairs of 7 bits become 14, pairs of 14 become 28, the pair of 28 becomes 56.
    payload = (payload & _U(0x007F007F007F007F)) | ((payload & _U(0x7F007F007F007F00)) >> _ONE)
    payload = (payload & _U(0x00003FFF00003FFF)) | ((payload & _U(0x3FFF00003FFF0000)) >> _U(2))
    return (payload & _U(0x0FFFFFFF)) | ((payload & _U(0x0FFFFFFF00000000)) >> _U(4))


def signed(payload: Words) -> Positions:
    """Undo zigzag, 0, -1, 1, -2, … for 0, 1, 2, 3, …"""
    return ((payload >> _ONE) ^ (~(payload & _ONE) + _ONE)).view(np.int64)


def _int_sizes_of_pairs() -> NDArray[np.int64]:
    """The varint of each byte pair (little endian). NO_LENGTH if longer or below -1."""
    pairs = np.arange(65536, dtype=np.int64)
    first, second = pairs & 0xFF, pairs >> 8
    zigzag = np.where(first < 0x80, first, (first & 0x7F) | (second << 7))
    values = (zigzag >> 1) ^ -(zigzag & 1)
    return np.where(((first < 0x80) | (second < 0x80)) & (values >= -1), values, NO_LENGTH)


NO_LENGTH: Final = -2
LENGTHS: Final = _int_sizes_of_pairs()
"""Lengths of up to two bytes (to 8,191), by their first byte pair. Nearly all lengths."""


class Cursor:
    """Reads one varint field of every record after the other, all records in step.

    Bytes after the end of the buffer read as zero, so the caller compares `positions` with the
    records' ends. Raises CorruptBatchError for an overlong varint.
    """

    __slots__ = ("_left", "_window", "_words", "positions")

    def __init__(self, window: Window, positions: Positions) -> None:
        self._window = window
        self.positions = positions
        """The position of each record's next field."""
        self._words = window.words(positions)
        self._left = WORD_SIZE

    def skip_byte(self) -> None:
        """Skip a record's attributes byte, which has no meaning."""
        self._advance(_U(8), 1)

    def skip_long(self) -> None:
        """Skip varints of up to ten bytes."""
        bits, bits_max = self._sizes()
        if bits_max == 64:
            self.read_long()
        else:
            self._advance(bits, bits_max >> 3)

    def skip_int(self) -> None:
        """Skip varints of up to five bytes."""
        bits, bits_max = self._int_sizes()
        self._advance(bits, bits_max >> 3)

    def read_int(self) -> Positions:
        """The next field's values as varints of up to five bytes."""
        bits, bits_max = self._int_sizes()
        values = signed(unsigned(self._words, bits, bits_max))
        self._advance(bits, bits_max >> 3)
        return values

    def read_long(self) -> Positions:
        """The next field's values as varints of up to ten bytes, of 64 bits."""
        bits, bits_max = self._sizes()
        payload = unsigned(self._words, bits, bits_max)
        if bits_max < 64:
            self._advance(bits, bits_max >> 3)
            return signed(payload)
        # Rare: deltas of 2^55 ms and more. Read their last bytes in place.
        positions = self.positions + (bits >> _U(3)).view(np.int64)
        unended = np.flatnonzero((self._words & _HIGH_BITS) == _HIGH_BITS)
        data, size = self._window.data, self._window.size
        shift = 56
        while len(unended):
            if shift > 63 or positions[unended].max() >= size:
                raise CorruptBatchError("a timestamp delta does not end")
            octets = data[positions[unended]].astype(np.uint64)
            payload[unended] |= (octets & _U(0x7F)) << _U(shift)
            positions[unended] += 1
            unended = unended[octets >= _U(0x80)]
            shift += 7
        self.positions, self._left = positions, 0
        return signed(payload)

    def _sizes(self) -> tuple[Sizes, int]:
        """Sizes in bits of the varints at the cursor, and the largest."""
        if self._left:
            bits = sizes_of(self._words)
            bits_max = int(bits.max(initial=0))
            if bits_max <= self._left << 3:
                return bits, bits_max
        # Bits shifted in from beyond the end do not count, so check the size again.
        self._words = self._window.words(self.positions)
        self._left = WORD_SIZE
        bits = sizes_of(self._words)
        return bits, int(bits.max(initial=0))

    def _int_sizes(self) -> tuple[Sizes, int]:
        bits, bits_max = self._sizes()
        if bits_max > INT_SIZE_MAX << 3:
            raise CorruptBatchError("a varint is longer than five bytes")
        return bits, bits_max

    def _advance(self, bits: Any, size_max: int) -> None:
        self.positions = self.positions + (bits >> _U(3)).astype(np.int64)
        self._left = max(self._left - size_max, 0)
        if self._left:
            self._words = self._words >> bits


class Varints(NamedTuple):
    """Varints ready to write, as bytes in a word each, and sizes in bits."""

    words: Words
    bits: Sizes

    @property
    def bits_max(self) -> int:
        """The largest of `bits`."""
        return int(self.bits.max(initial=8))


def packed(values: Positions) -> Varints:
    """Each value as a varint. Values are within 54 bits and a sign, at most eight bytes each."""
    payload = ((values << 1) ^ (values >> 63)).view(np.uint64)
    largest = int(payload.max(initial=0))
    assert largest < 1 << 56
    bits = np.full(len(values), 8, np.uint64)
    if largest < 0x80:
        return Varints(payload, bits)
    size_bits = 7
    while largest >> size_bits:
        bits += (payload >= _U(1 << size_bits)).astype(np.uint64) << _U(3)
        size_bits += 7
    # The reverse of `unsigned`. 56 bits become two of 28, each of these two of 14, then of 7.
    payload = (payload & _U(0x0FFFFFFF)) | ((payload & _U(0x00FFFFFFF0000000)) << _U(4))
    payload = (payload & _U(0x00003FFF00003FFF)) | ((payload & _U(0x0FFFC0000FFFC000)) << _U(2))
    payload = (payload & _U(0x007F007F007F007F)) | ((payload & _U(0x3F803F803F803F80)) << _ONE)
    # High bits on all bytes but the last.
    payload |= _HIGH_BITS & ((_ALL_BITS >> (_U(64) - bits)) >> _U(8))
    return Varints(payload, bits)


def constant(value: int, count: int) -> Varints:
    """One small value, from -64 to 63, for every record, used in place of arrays."""
    word = np.full(1, (value << 1) ^ (value >> 7), np.uint64)
    shape = (count,)
    return Varints(np.broadcast_to(word, shape), np.broadcast_to(np.full(1, 8, np.uint64), shape))


def varint_sizes(values: Positions) -> Positions:
    """Bytes of each value as a varint."""
    payload = (values << 1) ^ (values >> 63)
    sizes = np.ones(len(values), np.int64)
    largest = int(payload.max(initial=0))
    size_bits = 7
    while largest >> size_bits:
        sizes += payload >= (1 << size_bits)
        size_bits += 7
    return sizes


def varint_size(value: int) -> int:
    """Bytes of one non-negative value as a varint."""
    return ((value << 1 | 1).bit_length() - 1) // 7 + 1


_TAKEN: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
    pa.types.is_null,
)


class Pieces(NamedTuple):
    """A piece of every record, as its slice of `data`. Ascending, not overlapping."""

    data: NDArray[np.uint8]
    starts: Positions
    sizes: Positions
    """Sizes of the pieces. -1 is null, without bytes."""

    @classmethod
    def of(cls, column: pa.Array) -> Pieces:
        """The pieces in the elements of a binary array or, as UTF-8, a string array. Raises
        pyarrow.ArrowException for another type."""
        if not pa.types.is_binary(column.type):
            if not any(is_taken(column.type) for is_taken in _TAKEN):
                raise pa.ArrowTypeError(f"{column.type} is neither binary nor string")
            column = column.cast(pa.binary())
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
