"""Byte streams between clients and the listeners of nodes: TCP, as its two users see it.

A client has a machine of its own, and a number below zero. Its end is a `ClientStream`; the node's
end is a `NodeTransport` (node_transport.py), driven by the shipped listener like asyncio's. Each
direction is a `Flow`: the sender's operating system takes a bounded number of bytes, these travel
in pieces of random length, and the receiver's operating system holds a bounded number of unread
bytes.

A piece may end at any byte. A half-closed direction ends after its last byte; a reset loses the
bytes on the way, and perhaps unread ones. A client may vanish, and a node's machine may lose its
power: then the other side hears nothing at all. A paused node's operating system takes bytes until
its buffer is full.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from raftlog.record.types import Buffer
from tests.simulation.handles import Handle
from tests.simulation.link import PACKET_BYTES, Link

if TYPE_CHECKING:
    from tests.simulation.node_transport import SimulatedServer
    from tests.simulation.world import World

LATENCY_S: Final = 0.001
SPLIT: Final = 0.5
"""Share of the pieces and reads with an end at a random byte."""
CLIENT_PORT: Final = 40_000


@dataclass(frozen=True, slots=True)
class StreamManner:
    """Sizes of operating systems' buffers, and how streams are split."""

    piece_bytes_max: int = 1 << 16
    """Most bytes in one piece."""
    read_bytes_max: int = 1 << 16
    """Most bytes of one read by a node."""
    is_split: bool = True
    """Pieces and reads end at random bytes; else each is as long as it may be."""
    sent_bytes_max: int = 1 << 16
    """Size of the sender's buffer in the operating system."""
    unread_bytes_max: int = 1 << 16
    """Size of the receiver's."""


class Flow:
    """One direction of a stream."""

    def __init__(self, streams: Streams, link: Link, manner: StreamManner) -> None:
        self.link = link
        self.manner = manner
        self.unsent = bytearray()
        """Taken by the sender's operating system."""
        self.arrived = bytearray()
        """Not yet read."""
        self.moved = 0
        """Bytes read by the receiver."""
        self.is_at_end = False
        """The end has arrived: nothing follows `arrived`."""
        self.is_reset = False
        """A reset has arrived."""
        self.is_silent = False
        """The receiver's machine is gone: no byte is acknowledged, and no more are sent."""
        self.is_deaf = False
        """Closed by the receiver: more bytes are answered by `on_unheard`."""
        self.on_arrival: Callable[[], None] = _nothing
        self.on_room: Callable[[], None] = _nothing
        self.on_unheard: Callable[[], None] = _nothing
        self._streams = streams
        self._loop = streams.loop
        self._random = streams.random
        self._has_end = False
        """The sender has closed: the end follows `unsent`."""
        self._is_over = False
        """The end or a reset is on its way, or the sender is gone without a sound."""
        self._is_denied = False
        """A reset is on its way, or has arrived."""
        self._in_flight = 0
        self._on_way: deque[tuple[Handle, int]] = deque()
        self._end_on_way: Handle | None = None
        self._last_at = 0.0

    @property
    def room(self) -> int:
        """Free bytes of the sender's buffer."""
        return (
            0 if self._has_end or self._is_over else self.manner.sent_bytes_max - len(self.unsent)
        )

    @property
    def is_delivered(self) -> bool:
        """Whether the receiver has read everything."""
        return not (self.unsent or self._on_way or self.arrived)

    # The sender

    def take(self, data: Buffer) -> int:
        """Take the first bytes of `data`, as room permits; their count.

        Repeat the call until it returns 0: `on_room` comes only then.
        """
        count = min(self.room, len(data))
        if count:
            self.unsent += data[:count]
            self._send(0.0)
        return count

    def finish(self) -> None:
        """Let the end follow the bytes taken."""
        self._has_end = True
        self.flush(0.0)

    def reset(self) -> None:
        """Let a reset overtake the bytes on the way."""
        if self._is_denied:
            return
        self._is_denied = True
        self.vanish()
        if self.link.blocked:
            self.link.ending[self] = None
        else:
            self.end_in(self.link.delay(PACKET_BYTES))

    def vanish(self) -> None:
        """Send nothing any more. Of the bytes on the way a random first part arrives."""
        self._is_over = True
        self.unsent.clear()
        self.link.stalled.pop(self, None)
        self.link.ending.pop(self, None)
        if self._end_on_way is not None:
            # It is heard after all bytes only.
            self._end_on_way.cancel()
        kept = self._random.randint(0, len(self._on_way))
        while len(self._on_way) > kept:
            handle, count = self._on_way.pop()
            handle.cancel()
            self._in_flight -= count

    # The way; `flush` and `end_in` are called by the link when it is free

    def flush(self, delay_s: float) -> None:
        """Send as much as there is room for, and let the sender go on."""
        had_none = self.room == 0
        self._send(delay_s)
        if had_none and self.room:
            self.on_room()

    def _send(self, delay_s: float) -> None:
        if self._is_over or self.is_silent or not (self.unsent or self._has_end):
            return
        if self.link.blocked:
            self.link.stalled[self] = None
            return
        while self.unsent:
            count = self.manner.unread_bytes_max - len(self.arrived) - self._in_flight
            count = min(count, len(self.unsent), self.manner.piece_bytes_max)
            if count <= 0:
                break
            count = self._split(count)
            piece = bytes(self.unsent[:count])
            del self.unsent[:count]
            self._in_flight += count
            at = self._arrival(delay_s, count)
            self._on_way.append((self._call_at(at, self._arrive, piece), count))
        if self._has_end and not self.unsent:
            self._is_over = True
            at = self._arrival(delay_s, PACKET_BYTES)
            self._end_on_way = self._call_at(at, self._arrive_end)

    def end_in(self, delay_s: float) -> None:
        """Deliver the reset, after the bytes still arriving."""
        self._call_at(max(self._last_at, self._loop.now + delay_s), self._arrive_reset)

    def _split(self, count: int) -> int:
        """Length of a piece of `count` bytes: half of the time all."""
        is_split = self.manner.is_split and count > 1 and self._random.random() < SPLIT
        return self._random.randint(1, count) if is_split else count

    def _arrival(self, delay_s: float, count: int) -> float:
        self._last_at = max(self._last_at, self._loop.now + delay_s + self.link.delay(count))
        return self._last_at

    def _call_at(self, at: float, callback: Callable[..., None], *args: object) -> Handle:
        # By the operating system, whatever the process does.
        return self._loop.call_at(at, callback, *args, context=contextvars.Context())

    def _arrive(self, piece: bytes) -> None:
        self._on_way.popleft()
        self._in_flight -= len(piece)
        if self.is_deaf:
            self.on_unheard()
            return
        self.arrived += piece
        self.on_arrival()

    def _arrive_end(self) -> None:
        self.is_at_end = True
        self.on_arrival()

    def _arrive_reset(self) -> None:
        self.is_reset = True
        if self._random.random() < 0.5:
            self.arrived.clear()
        self.on_arrival()

    # The receiver

    def read(self, count: int) -> bytes:
        """Up to `count` arrived bytes."""
        count = self._split(min(count, len(self.arrived)))
        data = bytes(self.arrived[:count])
        del self.arrived[:count]
        self.moved += len(data)
        self.flush(0.0)
        return data

    def close(self) -> bool:
        """Read no more; whether bytes were left."""
        is_unread = bool(self.arrived)
        self.is_deaf = True
        self.arrived.clear()
        return is_unread


class ClientStream:
    """A client's end. Belongs to the test's own code, to no process."""

    def __init__(self, name: str, to_node: Flow, to_client: Flow) -> None:
        self.name = name
        self.to_node = to_node
        self.to_client = to_client
        self._unwritten = bytearray()
        self._is_finishing = False
        self._waiter: asyncio.Future[None] | None = None
        to_node.on_room = self._write_on
        to_client.on_arrival = self._wake
        to_client.on_unheard = to_node.reset

    def write(self, data: Buffer) -> None:
        """Send bytes, in whatever time."""
        self._unwritten += data
        self._write_on()

    def _write_on(self) -> None:
        while self._unwritten and (count := self.to_node.take(self._unwritten)):
            del self._unwritten[:count]
        if self._is_finishing and not self._unwritten:
            self._is_finishing = False
            self.to_node.finish()

    @property
    def is_delivered(self) -> bool:
        """Whether the node has read everything."""
        return not self._unwritten and self.to_node.is_delivered

    async def read(self, count: int) -> bytes:
        """Up to `count` of the next bytes; none at the end. Raises ConnectionResetError."""
        flow = self.to_client
        while True:
            if flow.is_deaf:
                return b""
            if flow.arrived:
                return flow.read(count)
            if flow.is_reset:
                raise ConnectionResetError(f"{self.name} was reset")
            if flow.is_at_end:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def half_close(self) -> None:
        """Send the end after all bytes, and read on."""
        self._is_finishing = True
        self._write_on()

    def close(self) -> None:
        """End both directions. Unread bytes, and those still to come, reset the stream."""
        if self.to_client.is_deaf:
            return
        if self.to_client.close():
            self.to_node.reset()
        else:
            self.half_close()
        self._wake()

    def reset(self) -> None:
        """Cut the stream: bytes on the way may be lost."""
        self.to_client.close()
        self._unwritten.clear()
        self.to_node.reset()
        self._wake()

    def vanish(self) -> None:
        """The client's machine is gone, without a sound."""
        self.to_client.close()
        self.to_client.is_silent = True
        self.to_client.on_unheard = _nothing
        self._unwritten.clear()
        self.to_node.vanish()
        self._wake()


class Streams:
    """All streams of a world, and the links between clients and nodes."""

    def __init__(self, world: World, manner: StreamManner = StreamManner()) -> None:
        self.world = world
        self.loop = world.loop
        self.manner = manner
        self.random = world.random("streams")
        self.latency_s = LATENCY_S
        """Mean latency of links made from now on."""
        self.servers: dict[tuple[str, int], SimulatedServer] = {}
        """The newest of each address."""
        self._links: dict[tuple[int, int], Link] = {}
        self._count = 0

    def link(self, source: int, target: int) -> Link:
        """The direction between a client (below zero) and a node."""
        link = self._links.get((source, target))
        if link is None:
            link = Link(source, target, self.loop, self.random, self.latency_s)
            self._links[source, target] = link
        return link

    def heal(self) -> None:
        """No blocked and no slow direction any more."""
        for link in list(self._links.values()):
            link.unblock()
            link.extra_s = 0.0

    async def connect(
        self, client: int, host: str, port: int, manner: StreamManner | None = None
    ) -> ClientStream:
        """Connect a client to a node's listener, which may take for ever.

        Raises ConnectionRefusedError; OSError for an unknown host.
        """
        manner = manner or self.manner
        machine = next(
            (
                machine
                for address, machine in self.world.network.by_address.items()
                if address.partition(":")[0] == host
            ),
            None,
        )
        if machine is None:
            raise OSError(f"{host}: no such host")
        there, back = self.link(client, machine.node_id), self.link(machine.node_id, client)
        await there.cross()
        if not machine.up:
            await self.loop.create_future()
        server = self.servers.get((host, port))
        if server is None or not server.is_listening:
            await back.cross()
            raise ConnectionRefusedError(f"{host}:{port} refuses connections")
        self._count += 1
        to_node, to_client = Flow(self, there, manner), Flow(self, back, manner)
        stream = ClientStream(f"#{self._count} c{-client}>n{machine.node_id}", to_node, to_client)
        peer = f"10.0.0.{-client}", CLIENT_PORT + self._count
        server.accept(peer, to_node, to_client, self.random)
        self.world.trace(f"{stream.name} connected")
        try:
            await back.cross()
        except asyncio.CancelledError:
            stream.close()
            raise
        return stream


def exactly(manner: StreamManner) -> StreamManner:
    """The same sizes, nothing split by chance."""
    return replace(manner, is_split=False)


def _nothing() -> None:
    """Nothing to do."""
