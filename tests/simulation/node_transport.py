"""A node's end of a byte stream: the parts of asyncio's transport and server used by listeners.

The protocol is the shipped one; the bytes come and go by tests/simulation/streams.py. All callbacks
of the protocol run in the node's process: none while it is paused, and none after its end.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from raftlog.record.types import Buffer

if TYPE_CHECKING:
    from tests.simulation.streams import Flow, Streams
    from tests.simulation.world import Process

GARBAGE: Final = 0xA5
"""Content of a shared receive buffer after the protocol has returned."""
SPURIOUS: Final = 0.05
"""Share of reads before which the loop asks for a buffer, and finds nothing to read."""


class NodeTransport(asyncio.Transport):
    """A node's end: asyncio's transport of a BufferedProtocol, as uvloop's 0.23 behaves."""

    def __init__(
        self,
        server: SimulatedServer,
        peer: tuple[str, int],
        to_node: Flow,
        to_client: Flow,
        chance: random.Random,
    ) -> None:
        super().__init__({"peername": peer, "sockname": server.sockets[0].getsockname()})
        self._server = server
        self._process = server.process
        self._loop = server.process.world.loop
        self._random = chance
        self._to_node = to_node
        self._to_client = to_client
        self._protocol: Any = None
        self._high, self._low = 64 * 1024, 16 * 1024
        self._buffers: deque[memoryview] = deque()
        """Not copied: a change before they leave reaches the client."""
        self._size = 0
        self._is_paused = False
        """Between `pause_writing` and `resume_writing` of the protocol."""
        self._is_reading = True
        self._is_read_due = False
        self._is_write_due = False
        self._is_closing = False
        self._is_lost = False
        """`connection_lost` is due or done."""
        self._error: Exception | None = None
        to_node.on_arrival = self._arrived
        to_node.on_unheard = to_client.reset
        to_client.on_room = self._write_soon
        self._process.on_end(self._process_ended)

    def begin(self, protocol: asyncio.BufferedProtocol) -> None:
        """Take the protocol. Runs in the process."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._read_soon()

    # asyncio.Transport

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._is_reading = True
            self._read_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._size

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        if self._is_lost:
            return
        for data in list_of_data:
            view = memoryview(data).cast("B")
            if len(view):
                self._buffers.append(view)
                self._size += len(view)
        if not self._is_paused and not self._is_write_due:
            self._send()
        if self._size > self._high and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if not self._size:
            self._lose()

    def abort(self) -> None:
        self._is_closing = True
        self._buffers.clear()
        self._size = 0
        self._lose()

    # Reading

    def _arrived(self) -> None:
        self._read_soon()
        if self._to_node.is_reset:
            # The next write fails, also while the socket is not read.
            self._write_soon()

    def _read_soon(self) -> None:
        flow = self._to_node
        has_some = flow.arrived or flow.is_at_end or flow.is_reset
        if has_some and self.is_reading() and not self._is_read_due and self._protocol is not None:
            self._is_read_due = True
            self._loop.call_soon(self._read, context=self._process.context)

    def _read(self) -> None:
        self._is_read_due = False
        flow = self._to_node
        if not self.is_reading():
            return
        if flow.arrived:
            if self._random.random() < SPURIOUS:
                self._protocol.get_buffer(-1)
            buffer = memoryview(self._protocol.get_buffer(-1))
            assert buffer, "get_buffer() has returned an empty buffer"
            data = flow.read(min(len(buffer), flow.manner.read_bytes_max))
            buffer[: len(data)] = data
            self._protocol.buffer_updated(len(data))
            if buffer.obj is self._server.shared:
                # Another connection would receive there next.
                buffer[: len(data)] = bytes((GARBAGE,)) * len(data)
            self._read_soon()
        elif flow.is_reset:
            self._fail()
        elif flow.is_at_end and not self._protocol.eof_received():
            self.close()

    # Writing

    def _write_soon(self) -> None:
        if self._buffers and not self._is_write_due and not self._is_lost:
            self._is_write_due = True
            self._loop.call_soon(self._write, context=self._process.context)

    def _write(self) -> None:
        self._is_write_due = False
        if self._is_lost:
            return
        self._send()
        if self._is_paused and self._size <= self._low:
            self._is_paused = False
            self._protocol.resume_writing()
        if self._is_closing and not self._size:
            self._lose()

    def _send(self) -> None:
        """Fill the buffer of the operating system."""
        if self._to_node.is_reset:
            self._fail()
        while self._buffers:
            view = self._buffers[0]
            count = self._to_client.take(view)
            if not count:
                return
            self._size -= count
            if count < len(view):
                self._buffers[0] = view[count:]
            else:
                self._buffers.popleft()

    # The end

    def _fail(self) -> None:
        self.abort()
        self._error = ConnectionResetError("the client has reset the connection")

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._loop.call_soon(self._lost, context=self._process.context)

    def _lost(self) -> None:
        self._process.forget_on_end(self._process_ended)
        self._protocol.connection_lost(self._error)
        self._protocol = None
        self._hang_up()

    def _hang_up(self) -> None:
        """What the operating system does with a closed socket: unread bytes cause a reset."""
        if self._to_node.close():
            self._to_client.reset()
        else:
            self._to_client.finish()

    def _process_ended(self) -> None:
        if self._process.power:
            # Its machine answers nothing until it runs again.
            self._to_node.close()
            self._to_node.on_unheard = self._unheard
            self._to_client.vanish()
        else:
            self._hang_up()

    def _unheard(self) -> None:
        if self._process.machine.up:
            self._to_client.reset()


class ListeningSocket:
    """A bound socket of a node, for `create_server` in a simulated loop."""

    def __init__(self, streams: Streams, process: Process, port: int) -> None:
        self.streams = streams
        self.process = process
        self._name = process.address.partition(":")[0], port

    def getsockname(self) -> tuple[str, int]:
        """Host and port."""
        return self._name

    def listen(self, factory: Callable[[], asyncio.BufferedProtocol]) -> SimulatedServer:
        """Accept connections from now on."""
        server = SimulatedServer(self, factory)
        self.streams.servers[self._name] = server
        return server


class SimulatedServer:
    """The part of `asyncio.Server` used by listeners."""

    def __init__(
        self, bound: ListeningSocket, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> None:
        self.process = bound.process
        self.shared: object = None
        """The receive buffer of all connections, if there is such one: overwritten after use."""
        self._factory = factory
        self._bound = bound
        self._is_open = True

    @property
    def sockets(self) -> tuple[ListeningSocket, ...]:
        """The listening sockets."""
        return (self._bound,) if self._is_open else ()

    @property
    def is_listening(self) -> bool:
        """Whether the operating system accepts connections."""
        return self._is_open and self.process.alive

    def close(self) -> None:
        """Accept no more connections."""
        self._is_open = False

    def accept(
        self, peer: tuple[str, int], to_node: Flow, to_client: Flow, chance: random.Random
    ) -> None:
        """Accept a connection; a paused process notices after its pause."""
        transport = NodeTransport(self, peer, to_node, to_client, chance)

        def begin() -> None:
            transport.begin(self._factory())

        self.process.world.loop.call_soon(begin, context=self.process.context)
