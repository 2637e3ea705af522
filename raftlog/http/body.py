"""Request bodies are read with bounds on size, time, and memory of all requests.

`read_body` and `read_json` read a whole body. `BodyStream` reads a stream of JSON objects as they
arrive. Work on a large body is done in pieces, in turns with other requests (`WorkTurns`).
"""

from __future__ import annotations

import asyncio
import zlib
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec
from aiohttp import web
from aiohttp.hdrs import CONTENT_ENCODING, EXPECT

from raftlog.broker.limits import RateGuard
from raftlog.broker.shared import ListenedService
from raftlog.http.json_check import ELEMENT_BYTES_MAX, SLICE_BYTES, check_body
from raftlog.http.json_stream import JsonSplitter
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import JSON, require_media_type
from raftlog.record import errors
from raftlog.record.errors import LogError

T = TypeVar("T")

READ_AHEAD_BYTES_MAX: Final = 512 * 1024
"""Most bytes of a body to read ahead. Up to twice as many arrive before the reader takes them, yet
at most twice as many as the request holds. So the budget of bytes in flight bounds the bytes that
it does not count yet."""
INFLATE_STEP_BYTES: Final = 256 * 1024
"""Bytes inflated in one turn of the event loop (1 ms)."""
STREAM_STEP_BYTES: Final = 32 * 1024
"""Bytes of a stream split in one turn (5 ms with the smallest records)."""
STREAM_GROUP_MAX: Final = 1_000
"""Objects of a stream in one group (10 ms of their reader's work)."""
JSON_BODY_BYTES_MAX: Final = 2 * 1024 * 1024
"""Largest JSON body that is parsed in one call (20 ms). Only bodies of records may be larger. A
request that names 10,000 partitions fits."""


async def read_body(request: Request, context: ServerContext[ListenedService]) -> bytes:
    """The whole body, decompressed. Its bytes are held until the response is sent.

    Raises LogError BODY_TOO_LARGE, REQUEST_TIMEOUT, OVERLOADED, QUOTA_EXCEEDED,
    UNSUPPORTED_MEDIA_TYPE (an unknown Content-Encoding), BAD_REQUEST (malformed framing or
    compression).
    """
    content, bytes_max = request.content, context.limits.body_bytes_max
    encoding = request.headers.get(CONTENT_ENCODING)
    if encoding is None and content.is_eof() and content.exception() is None:
        # The body usually arrives with the headers.
        size = content.total_bytes
        if size > bytes_max:
            raise too_large(bytes_max)
        context.hold(request, size)
        return content.read_nowait(-1)
    if (request.content_length or 0) > bytes_max:
        raise too_large(bytes_max)
    reader = _Chunks(request, context)
    encoding = (encoding or "").strip().lower()
    if encoding not in ("", "identity"):
        return await _inflate(reader, request, context, encoding)
    chunks: list[bytes] = []
    while chunk := await reader.read():
        context.hold(request, len(chunk))
        chunks.append(chunk)
        # At the usual limit, each read from the socket would pause and resume the reading.
        content.set_read_chunk_size(min(request.bytes_held, READ_AHEAD_BYTES_MAX))
    return b"".join(chunks)


async def read_json(
    request: Request,
    context: ServerContext[ListenedService],
    decoder: msgspec.json.Decoder[T],
    media_types: tuple[str, ...] = (JSON,),
) -> T:
    """The body as JSON of the decoder's type.

    Raises LogError as `read_body`, INVALID_BODY, and UNSUPPORTED_MEDIA_TYPE for another media type.
    """
    require_media_type(request, media_types)
    body = await read_body(request, context)
    if len(body) > JSON_BODY_BYTES_MAX:
        raise too_large(JSON_BODY_BYTES_MAX)
    turns = context.broker.turns
    await check_body(body, context.limits.json_depth_max, turns)
    is_long = len(body) > SLICE_BYTES
    if is_long:
        await turns.wait()
    try:
        parsed = decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LogError(errors.INVALID_BODY, f"The body is not valid: {error}") from None
    if is_long:  # the handler's first step is also long
        await turns.wait()
    return parsed


def too_large(bytes_max: int) -> LogError:
    """The error for a body over its limit."""
    return LogError(errors.BODY_TOO_LARGE, f"The request body is larger than {bytes_max} bytes.")


class _Chunks:
    """The chunks of a body as they arrive, bounded in size and rate."""

    def __init__(self, request: Request, context: ServerContext[ListenedService]) -> None:
        limits = context.limits
        self._request = request
        self._bytes_max = limits.body_bytes_max
        self._guard = RateGuard(limits.body_bytes_per_second_min, limits.body_receive_s)
        self._size = 0

    async def read(self) -> bytes:
        """The next chunk, or b"" at the end.

        Raises LogError BODY_TOO_LARGE, REQUEST_TIMEOUT and BAD_REQUEST.
        """
        request, content = self._request, self._request.content
        if not self._size:
            await invite_body(request)
        waited_s = 0.0
        try:
            if content.total_bytes > self._size or content.is_eof():
                chunk = await self._next()
            else:
                loop = asyncio.get_running_loop()
                started = loop.time()
                async with asyncio.timeout(self._guard.patience_s):
                    chunk = await self._next()
                waited_s = loop.time() - started
        except TimeoutError:
            request.must_close = True
            raise LogError(
                errors.REQUEST_TIMEOUT, f"The body did not arrive in time: {self._size} bytes did."
            ) from None
        except web.RequestPayloadError as error:
            request.must_close = True
            raise LogError(errors.BAD_REQUEST, f"The body's framing is broken: {error}") from None
        self._guard.moved(len(chunk), waited_s)
        self._size += len(chunk)
        if self._size > self._bytes_max:
            raise too_large(self._bytes_max)
        return chunk

    async def _next(self) -> bytes:
        content = self._request.content
        if self._request.content_length is None:
            return await content.readany()
        # `readany` would join the arrived chunks, at one more copy of a large body.
        chunk, _ = await content.readchunk()
        return chunk


async def invite_body(request: Request) -> None:
    """Send 100 Continue to a peer that expects it, after all checks of the head.

    RFC 9110, section 10.1.1.
    """
    if EXPECT in request.headers and request.version >= (1, 1) and not request.content.is_eof():
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0


async def _inflate(
    reader: _Chunks, request: Request, context: ServerContext[ListenedService], encoding: str
) -> bytes:
    """Inflate the chunks as they arrive, in bounded steps. Compressed bytes are not kept."""
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise LogError(
            errors.UNSUPPORTED_MEDIA_TYPE,
            f"The Content-Encoding {encoding[:40]!r} is not understood; gzip and deflate are.",
        )
    bytes_max = context.limits.decompressed_bytes_max
    inflater = None
    pieces: list[bytes] = []
    size = 0
    try:
        while chunk := await reader.read():
            if inflater is None:
                inflater = zlib.decompressobj(_window_bits(encoding, chunk))
            elif inflater.eof:
                break
            while True:
                await context.broker.turns.wait()
                piece = inflater.decompress(chunk, INFLATE_STEP_BYTES)
                chunk = inflater.unconsumed_tail
                size += len(piece)
                if size > bytes_max:
                    raise LogError(
                        errors.BODY_TOO_LARGE, f"The body inflates to more than {bytes_max} bytes."
                    )
                context.hold(request, len(piece))
                pieces.append(piece)
                if inflater.eof or len(piece) < INFLATE_STEP_BYTES:
                    break
    except zlib.error as error:
        raise LogError(errors.BAD_REQUEST, f"The body is not valid {encoding}: {error}") from None
    if inflater is not None and (chunk or not inflater.eof or inflater.unused_data):
        raise LogError(errors.BAD_REQUEST, f"The body is not one whole {encoding} stream.")
    return b"".join(pieces)


def _window_bits(encoding: str, first: bytes) -> int:
    if encoding != "deflate":
        return 16 + zlib.MAX_WBITS
    # Standard framing is zlib's. Some peers send the bare stream, which never begins with 0x?8.
    return zlib.MAX_WBITS if first[0] & 0x0F == 0x08 else -zlib.MAX_WBITS


class BodyStream:
    """The objects of a body, group by group, as they arrive.

    Iteration yields (objects, error). An error ends the stream, and comes with the last group. The
    stream ends with the body, and when the server closes. Between objects the peer may be silent as
    long as an idle connection. Within an object the body's minimum rate applies.
    """

    def __init__(
        self, request: Request, context: ServerContext[ListenedService], *, object_bytes: int
    ) -> None:
        """`object_bytes` is the memory of a group's reader for each object, besides its text."""
        self._request = request
        self._context = context
        self._object_bytes = object_bytes
        object_bytes_max = min(context.limits.body_bytes_max, ELEMENT_BYTES_MAX)
        self._splitter = JsonSplitter(object_bytes_max, context.limits.json_depth_max)
        self._guard = self._fresh_guard()
        self._unsplit = memoryview(b"")
        """Bytes that have arrived, and are split in further turns."""
        self._ready: list[bytes] = []
        """Objects that are complete, and go out in further groups."""
        self._error: LogError | None = None
        """The error that ends the stream after them."""
        self._at_end = False
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
        if self._ready:
            await self._context.broker.turns.wait()
            return self._group(self._ready, self._error, self._at_end)
        # The reader has finished the previous group.
        self._hold(0)
        objects: list[bytes] = []
        error: LogError | None = None
        if not self._unsplit:
            try:
                self._unsplit = memoryview(await self._next_chunk())
            except LogError as failure:
                return self._group(objects, failure, at_end=True)
        at_end = not self._unsplit
        if not at_end:
            step, self._unsplit = (
                self._unsplit[:STREAM_STEP_BYTES],
                self._unsplit[STREAM_STEP_BYTES:],
            )
            if self._unsplit:
                await self._context.broker.turns.wait()
            pending_bytes = self._splitter.pending_bytes
            error = self._splitter.take(bytes(step), objects)
            taken_bytes = pending_bytes + len(step) - self._splitter.pending_bytes
            refusal = self._hold(
                taken_bytes + min(len(objects), STREAM_GROUP_MAX) * self._object_bytes
            )
            if refusal is not None:
                objects, error = [], refusal
            at_end = not self._unsplit and (
                CONTENT_ENCODING in self._request.headers or self._request.content.at_eof()
            )
        if objects or not self._splitter.pending_bytes:
            self._guard = self._fresh_guard()
        if error is None and at_end and self._splitter.pending_bytes:
            error = LogError(errors.INVALID_BODY, "The body ends in the middle of a record.")
        return self._group(objects, error, at_end=at_end)

    def _group(
        self, objects: list[bytes], error: LogError | None, at_end: bool
    ) -> tuple[list[bytes], LogError | None]:
        """The next objects, as many as one group may have. The rest is kept."""
        self._ready = objects[STREAM_GROUP_MAX:]
        self._error, self._at_end = error, at_end
        if self._ready:
            return objects[:STREAM_GROUP_MAX], None
        self.is_over = at_end or error is not None
        return objects, error

    def _fresh_guard(self) -> RateGuard:
        limits = self._context.limits
        return RateGuard(limits.body_bytes_per_second_min, limits.body_receive_s)

    async def _next_chunk(self) -> bytes:
        """The bytes that have arrived, or b"" at the end. Raises LogError."""
        request, limits = self._request, self._context.limits
        if CONTENT_ENCODING in request.headers:
            return await read_body(request, self._context)
        assert self._closing is not None
        if not self._has_begun:
            self._has_begun = True
            await invite_body(request)
        in_object = self._splitter.pending_bytes > 0
        patience_s = self._guard.patience_s if in_object else limits.keep_alive_s
        loop = asyncio.get_running_loop()
        started = loop.time()
        reading = asyncio.ensure_future(request.content.readany())
        try:
            await asyncio.wait(
                (reading, self._closing), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
            )
            if reading.done():
                chunk = reading.result()
                self._guard.moved(len(chunk), loop.time() - started if in_object else 0.0)
                return chunk
        except web.RequestPayloadError as error:
            raise LogError(errors.BAD_REQUEST, f"The body's framing is broken: {error}") from None
        finally:
            reading.cancel()
        if in_object and not self._closing.done():
            raise LogError(errors.REQUEST_TIMEOUT, "A record did not arrive in time.")
        return b""

    def _hold(self, handed_out_bytes: int) -> LogError | None:
        """Count the bytes that the stream holds, in place of the previous count.

        These are the objects that its reader works on, the unfinished object, and the bytes not
        split yet, unless they are part of a body that counts as a whole. Returns the rejection.
        """
        held = handed_out_bytes + self._splitter.pending_bytes
        if CONTENT_ENCODING not in self._request.headers:
            held += len(self._unsplit)
        more = held - self._held
        try:
            if more > 0:
                self._context.hold(self._request, more)
            else:
                self._context.free(self._request, -more)
        except LogError as error:
            return error
        self._held += more
        return None
