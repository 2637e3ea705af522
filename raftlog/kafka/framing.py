"""Frames of the Kafka protocol have heads of requests and of responses. Pure.

A frame is its size (int32) and that number of bytes. A request begins with its head, which has the
API's key and version, a correlation id, the client's id, and tagged fields in flexible versions
(KIP-482). A response begins with the correlation id, and tagged fields in flexible versions.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from raftlog.record.types import Buffer
from raftlog.schema.decoder import decode_text
from raftlog.schema.errors import DecodeError
from raftlog.schema.varints import decode_uvarint

SIZE_BYTES: Final = 4
PREFIX_BYTES: Final = 8
"""Bytes of size, API key and version, which precede the allocation of a frame."""
CLIENT_ID_BYTES_MAX: Final = 1_000
TAGS_MAX: Final = 100

_PREFIX: Final = struct.Struct(">ihh")
_HEAD: Final = struct.Struct(">hhih")
_ANSWER: Final = struct.Struct(">ii")


class Prefix(NamedTuple):
    """The first bytes of a frame."""

    size: int
    """Bytes of the frame after these four bytes."""
    api_key: int
    api_version: int


class Head(NamedTuple):
    """The head of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    end: int
    """Where the message begins."""


def parse_prefix(data: Buffer, start: int) -> Prefix:
    """The prefix of the frame at `start`. There must be PREFIX_BYTES."""
    return Prefix(*_PREFIX.unpack_from(data, start))


def parse_head(frame: Buffer, *, is_flexible: bool) -> Head:
    """The head of a frame without its size. Raises DecodeError."""
    try:
        api_key, api_version, correlation_id, length = _HEAD.unpack_from(frame, 0)
        position = _HEAD.size
        client_id = ""
        if length >= 0:
            end = position + length
            if length > CLIENT_ID_BYTES_MAX or end > len(frame):
                raise DecodeError(f"a client id of {length} bytes")
            client_id = decode_text(frame[position:end])
            position = end
        if is_flexible:
            # Clients send no tags in a head so far.
            position = _skip_tags(frame, position) if frame[position] else position + 1
    except (struct.error, IndexError) as error:
        raise DecodeError(f"request head: {error}") from error
    return Head(
        api_key=api_key,
        api_version=api_version,
        correlation_id=correlation_id,
        client_id=client_id,
        end=position,
    )


def _skip_tags(frame: Buffer, position: int) -> int:
    count, position = decode_uvarint(frame, position)
    if count > TAGS_MAX:
        raise DecodeError(f"request head: {count} tags")
    for _ in range(count):
        _, position = decode_uvarint(frame, position)
        size, position = decode_uvarint(frame, position)
        position += size
        if position > len(frame):
            raise DecodeError("request head: a tag beyond the end")
    return position


def answer_head(correlation_id: int, size: int, *, is_flexible: bool) -> bytes:
    """Size and head of a response with a message of `size` bytes."""
    if is_flexible:
        return _ANSWER.pack(size + SIZE_BYTES + 1, correlation_id) + b"\0"
    return _ANSWER.pack(size + SIZE_BYTES, correlation_id)
