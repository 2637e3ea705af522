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

NODES_RESERVED_MAX = 32
"""Connections over a limit that may still show that they are another node's: users' connections
must not keep the nodes of a cluster from each other. Only their request decides it."""

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
        self._reserved: set[Connection] = set()
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
        """Count a connection in; or the reason why it cannot be.

        One that might be a node's, for want of room elsewhere, is only told to prove it.
        """
        limits = self.limits
        if len(self._open) >= limits.connections_max:
            refusal = (OVERLOADED, "Too many connections to this node.")
        elif self._per_address[connection.address] >= limits.connections_per_address_max:
            refusal = (QUOTA_EXCEEDED, "Too many connections from this address.")
        else:
            self._open.add(connection)
            self._per_address[connection.address] += 1
            return None
        if self.context.network is not None and len(self._reserved) < NODES_RESERVED_MAX:
            self._reserved.add(connection)
            connection.refusal_unless_node = refusal
            return None
        self.refuse(connection)
        return refusal

    def refuse(self, connection: Connection) -> None:
        """The connection is over a limit, and is told so."""
        self._reserved.discard(connection)
        self.refused_connections += 1
        self._refused.add(connection)

    def handed_over(self, connection: Connection) -> None:
        """The connection speaks HTTP no more: it counts for no limit, and is not swept over."""
        self._leave(connection)
        self._handed_over.add(connection)

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self._leave(connection)
        self._handed_over.discard(connection)
        self._forgotten.set()

    def _leave(self, connection: Connection) -> None:
        self._refused.discard(connection)
        self._reserved.discard(connection)
        if connection in self._open:
            self._open.discard(connection)
            self._per_address[connection.address] -= 1
            if not self._per_address[connection.address]:
                del self._per_address[connection.address]

    def sweep(self) -> None:
        """Enforce every deadline. The caller calls it each `sweep_interval_s`."""
        self.now = now = self._event_loop.time()
        for connection in [*self._open, *self._reserved, *self._refused]:
            connection.enforce_deadlines(now)

    async def drain(self, timeout_s: float) -> None:
        """Close idle connections, wait for the others to finish, and cut those that do not.

        The dispatcher ends connections with their next answer once the context is closing.
        Connections that were handed over are cut last: requests may need them to finish.
        """
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

    async def _wait_until_empty(self, timeout_s: float, *connections: set[Connection]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(connections):
                    self._forgotten.clear()
                    await self._forgotten.wait()

    def metrics(self) -> Iterator[Metric]:
        """What Prometheus is told of the connections."""
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
        budget = self.context.budget
        yield gauge("raftlog_http_bytes_in_flight", "Bytes held by requests.", budget.used)
        yield gauge("raftlog_http_bytes_in_flight_max", "Their limit.", budget.bytes_max)
        yield counter("raftlog_http_overloaded", "Requests refused for that limit.", budget.refused)
