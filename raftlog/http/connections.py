"""aiohttp's HTTP/1.1 connections get the deadlines and bounds that aiohttp lacks.

aiohttp parses, pipelines, keeps alive and writes. `Connection` adds:

- a deadline and a size for request heads (slowloris), an idle time, and a deadline for readers that
  stall, all enforced by one periodic sweep over the connections instead of timers per request
- typed JSON responses in place of aiohttp's HTML or empty responses.

A connection is *receiving a head* from its first byte after a complete request until the parser
reports the next request. It is *busy* while requests are queued or handled, and otherwise *idle*.
Bodies have their own deadline (body.py).

aiohttp offers no hooks for some of this, so `Connection` reads private state of its
`RequestHandler`. A test checks the names against the installed version.

`ConnectionServer` makes, counts, bounds and sweeps all connections of a server, and drains them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import _ErrInfo
from prometheus_client.core import Metric

from raftlog.broker.limits import ADDRESS_SHARE, RateGuard, address_group
from raftlog.broker.metrics import counter, gauge
from raftlog.broker.shared import ListenedService
from raftlog.http.malformed import malformed_text, too_large_text, too_long_text
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import error_response, raw_error
from raftlog.peer.opening import NONCE_HEADER
from raftlog.record import errors
from raftlog.record.errors import ErrorEntry, LogError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator

logger = logging.getLogger(__name__)

NODE_REQUEST = b"GET /v1/internal/"
"""First bytes of another node's request."""
REFUSED_LINGERING_MAX = 64
"""Connections over the limit that may linger to read the reason. Others are cut at once."""
DRAIN_IDLE_S = 0.25
"""Time for a request on its way when the server closes."""


class Connection(web.RequestHandler):
    """One peer's connection."""

    __slots__ = (
        "_blocked_since",
        "_closing_since",
        "_head_bytes",
        "_head_since",
        "_idle_since",
        "_linger_after_answer",
        "_linger_until",
        "_newest_body",
        "_reader_guard",
        "_server",
        "_socket",
        "_taken",
        "address",
        "address_group",
        "refusal_unless_node",
    )

    def __init__(self, server: ConnectionServer, **options: Any) -> None:
        super().__init__(server, **options)
        self._server = server
        self._socket: asyncio.Transport | None = None
        self._taken: asyncio.Transport | None = None
        self._newest_body: StreamReader = EMPTY_PAYLOAD
        limits = server.limits
        self._reader_guard = RateGuard(limits.body_bytes_per_second_min, limits.write_stall_s)
        self._head_since: float | None = None
        self._head_bytes = 0
        self._idle_since: float | None = None
        self._blocked_since: float | None = None
        self._closing_since: float | None = None
        self._linger_after_answer = False
        self._linger_until: float | None = None
        self.address = ""
        self.address_group = ""
        """The address, as limits count it."""
        self.refusal_unless_node: tuple[ErrorEntry, str] | None = None
        """The error that closes this connection, unless its first request is another node's."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is queued or handled. Part of a request may have arrived."""
        waiter = self._waiter
        return self._request_count == 0 or (waiter is not None and not waiter.done())

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the peer, or send the error and close."""
        # uvloop's transport has the methods, not the base class.
        self._socket = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self.address_group = address_group(self.address)
        refusal = self._server.admit(self)
        if refusal is None:
            super().connection_made(transport)
        else:
            self.turn_away(*refusal)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection, and cancel a handler that worked only for this peer."""
        self._server.forget(self)
        request = self._current_request
        if isinstance(request, Request) and request.cancel_on_disconnect and self._task_handler:
            self._task_handler.cancel()
        self._socket = self._taken = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and track the progress of the request for the sweep."""
        if self._linger_until is not None or self._close or self._force_close:
            return
        if self._upgraded:
            super().data_received(data)
            return
        if self.refusal_unless_node is not None and not self._may_be_node(data):
            self._server.refuse(self)
            self.turn_away(*self.refusal_unless_node)
            return
        count = self._request_count
        in_body = not self._newest_body.is_eof()
        try:
            super().data_received(data)
        except Exception:
            logger.exception("closing the connection of %s because the parser failed", self.address)
            self._refuse(errors.BAD_REQUEST)
            return
        self._idle_since = None
        if len(self._messages) > 1:
            self._bound_queue()
        if self._request_count != count:
            self._head_arrived(self._request_count - count, data, in_body=in_body)
        elif not in_body and data:
            if self._head_since is None:
                self._head_since = self._server.now
            self._head_bytes += len(data)
            if self._head_bytes > self._server.limits.header_bytes_max:
                self._refuse(errors.HEADERS_TOO_LARGE)

    def pause_writing(self) -> None:
        """Start the stall deadline, because the peer reads slower than the response is written."""
        self._blocked_since = self._server.now
        super().pause_writing()

    def resume_writing(self) -> None:
        """End the stall deadline, because the peer has caught up."""
        self._blocked_since = None
        super().resume_writing()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Resume only if reading is paused, because aiohttp calls this after every body.

        Its own method would feed the parser, and call the transport, each time.
        """
        if self._reading_paused:
            super().resume_reading(resume_parser)

    # Callbacks of aiohttp

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Respond to bytes that are not HTTP, and to failures outside the dispatcher."""
        if isinstance(exc, ConnectionError):
            raise exc
        if request.writer.output_size > 0:
            raise ConnectionResetError("the response has begun and cannot become an error")
        if status >= 500:
            logger.error("request from %s failed outside its handler", self.address, exc_info=exc)
            response = error_response(errors.INTERNAL)
        elif isinstance(exc, LineTooLong):
            response = error_response(errors.HEADERS_TOO_LARGE, message)
        else:
            logger.debug("malformed HTTP from %s: %s", self.address, message)
            response = error_response(errors.BAD_REQUEST, malformed_text(message or ""))
        response.force_close()
        self._linger_after_answer = True
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the response, then release the bytes that the request held."""
        assert isinstance(request, Request)
        if self.refusal_unless_node is not None and not (
            # A node's first request gets the nonce that its second request proves.
            self._request_count == 1 and NONCE_HEADER in resp.headers
        ):
            resp.force_close()
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._server.context.release(request)
            if self._linger_after_answer and self._socket is not None:
                # aiohttp would close now. Without its reference, the transport lives on.
                self.transport = None
                self._linger()

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Give the transport to `protocol`. Its bytes are no longer HTTP.

        The calling handler then returns a response that sends nothing. HTTP's deadlines and limits
        end here. `protocol` has its own, and calls `connection_lost` when its transport is gone.
        Raises LogError BAD_REQUEST if the peer sent more before the response.
        """
        transport = self._socket
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the peer has left")
        if self._message_tail or self._messages:
            raise LogError(
                errors.BAD_REQUEST, "Nothing may follow this request before its response."
            )
        self._taken = transport
        # aiohttp would close the transport after the request.
        self._socket = self.transport = None
        self._server.handed_over(self)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    def reader_took(self, size: int, waited_s: float) -> None:
        """Count the bytes of a large response that the reader has taken, and the wait.

        Raises ConnectionResetError to cut off a reader below the minimum rate.
        """
        self._reader_guard.moved(size, waited_s)
        if not self._reader_guard.patience_s:
            logger.info("cut off %s because it read its response too slowly", self.address)
            self._server.stalled_readers += 1
            self.abort()
            raise ConnectionResetError("the reader is too slow")

    def turn_away(self, entry: ErrorEntry, message: str) -> None:
        """Send the error to a connection over a limit, and close it."""
        if self._server.refused_count > REFUSED_LINGERING_MAX:
            self.abort()
        else:
            self._say_and_linger(entry, message)

    # Called by the sweep

    def enforce_deadlines(self, now: float) -> None:
        """Close the connection if the peer has missed a deadline."""
        socket, limits = self._socket, self._server.limits
        if socket is None:
            return
        if self._linger_until is not None:
            if now >= self._linger_until:
                socket.abort()
        elif self._blocked_since is not None and now - self._blocked_since > limits.write_stall_s:
            logger.info(
                "cut off %s because it read nothing of its response for %s s",
                self.address,
                limits.write_stall_s,
            )
            self._server.stalled_readers += 1
            socket.abort()
        elif socket.is_closing():
            # This side has closed, with bytes still unsent.
            if self._closing_since is None:
                self._closing_since = now
            elif now - self._closing_since > limits.write_stall_s:
                socket.abort()
        elif not self.is_idle:
            self._idle_since = None
            self._head_since = None if self._head_since is None else now
        elif self._head_since is not None:
            if now - self._head_since > limits.header_receive_s:
                self._refuse(errors.REQUEST_TIMEOUT, "The headers did not arrive in time.")
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > (
            limits.keep_alive_s if self.refusal_unless_node is None else limits.header_receive_s
        ):
            self.force_close()

    # Inner parts

    def _may_be_node(self, data: bytes) -> bool:
        """Whether `data` can begin another node's request, which arrives in one piece."""
        is_first = not self._request_count and not self._head_bytes
        return not is_first or data.startswith(NODE_REQUEST)

    def _head_arrived(self, heads: int, data: bytes, *, in_body: bool) -> None:
        limits = self._server.limits
        limit = limits.header_bytes_max
        previous = self._newest_body
        newest, self._newest_body = self._messages[-1]
        if isinstance(newest, _ErrInfo) and isinstance(newest.exc, LineTooLong):
            begins = bool(data) and not in_body and not self._head_bytes
            text = too_long_text(data, limits.header_field_bytes_max, is_whole=begins)
            newest = _ErrInfo(newest.status, newest.exc, text)
            self._messages[-1] = (newest, EMPTY_PAYLOAD)
        if isinstance(newest, _ErrInfo) and not previous.is_eof():
            # The parser failed inside a body, and reported the next request instead of the body.
            previous.set_exception(web.RequestPayloadError("malformed chunk"))
            previous.feed_eof()
        elif self._head_bytes + len(data) > limit:
            for index in range(-heads, 0):
                message = self._messages[index][0]
                if _head_size(message) > limit:
                    error = LineTooLong(b"", limit)
                    text = too_large_text(message, limit)
                    self._messages[index] = (_ErrInfo(431, error, text), EMPTY_PAYLOAD)
        self._head_since = None
        self._head_bytes = 0

    def _bound_queue(self) -> None:
        """Pause reading while pipelined requests hold many bytes. aiohttp bounds their number.

        aiohttp resumes by itself with the next queued request.
        """
        if not self._buffer_paused:
            queued_bytes = sum(body.total_bytes for _, body in self._messages)
            if queued_bytes > 2 * self._server.limits.receive_buffer_bytes:
                self._pause_reading_for_buffer()

    def _refuse(self, entry: ErrorEntry, message: str | None = None) -> None:
        """Send an error outside of any request, and close. If busy, close after the request."""
        if self.is_idle:
            self._server.refused_requests += 1
            self._say_and_linger(entry, message)
        else:
            self.close()

    def _say_and_linger(self, entry: ErrorEntry, message: str | None = None) -> None:
        assert self._socket is not None
        self._socket.write(raw_error(entry, message))
        self._linger()
        self.close()

    def _linger(self) -> None:
        """Half-close, and let the peer read its response before the end.

        Closing at once with bytes of the peer unread would reset the connection, and lose the
        response.
        """
        assert self._socket is not None
        self._linger_until = self._server.now + self._server.limits.linger_s
        if self._socket.can_write_eof() and not self._socket.is_closing():
            self._socket.write_eof()

    def abort(self) -> None:
        """Cut the connection with all unsent bytes, even after it was handed over."""
        transport = self._socket or self._taken
        if transport is not None:
            transport.abort()


def _head_size(message: Any) -> int:
    """Bytes of a parsed head, or 0 for a malformed head."""
    if isinstance(message, _ErrInfo):
        return 0
    fields = sum(len(name) + len(value) + 4 for name, value in message.raw_headers)
    return fields + len(message.method) + len(message.path) + 12


CANCEL_S = 0.5
"""Seconds for handlers to end once shutdown has cancelled them."""

NODES_RESERVED_MAX = 32
"""Connections over a limit whose first request may still be another node's. They are reserved
because users' connections must not keep the nodes of a cluster from each other. One address has at
most a quarter of these places. If the places are full, the oldest connection is closed."""

_NEVER_S = 10 * 365 * 86_400.0
"""aiohttp's own keep-alive timer never fires, because the sweep does its work."""


class ConnectionServer(web.Server):
    """Creates, counts and sweeps all connections of one server."""

    def __init__(
        self,
        handler: Callable[[Request], Awaitable[web.StreamResponse]],
        context: ServerContext[ListenedService],
    ) -> None:
        loop = asyncio.get_running_loop()

        def make_request(
            message: Any, payload: Any, protocol: Any, writer: Any, task: Any
        ) -> Request:
            request = Request(
                message, payload, protocol, payload_writer=writer, task=task, loop=loop
            )
            request.address_group = protocol.address_group
            return request

        super().__init__(handler, request_factory=make_request)  # type: ignore[arg-type] # our factory makes Requests
        self._event_loop = loop
        self.context = context
        self.limits = context.limits
        self.now = loop.time()
        """Monotonic seconds of the latest sweep, near enough for deadlines, and free to read."""
        self.stalled_readers = 0
        self.refused_requests = 0
        self.refused_connections = 0
        self._open: set[Connection] = set()
        self._refused: set[Connection] = set()
        self._reserved: dict[Connection, None] = {}
        """Reserved connections in order of arrival."""
        self._handed_over: set[Connection] = set()
        self._per_address: Counter[str] = Counter()
        self._forgotten = asyncio.Event()
        self._options = {
            "loop": loop,
            "keepalive_timeout": _NEVER_S,
            "access_log": None,
            "max_line_size": self.limits.header_field_bytes_max,
            "max_field_size": self.limits.header_field_bytes_max,
            "max_headers": self.limits.header_count_max,
            "lingering_time": self.limits.linger_s,
            "read_bufsize": self.limits.receive_buffer_bytes,
            "auto_decompress": False,
        }

    def __call__(self) -> Connection:
        """The protocol for a connection just accepted."""
        return Connection(self, **self._options)

    @property
    def refused_count(self) -> int:
        """Connections refused and not closed yet."""
        return len(self._refused)

    @property
    def sweep_interval_s(self) -> float:
        """Seconds between sweeps, a tenth of the shortest deadline, within bounds."""
        limits = self.limits
        shortest = min(
            limits.header_receive_s, limits.keep_alive_s, limits.write_stall_s, limits.linger_s
        )
        return min(max(shortest / 10, 0.01), 1.0)

    def admit(self, connection: Connection) -> tuple[ErrorEntry, str] | None:
        """Count a connection in, or return the error to send.

        A connection over a limit that may be a node's is reserved until its first request.
        """
        limits = self.limits
        if len(self._open) >= limits.connections_max:
            refusal = (errors.OVERLOADED, "Too many connections to this node.")
        elif self._per_address[connection.address_group] >= limits.connections_per_address_max:
            refusal = (errors.QUOTA_EXCEEDED, "Too many connections from this address.")
        else:
            self._open.add(connection)
            self._per_address[connection.address_group] += 1
            return None
        if self.context.network is not None:
            self._make_room(connection.address_group)
            self._reserved[connection] = None
            connection.refusal_unless_node = refusal
            return None
        self.refuse(connection)
        return refusal

    def _make_room(self, address: str) -> None:
        """Close the oldest reserved connection if all places, or those of `address`, are full.

        A node sends its first request at once and frees its place, so only a silent connection
        grows old.
        """
        of_address = [reserved for reserved in self._reserved if reserved.address_group == address]
        if len(of_address) >= NODES_RESERVED_MAX // ADDRESS_SHARE:
            oldest = of_address[0]
        elif len(self._reserved) >= NODES_RESERVED_MAX:
            oldest = next(iter(self._reserved))
        else:
            return
        assert oldest.refusal_unless_node is not None
        self.refuse(oldest)
        oldest.turn_away(*oldest.refusal_unless_node)

    def refuse(self, connection: Connection) -> None:
        """Count a connection over a limit, which gets the error."""
        self._reserved.pop(connection, None)
        self.refused_connections += 1
        self._refused.add(connection)

    def handed_over(self, connection: Connection) -> None:
        """Leave the connection to another protocol. No limit or sweep counts it any more."""
        self._leave(connection)
        self._handed_over.add(connection)

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self._leave(connection)
        self._handed_over.discard(connection)
        self._forgotten.set()

    def _leave(self, connection: Connection) -> None:
        self._refused.discard(connection)
        self._reserved.pop(connection, None)
        if connection in self._open:
            self._open.discard(connection)
            self._per_address[connection.address_group] -= 1
            if not self._per_address[connection.address_group]:
                del self._per_address[connection.address_group]

    def sweep(self) -> None:
        """Enforce every deadline. Call it each `sweep_interval_s`."""
        self.now = now = self._event_loop.time()
        for connection in [*self._open, *self._reserved, *self._refused]:
            connection.enforce_deadlines(now)

    async def drain(self, timeout_s: float) -> None:
        """Close idle connections, let busy connections finish, and cut the rest after `timeout_s`.

        The dispatcher ends connections with their next response once the service is leaving. So a
        client that is active has left, or finds its connection open for `DRAIN_IDLE_S`.
        Connections that were handed over are cut last, because requests may need them to finish.
        """
        await self._wait_until_empty(DRAIN_IDLE_S, self._open, self._reserved)
        for connection in [*self._open, *self._reserved]:
            if connection.is_idle:
                connection.force_close()
        of_users = (self._open, self._reserved, self._refused)
        await self._wait_until_empty(timeout_s, *of_users)
        await self.shutdown(CANCEL_S)
        everything = (*of_users, self._handed_over)
        for connections in everything:
            for connection in list(connections):
                connection.abort()
        await self._wait_until_empty(CANCEL_S, *everything)

    async def _wait_until_empty(
        self, timeout_s: float, *connections: Collection[Connection]
    ) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(connections):
                    self._forgotten.clear()
                    await self._forgotten.wait()

    def metrics(self) -> Iterator[Metric]:
        """Families about connections and bytes in flight."""
        yield gauge("raftlog_http_connections", "Connections open.", len(self._open))
        yield gauge(
            "raftlog_node_connections_accepted",
            "Connections opened by other nodes, and openings in progress.",
            len(self._handed_over),
        )
        yield counter(
            "raftlog_http_connections_refused",
            "Connections over a limit.",
            self.refused_connections,
        )
        yield counter(
            "raftlog_http_requests_refused",
            "Requests that ended before they were parsed.",
            self.refused_requests,
        )
        yield counter(
            "raftlog_http_stalled_readers", "Readers cut off for not reading.", self.stalled_readers
        )
        budget = self.context.broker.bytes_in_flight
        yield gauge("raftlog_http_bytes_in_flight", "Bytes held by requests.", budget.used)
        yield gauge("raftlog_http_bytes_in_flight_max", "Their limit.", budget.total_max)
        yield counter(
            "raftlog_http_overloaded",
            "Requests rejected for that limit, or for the share of one address.",
            budget.refused,
        )
        requests = self.context.broker.requests_in_flight
        yield gauge("raftlog_http_requests_in_flight", "Requests being handled.", requests.used)
        yield gauge("raftlog_http_requests_in_flight_max", "Their limit.", requests.total_max)
