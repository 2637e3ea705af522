"""Long JSON bodies are checked in slices and parsed in pieces.

A short body such as `{"acks": "all", "records": […]}` is parsed in one call. In a long body only
the array is long. The array is cut between its elements into pieces, and each piece is parsed in a
separate turn of the event loop. So no body holds the loop for longer than one piece takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from raftlog.broker.limits import WorkTurns
from raftlog.http.body import JSON_BODY_BYTES_MAX
from raftlog.http.json_check import SLICE_BYTES, array_pieces, check_body
from raftlog.record.errors import INVALID_BODY, LogError

Body = TypeVar("Body", bound=msgspec.Struct)
Element = TypeVar("Element")
T = TypeVar("T")

FRAME_BYTES_MAX: Final = 4_096
"""Bytes of a long body's fields before and after its array. All options together are shorter."""
_SCALAR: Final = rb'(?:"[^"\\\[\]{}]*"|[-+.\w]+)'
_FIELD: Final = rb'\s*"\w+"\s*:\s*' + _SCALAR + rb"\s*"
_HEAD: Final = re.compile(rb"\s*\{(?:" + _FIELD + rb',)*\s*"(\w+)"\s*:\s*\[')
_TAIL: Final = re.compile(rb"\s*(?:," + _FIELD + rb")*\}\s*\Z")
_INDEX: Final = re.compile(r"\$\[(\d+)\]")


LONG_ELEMENT_BYTES: Final = 2 * 1024 * 1024
"""Size from which the headers of a record are measured before they are parsed."""
HEADERS_BYTES_MAX: Final = 1024 * 1024
"""JSON text of a long record's headers, in bytes. Keys and values are skipped quickly. Each header
becomes an object, which takes 20 ms a MiB."""


class _Probe(msgspec.Struct):
    """A record of which only the headers' text is inspected."""

    headers: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_PROBE: Final = msgspec.json.Decoder(_Probe)
_PROBES: Final = msgspec.json.Decoder(list[_Probe])


@dataclass(frozen=True, slots=True)
class ArrayBody(Generic[Body, Element]):
    """A type of body whose array may be long, such as `{"name": […], …}`."""

    name: str
    whole: msgspec.json.Decoder[Body]
    elements: msgspec.json.Decoder[list[Element]]

    async def parse(
        self,
        body: bytes,
        take: Callable[[list[Element]], None],
        *,
        depth_max: int,
        turns: WorkTurns,
    ) -> Body:
        """Check and parse a body. Its array goes to `take` piece by piece.

        Returns the body, which lacks the elements if it was long. Raises LogError INVALID_BODY
        (naming the place) and BODY_TOO_LARGE, and the errors of `take`.
        """
        if len(body) > SLICE_BYTES:
            bounds = _array_bounds(body, self.name.encode())
            if bounds is not None:
                return await self._parse_pieces(body, bounds, take, depth_max, turns)
            if len(body) > JSON_BODY_BYTES_MAX:
                raise LogError(
                    INVALID_BODY,
                    f"A body of more than {JSON_BODY_BYTES_MAX} bytes must be one object with an "
                    f"array {self.name!r}, and numbers and plain strings beside it.",
                )
            await turns.wait()
        await check_body(body, depth_max, turns)
        parsed = _decode(self.whole, body)
        take(getattr(parsed, self.name))
        return parsed

    async def _parse_pieces(
        self,
        body: bytes,
        bounds: tuple[int, int],
        take: Callable[[list[Element]], None],
        depth_max: int,
        turns: WorkTurns,
    ) -> Body:
        start, end = bounds
        parsed = _decode(self.whole, body[:start] + body[end:])
        count = 0
        for piece in await array_pieces(body, start, end, depth_max, turns):
            text = b"[%b]" % body[slice(*piece)]
            await turns.wait()
            if len(text) > LONG_ELEMENT_BYTES:
                for probe in _decode(_PROBES, text, self.name, count):
                    _check_headers(probe)
                await turns.wait()
            some = _decode(self.elements, text, self.name, count)
            count += len(some)
            take(some)
        return parsed


async def check_long_record(text: bytes, turns: WorkTurns) -> None:
    """Raise LogError INVALID_BODY for a long record whose headers take too long to parse."""
    if len(text) > LONG_ELEMENT_BYTES:
        await turns.wait()
        _check_headers(_decode(_PROBE, text))
        await turns.wait()


def _check_headers(probe: _Probe) -> None:
    if probe.headers is not msgspec.UNSET and len(bytes(probe.headers)) > HEADERS_BYTES_MAX:
        raise LogError(
            INVALID_BODY, f"A record has more than {HEADERS_BYTES_MAX} bytes of headers."
        )


def _array_bounds(body: bytes, name: bytes) -> tuple[int, int] | None:
    """The bounds of the array's content, or None. Only a body of the usual form has them."""
    head = _HEAD.match(body, 0, FRAME_BYTES_MAX)
    end = body.rfind(b"]", max(len(body) - FRAME_BYTES_MAX, 0))
    if head is None or head[1] != name or end < head.end():
        return None
    if _TAIL.match(body, end + 1) is None or b'"%b"' % name in body[end:]:
        return None
    return head.end(), end


def _decode(decoder: msgspec.json.Decoder[T], text: bytes, name: str = "", first: int = 0) -> T:
    """Decode text. Raises LogError INVALID_BODY with the place.

    The place of an error in a piece of array `name` is the element's.
    """
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        place = str(error)
        if name:
            place = _INDEX.sub(lambda m: f"$.{name}[{int(m[1]) + first}]", place, count=1)
        raise LogError(INVALID_BODY, f"The body is not valid: {place}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LogError(INVALID_BODY, f"The body is not JSON: {error}.") from None
