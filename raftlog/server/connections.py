"""All connections of a server: made, counted, bounded, swept over, and drained at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client.core import Metric

from raftlog.record.errors import OVERLOADED, QUOTA_EXCEEDED, ErrorEntry
from raftlog.server.connection import Connection
from raftlog.server.context import ServerContext
from raftlog.server.metrics import counter, gauge
from raftlog.server.request import Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

CANCEL_S = 0.5
"""How long handlers that were cancelled at shutdown may take to end."""

_NEVER_S = 10 * 365 * 86_400.0
"""aiohttp's own keep-alive timer is set out of reach: the sweep does its work."""


class ConnectionServer(web.Server):
    """All connections of one server: makes them, counts them, and sweeps over them."""

    def __init__(
        self, handler: Callable[[Request], Awaitable[web.StreamResponse]], context: ServerContext
    ) -> None:
        loop = asyncio.get_running_loop()

        def make_request(
            message: Any, payload: Any, protocol: Any, writer: Any, task: Any
        ) -> Request:
            return Request(message, payload, protocol, writer, task, loop)

        super().__init__(handler, request_factory=make_request)  # type: ignore[arg-type] # our factory makes Requests
        self._event_loop = loop
        self.context = context
        self.limits = context.limits
        self.now = loop.time()
        """Monotonic time of the latest sweep: near enough for deadlines, and free to read."""
        self.stalled_readers = 0
        self.refused_requests = 0
        self.refused_connections = 0
        self._open: set[Connection] = set()
        self._refused: set[Connection] = set()
        self._per_address: Counter[str] = Counter()
        self._emptied = asyncio.Event()
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
    def connection_count(self) -> int:
        """Connections admitted and open."""
        return len(self._open)

    @property
    def refused_count(self) -> int:
        """Connections refused and not closed yet."""
        return len(self._refused)

    @property
    def sweep_interval_s(self) -> float:
        """How often deadlines are looked at: a tenth of the shortest, within reason."""
        limits = self.limits
        shortest = min(
            limits.header_receive_s, limits.keep_alive_s, limits.write_stall_s, limits.linger_s
        )
        return min(max(shortest / 10, 0.01), 1.0)

    def admit(self, connection: Connection) -> tuple[ErrorEntry, str] | None:
        """Count a connection in; or the reason why it cannot be."""
        limits = self.limits
        if len(self._open) >= limits.connections_max:
            refusal = (OVERLOADED, "Too many connections to this node.")
        elif self._per_address[connection.address] >= limits.connections_per_address_max:
            refusal = (QUOTA_EXCEEDED, "Too many connections from this address.")
        else:
            self._open.add(connection)
            self._per_address[connection.address] += 1
            return None
        self.refused_connections += 1
        self._refused.add(connection)
        return refusal

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self._refused.discard(connection)
        if connection in self._open:
            self._open.discard(connection)
            self._per_address[connection.address] -= 1
            if not self._per_address[connection.address]:
                del self._per_address[connection.address]
        if not self._open and not self._refused:
            self._emptied.set()

    def sweep(self) -> None:
        """Enforce every deadline. The caller calls it each `sweep_interval_s`."""
        self.now = now = self._event_loop.time()
        for connection in [*self._open, *self._refused]:
            connection.enforce_deadlines(now)

    async def drain(self, timeout_s: float) -> None:
        """Close idle connections, wait for the others to finish, and cut those that do not.

        The dispatcher ends connections with their next answer once the context is closing.
        """
        for connection in list(self._open):
            if connection.is_idle:
                connection.force_close()
        await self._wait_until_empty(timeout_s)
        await self.shutdown(CANCEL_S)
        for connection in [*self._open, *self._refused]:
            connection.abort()
        await self._wait_until_empty(CANCEL_S)

    async def _wait_until_empty(self, timeout_s: float) -> None:
        if not self._open and not self._refused:
            return
        self._emptied.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._emptied.wait()

    def metrics(self) -> Iterator[Metric]:
        """What Prometheus is told of the connections."""
        yield gauge("raftlog_http_connections", "Connections open.", len(self._open))
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
        budget = self.context.budget
        yield gauge("raftlog_http_bytes_in_flight", "Bytes held by requests.", budget.used)
        yield gauge("raftlog_http_bytes_in_flight_max", "Their limit.", budget.bytes_max)
        yield counter("raftlog_http_overloaded", "Requests refused for that limit.", budget.refused)
