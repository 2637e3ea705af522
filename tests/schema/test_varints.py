from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import writers
from kio.static.primitive import uvarint

from raftlog.schema.errors import DecodeError
from raftlog.schema.varints import decode_uvarint, encode_uvarint


@pytest.mark.parametrize(
    ("number", "encoded"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")],
)
def test_unsigned_numbers_have_seven_bits_a_byte(number: int, encoded: str) -> None:
    assert encode_uvarint(number).hex() == encoded
    assert decode_uvarint(bytes.fromhex(encoded), 0) == (number, len(encoded) // 2)


@given(st.integers(0, 2**32 - 1))
def test_bytes_are_those_of_kio(number: int) -> None:
    written = io.BytesIO()
    writers.write_unsigned_varint(written, uvarint(number))
    assert encode_uvarint(number) == written.getvalue()
    assert decode_uvarint(b"\xff" + encode_uvarint(number), 1) == (
        number,
        1 + len(encode_uvarint(number)),
    )


@pytest.mark.parametrize("encoded", ["ffffffff10", "ffffffffff01", "8080808080" + "00"])
def test_over_32_bits_is_refused(encoded: str) -> None:
    with pytest.raises(DecodeError):
        decode_uvarint(bytes.fromhex(encoded), 0)
