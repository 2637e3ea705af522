"""A stream of bytes is split into JSON objects, with or without newlines between them.

The splitter is sans I/O. It follows only brackets and strings, and the parser decides whether an
object is valid JSON. The work is linear, however the stream is cut into chunks.
"""

from __future__ import annotations

import re

from raftlog.http.json_check import too_deep
from raftlog.record.errors import BODY_TOO_LARGE, INVALID_BODY, LogError

_MARK = re.compile(rb'["{}\[\]]')
_IN_STRING = re.compile(rb'["\\]')
_START = re.compile(rb"[^ \t\r\n]")
_OPENING = b"{["

_QUICK_LAYERS = 6
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'


def _nested(layers: int) -> bytes:
    inner = rb"|" + _nested(layers - 1) if layers > 1 else b""
    return rb"[{\[](?:[^{}\[\]\"]++|" + _STRING + inner + rb")*+[}\]]"


_WHOLE = re.compile(_nested(_QUICK_LAYERS), re.DOTALL)
"""A complete object of usual depth, ten times faster than mark by mark. The pattern is possessive,
hence without backtracking and linear in any input."""


class JsonSplitter:
    """Finds the bounds of a stream's objects. Holds at most one unfinished object."""

    __slots__ = (
        "_buffer",
        "_depth",
        "_depth_max",
        "_in_string",
        "_object_bytes_max",
        "_scanned",
        "_start",
    )

    def __init__(self, object_bytes_max: int, depth_max: int) -> None:
        self._object_bytes_max = object_bytes_max
        self._depth_max = depth_max
        self._buffer = bytearray()
        self._start = -1
        """Start of the unfinished object in the buffer, or -1 between objects."""
        self._scanned = 0
        self._depth = 0
        self._in_string = False

    @property
    def pending_bytes(self) -> int:
        """Bytes held of an unfinished object."""
        return len(self._buffer)

    def take(self, chunk: bytes, objects: list[bytes]) -> LogError | None:
        """Add the objects that `chunk` completes to `objects`.

        Returns the error that ends the stream, if any. It is INVALID_BODY for anything but
        whitespace between objects and for brackets nested deeper than the limit, and BODY_TOO_LARGE
        for an object over the limit.
        """
        buffer = self._buffer
        buffer += chunk
        error: LogError | None = None
        while True:
            end = -1
            if self._start < 0:
                found = _START.search(buffer, self._scanned)
                if found is None:
                    self._scanned = len(buffer)
                    break
                self._start = self._scanned = found.start()
                if buffer[self._start] != ord("{"):
                    error = LogError(
                        INVALID_BODY,
                        f"A JSON object should begin where "
                        f"{bytes(buffer[self._start : self._start + 20])!r} is.",
                    )
                    break
                if whole := _WHOLE.match(buffer, self._start):
                    end = whole.end()
            if end < 0:
                end = self._find_end()
            if end < 0:
                break
            objects.append(bytes(buffer[self._start : end]))
            self._start = -1
            self._scanned = end
        kept_from = self._scanned if self._start < 0 else self._start
        del buffer[:kept_from]
        self._scanned -= kept_from
        self._start = -1 if self._start < 0 else 0
        if self._depth > self._depth_max:
            error = LogError(INVALID_BODY, too_deep(self._depth_max))
        elif error is None and len(buffer) > self._object_bytes_max:
            error = LogError(
                BODY_TOO_LARGE, f"A record has more than {self._object_bytes_max} bytes."
            )
        return error

    def _find_end(self) -> int:
        """End of the unfinished object, or -1 if it is incomplete or nested too deep."""
        buffer = self._buffer
        position = self._scanned
        size = len(buffer)
        while True:
            found = (_IN_STRING if self._in_string else _MARK).search(buffer, position)
            if found is None:
                self._scanned = size
                return -1
            position = found.end()
            mark = buffer[position - 1]
            if mark == 0x22:  # a quote
                self._in_string = not self._in_string
            elif self._in_string:  # a backslash and the byte it escapes belong together
                if position >= size:
                    self._scanned = position - 1
                    return -1
                position += 1
            elif mark in _OPENING:
                self._depth += 1
                if self._depth > self._depth_max:
                    return -1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    self._depth = 0
                    return position
