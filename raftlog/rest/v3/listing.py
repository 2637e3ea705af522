"""Lists of the v3 convention are shaped, encoded and sent slice by slice.

A cluster has up to 100,000 partitions, and a list is returned whole. To build it in one call would
hold the event loop, and to keep it would hold memory for as long as a slow reader takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec
from aiohttp import web

from raftlog.http.request import Request
from raftlog.http.responses import JSON, json_response, stream_response
from raftlog.rest.v3.shapes import Shaper

OBJECTS_PER_SLICE: Final = 200
"""Objects of a slice, which takes some milliseconds and has about 100 KB."""

_encode = msgspec.json.Encoder().encode


async def list_response(
    request: Request, shaper: Shaper, kind: str, path: str, objects: Iterable[msgspec.Struct]
) -> web.StreamResponse:
    """The list of `objects`, found at `path` of the cluster. They are consumed during sending."""
    rest = iter(objects)
    data = list(islice(rest, OBJECTS_PER_SLICE))
    if len(data) < OBJECTS_PER_SLICE:
        return json_response(shaper.listing(kind, path, data))
    response = stream_response(request, JSON)
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    empty: bytes = _encode(shaper.listing(kind, path, ()))
    end = b"]}"
    assert empty.endswith(b"[" + end)
    piece = empty.removesuffix(end)
    while data:
        await response.write(piece + _encode(data)[1:-1])
        data = list(islice(rest, OBJECTS_PER_SLICE))
        piece = b","
    await response.write(end)
    return response
