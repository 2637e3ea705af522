"""A simulated connection: two ends, each with its sent, not yet received messages.

The rules of TCP for its users: in order, or the end. When a connection ends, a part of the messages
in flight still arrives, always the first part. A side with a vanished peer notices only after
sending: by a reset (the machine answers: no such connection), or after waiting in vain for long
enough.
"""

from __future__ import annotations

import contextvars
from collections import deque
from typing import TYPE_CHECKING, Final
from zlib import crc32

from raftlog.world.network import (
    MESSAGE_BYTES_MAX,
    QUEUED_BYTES_MAX,
    Acceptor,
    Receiver,
    RejectedError,
)
from tests.simulation.handles import Handle
from tests.simulation.link import PACKET_BYTES, Link

if TYPE_CHECKING:
    from tests.simulation.network import SimulatedNetwork
    from tests.simulation.world import Process

SOCKET_BUFFER_BYTES: Final = 256 * 1024
"""Bytes taken over by the operating system."""


class End:
    """One side's end: `Connection`, and its outgoing half."""

    def __init__(
        self, network: SimulatedNetwork, number: int, life: Process, other: Process, hello: bytes
    ) -> None:
        self.peer: End
        """The other side's; set right after."""
        self.life = life
        self.number = number
        """Of the connection, the same on both sides."""
        self.receiver: Receiver | None = None
        """None until the owner has taken the connection."""
        self.open = True
        self.broken = False
        """The way is gone for ever; this side does not know yet."""
        self.waiting = False
        """Sent messages wait until the other side has taken the connection."""
        self._denied = False
        """A reset of the other machine is in flight."""
        self._hello = hello
        self._address = other.address
        self._name = f"#{number} {life.node_id}>{other.node_id}"
        self._network = network
        self._loop = network.loop
        self._link: Link = network.link(life.node_id, other.node_id)
        self._back: Link = network.link(other.node_id, life.node_id)
        self._last_at = 0.0
        """Arrival time of the newest message: none overtakes another."""
        self._on_way: deque[Handle] = deque()
        self._stalled: deque[bytes] = deque()
        self._bytes = 0
        """Sent and not received."""
        self._timer: Handle | None = None
        """Runs while something was sent to which no acknowledgement can come."""
        life.ends[self] = None

    def __hash__(self) -> int:
        # Not by its address: owners keep connections in sets.
        return self.number

    def __repr__(self) -> str:
        return self._name

    # Connection

    @property
    def hello(self) -> bytes:
        return self._hello

    @property
    def address(self) -> str:
        return self._address

    @property
    def queued_bytes(self) -> int:
        return max(0, self._bytes - SOCKET_BUFFER_BYTES)

    def send(self, message: bytes) -> None:
        if not self.open or not self.life.alive:
            return
        if len(message) > MESSAGE_BYTES_MAX or self.queued_bytes > QUEUED_BYTES_MAX:
            self.close()
            return
        self._bytes += len(message)
        if self.waiting or self._stalled or self._link.blocked or self.is_deserted:
            self._stalled.append(message)
            if not self.waiting:
                self._stall()
        else:
            if self._back.blocked:
                self._expect_acknowledgement()
            self._transmit(message, 0.0)

    def close(self) -> None:
        if self.open and self.life.alive:
            self._finish()
            self.tell_peer()

    # The way there

    @property
    def is_deserted(self) -> bool:
        """Whether the other end is gone."""
        return self.broken or not self.peer.open

    def flush(self, delay_s: float) -> None:
        """Send waiting messages."""
        if self.open and self.is_deserted:
            self._stall()
        elif self.open and not self.waiting:
            while self._stalled:
                self._transmit(self._stalled.popleft(), delay_s)

    def _transmit(self, message: bytes, delay_s: float) -> None:
        at = max(self._last_at, self._loop.now + delay_s + self._link.delay(len(message)))
        self._last_at = at
        peer = self.peer
        self._on_way.append(self._loop.call_at(at, peer.arrive, message, context=peer.life.context))

    def arrive(self, message: bytes) -> None:
        """Take a message of the other side. Runs in the life of this side."""
        sender = self.peer
        sender._on_way.popleft()
        sender._bytes -= len(message)
        if self.open and self.receiver is not None:
            self._network.world.trace(
                f"{sender._name} {len(message)} bytes {crc32(message):08x} received"
            )
            self.receiver.received(message)

    def _stall(self) -> None:
        """Retransmit unacknowledged messages until an answer, or until the connection gives up."""
        blocked = self._link.blocked or self._back.blocked
        if self.is_deserted and not blocked and self.peer.life.machine.up:
            if not self._denied:
                self._denied = True
                self.end_in(self._link.delay(PACKET_BYTES) + self._back.delay(PACKET_BYTES))
            return
        self._link.stalled[self] = None
        self._expect_acknowledgement()

    def _expect_acknowledgement(self) -> None:
        if self._timer is None:
            give_up_s = self._network.random.uniform(*self._network.give_up_s)
            outside = contextvars.Context()
            self._timer = self._loop.call_later(give_up_s, self._give_up, context=outside)

    def _give_up(self) -> None:
        self._timer = None
        blocked = self._link.blocked or self._back.blocked
        if self.open and (blocked or self.is_deserted):
            self.end_in(0.0)

    # Its end

    def end_in(self, delay_s: float) -> None:
        """End this side by the operating system, after all messages sent to it."""
        at = max(self.peer._last_at, self._loop.now + delay_s)
        self._loop.call_at(at, self._end, context=self.life.context)

    def _end(self) -> None:
        if self.open:
            self._finish()
            self.tell_peer()

    def tell_peer(self) -> None:
        """Notify the other side, at once or when the link is free."""
        self.lose_tail()
        peer = self.peer
        if not peer.open or peer.broken:
            return
        if self._link.blocked:
            self._link.ending[peer] = None
        else:
            peer.end_in(self._link.delay(PACKET_BYTES))

    def lose_tail(self) -> None:
        """Of the messages in flight, only a first part of random length arrives."""
        self._stalled.clear()
        kept = self._network.random.randint(0, len(self._on_way))
        while len(self._on_way) > kept:
            self._on_way.pop().cancel()

    def retry(self, delay_s: float) -> None:
        """The other machine is back: it soon resets a connection with messages sent meanwhile."""
        if self.open and self._timer is not None and self.is_deserted:
            self.end_in(delay_s)

    def abandon(self) -> None:
        """Forget this end with its life, silently."""
        self.open = False
        self._forget()

    def _finish(self) -> None:
        self.open = False
        self._forget()
        self._loop.call_soon(self._tell_owner, context=self.life.context)

    def _forget(self) -> None:
        self._stalled.clear()
        self._link.stalled.pop(self, None)
        self._back.ending.pop(self, None)
        self.life.ends.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell_owner(self) -> None:
        if self.receiver is not None:
            self._network.world.trace(f"{self!r} closed")
            self.receiver.closed()

    # Its beginning

    def take(self, acceptor: Acceptor) -> None:
        """Hand this end to the called side, when the caller is known to have agreed."""
        if not self.open:
            return
        try:
            self.receiver = acceptor.opened(self)
        except RejectedError as error:
            self._network.world.trace(f"{self!r} rejected: {error.code}")
            self.close()
            return
        self._network.world.trace(f"{self!r} accepted")

    def confirm(self, acceptor: Acceptor) -> Handle:
        """Send the message that makes the other side `take` its end, before all others."""
        at = self._last_at = self._loop.now + self._link.delay(PACKET_BYTES)
        return self._loop.call_at(at, self.peer.take, acceptor, context=self.peer.life.context)
