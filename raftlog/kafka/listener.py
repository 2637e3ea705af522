"""The listener accepts connections, counts them, and ends them when the node stops.

A connection reads frames, and sends responses in the order of the requests.

Requests begin in order and are handled at the same time, up to a bound. Their responses wait for
each other in `_slots`. A request whose response may be delayed (a fetch, a join) lets no later
request begin, because the later response would have to wait anyway.

All connections receive into one buffer of the listener, which is empty again when the event loop
continues. Frames are copied out, and a large frame gets a separate buffer of its exact size, which
the kernel fills. Its bytes are reserved from the node's budget first. Without room the socket is
not read. So an idle connection holds no buffer, and a producer is slowed down, never rejected.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import socket
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, cast

import msgspec
from prometheus_client.core import Metric

from raftlog.broker.limits import RateGuard, address_group
from raftlog.broker.service import Broker
from raftlog.kafka.apis import API_VERSIONS, APIS, Api, unsupported_version
from raftlog.kafka.call import RESPONSE_BYTES_FREE, Call, Fences, ResponseBudget
from raftlog.kafka.framing import (
    PREFIX_BYTES,
    SIZE_BYTES,
    Prefix,
    answer_head,
    parse_head,
    parse_prefix,
)
from raftlog.kafka.metrics import EndReason, KafkaMetrics
from raftlog.kafka.settings import KafkaSettings
from raftlog.record.errors import LogError
from raftlog.record.types import Buffer
from raftlog.schema.codec import ELEMENTS_MAX
from raftlog.schema.errors import DecodeError

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

LARGE_BYTES: Final = 32 * 1024
"""Bytes of a frame above which it gets a separate buffer."""
MAPPED_BYTES: Final = 1 << 20
"""Bytes of a buffer above which it is mapped. Only received bytes then cost time."""
WRITE_BUFFER_BYTES: Final = 256 * 1024
"""Bytes in the transport above which it gets no further response."""

logger = logging.getLogger(__name__)


def _large_buffer(size: int) -> memoryview:
    """Allocate memory for an incoming frame, in little time for any size.

    A bytearray is cleared at once. 32 MiB, claimed by 14 bytes, held the event loop for 10 ms. The
    pages of a map are cleared as bytes arrive.
    """
    return memoryview(mmap.mmap(-1, size) if size > MAPPED_BYTES else bytearray(size))


async def _encoded(
    api: Api, call: Call, correlation_id: int, response: msgspec.Struct | None
) -> Sequence[Buffer]:
    """The pieces of the response, or none without a response. Raises EncodeError.

    A large response is encoded in slices, one in a turn of the event loop.
    """
    if response is None:
        return ()
    pieces: list[Buffer] = []
    if call.budget.used <= RESPONSE_BYTES_FREE:
        pieces = api.response_codec(call.version).encode_pieces(response)
    else:
        for piece in api.response_slicer(call.version)(response):
            pieces.append(piece)
            await call.broker.turns.wait()
    size = sum(map(len, pieces))
    is_flexible = api.is_answer_flexible(call.version)
    return [answer_head(correlation_id, size, is_flexible=is_flexible), *pieces]


class _Slot:
    """The place of one request's response."""

    __slots__ = ("answer", "api", "is_done", "is_refused", "size", "taken", "task")

    def __init__(self, api: Api, taken: int) -> None:
        self.api = api
        self.taken = taken
        """Bytes of the budget for the request's frame."""
        self.answer: Sequence[Buffer] = ()
        """Pieces of the response, or none if there is no response."""
        self.size = 0
        """Bytes of the response, reserved from the budget until the client has it."""
        self.is_done = False
        self.is_refused = False
        """Whether there is no response, and the connection sends no later response."""
        self.task: asyncio.Task[None] | None = None


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, listener: KafkaListener) -> None:
        self._listener = listener
        self._broker = listener.broker
        self._settings = listener.settings
        self._transport: asyncio.Transport | None = None
        self.address = ""
        self.address_group = ""
        """The address, as limits count it."""
        self._rest = bytearray()
        """Received bytes of a frame that is incomplete, or has to wait for its turn."""
        self._large: memoryview | None = None
        """A large frame that is being received, without its size."""
        self._filled = 0
        """Bytes of it that have arrived."""
        self._is_muted = False
        self._slots: deque[_Slot] = deque()
        self._is_answering = True
        """Whether responses are sent, until the turn of a request that has no required response."""
        self._is_write_paused = False
        self._sending = 0
        """Bytes of responses in the transport, held in the budget."""
        self._written = 0
        """Bytes of all responses so far."""
        self._is_ending = False
        self.end_reason = EndReason.CLIENT
        """The listener's first reason to end it, or the client's end."""
        now = listener.now()
        self._active_at = now
        self._receiving_since: float | None = None
        self._received = 0
        """Bytes received since then."""
        self._reader_guard: RateGuard | None = None
        """Guard of the reader's rate, while the transport holds something at each check."""
        self._looked_at = now
        self._taken = 0
        """Bytes of responses that the client had taken by then."""

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start, unless there are too many connections."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self.address_group = address_group(self.address)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES, low=0)
        refusal = self._listener.opened(self)
        if refusal is not None:
            self._set_ending(refusal)
            self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        """End the work that waits only for this client.

        Writes continue, because they may already be in the log.
        """
        self._is_ending = True
        self._transport = None
        for slot in self._slots:
            if slot.task is not None and slot.api.ends_with_connection:
                slot.task.cancel()
                # The task may not have started. Then it never does.
                self._give_frame(slot)
            self._give(slot.size)
        self._slots.clear()
        self._drop_large()
        self._rest.clear()
        self._sent()
        self._listener.closed(self)

    def get_buffer(self, _size_hint: int) -> memoryview:
        """Where the next bytes go."""
        if self._large is not None:
            return self._large[self._filled :]
        return self._listener.buffer

    def buffer_updated(self, count: int) -> None:
        """Handle `count` received bytes."""
        self._active_at = self._listener.now()
        self._received += count
        if self._is_ending:
            return
        if self._large is not None:
            self._filled += count
            if self._filled == len(self._large):
                frame, self._large = self._large, None
                self._receiving_since = None
                self._begin(frame, len(frame))
                self._after_parsing()
            return
        received = self._listener.buffer[:count]
        if self._rest:
            self._rest += received
            self._parse_rest()
        else:
            end = self._parse(received)
            if end < count and not self._is_ending:
                self._rest += received[end:]
        self._after_parsing()

    def pause_writing(self) -> None:
        """The client is slow to take its responses."""
        self._is_write_paused = True

    def resume_writing(self) -> None:
        """All responses are sent."""
        self._is_write_paused = False
        self._sent()
        self._flush()

    # Frames

    def _parse_rest(self) -> None:
        # Frames are copies, so no view refers to the bytes that are cut off.
        end = self._parse(self._rest)
        del self._rest[:end]

    def _parse(self, data: bytearray | memoryview) -> int:
        """Start the requests of complete frames. Returns the end of the parsed bytes."""
        position = 0
        while (
            len(data) - position >= PREFIX_BYTES
            and self._may_begin()
            and self._listener.may_begin(self)
        ):
            prefix = parse_prefix(data, position)
            complaint = self._complaint(prefix)
            if complaint is not None:
                self._refuse(complaint)
                return len(data)
            begin, end = position + SIZE_BYTES, position + SIZE_BYTES + prefix.size
            is_large, is_whole = prefix.size > LARGE_BYTES, end <= len(data)
            if is_large and not self._listener.take(self, prefix.size):
                break
            if is_whole:
                position = end
                self._begin(bytes(data[begin:end]), prefix.size if is_large else 0)
            elif is_large:
                large = _large_buffer(prefix.size)
                self._filled = len(data) - begin
                large[: self._filled] = data[begin:]
                self._large = large
                return len(data)
            else:
                break
        return position

    def _complaint(self, prefix: Prefix) -> str | None:
        """Reason to reject the frame, or None."""
        api = APIS.get(prefix.api_key)
        if api is None:
            return f"there is no API {prefix.api_key} here"
        if not api.first <= prefix.api_version <= api.last and prefix.api_key != API_VERSIONS:
            return f"{api.name} has no version {prefix.api_version} here"
        settings = self._settings
        most = settings.produce_bytes_max if api.takes_records else settings.request_bytes_max
        most = min(most, self._broker.bytes_in_flight.per_client_max)
        if not PREFIX_BYTES <= prefix.size <= most:
            return f"{api.name} of {prefix.size} bytes; {most} are allowed"
        return None

    def _may_begin(self) -> bool:
        """Whether another request may begin now."""
        slots = self._slots
        return (
            not self._is_ending
            and not self._is_write_paused
            and self._large is None
            and len(slots) < self._settings.requests_per_connection_max
            and not (slots and slots[-1].api.is_held and not slots[-1].is_done)
        )

    def _after_parsing(self) -> None:
        """Read the socket while a request may begin, or its frame continues.

        Also record the time since which a frame is incomplete.
        """
        if self._transport is None or self._is_ending:
            return
        is_coming = self._large is not None
        # While no received bytes would have to wait, the end of the connection is to be detected.
        is_full = bool(self._rest) and not (
            is_coming or (self._may_begin() and not self._listener.is_in_line(self))
        )
        is_muted = is_full or self._listener.is_waiting(self)
        if is_muted != self._is_muted:
            self._is_muted = is_muted
            if is_muted:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        if is_muted or not (is_coming or self._rest):
            self._receiving_since = None
        elif self._receiving_since is None:
            self._receiving_since, self._received = self._listener.now(), 0

    def proceed(self) -> None:
        """Begin requests that have arrived since the last call."""
        if self._is_ending:
            return
        if self._rest:
            self._parse_rest()
        self._after_parsing()

    # Requests

    def _begin(self, frame: Buffer, taken: int) -> None:
        """Handle a frame, which has reserved `taken` bytes of the budget."""
        if self._sending and not self._buffered():
            # The client has the earlier responses before the request reserves bytes.
            self._sent()
        prefix = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
        api = APIS[prefix[0]]
        slot = _Slot(api, taken)
        self._slots.append(slot)
        slot.task = self._listener.spawn(self._handle(api, prefix[1], frame, slot))
        self._listener.begun()

    async def _handle(self, api: Api, version: int, frame: Buffer, slot: _Slot) -> None:
        clock = self._broker.clock
        begun = clock.monotonic()
        budget = ResponseBudget(self._broker, self.address_group)
        try:
            if not api.first <= version <= api.last:
                slot.answer = unsupported_version(frame)
            else:
                head = parse_head(frame, is_flexible=api.is_request_flexible(version))
                request, _ = api.request_decoder(version)(frame, head.end, ELEMENTS_MAX)
                if api.key != API_VERSIONS:
                    self._broker.check_ready()
                call = Call(
                    broker=self._broker,
                    version=version,
                    address=self.address,
                    fences=self._listener.fences,
                    budget=budget,
                    client_id=head.client_id,
                    gateway=self._settings.gateway,
                )
                response = await api.handler(call, request)
                slot.answer = await _encoded(api, call, head.correlation_id, response)
            slot.size = sum(map(len, slot.answer))
        except DecodeError as error:
            slot.is_refused = True
            self._refuse(f"{api.name}, version {version}: {error}")
        except LogError as error:
            # Handlers return errors. This error leaves the client without a response.
            slot.is_refused = True
            self._refuse(f"{api.name}: {error.message}", EndReason.ERROR)
        except Exception as error:
            slot.is_refused = True
            logger.exception("kafka: %s of %s failed", api.name, self.address)
            self._listener.on_broken_invariant(error)
            self._end(EndReason.ERROR)
        finally:
            self._listener.metrics.handled(
                api,
                version,
                clock.monotonic() - begun,
                bytes_in=SIZE_BYTES + len(frame),
                bytes_out=slot.size,
            )
            self._give_frame(slot)
            self._give(budget.used)
            slot.is_done = True
            if self._transport is None:
                slot.size = 0
            else:
                if slot.size:
                    self._broker.bytes_in_flight.force_reserve(slot.size, self.address_group)
                self._flush()

    # Responses

    def _flush(self) -> None:
        """Pass the next finished responses to the transport, then begin more requests."""
        slots = self._slots
        while slots and slots[0].is_done and not self._is_write_paused:
            slot = slots.popleft()
            self._is_answering = self._is_answering and not slot.is_refused
            if not self._is_answering:
                # A closing transport with unsent bytes accepts more. They would take the place of
                # the missing response.
                self._give(slot.size)
            elif slot.answer and self._transport is not None:
                self._sending += slot.size
                self._written += slot.size
                self._transport.writelines(slot.answer)
        if not self._buffered():
            self._sent()
        self._active_at = self._listener.now()
        self.proceed()

    def _buffered(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _sent(self) -> None:
        sending, self._sending = self._sending, 0
        self._give(sending)

    def _give_frame(self, slot: _Slot) -> None:
        taken, slot.taken = slot.taken, 0
        self._give(taken)

    def _give(self, size: int) -> None:
        if size:
            self._broker.bytes_in_flight.release(size, self.address_group)
            self._listener.room_made()

    # The end

    def _refuse(self, complaint: str, reason: EndReason = EndReason.MALFORMED) -> None:
        """Close as Kafka does, because the bytes are malformed or a response is missing."""
        logger.info("closed the Kafka connection of %s (%s)", self.address, complaint)
        self._end(reason)

    def _set_ending(self, reason: EndReason) -> None:
        if not self._is_ending:
            self._is_ending = True
            self.end_reason = reason

    def _end(self, reason: EndReason) -> None:
        self._set_ending(reason)
        self._drop_large()
        if self._transport is not None:
            self._transport.close()

    def _drop_large(self) -> None:
        if self._large is not None:
            size, self._large = len(self._large), None
            self._give(size)

    @property
    def is_busy(self) -> bool:
        """Whether requests wait for their responses, or responses for the client."""
        return bool(self._slots or self._buffered())

    def abort(self, reason: EndReason, detail: str) -> None:
        """Cut the connection."""
        logger.info("cut off the Kafka connection of %s (%s)", self.address, detail)
        self._set_ending(reason)
        if self._transport is not None:
            self._transport.abort()

    def close(self, reason: EndReason) -> None:
        """Close the connection. The bytes in the transport are sent."""
        self._end(reason)

    def stop_reading(self) -> None:
        """Begin no more requests, because the listener closes."""
        self._set_ending(EndReason.STOPPING)
        if self._transport is not None and not self._is_muted:
            self._is_muted = True
            self._transport.pause_reading()

    def sweep(self, now: float) -> None:
        """Cut the connection if its client is idle, or too slow."""
        settings = self._settings
        if self._reads_too_slowly(now):
            self.abort(EndReason.SLOW_READER, "it read its responses too slowly")
        elif self._receiving_since is not None:
            taken_s = now - self._receiving_since
            is_slow = self._received < taken_s * settings.bytes_per_second_min
            if is_slow and taken_s > settings.receive_s:
                self.abort(
                    EndReason.SLOW_SENDER,
                    f"sent {self._received} bytes of a request in {taken_s:.0f} s",
                )
        elif not self.is_busy and now - self._active_at > settings.idle_s:
            self.close(EndReason.IDLE)

    def _reads_too_slowly(self, now: float) -> bool:
        """Whether the client has taken less than the minimum for too long.

        A transport below its limit never reports that it is empty. So the bytes that it has sent
        are released to the budget here. A client that reads nothing is detected here, even after
        `close`.
        """
        buffered = self._buffered()
        if not buffered:
            self._reader_guard = None
            self._sent()
            return False
        settings, taken = self._settings, self._written - buffered
        if self._reader_guard is None:
            self._reader_guard = RateGuard(settings.bytes_per_second_min, settings.write_stall_s)
        else:
            self._reader_guard.moved(taken - self._taken, now - self._looked_at)
        self._looked_at, self._taken = now, taken
        return not self._reader_guard.patience_s


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
