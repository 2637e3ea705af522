"""A body that is a stream of JSON objects, read as it comes: bounded in size and in time."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.hdrs import CONTENT_ENCODING, EXPECT

from raftlog.http.body import read_body
from raftlog.http.context import ServerContext
from raftlog.http.json_stream import JsonSplitter
from raftlog.http.request import Request
from raftlog.record.errors import BAD_REQUEST, INVALID_BODY, REQUEST_TIMEOUT, LogError


class BodyStream:
    """The objects of a body, group by group, as they arrive.

    Iterating gives (objects, error): the error is why the stream cannot be followed any further,
    and comes with the last group. Ends at the body's end, and when the server closes. Between
    objects the peer may be silent for as long as an idle connection may; within one, for as long as
    a body may take.
    """

    def __init__(self, request: Request, context: ServerContext) -> None:
        self._request = request
        self._context = context
        self._splitter = JsonSplitter(context.limits.body_bytes_max)
        self._held = 0
        self._has_begun = False
        self._closing: asyncio.Task[bool] | None = None
        self.is_over = False
        """Whether nothing more will come."""

    async def __aenter__(self) -> Self:
        self._closing = asyncio.ensure_future(self._context.closing.wait())
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
        """What has arrived; empty at the end. Raises LogError."""
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
        """Tell a peer that waits to be asked for its body (RFC 9110, section 10.1.1)."""
        request = self._request
        if EXPECT in request.headers and request.version >= (1, 1):
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0

    def _hold(self) -> LogError | None:
        """Count the unfinished object's bytes as held, in place of what was counted before."""
        more = self._splitter.pending_bytes - self._held
        if more <= 0:
            self._request.bytes_held += more
            self._context.budget.give(-more)
        else:
            try:
                self._context.hold(self._request, more)
            except LogError as error:
                return error
        self._held += more
        return None
