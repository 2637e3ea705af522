"""Unsigned numbers of seven bits per byte, lowest bits first.

A set high bit means that more bytes follow.
"""

from __future__ import annotations

from typing import Final

from raftlog.record.types import Buffer
from raftlog.schema.errors import DecodeError

SMALL_UVARINTS: Final = tuple(bytes([number]) for number in range(128))
"""Encoded numbers below 128, which are nearly all lengths, counts and tags."""


def encode_uvarint(number: int) -> bytes:
    """Encode an unsigned number with one byte for every seven bits of its magnitude."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def decode_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """Return an unsigned 32-bit number and the position after it.

    Raises DecodeError for a larger number, IndexError at the end of the bytes.
    """
    number = 0
    for shift in range(0, 32, 7):
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            if number >> 32:
                break
            return number, position
    raise DecodeError(f"The number before byte {position} has more than 32 bits")
