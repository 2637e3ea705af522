from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import writers
from kio.static.primitive import i32, i64, uvarint

from raftlog.schema.errors import DecodeError, EncodeError
from raftlog.schema.varints import (
    decode_uvarint,
    decode_varint,
    decode_varlong,
    encode_uvarint,
    encode_varint,
    encode_varlong,
)


@pytest.mark.parametrize(
    ("number", "encoded"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")],
)
def test_unsigned_numbers_have_seven_bits_a_byte(number: int, encoded: str) -> None:
    assert encode_uvarint(number).hex() == encoded
    assert decode_uvarint(bytes.fromhex(encoded), 0) == (number, len(encoded) // 2)


@pytest.mark.parametrize(("number", "encoded"), [(0, "00"), (-1, "01"), (1, "02"), (-64, "7f")])
def test_signed_numbers_are_zigzag(number: int, encoded: str) -> None:
    assert encode_varint(number).hex() == encode_varlong(number).hex() == encoded
    assert decode_varint(bytes.fromhex(encoded), 0) == (number, 1)
    assert decode_varlong(bytes.fromhex(encoded), 0) == (number, 1)


@given(
    st.integers(0, 2**32 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
)
def test_bytes_are_those_of_kio(unsigned: int, signed: int, long: int) -> None:
    for number, write, encode, decode in (
        (uvarint(unsigned), writers.write_unsigned_varint, encode_uvarint, decode_uvarint),
        (i32(signed), writers.write_signed_varint, encode_varint, decode_varint),
        (i64(long), writers.write_signed_varlong, encode_varlong, decode_varlong),
    ):
        written = io.BytesIO()
        write(written, number)
        assert encode(number) == written.getvalue()
        assert decode(b"\xff" + encode(number), 1) == (number, 1 + len(encode(number)))


@pytest.mark.parametrize("encoded", ["ffffffff10", "ffffffffff01", "8080808080" + "00"])
def test_over_32_bits_is_refused(encoded: str) -> None:
    for decode in (decode_uvarint, decode_varint):
        with pytest.raises(DecodeError):
            decode(bytes.fromhex(encoded), 0)


def test_over_64_bits_is_refused() -> None:
    with pytest.raises(DecodeError):
        decode_varlong(b"\xff" * 9 + b"\x02", 0)
    with pytest.raises(EncodeError):
        encode_varlong(2**63)
    with pytest.raises(EncodeError):
        encode_varint(-(2**31) - 1)
