"""`/v1/fetch` with bytes that go from the socket straight to their destination.

A general HTTP client copies a body several times, which costs a whole core at 1 GB/s. Here the
kernel writes record batches into the caller's buffer, and only heads are parsed. `FetchResponse` is
the protocol without I/O, which is HTTP/1.1 (RFC 9112, whole or chunked) around the frames of
`raftlog.record.frames`. It has only the parts of HTTP that nodes use.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import Final, Protocol, cast

from raftlog.record.errors import LogError
from raftlog.record.frames import FetchFrame, fetch_head_bytes, parse_fetch_head
from raftlog_client.errors import ConnectionLostError
from raftlog_client.transport import (
    CONNECT_TIMEOUT_S,
    JSON_TYPE,
    KEEP_ALIVE_S,
    NodeAddress,
    refusal,
)

SCRATCH_BYTES: Final = 16 * 1024
"""Bytes received at once while the destination is unknown. These bytes are copied."""
HEAD_BYTES_MAX: Final = 32 * 1024
"""Most bytes of a response's head, or of one line."""
FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
"""Most bytes of one partition in a fetch response. A node may exceed the request by one batch."""
REFUSAL_BYTES_MAX: Final = 64 * 1024
IDLE_PER_NODE_MAX: Final = 4
_HTTP_OK: Final = 200


class BufferPool:
    """Memory for received data, reused once no view of a buffer is left.

    Allocation costs more than filling, because the kernel clears new memory page by page.
    """

    __slots__ = ("_buffers", "_buffers_max")

    def __init__(self, buffers_max: int) -> None:
        self._buffers: list[bytearray] = []
        """The newest buffers, at most `buffers_max`."""
        self._buffers_max = buffers_max

    def get(self, size: int, size_max: int | None = None) -> bytearray:
        """Return a buffer of at least `size` bytes. A reused buffer has at most `size_max`."""
        for buffer in self._buffers:
            fits = len(buffer) >= size and (size_max is None or len(buffer) <= size_max)
            if fits and _is_free(buffer):
                return buffer
        buffer = bytearray(size)
        self._buffers = [buffer, *self._buffers[: self._buffers_max - 1]]
        return buffer


def _is_free(buffer: bytearray) -> bool:
    """Return whether the buffer has no view. With a view, any change of its size fails."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True


class FrameSink(Protocol):
    """Takes the frames of one response."""

    def begin(self, frame: FetchFrame, size_bytes: int) -> memoryview:
        """Return memory of that size for a new frame's data. `frame.data` is empty."""
        ...

    def end(self, frame: FetchFrame, data: memoryview) -> None:
        """Take the complete data of a frame, in the memory from `begin`."""
        ...


class MalformedResponseError(Exception):
    """The bytes are not a response of a node."""


class _State(Enum):
    HEAD = auto()
    CHUNK_SIZE = auto()
    BODY = auto()
    CHUNK_END = auto()
    TRAILER = auto()
    DONE = auto()


class FetchResponse:
    """One response, parsed as its bytes arrive. Every method raises MalformedResponseError."""

    def __init__(self, sink: FrameSink) -> None:
        self.status = 0
        self.keeps_alive = True
        self.refusal = bytearray()
        """The body, if the status is not 200."""
        self._sink = sink
        self._state = _State.HEAD
        self._line = bytearray()
        """Start of a head or line whose end has not arrived."""
        self._is_chunked = False
        self._left = 0
        """Bytes still to come of the present chunk, or of the whole body."""
        self._frame_head = bytearray()
        self._frame: FetchFrame | None = None
        self._data = self._room = memoryview(b"")
        """Memory of the present frame's data, and its unfilled part."""

    @property
    def is_done(self) -> bool:
        """Whether the response is complete."""
        return self._state is _State.DONE

    def room(self) -> memoryview | None:
        """Return memory for the next bytes if none of these need parsing."""
        if self._state is not _State.BODY or not self._room:
            return None
        return self._room[: self._left]

    def filled(self, size: int) -> None:
        """Note the number of bytes that have been put into `room()`."""
        self._advance(size)
        self._consumed(size)

    def feed(self, data: memoryview) -> None:
        """Parse bytes of any kind."""
        while data:
            if self._state is _State.DONE:
                raise MalformedResponseError("there is more than the answer")
            if self._state is _State.BODY:
                size = min(self._left, len(data))
                self._take(data[:size])
                data = data[size:]
                self._consumed(size)
            else:
                data = self._take_line(data)

    def _take_line(self, data: memoryview) -> memoryview:
        mark = b"\r\n\r\n" if self._state is _State.HEAD else b"\r\n"
        before = len(self._line)
        self._line += data
        at = self._line.find(mark, max(0, before - len(mark)))
        if at < 0:
            if len(self._line) > HEAD_BYTES_MAX:
                raise MalformedResponseError("its head, or a line of it, does not end")
            return memoryview(b"")
        line = bytes(self._line[:at])
        self._line.clear()
        self._took_line(line)
        return data[at + len(mark) - before :]

    def _took_line(self, line: bytes) -> None:
        match self._state:
            case _State.HEAD:
                self._took_head(line)
            case _State.CHUNK_SIZE:
                size = line.partition(b";")[0].strip()
                if not size or size.strip(b"0123456789abcdefABCDEF"):
                    raise MalformedResponseError(f"no chunk has the size {line[:20]!r}")
                self._left = int(size, 16)
                self._state = _State.BODY if self._left else _State.TRAILER
            case _State.CHUNK_END:
                if line:
                    raise MalformedResponseError("a chunk is longer than it says")
                self._state = _State.CHUNK_SIZE
            case _:
                if not line:
                    self._done()

    def _took_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        version, _, status = first.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not status[:3].isdigit():
            raise MalformedResponseError(f"no HTTP response begins with {first[:40]!r}")
        self.status = int(status[:3])
        fields = {}
        for line in lines:
            name, _, value = line.partition(b":")
            fields[name.strip().lower()] = value.strip().lower()
        self.keeps_alive = version == b"HTTP/1.1" and fields.get(b"connection") != b"close"
        self._is_chunked = fields.get(b"transfer-encoding") == b"chunked"
        if self._is_chunked:
            self._state = _State.CHUNK_SIZE
            return
        length = fields.get(b"content-length", b"")
        if not length.isdigit():
            raise MalformedResponseError("its length is not known")
        self._left = int(length)
        self._state = _State.BODY
        if not self._left:
            self._done()

    def _consumed(self, size: int) -> None:
        """Count bytes taken of the present chunk, or of the whole body."""
        self._left -= size
        if self._left:
            return
        if self._is_chunked:
            self._state = _State.CHUNK_END
        else:
            self._done()

    def _done(self) -> None:
        if self._frame is not None or self._frame_head:
            raise MalformedResponseError("it ends within a frame")
        self._state = _State.DONE

    # Frames

    def _take(self, data: memoryview) -> None:
        """Take a part of the body."""
        if self.status != _HTTP_OK:
            if len(self.refusal) < REFUSAL_BYTES_MAX:
                self.refusal += data
            return
        while data:
            if self._frame is None:
                data = self._take_frame_head(data)
                continue
            size = min(len(self._room), len(data))
            self._room[:size] = data[:size]
            self._advance(size)
            data = data[size:]

    def _take_frame_head(self, data: memoryview) -> memoryview:
        head = self._frame_head
        try:
            wanted = fetch_head_bytes(head, frame_bytes_max=FRAME_BYTES_MAX)
            size = wanted - len(head)
            head += data[:size]
            if len(head) == wanted == fetch_head_bytes(head, frame_bytes_max=FRAME_BYTES_MAX):
                self._begin(*parse_fetch_head(head))
        except LogError as error:
            raise MalformedResponseError(error.message) from error
        return data[size:]

    def _begin(self, frame: FetchFrame, length: int) -> None:
        self._frame_head = bytearray()
        self._frame = frame
        self._data = self._room = self._sink.begin(frame, length)
        assert len(self._room) == length
        if not length:
            self._advance(0)

    def _advance(self, size: int) -> None:
        """Count bytes received of the present frame's data."""
        self._room = self._room[size:]
        if not self._room:
            frame, self._frame = self._frame, None
            assert frame is not None
            self._sink.end(frame, self._data)


class FetchConnectionPool:
    """Connections to nodes for fetches, each with one request at a time. `close` ends them."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._idle: dict[NodeAddress, list[_Connection]] = {}
        """A few idle connections by node of the cluster."""

    async def fetch(
        self, address: NodeAddress, body: bytes, sink: FrameSink, timeout_s: float
    ) -> None:
        """Send one fetch request. Returns once `sink` has the whole response.

        Raises ConnectionLostError or ServerError. `sink` then has the frames received before.
        """
        request = (
            f"POST /v1/fetch HTTP/1.1\r\nHost: {address}\r\nUser-Agent: {self._client_id}\r\n"
            f"Content-Type: {JSON_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        response = FetchResponse(sink)
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = self._kept(address) or await self._connect(address)
                await connection.ask(request, response)
        except TimeoutError as error:
            raise ConnectionLostError(
                f"{address} did not answer within {timeout_s:.3f} s.", outcome_unknown=False
            ) from error
        finally:
            # A connection on which a response may still arrive is useless for the next request.
            if connection is not None:
                if response.is_done and response.keeps_alive:
                    self._keep(address, connection)
                else:
                    connection.abort()
        if response.status != _HTTP_OK:
            raise refusal(response.status, bytes(response.refusal), address)

    def close(self) -> None:
        """End all idle connections. The others end with their requests."""
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()

    def _kept(self, address: NodeAddress) -> _Connection | None:
        now = asyncio.get_running_loop().time()
        connections = self._idle.get(address, [])
        while connections:
            connection = connections.pop()
            if connection.is_open and now - connection.idle_since < KEEP_ALIVE_S:
                return connection
            connection.abort()
        return None

    def _keep(self, address: NodeAddress, connection: _Connection) -> None:
        connections = self._idle.setdefault(address, [])
        if connection.is_open and len(connections) < IDLE_PER_NODE_MAX:
            connection.idle_since = asyncio.get_running_loop().time()
            connections.append(connection)
        else:
            connection.abort()

    async def _connect(self, address: NodeAddress) -> _Connection:
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(address), host.strip("[]"), int(port)
                )
        except (OSError, TimeoutError) as error:
            # TimeoutError is also an OSError. This one is ours, or the whole request's.
            raise ConnectionLostError(
                f"Cannot connect to {address}: {error or type(error).__name__}",
                outcome_unknown=False,
            ) from error
        return connection


class _Connection(asyncio.BufferedProtocol):
    """One connection to a node."""

    def __init__(self, address: NodeAddress) -> None:
        self.idle_since = 0.0
        self.is_open = False
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._is_direct = False
        self._response: FetchResponse | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def ask(self, request: bytes, response: FetchResponse) -> None:
        """Send a request, and return once the response has all its bytes."""
        if self._transport is None or not self.is_open:
            raise self._lost("it was closed")
        assert self._waiter is None, "one request at a time"
        self._waiter = asyncio.get_running_loop().create_future()
        self._response = response
        self._transport.write(request)
        try:
            await self._waiter
        finally:
            self._waiter = self._response = None

    def abort(self) -> None:
        """End the connection."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the new transport."""
        # Not asserted, because the type of uvloop's transports is not asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes."""
        room = None if self._response is None else self._response.room()
        self._is_direct = room is not None
        return self._scratch if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the next bytes in the buffer."""
        response = self._response
        if response is None:
            # Bytes without a request.
            self.abort()
            return
        try:
            if self._is_direct:
                response.filled(nbytes)
            else:
                response.feed(self._scratch[:nbytes])
        except MalformedResponseError as error:
            self._settle(self._lost(f"its answer is malformed: {error}"))
            self.abort()
        else:
            if response.is_done:
                self._settle(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request with an error."""
        self.is_open = False
        self._settle(self._lost(str(exc or "the node closed it")))

    def _settle(self, error: ConnectionLostError | None) -> None:
        if self._waiter is None or self._waiter.done():
            return
        if error is None:
            self._waiter.set_result(None)
        else:
            self._waiter.set_exception(error)

    def _lost(self, reason: str) -> ConnectionLostError:
        return ConnectionLostError(
            f"The connection to {self._address} broke: {reason}", outcome_unknown=False
        )
