"""A JSON text's UTF-8 and nesting are checked in one linear pass before parsing.

Parsers recurse, and skip the content of raw values. So the nesting is bounded, and the encoding is
checked, before they run. `JsonCheck` takes the text slice by slice, each at memory speed, so that a
body of any size and shape never holds the event loop. Anything else that is not JSON is left to the
parser.
"""

from __future__ import annotations

import codecs
import re
from itertools import accumulate
from typing import Final

from raftlog.broker.limits import WorkTurns
from raftlog.record.errors import BODY_TOO_LARGE, INVALID_BODY, LogError

SLICE_BYTES: Final = 64 * 1024
"""Bytes checked in one turn of the event loop (1.5 ms if all are brackets)."""
PIECE_BYTES: Final = 128 * 1024
"""Bytes from which a piece of a long array is cut off and parsed separately. With the smallest
elements this takes 3 ms."""
ELEMENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longest JSON text of an element of an array parsed in pieces (30 ms)."""

_PEELED_LAYERS: Final = 4
_KEPT: Final = b'[]{}"'
_NOT_KEPT: Final = bytes(set(range(256)) - set(_KEPT))
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_STEPS: Final = bytes.maketrans(b"[]", b"\x01\xff")

_SEPARATOR: Final = re.compile(rb"[ \t\r\n]*+,[ \t\r\n]*+")
_OPEN: Final = re.compile(rb"[ \t\r\n,]*+\{")
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRING_REST: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_LAYERS: Final = 6


def _nested(layers: int) -> bytes:
    inner = rb"|" + _nested(layers - 1) if layers > 1 else b""
    return rb"[{\[](?:[^{}\[\]\"]++|" + _STRING + inner + rb")*+[}\]]"


_CLOSE: Final = re.compile(
    rb"(?:[^{}\[\]\"]++|" + _STRING + rb"|" + _nested(_LAYERS) + rb")*+[}\]]", re.DOTALL
)
"""The text from within an object or array to its end. Possessive, hence linear."""


class JsonCheck:
    """The check of one text. Feed all its slices in order, then `finish`."""

    __slots__ = ("_decoder", "_depth_max", "depth", "in_string", "is_escaped")

    def __init__(self, depth_max: int) -> None:
        self._depth_max = depth_max
        self._decoder: codecs.IncrementalDecoder | None = None
        self.is_escaped = False
        """Whether the text so far ends with the backslash of an escape."""
        self.depth = 0
        """Open brackets at the end of the text so far."""
        self.in_string = False
        """Whether the text so far ends within a string."""

    def feed(self, data: bytes) -> None:
        """Check the next slice. Raises LogError INVALID_BODY."""
        if self._decoder is not None or not data.isascii():
            self._check_utf8(data)
        if self.is_escaped:
            data = b"\\" + data
            self.is_escaped = False
        if b"\\" in data:
            # Without pairs of backslashes and escaped quotes, every quote begins or ends a string.
            data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
            self.is_escaped = data.endswith(b"\\")
        marks = data.translate(None, _NOT_KEPT)
        if not self.in_string:
            # Strings without brackets are removed next. If no string has brackets, no quote is
            # left. The quotes before a bracket within a string are odd in number.
            marks = marks.replace(b'""', b"")
        if self.in_string or b'"' in marks:
            parts = marks.split(b'"')
            marks = b"".join(parts[self.in_string :: 2])
            self.in_string ^= (len(parts) - 1) % 2 == 1
        if marks:
            self._count(marks.translate(_ONE_KIND))

    def finish(self) -> None:
        """Check the end of the text. Raises LogError INVALID_BODY."""
        if self._decoder is not None:
            self._check_utf8(b"", is_last=True)

    def _check_utf8(self, data: bytes, *, is_last: bool = False) -> None:
        if self._decoder is None:
            self._decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            self._decoder.decode(data, is_last)
        except UnicodeDecodeError as error:
            raise LogError(INVALID_BODY, f"The body is not UTF-8: {error}.") from None

    def _count(self, brackets: bytes) -> None:
        """Follow the depth through `brackets`, which are all of one kind and outside strings."""
        room = self._depth_max - self.depth
        if len(brackets) > room:
            rest = brackets
            for _ in range(_PEELED_LAYERS):
                rest = rest.replace(b"[]", b"")
            # Each pass lowers the highest depth by at most one.
            if _peak(rest) + _PEELED_LAYERS > room and _peak(brackets) > room:
                raise LogError(INVALID_BODY, too_deep(self._depth_max))
            brackets = rest
        self.depth += 2 * brackets.count(b"[") - len(brackets)


def too_deep(depth_max: int) -> str:
    """The message for a text with more open brackets than `depth_max`."""
    return f"The body is nested deeper than {depth_max} brackets."


def _peak(brackets: bytes) -> int:
    """The highest depth from before `brackets` to their end, counted from their start."""
    return max(accumulate(memoryview(brackets.translate(_STEPS)).cast("b"), initial=0))


def check_json(body: bytes, depth_max: int) -> None:
    """Raise LogError INVALID_BODY unless a small body is UTF-8 and nested within `depth_max`.

    It is for bodies of a few slices. `check_body` lets other requests run in between.
    """
    if body.isascii() and body.count(b"[") + body.count(b"{") <= depth_max:
        return
    check = JsonCheck(depth_max)
    check.feed(body)
    check.finish()


async def check_body(body: bytes, depth_max: int, turns: WorkTurns) -> None:
    """Check a body of any size as `check_json`. A long body is checked in turns."""
    if len(body) <= SLICE_BYTES:
        check_json(body, depth_max)
        return
    check = JsonCheck(depth_max)
    for start in range(0, len(body), SLICE_BYTES):
        await turns.wait()
        check.feed(body[start : start + SLICE_BYTES])
    check.finish()


async def array_pieces(
    body: bytes, start: int, end: int, depth_max: int, turns: WorkTurns
) -> list[tuple[int, int]]:
    """Check a large body, and cut the array of objects within it into pieces.

    The array's content is `body[start:end]`, in an object. Each piece is some of its elements, with
    the commas between them. Raises LogError INVALID_BODY, and BODY_TOO_LARGE for an element of more
    than ELEMENT_BYTES_MAX.
    """
    check = JsonCheck(depth_max)
    check.feed(body[:start])
    depth = check.depth
    pieces: list[tuple[int, int]] = []
    piece_start = position = start
    while position < end:
        await turns.wait()
        slice_end = min(position + SLICE_BYTES, end)
        check.feed(body[position:slice_end])
        position = slice_end
        if position - piece_start >= PIECE_BYTES:
            cut = _element_end(body, position, end, check, depth)
            if cut is not None:
                check.feed(body[position:cut])
                position = cut
                separator = _SEPARATOR.match(body, cut, end)
                # If no separator is here, or nothing follows it, the parser must see the mistake.
                if check.depth == depth and separator and separator.end() < end:
                    check.feed(body[position : separator.end()])
                    pieces.append((piece_start, cut))
                    piece_start = position = separator.end()
        if position - piece_start > ELEMENT_BYTES_MAX:
            raise LogError(
                BODY_TOO_LARGE, f"A record has more than {ELEMENT_BYTES_MAX} bytes of JSON."
            )
    check.feed(body[end:])
    check.finish()
    pieces.append((piece_start, end))
    return pieces


def _element_end(body: bytes, position: int, end: int, check: JsonCheck, depth: int) -> int | None:
    """The end of the array's element at `position`, or None if it is not near."""
    near = min(position + SLICE_BYTES, end)
    if check.in_string:
        rest = _STRING_REST.match(body, position - check.is_escaped, near)
        if rest is None:
            return None
        position = rest.end()
    levels = check.depth - depth
    if not levels:
        opened = _OPEN.match(body, position, near)
        if opened is None:
            return None
        position, levels = opened.end(), 1
    for _ in range(levels):  # no match if the brackets differ, which the parser reports
        closed = _CLOSE.match(body, position, near)
        if closed is None:
            return None
        position = closed.end()
    return position
