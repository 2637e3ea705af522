"""Numbers of variable size, and pieces of records joined."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftlog_spark.codec.varints import (
    LENGTHS,
    NO_LENGTH,
    CorruptBatchError,
    Cursor,
    Pieces,
    Window,
    constant,
    heads,
    joined,
    packed,
    past_four,
    varint_size,
    varint_sizes,
)

LONG = st.integers(-(2**63), 2**63 - 1)
INT = st.integers(-(2**31), 2**31 - 1)
WRITTEN = st.integers(-(2**54), 2**54)


def varint(value: int) -> bytes:
    """One value, by the format's specification."""
    payload = ((value << 1) ^ (value >> 63)) & (2**64 - 1)
    parts = bytearray()
    while payload >= 0x80:
        parts.append(payload & 0x7F | 0x80)
        payload >>= 7
    parts.append(payload)
    return bytes(parts)


def laid(fields: list[bytes]) -> tuple[Window, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Fields in one buffer, and their positions."""
    ends = np.cumsum([len(field) for field in fields])
    return Window(b"".join(fields)), np.concatenate(([0], ends[:-1])).astype(np.int64)


class TestReading:
    @given(rows=st.lists(st.tuples(INT, LONG, INT), min_size=1, max_size=20))
    def test_fields_are_read_in_step(self, rows: list[tuple[int, int, int]]) -> None:
        window, positions = laid([varint(a) + b"\x00" + varint(b) + varint(c) for a, b, c in rows])
        cursor = Cursor(window, positions)
        first = cursor.read_int()
        cursor.skip_byte()
        found = (first, cursor.read_long(), cursor.read_int())
        assert list(zip(*(each.tolist() for each in found), strict=True)) == rows
        assert cursor.positions.tolist() == [*positions[1:].tolist(), window.size]

    @given(rows=st.lists(st.tuples(INT, LONG, INT), min_size=1, max_size=20))
    def test_skipping_ends_where_reading_does(self, rows: list[tuple[int, int, int]]) -> None:
        window, positions = laid([varint(a) + varint(b) + varint(c) for a, b, c in rows])
        cursor = Cursor(window, positions)
        cursor.skip_int()
        cursor.skip_long()
        assert cursor.read_int().tolist() == [row[2] for row in rows]

    @pytest.mark.parametrize("data", [b"\x80" * 6 + b"\x00", b"\xff" * 20, b"\x80" * 8])
    def test_an_int_of_more_than_five_bytes_is_refused(self, data: bytes) -> None:
        with pytest.raises(CorruptBatchError):
            Cursor(Window(data), np.array([0])).read_int()

    @pytest.mark.parametrize("data", [b"\xff" * 20, b"\x80" * 9, b"\x80" * 10 + b"\x00"])
    def test_a_long_that_does_not_end_is_refused(self, data: bytes) -> None:
        with pytest.raises(CorruptBatchError):
            Cursor(Window(data), np.array([0])).skip_long()

    def test_after_the_end_there_are_zeros(self) -> None:
        window = Window(b"\x02\x04")
        assert window.words(np.array([0, 1, 2, 50])).tolist() == [0x402, 4, 0, 0]
        assert window.pairs(np.array([0, 1, 2, 50])).tolist() == [0x402, 4, 0, 0]
        assert Window(b"").words(np.array([0])).tolist() == [0]

    @given(rows=st.lists(st.tuples(INT, INT, INT, INT), min_size=1, max_size=20))
    def test_four_varints_are_passed_at_once(self, rows: list[tuple[int, ...]]) -> None:
        fields = [b"".join(map(varint, row)) for row in rows]
        window, positions = laid([field + bytes(8) for field in fields])
        bits = past_four(window.words(positions))
        if any(len(field) > 8 for field in fields):
            assert bits is None
        else:
            assert bits is not None
            assert bits.tolist() == [8 * len(field) for field in fields]

    @given(value=INT)
    def test_lengths_of_two_bytes_are_looked_up(self, value: int) -> None:
        data = varint(value)
        expected = value if len(data) <= 2 and value >= -1 else NO_LENGTH
        assert LENGTHS[int.from_bytes(data[:2], "little")] == expected


class TestWriting:
    @given(values=st.lists(WRITTEN | st.integers(-100, 20_000), max_size=30))
    def test_packed_values_are_varints(self, values: list[int]) -> None:
        words, bits = packed(np.array(values, np.int64))
        found = [
            int(word).to_bytes(8, "little")[: int(size) // 8]
            for word, size in zip(words, bits, strict=True)
        ]
        assert found == [varint(value) for value in values]

    @given(values=st.lists(WRITTEN, max_size=30))
    def test_sizes(self, values: list[int]) -> None:
        sizes = [len(varint(value)) for value in values]
        assert varint_sizes(np.array(values, np.int64)).tolist() == sizes
        assert [varint_size(abs(value)) for value in values] == [
            len(varint(abs(value))) for value in values
        ]

    @given(value=st.integers(-64, 63))
    def test_a_constant_is_the_same_for_all(self, value: int) -> None:
        words, bits = constant(value, 3)
        assert words.tolist() == [varint(value)[0]] * 3
        assert bits.tolist() == [8] * 3


column = st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=20)
numbers = st.lists(st.integers(-(2**54), 2**54) | st.integers(-64, 63), min_size=8, max_size=8)


class TestJoined:
    @given(values=column, first=st.integers(0, 10), kinds=st.integers(1, 4))
    def test_pieces_of_each_record_follow_each_other(
        self, values: list[bytes | None], first: int, kinds: int
    ) -> None:
        pieces = Pieces.of(pa.array(values, pa.binary())).sliced(first, len(values))
        data, bounds = joined([pieces] * kinds)
        found = [data[start:end].tobytes() for start, end in pairwise(bounds)]
        assert found == [(value or b"") * kinds for value in values[first:]]

    @given(rows=st.lists(numbers, min_size=1, max_size=20), fields=st.integers(1, 8))
    def test_heads_are_the_varints_of_each_record(self, rows: list[list[int]], fields: int) -> None:
        columns = np.array(rows, np.int64).T[:fields]
        data, bounds = joined(heads([packed(np.ascontiguousarray(each)) for each in columns]))
        found = [data[start:end].tobytes() for start, end in pairwise(bounds)]
        assert found == [b"".join(map(varint, row[:fields])) for row in rows]
