"""Reading request bodies: bounded in size, in time, and in in all that requests hold.

`read_body` and `read_json` read a whole body; `BodyStream` reads a stream of JSON objects as they
arrive.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from types import TracebackType
from typing import Self, TypeVar

import msgspec
from aiohttp import web
from aiohttp.hdrs import CONTENT_ENCODING, EXPECT

from raftlog.http.json_stream import JsonSplitter
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import JSON, require_media_type
from raftlog.record.errors import (
    BAD_REQUEST,
    BODY_TOO_LARGE,
    INVALID_BODY,
    REQUEST_TIMEOUT,
    UNSUPPORTED_MEDIA_TYPE,
    LogError,
)

T = TypeVar("T")

_INFLATE_STEP_BYTES = 256 * 1024
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


async def read_body(request: Request, context: ServerContext) -> bytes:
    """The whole body, decompressed. Its bytes are held until the request is answered.

    Raises LogError BODY_TOO_LARGE, REQUEST_TIMEOUT, OVERLOADED, UNSUPPORTED_MEDIA_TYPE (an unknown
    Content-Encoding), BAD_REQUEST (malformed framing or compression).
    """
    content = request.content
    if content.is_eof() and content.exception() is None:
        # The usual case: the body came along with the headers.
        size = content.total_bytes
        if size > context.limits.body_bytes_max:
            raise too_large(context.limits.body_bytes_max)
        context.hold(request, size)
        body = content.read_nowait(-1)
    else:
        body = await _receive(request, context)
    encoding = request.headers.get(CONTENT_ENCODING)
    if encoding is not None and body:
        return await _decompress(request, context, encoding, body)
    return body


async def read_json(
    request: Request, context: ServerContext, decoder: msgspec.json.Decoder[T]
) -> T:
    """The body as JSON of the decoder's type.

    Raises LogError as `read_body`, INVALID_BODY, and UNSUPPORTED_MEDIA_TYPE for another media type.
    """
    require_media_type(request, (JSON,))
    return decode_json(await read_body(request, context), decoder, context.limits.json_depth_max)


def decode_json(body: bytes, decoder: msgspec.json.Decoder[T], depth_max: int) -> T:
    """Decode bounded JSON; LogError INVALID_BODY names the place of the mistake."""
    check_json_depth(body, depth_max)
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LogError(INVALID_BODY, f"The body is not valid: {error}") from None


def check_json_depth(body: bytes, depth_max: int) -> None:
    """Raise LogError INVALID_BODY if brackets nest deeper than `depth_max`.

    Works layer by layer on the brackets alone, each step at memory speed: few documents are nested
    more than some layers deep. The parser refuses text other than JSON.
    """
    if body.count(b"[") + body.count(b"{") <= depth_max:
        return
    left = _peel(body.translate(_ONE_KIND, _NOT_BRACKETS), depth_max)
    if left:
        # Brackets inside strings do not nest, and confuse the count.
        bare = _STRING.sub(b"", body).translate(_ONE_KIND, _NOT_BRACKETS)
        if _peel(bare, depth_max):
            raise LogError(
                INVALID_BODY, f"The body is nested deeper than {depth_max}, or its brackets differ."
            )


def _peel(brackets: bytes, layers_max: int) -> bytes:
    for _ in range(layers_max):
        if not brackets:
            break
        peeled = brackets.replace(b"[]", b"")
        if len(peeled) == len(brackets):
            break
        brackets = peeled
    return brackets


def too_large(bytes_max: int) -> LogError:
    """The error for a body over its limit."""
    return LogError(BODY_TOO_LARGE, f"The request body is larger than {bytes_max} bytes.")


async def _receive(request: Request, context: ServerContext) -> bytes:
    limits = context.limits
    content = request.content
    if (request.content_length or 0) > limits.body_bytes_max:
        raise too_large(limits.body_bytes_max)
    if EXPECT in request.headers and request.version >= (1, 1):
        # Invite the body only after all checks of the head (RFC 9110, section 10.1.1).
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    chunks: list[bytes] = []
    size = 0
    started = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(started + limits.body_receive_s) as deadline:
            while chunk := await content.readany():
                size += len(chunk)
                if size > limits.body_bytes_max:
                    raise too_large(limits.body_bytes_max)
                context.hold(request, len(chunk))
                chunks.append(chunk)
                earned_s = size / limits.body_bytes_per_second_min
                deadline.reschedule(started + limits.body_receive_s + earned_s)
    except TimeoutError:
        request.must_close = True
        raise LogError(
            REQUEST_TIMEOUT, f"The body did not arrive in time: {size} bytes did."
        ) from None
    except web.RequestPayloadError as error:
        request.must_close = True
        raise LogError(BAD_REQUEST, f"The body's framing is broken: {error}") from None
    return b"".join(chunks)


async def _decompress(
    request: Request, context: ServerContext, encoding: str, body: bytes
) -> bytes:
    """Inflate in bounded steps, letting other requests run between them."""
    name = encoding.strip().lower()
    if name == "identity":
        return body
    if name in ("gzip", "x-gzip"):
        window_bits = 16 + zlib.MAX_WBITS
    elif name == "deflate":
        # zlib's framing by the standard; some send the bare stream, never beginning with 0x?8.
        window_bits = zlib.MAX_WBITS if body[0] & 0x0F == 0x08 else -zlib.MAX_WBITS
    else:
        raise LogError(
            UNSUPPORTED_MEDIA_TYPE,
            f"The content encoding {encoding[:40]!r} is not understood; gzip and deflate are.",
        )
    bytes_max = context.limits.decompressed_bytes_max
    inflater = zlib.decompressobj(window_bits)
    pieces: list[bytes] = []
    size = 0
    try:
        piece = inflater.decompress(body, _INFLATE_STEP_BYTES)
        while piece:
            size += len(piece)
            if size > bytes_max:
                raise LogError(BODY_TOO_LARGE, f"The body inflates to more than {bytes_max} bytes.")
            context.hold(request, len(piece))
            pieces.append(piece)
            if inflater.eof:
                break
            await asyncio.sleep(0)
            piece = inflater.decompress(inflater.unconsumed_tail, _INFLATE_STEP_BYTES)
    except zlib.error as error:
        raise LogError(BAD_REQUEST, f"The body is not valid {name}: {error}") from None
    if not inflater.eof or inflater.unused_data:
        raise LogError(BAD_REQUEST, f"The body is not one whole {name} stream.")
    return b"".join(pieces)


class BodyStream:
    """The objects of a body, group by group, as they arrive.

    Iteration yields (objects, error): an error ends the stream, and comes with the last group. The
    stream ends with the body, and when the server closes. Between objects the peer may be silent
    as long as an idle connection; within one, as long as a body may take.
    """

    def __init__(self, request: Request, context: ServerContext) -> None:
        self._request = request
        self._context = context
        self._splitter = JsonSplitter(context.limits.body_bytes_max)
        self._held = 0
        self._has_begun = False
        self._closing: asyncio.Task[bool] | None = None
        self.is_over = False
        """Whether the stream has ended."""

    async def __aenter__(self) -> Self:
        self._closing = asyncio.ensure_future(self._context.broker.closing.wait())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._closing is not None
        self._closing.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[list[bytes], LogError | None]:
        if self.is_over:
            raise StopAsyncIteration
        objects: list[bytes] = []
        error: LogError | None = None
        try:
            chunk = await self._next_chunk()
        except LogError as failure:
            self.is_over = True
            return objects, failure
        if chunk:
            error = self._splitter.take(chunk, objects) or self._hold()
        at_end = not chunk or (
            CONTENT_ENCODING in self._request.headers or self._request.content.at_eof()
        )
        if error is None and at_end and self._splitter.pending_bytes:
            error = LogError(INVALID_BODY, "The body ends in the middle of a record.")
        self.is_over = at_end or error is not None
        return objects, error

    async def _next_chunk(self) -> bytes:
        """The bytes that have arrived; empty at the end. Raises LogError."""
        request, limits = self._request, self._context.limits
        if CONTENT_ENCODING in request.headers:
            return await read_body(request, self._context)
        assert self._closing is not None
        if not self._has_begun:
            self._has_begun = True
            await self._continue()
        in_object = self._splitter.pending_bytes > 0
        patience_s = limits.body_receive_s if in_object else limits.keep_alive_s
        reading = asyncio.ensure_future(request.content.readany())
        try:
            await asyncio.wait(
                (reading, self._closing),
                timeout=patience_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if reading.done():
                return reading.result()
        except web.RequestPayloadError as error:
            raise LogError(BAD_REQUEST, f"The body's framing is broken: {error}") from None
        finally:
            reading.cancel()
        if in_object and not self._closing.done():
            raise LogError(REQUEST_TIMEOUT, "A record did not arrive in time.")
        return b""

    async def _continue(self) -> None:
        """Invite the body of a peer that waits for that (RFC 9110, section 10.1.1)."""
        request = self._request
        if EXPECT in request.headers and request.version >= (1, 1):
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0

    def _hold(self) -> LogError | None:
        """Count the unfinished object's bytes as held, in place of the previous count."""
        more = self._splitter.pending_bytes - self._held
        if more <= 0:
            self._request.bytes_held += more
            self._context.broker.bytes_in_flight.give(-more)
        else:
            try:
                self._context.hold(self._request, more)
            except LogError as error:
                return error
        self._held += more
        return None
