"""Numbers of variable size: seven bits a byte, lowest first; the high bit set: more follow."""

from __future__ import annotations

from typing import Final

from raftlog.record.types import Buffer
from raftlog.schema.errors import DecodeError, EncodeError

SMALL_UVARINTS: Final = tuple(bytes([number]) for number in range(128))
"""Encoded numbers below 128: nearly all lengths, counts and tags."""


def encode_uvarint(number: int) -> bytes:
    """An unsigned number, by its magnitude: one byte for each seven bits."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def encode_varint(number: int) -> bytes:
    """A signed number of 32 bits, in zigzag form. Raises EncodeError for a larger one."""
    return _encode_zigzag(number, 32)


def encode_varlong(number: int) -> bytes:
    """A signed number of 64 bits, in zigzag form. Raises EncodeError for a larger one."""
    return _encode_zigzag(number, 64)


def decode_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """An unsigned number of 32 bits, and the position after it.

    Raises DecodeError for a larger number, IndexError at the end of the bytes.
    """
    return _decode(data, position, 32)


def decode_varint(data: Buffer, position: int) -> tuple[int, int]:
    """A signed number of 32 bits, and the position after it. Raises as `decode_uvarint`."""
    number, position = _decode(data, position, 32)
    return number >> 1 ^ -(number & 1), position


def decode_varlong(data: Buffer, position: int) -> tuple[int, int]:
    """A signed number of 64 bits, and the position after it. Raises as `decode_uvarint`."""
    number, position = _decode(data, position, 64)
    return number >> 1 ^ -(number & 1), position


def _encode_zigzag(number: int, bits: int) -> bytes:
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise EncodeError(f"{number} has more than {bits} bits")
    return encode_uvarint(number << 1 ^ number >> bits - 1)


def _decode(data: Buffer, position: int, bits: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, bits, 7):
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            if number >> bits:
                break
            return number, position
    raise DecodeError(f"The number before byte {position} has more than {bits} bits")
