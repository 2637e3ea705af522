"""The listener accepts connections, counts them, and ends them when the node stops."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from prometheus_client.core import Metric

from raftlog.broker.service import Broker
from raftlog.kafka.call import Fences
from raftlog.kafka.connection import Connection
from raftlog.kafka.metrics import EndReason, KafkaMetrics
from raftlog.kafka.settings import KafkaSettings
from raftlog.record.errors import LogError

RECEIVE_BUFFER_BYTES: Final = 64 * 1024
"""Bytes of the one buffer into which all connections receive."""
SWEEP_S: Final = 1.0
"""Seconds between two checks of all connections."""
REQUESTS_PER_TURN: Final = 64
"""Requests that begin in one turn of the event loop, of all connections."""
SLOW_REQUESTS_PER_TURN: Final = 2
"""Requests that begin in one turn while turns take long."""
TURN_S: Final = 0.002
"""Seconds of a turn above which the next turns are smaller."""
ROOM_S: Final = 0.05
"""Seconds between two checks for room of connections that wait for it."""

logger = logging.getLogger(__name__)


class KafkaListener:
    """One node's Kafka listener. Lives in the event loop."""

    def __init__(
        self,
        broker: Broker,
        settings: KafkaSettings,
        on_broken_invariant: Callable[[BaseException], None],
    ) -> None:
        self.broker = broker
        self.settings = settings
        self.metrics = KafkaMetrics()
        self.fences = Fences()
        self.buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self._on_broken_invariant = on_broken_invariant
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._connections: dict[Connection, None] = {}
        self._by_address: Counter[str] = Counter()
        self._in_line: dict[str, dict[Connection, None]] = {}
        """Connections with requests left for later turns of the event loop, in order, by address.
        The addresses take turns."""
        self._served: Connection | None = None
        """Connection in front, until its request begins."""
        self._turn_max = self._turn_left = REQUESTS_PER_TURN
        """Requests of one turn, and requests that may still begin in this turn."""
        self._turn_at = 0.0
        self._is_turn_due = False
        self._waiting: dict[Connection, None] = {}
        """Connections that wait for room for a large frame, ordered by the longest wait."""
        self._is_room_due = False
        self._tasks: set[asyncio.Task[None]] = set()
        """Requests being handled."""
        self._sweeping: asyncio.TimerHandle | None = None
        self._is_closing = False

    @property
    def port(self) -> int:
        """The port that it listens on, or 0 before `start`."""
        sockets = self._server.sockets if self._server is not None else ()
        return int(sockets[0].getsockname()[1]) if sockets else 0

    async def start(self, bound: socket.socket) -> None:
        """Listen on a bound socket."""
        self._server = await self._loop.create_server(lambda: Connection(self), sock=bound)
        self._sweep()

    async def close(self) -> None:
        """Accept no more, let requests in flight finish for a while, and close all connections."""
        self._is_closing = True
        # The HTTP server closes after this listener, so delayed requests end now.
        self.broker.closing.set()
        if self._server is not None:
            self._server.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._connections):
            connection.stop_reading()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.settings.shutdown_s)
        for connection in list(self._connections):
            connection.close(EndReason.STOPPING)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def metric_families(self) -> Iterator[Metric]:
        """The families of the metrics page, as of now."""
        return self.metrics.families(
            connections=len(self._connections),
            in_flight=len(self._tasks),
            waiting=len(self._waiting),
        )

    # For connections

    def now(self) -> float:
        """The event loop's time, in seconds."""
        return self._loop.time()

    def opened(self, connection: Connection) -> EndReason | None:
        """Count a new connection. Returns the reason to end it at once, or None."""
        settings, group = self.settings, connection.address_group
        self.metrics.accepted += 1
        is_full = len(self._connections) >= settings.connections_max
        if is_full or self._by_address[group] >= settings.connections_per_address_max:
            logger.warning(
                "too many Kafka connections, closing a connection of %s", connection.address
            )
            return EndReason.TOO_MANY
        self._connections[connection] = None
        self._by_address[group] += 1
        return EndReason.STOPPING if self._is_closing else None

    def closed(self, connection: Connection) -> None:
        """A connection has ended."""
        self.metrics.ended[connection.end_reason] += 1
        self._waiting.pop(connection, None)
        if self.is_in_line(connection):
            connections = self._in_line[connection.address_group]
            del connections[connection]
            if not connections:
                del self._in_line[connection.address_group]
        if connection in self._connections:
            del self._connections[connection]
            self._by_address[connection.address_group] -= 1
            if not self._by_address[connection.address_group]:
                del self._by_address[connection.address_group]

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Handle a request."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def on_broken_invariant(self, error: BaseException) -> None:
        """A handler failed with an unexpected error. An assertion ends the node."""
        if isinstance(error, AssertionError):
            self._on_broken_invariant(error)

    # Turns of the event loop

    def may_begin(self, connection: Connection) -> bool:
        """Whether a request may begin in this turn of the event loop. Otherwise it is in line.

        Then `proceed` is called in a later turn. Without turns, thousands of connections with
        pipelines would hold the loop, and with it all other work of the node.
        """
        if self._turn_left > 0 and (connection is self._served or not self._in_line):
            return True
        self._in_line.setdefault(connection.address_group, {})[connection] = None
        self._schedule_turn()
        return False

    def is_in_line(self, connection: Connection) -> bool:
        """Whether the connection's next request begins in a later turn."""
        return connection in self._in_line.get(connection.address_group, ())

    def begun(self) -> None:
        """Count a request in this turn. Its connection goes to the end of the line."""
        self._turn_left -= 1
        self._served = None
        self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_turn_due = False
        now = self.broker.clock.monotonic()
        if not self._in_line:
            self._turn_max = REQUESTS_PER_TURN
        elif now - self._turn_at > TURN_S:
            # With a line, the loop was not idle since the last turn.
            self._turn_max = max(self._turn_max // 2, SLOW_REQUESTS_PER_TURN)
        else:
            self._turn_max = min(self._turn_max + 1, REQUESTS_PER_TURN)
        self._turn_at = now
        self._turn_left = self._turn_max
        while self._in_line and self._turn_left > 0:
            address = next(iter(self._in_line))
            connections = self._in_line.pop(address)
            connection = next(iter(connections))
            del connections[connection]
            if connections:
                self._in_line[address] = connections
            self._served = connection
            connection.proceed()
        self._served = None

    # Room for large frames

    def take(self, connection: Connection, size: int) -> bool:
        """Reserve bytes of the budget for a frame. Without room, `proceed` is called later."""
        first = next(iter(self._waiting), connection)
        if first is connection:
            try:
                self.broker.bytes_in_flight.reserve(size, connection.address_group)
            except LogError:
                pass
            else:
                self._waiting.pop(connection, None)
                return True
        self._waiting[connection] = None
        self._look_for_room(ROOM_S)
        return False

    def is_waiting(self, connection: Connection) -> bool:
        """Whether the connection waits for room."""
        return connection in self._waiting

    def room_made(self) -> None:
        """Bytes of the budget were released."""
        if self._waiting:
            self._look_for_room(0.0)

    def _look_for_room(self, after_s: float) -> None:
        if not self._is_room_due:
            self._is_room_due = True
            self._loop.call_later(after_s, self._proceed_waiting)

    def _proceed_waiting(self) -> None:
        self._is_room_due = False
        while self._waiting:
            first = next(iter(self._waiting))
            first.proceed()
            if first in self._waiting:
                # The connection's turn has not come, because other listeners also hold bytes.
                return

    def _sweep(self) -> None:
        now = self.now()
        for connection in list(self._connections):
            connection.sweep(now)
        self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)
