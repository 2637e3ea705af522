"""Framing between nodes, with messages gathered into binary WebSocket messages (RFC 6455). No I/O.

All messages that one turn of the event loop sends travel in one WebSocket message, each behind its
length. They share the cost of header, mask and system call:

    WebSocket header | mask, if a caller sends | (length: 4 bytes, big endian | message) ...

Two rules
1. A node reads only the frames that a node sends. These are whole binary messages, masked by the
   caller and never by the called side, and a close. Anything else, fragments and pings included,
   is a `FrameError`, which ends the connection. Both ends run this code and have proven so.
2. A reader holds one WebSocket message of at most `bytes_max`, whatever the peer sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

# The compiled masking is not exported by aiohttp's public modules (a test checks for it).
from aiohttp._websocket.helpers import websocket_mask

from raftlog.world.network import MESSAGE_BYTES_MAX

GATHER_BYTES_MAX: Final = 256 * 1024
"""Most bytes of messages gathered for one write."""
LONG_BYTES: Final = 64 * 1024
"""Bytes of a message from which another write is cheaper than another copy."""
FRAME_BYTES_MAX: Final = MESSAGE_BYTES_MAX + GATHER_BYTES_MAX
"""Longest WebSocket message, gathered messages just below the bound plus the longest message."""

BINARY: Final = 0x82
"""First byte of a whole binary message, with FIN, no extension and opcode 2."""
CLOSE: Final = 0x88
MASKED: Final = 0x80
MASK_BYTES: Final = 4

_LENGTH: Final = Struct("!I")
LENGTH_BYTES: Final = _LENGTH.size
_HEAD_16: Final = Struct("!BBH")
_HEAD_64: Final = Struct("!BBQ")

pack_length = _LENGTH.pack
"""Encodes the length before a message."""


class FrameError(Exception):
    """Bytes of the peer that a node does not send. The connection must end."""


def frame(pieces: Sequence[bytes], size: int, mask: bytes | None) -> Sequence[bytes | bytearray]:
    """Return the buffers to write, in order, for one WebSocket message.

    `pieces` are lengths and messages in turn, `size` bytes in all. `mask` is four unpredictable
    bytes if the caller sends (RFC 6455, section 5.3), else None. Long messages are copied at most
    once.
    """
    if mask is None:
        head = _head(BINARY, size, 0)
        if size < LONG_BYTES:
            return (b"".join((head, *pieces)),)
        return b"".join((head, *pieces[:-1])), pieces[-1]
    head = _head(BINARY, size, MASKED) + mask
    payload = bytearray().join(pieces)
    websocket_mask(mask, payload)
    return (head + payload,) if size < LONG_BYTES else (head, payload)


def close_frame(mask: bytes | None) -> bytes:
    """Return the WebSocket message for the end of the connection."""
    return bytes((CLOSE, 0)) if mask is None else bytes((CLOSE, MASKED)) + mask


def _head(first: int, size: int, masked: int) -> bytes:
    if size < 126:
        return bytes((first, masked | size))
    if size < 65_536:
        return _HEAD_16.pack(first, masked | 126, size)
    return _HEAD_64.pack(first, masked | 127, size)


class FrameReader:
    """Turns received bytes into messages."""

    __slots__ = ("_bytes_max", "_is_masked", "_rest", "_rest_start", "_wanted_bytes", "is_ended")

    def __init__(self, *, is_masked: bool, bytes_max: int) -> None:
        self._is_masked = MASKED if is_masked else 0
        self._bytes_max = bytes_max
        """Most bytes of a WebSocket message."""
        self.is_ended = False
        """Whether the peer has announced the end. Later bytes do not count."""
        # Start of an incomplete message, with its length, or 0 while its head is incomplete.
        self._rest = bytearray()
        self._rest_start = 0
        self._wanted_bytes = 0

    def allow(self, bytes_max: int) -> None:
        """Accept longer messages from the next message on."""
        self._bytes_max = bytes_max

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that `data` completes. Raises FrameError."""
        messages: list[bytes] = []
        if self.is_ended:
            return messages
        position = 0
        if self._rest:
            missing_bytes = self._wanted_bytes - len(self._rest)
            if missing_bytes > len(data):
                # Parsed again only when complete, because a long message arrives in many pieces.
                self._rest += data
                return messages
            if self._wanted_bytes:
                self._take_rest(data, missing_bytes, messages)
                position = missing_bytes
            else:
                data = bytes(self._rest) + data
                self._rest = bytearray()
        end = len(data)
        while position < end:
            if data[position] == CLOSE:
                # The reason in a close frame is not used.
                self.is_ended = True
                break
            head = self._read_head(data, position)
            if head is None:
                self._keep(data, position, 0, 0)
                break
            start, size = head
            if end - start < size:
                self._keep(data, position, start - position, start - position + size)
                break
            position = start + size
            if self._is_masked:
                payload = bytearray(memoryview(data)[start:position])
                websocket_mask(data[start - MASK_BYTES : start], payload)
                _split(bytes(payload), 0, size, messages)
            else:
                _split(data, start, position, messages)
        return messages

    def _keep(self, data: bytes, position: int, rest_start: int, wanted_bytes: int) -> None:
        self._rest = bytearray(memoryview(data)[position:])
        self._rest_start = rest_start
        self._wanted_bytes = wanted_bytes

    def _take_rest(self, data: bytes, missing_bytes: int, messages: list[bytes]) -> None:
        """Complete the kept message with the first bytes of `data`.

        Long messages are copied once more and unmasked in place.
        """
        payload, start = self._rest, self._rest_start
        self._rest = bytearray()
        payload += memoryview(data)[:missing_bytes]
        mask = bytes(payload[start - MASK_BYTES : start])
        del payload[:start]
        if self._is_masked:
            websocket_mask(mask, payload)
        size = len(payload) - LENGTH_BYTES
        if LONG_BYTES <= size <= MESSAGE_BYTES_MAX and payload.startswith(pack_length(size)):
            messages.append(bytes(memoryview(payload)[LENGTH_BYTES:]))
        else:
            _split(bytes(payload), 0, len(payload), messages)

    def _read_head(self, data: bytes, position: int) -> tuple[int, int] | None:
        """Return start and size of the content, or None if the head is incomplete."""
        first = data[position]
        if first != BINARY:
            raise FrameError(f"a WebSocket frame starts with 0x{first:02x}")
        if len(data) - position < 2:
            return None
        second = data[position + 1]
        if second & MASKED != self._is_masked:
            raise FrameError("a WebSocket frame is masked by the wrong side")
        size = second & 0x7F
        start = position + 2
        if size >= 126:
            length_bytes = 2 if size == 126 else 8
            if len(data) - start < length_bytes:
                return None
            size = int.from_bytes(data[start : start + length_bytes], "big")
            start += length_bytes
        if size > self._bytes_max:
            raise FrameError(
                f"a WebSocket frame of {size} bytes is over the limit of {self._bytes_max}"
            )
        if self._is_masked:
            start += MASK_BYTES
            if start > len(data):
                return None
        return start, size


def _split(data: bytes, start: int, end: int, messages: list[bytes]) -> None:
    """Append the messages between two positions, each behind its length."""
    unpack = _LENGTH.unpack_from
    while end - start >= LENGTH_BYTES:
        (size,) = unpack(data, start)
        start += LENGTH_BYTES
        if size > MESSAGE_BYTES_MAX or size > end - start:
            raise FrameError(f"a message of {size} bytes exceeds the {end - start} bytes left")
        messages.append(data[start : start + size])
        start += size
    if start != end:
        raise FrameError(f"{end - start} bytes after the last message")
