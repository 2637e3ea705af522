"""Responses carry JSON, bytes or errors, in the media type that the peer accepts.

A whole response is an `Answer`. A response without a known size is aiohttp's StreamResponse, made
by `stream_response`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol, cast

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http_writer import StreamWriter

from raftlog.api.common import ErrorBody
from raftlog.record import errors
from raftlog.record.errors import ErrorEntry, LogError
from raftlog.record.types import Buffer

if TYPE_CHECKING:
    from raftlog.http.request import Request

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
SERVER = "raftlog"
RETRY_AFTER_S = 1
WRITE_SLICE_BYTES = 256 * 1024
"""Bytes of a piece written to the socket. A stalled reader holds about one piece."""
JOIN_BYTES = 16 * 1024
"""Size up to which a copy of a piece costs less than its own write."""
REASONS = {status.value: status.phrase for status in HTTPStatus}

_encode = msgspec.json.Encoder().encode
_RETRY_LATER = (errors.QUOTA_EXCEEDED, errors.OVERLOADED, errors.NOT_READY)
_NOT_IN_HEADERS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class ResponseReader(Protocol):
    """The connection whose peer takes a response."""

    def reader_took(self, size: int, waited_s: float) -> None:
        """Count progress. Raises ConnectionResetError for a reader below the minimum rate."""
        ...


class Answer(web.StreamResponse):
    """A whole response, sent in one write if it is small, else in slices.

    It replaces web.Response, whose multidict, defaults and serialiser cost a quarter of a small
    request (docs/decisions/http-server.md).
    """

    def __init__(
        self, status: int, content_type: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status=status)
        is_small = len(body) < WRITE_SLICE_BYTES
        if is_small and content_type.endswith("json") and not body.endswith(b"\n"):
            # At a terminal, the prompt then starts a new line. Not worth a large copy.
            body += b"\n"
        self.content = body
        self._media = content_type
        self._extra = _header_lines(headers) if headers else ""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Keep the request. `write_eof` sends everything."""
        if not self.prepared:
            self._req = request
            self._payload_writer = request.writer
            if self._keep_alive is None:
                self._keep_alive = request.keep_alive
        return self._payload_writer

    async def write_eof(self, data: bytes = b"") -> None:
        """Send head and body. The reader must take a slice before the next is sent."""
        request, writer = self._req, self._payload_writer
        if self._eof_sent or request is None or writer is None:
            return
        assert not data, "the body is given to the constructor"
        self._eof_sent = True
        self._req = self._payload_writer = None
        body = b"" if request.method == "HEAD" else self.content
        head = self._head(request)
        self._body_length = writer.output_size = len(head) + len(body)
        if len(body) <= WRITE_SLICE_BYTES:
            await _write(writer, head + body)
            return
        await _write(writer, head)
        await _write_sliced(request, writer, body)

    def _head(self, request: web.BaseRequest) -> bytes:
        start = _head_start(
            self._status, self._media, request.version >= (1, 1), bool(self._keep_alive)
        )
        extra = self._extra
        if self._headers:
            extra += _header_lines(self._headers)
        if self._status != HTTPStatus.NO_CONTENT:
            extra += f"Content-Length: {len(self.content)}\r\n"
        text = f"{start}Date: {rfc822_formatted_time()}\r\n{extra}\r\n"
        return text.encode("utf-8")


@lru_cache(maxsize=1_024)
def _head_start(status: int, content_type: str, is_http11: bool, keep_alive: bool) -> str:
    """The common part of similar heads. Handlers use few media types, so the cache suffices."""
    lines = [
        f"HTTP/{'1.1' if is_http11 else '1.0'} {status} {REASONS[status]}",
        f"Server: {SERVER}",
        # Browsers must not guess another type for users' data.
        "X-Content-Type-Options: nosniff",
        "Cache-Control: no-store",
    ]
    if content_type:
        lines.append(f"Content-Type: {content_type}")
    if keep_alive and not is_http11:
        lines.append("Connection: keep-alive")
    elif not keep_alive and is_http11:
        lines.append("Connection: close")
    return "\r\n".join(lines) + "\r\n"


def _header_lines(headers: Mapping[str, str]) -> str:
    for name, value in headers.items():
        if _NOT_IN_HEADERS.search(name) or _NOT_IN_HEADERS.search(value):
            raise ValueError(f"control character in header {name!r}")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


async def _write(writer: AbstractStreamWriter, data: bytes | memoryview) -> None:
    transport = writer.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the peer has left")
    transport.write(data)
    await writer.drain()


async def _write_sliced(
    request: web.BaseRequest, writer: AbstractStreamWriter, data: Buffer
) -> None:
    """Write in slices. A reader below the minimum rate is cut off (ConnectionResetError)."""
    reader = cast(ResponseReader, request.protocol)
    loop = asyncio.get_running_loop()
    view = memoryview(data)
    for start in range(0, len(view), WRITE_SLICE_BYTES):
        piece = view[start : start + WRITE_SLICE_BYTES]
        began = loop.time()
        await _write(writer, piece)
        reader.reader_took(len(piece), loop.time() - began)


def bytes_response(
    body: bytes, content_type: str, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """A whole response from bytes."""
    return Answer(status, content_type, body, headers)


def json_response(
    value: object,
    *,
    status: int = 200,
    content_type: str = JSON,
    headers: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    """A whole response from a struct, a dataclass, or plain data that msgspec can encode."""
    return bytes_response(_encode(value), content_type, status=status, headers=headers)


def empty_response(*, headers: Mapping[str, str] | None = None) -> web.StreamResponse:
    """204, no content."""
    return Answer(HTTPStatus.NO_CONTENT, "", b"", headers)


def error_body(entry: ErrorEntry, message: str | None = None) -> bytes:
    """The JSON of an error."""
    return _encode(ErrorBody(entry.code, message or entry.message))


def error_response(
    entry: ErrorEntry,
    message: str | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    content_type: str = JSON,
) -> web.StreamResponse:
    """The response for an entry of the error table."""
    if entry in _RETRY_LATER:
        headers = {**(headers or {}), "Retry-After": str(RETRY_AFTER_S)}
    body = error_body(entry, message)
    return bytes_response(body, content_type, status=entry.http_status, headers=headers)


def raw_error(entry: ErrorEntry, message: str | None = None) -> bytes:
    """The whole error response outside of any request. The connection ends with it."""
    body = error_body(entry, message) + b"\n"
    head = _head_start(entry.http_status, JSON, True, False)
    if entry in _RETRY_LATER:
        head += f"Retry-After: {RETRY_AFTER_S}\r\n"
    head += f"Date: {rfc822_formatted_time()}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode("ascii") + body


def method_not_allowed(method: str, allow: str) -> web.StreamResponse:
    """405 with the Allow header."""
    message = f"{method[:20]} is not possible here; {allow} is."
    return error_response(errors.METHOD_NOT_ALLOWED, message, {"Allow": allow})


def stream_response(request: Request, content_type: str) -> web.StreamResponse:
    """A response without a known size.

    Call `await response.prepare(request)`, then `write` pieces of at most `WRITE_SLICE_BYTES`, then
    return it. Each `write` waits for a slow reader. A stalled reader is cut off, and `write` raises
    ConnectionError, which a handler must not catch.
    """
    response = web.StreamResponse(headers=request.cors_headers)
    response.headers["Content-Type"] = content_type
    response.headers["Server"] = SERVER
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-store"
    return response


async def write_pieces(
    request: web.BaseRequest, response: web.StreamResponse, pieces: Sequence[Buffer]
) -> None:
    """Write pieces of a prepared `stream_response` without a copy of large pieces.

    aiohttp's own `write` copies its argument together with a chunk's framing. Raises
    ConnectionError.
    """
    size = sum(len(piece) for piece in pieces)
    if not size:
        # In HTTP, an empty chunk is the end.
        return
    writer = request.writer
    assert isinstance(writer, StreamWriter)
    assert response.prepared
    writer.send_headers()
    writer.output_size += size
    small = [b"%x\r\n" % size] if writer.chunked else []
    for piece in pieces:
        if len(piece) <= JOIN_BYTES:
            small.append(bytes(piece))
            continue
        await _write(writer, b"".join(small))
        small = []
        await _write_sliced(request, writer, piece)
    if writer.chunked:
        small.append(b"\r\n")
    await _write(writer, b"".join(small))


def media_type(request: web.BaseRequest) -> str:
    """The body's media type in lower case, without parameters.

    The default, also for the type that `curl -d` sends, is JSON.
    """
    header = request.headers.get("Content-Type")
    if header is None or header == JSON:
        return JSON
    value = header.partition(";")[0].strip().lower()
    return JSON if value in ("", FORM) else value


def require_media_type(request: web.BaseRequest, understood: Sequence[str]) -> str:
    """The body's media type. Raises LogError UNSUPPORTED_MEDIA_TYPE unless `understood` has it."""
    value = media_type(request)
    if value not in understood:
        wanted = " or ".join(understood)
        raise LogError(
            errors.UNSUPPORTED_MEDIA_TYPE,
            f"The Content-Type {value[:100]!r} is not understood here; send {wanted}.",
        )
    return value


def negotiate(request: web.BaseRequest, offered: tuple[str, ...]) -> str:
    """The offered media type that the Accept header prefers, or the first without a header.

    Raises LogError UNSUPPORTED_FORMAT if the header accepts none.
    """
    header = request.headers.get("Accept")
    if not header or header == "*/*":
        return offered[0]
    chosen = _choose(header, offered)
    if chosen is None:
        raise LogError(
            errors.UNSUPPORTED_FORMAT, f"The Accept header allows none of {', '.join(offered)}."
        )
    return chosen


def prefers(request: web.BaseRequest, media_type: str, *, over: str) -> bool:
    """Whether the Accept header takes the media type rather than `over`."""
    header = request.headers.get("Accept")
    return bool(header) and _choose(str(header), (over, media_type)) == media_type


@lru_cache(maxsize=256)
def _choose(accept: str, offered: tuple[str, ...]) -> str | None:
    """The most specific matching range gives a type its quality (RFC 9110 section 12.5.1)."""
    ranges: list[tuple[str, float]] = []
    for part in accept.split(","):
        pieces = [piece.strip().lower() for piece in part.split(";")]
        quality = 1.0
        for piece in pieces[1:]:
            name, _, value = piece.partition("=")
            if name.strip() == "q":
                try:
                    quality = min(max(float(value), 0.0), 1.0)
                except ValueError:
                    quality = 0.0
        ranges.append((pieces[0], quality))
    best: str | None = None
    best_quality = 0.0
    for media in offered:
        quality = _quality(media, ranges)
        if quality > best_quality:
            best, best_quality = media, quality
    return best


def _quality(media: str, ranges: Sequence[tuple[str, float]]) -> float:
    for candidate in (media, media.partition("/")[0] + "/*", "*/*"):
        for pattern, quality in ranges:
            if pattern == candidate:
                return quality
    return 0.0
