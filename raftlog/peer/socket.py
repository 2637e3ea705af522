"""An open connection between nodes, which gathers sends and hands over messages as read.

`NodeSocket` is the transport's protocol after the handshake (handshake.py). It needs neither a task
nor a future. The read callback passes messages to the receiver, and all messages sent within one
turn of the event loop leave in one write at the end of the turn.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from raftlog.peer.frames import (
    GATHER_BYTES_MAX,
    LENGTH_BYTES,
    MASK_BYTES,
    FrameError,
    FrameReader,
    close_frame,
    frame,
    pack_length,
)
from raftlog.world.network import MESSAGE_BYTES_MAX, QUEUED_BYTES_MAX, Receiver

logger = logging.getLogger(__name__)


CLOSE_S: Final = 1.0
"""Seconds for the last messages of a closed connection."""
DELIVERY_S: Final = 0.005
"""Seconds for received messages in one turn of the event loop. The rest waits for the next turn,
and the transport is not read until then. One read may bring thousands of messages."""


class _State(Enum):
    OFFERED = auto()
    """No owner yet. Messages to the peer are held back."""
    OPEN = auto()
    ENDED = auto()


_OPEN: Final = _State.OPEN


class NodeSocket(asyncio.Protocol):
    """`Connection` over a transport after its handshake."""

    def __init__(
        self,
        transport: asyncio.Transport,
        reader: FrameReader,
        *,
        hello: bytes,
        address: str,
        is_caller: bool,
        on_lost: Callable[[BaseException | None], None],
        on_broken_invariant: Callable[[Exception], None],
    ) -> None:
        """`on_lost` is called when the transport is gone, after the receiver's `closed`."""
        self.hello = hello
        """The other side's hello."""
        self.address = address
        """The other side's address, for logs."""
        self._transport = transport
        self._reader = reader
        self._is_caller = is_caller
        self._on_lost = on_lost
        self._on_broken_invariant = on_broken_invariant
        self._loop = asyncio.get_running_loop()
        self._receiver: Receiver | None = None
        self._undelivered: deque[bytes] = deque()
        """Messages read and not handed over yet, at most those of one read."""
        self._is_paused = False
        """Whether reading is paused until all messages are handed over."""
        self._state = _State.OFFERED
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._is_flush_due = False

    # Calls of the owner

    @property
    def is_ended(self) -> bool:
        """Whether either side has ended it. The owner's `closed` may still be due."""
        return self._state is _State.ENDED

    @property
    def queued_bytes(self) -> int:
        """Bytes sent but not yet handed to the operating system."""
        return self._pieces_bytes + self._transport.get_write_buffer_size()

    def send(self, message: bytes) -> None:
        """Send a message together with all others of this turn of the event loop."""
        if self._state is _State.ENDED:
            return
        size = len(message)
        if size > MESSAGE_BYTES_MAX:
            self._end(f"a message of {size} bytes was sent; {MESSAGE_BYTES_MAX} is the limit")
            return
        self._pieces.append(pack_length(size))
        self._pieces.append(message)
        self._pieces_bytes += size + LENGTH_BYTES
        if self._pieces_bytes >= GATHER_BYTES_MAX:
            self._flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_due)

    def close(self) -> None:
        """End the connection. A peer that still reads gets all sent messages."""
        if self._state is _State.ENDED:
            return
        transport = self._transport
        if self._state is _State.OFFERED or transport.get_write_buffer_size():
            self._state = _State.ENDED
            self._forget_pieces()
            transport.abort()
            return
        self._flush()
        transport.write(close_frame(self._mask()))
        self._state = _State.ENDED
        transport.close()
        self._loop.call_later(CLOSE_S, transport.abort)

    def start(self, receiver: Receiver) -> None:
        """Start for the connection's new owner. Sends the messages held back so far."""
        assert self._receiver is None, "a connection is taken once"
        self._receiver = receiver
        if self._state is _State.OFFERED:
            self._state = _OPEN
            held = self._pieces[1::2]
            self._forget_pieces()
            for message in held:
                self.send(message)

    def withdraw(self) -> None:
        """End without an owner. The transport stays with the caller."""
        assert self._receiver is None
        self._state = _State.ENDED
        self._forget_pieces()

    # Callbacks of the event loop

    def data_received(self, data: bytes) -> None:
        """Hand over all complete messages."""
        if self._state is not _OPEN:
            return
        try:
            messages = self._reader.feed(data)
        except FrameError as error:
            self._end(str(error))
            return
        self.deliver(messages)

    def deliver(self, messages: list[bytes]) -> None:
        """Hand over messages, in this turn of the event loop and in later turns."""
        self._undelivered.extend(messages)
        if not self._is_paused:
            self._deliver_some()

    def _deliver_some(self) -> None:
        """Hand over messages for `DELIVERY_S`, or until the connection ends."""
        undelivered = self._undelivered
        if self._receiver is None or self._state is not _OPEN:
            undelivered.clear()
            return
        received = self._receiver.received
        # The loop's time stands still within a turn of uvloop.
        end_s = time.monotonic() + DELIVERY_S
        try:
            while undelivered:
                received(undelivered.popleft())
                if self.is_ended:
                    undelivered.clear()
                    return
                if undelivered and time.monotonic() >= end_s:
                    self._is_paused = True
                    self._transport.pause_reading()
                    self._loop.call_soon(self._deliver_some)
                    return
        except Exception as error:
            logger.exception("the receiver of messages from %s failed", self.address)
            self._end("the receiver failed")
            self._on_broken_invariant(error)
            return
        if self._reader.is_ended:
            self.close()
        elif self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """Close the transport, because the peer has ended its half."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the transport is gone."""
        self._state = _State.ENDED
        self._forget_pieces()
        receiver, self._receiver = self._receiver, None
        try:
            if receiver is not None:
                receiver.closed()
        except Exception as error:
            logger.exception("closing the receiver of messages from %s failed", self.address)
            self._on_broken_invariant(error)
        finally:
            self._on_lost(exc)

    # Inner parts

    def _flush_due(self) -> None:
        self._is_flush_due = False
        self._flush()

    def _flush(self) -> None:
        """Write the gathered messages. End the connection if the peer does not read."""
        if self._state is not _OPEN:
            if self._pieces_bytes > QUEUED_BYTES_MAX:
                self._end("too much was sent before the connection was taken")
            return
        if not self._pieces:
            return
        pieces, size = self._pieces, self._pieces_bytes
        self._pieces, self._pieces_bytes = [], 0
        transport = self._transport
        for data in frame(pieces, size, self._mask()):
            transport.write(data)
        if transport.get_write_buffer_size() > QUEUED_BYTES_MAX:
            self._end(f"it does not read: more than {QUEUED_BYTES_MAX} bytes wait for it")

    def _mask(self) -> bytes | None:
        return secrets.token_bytes(MASK_BYTES) if self._is_caller else None

    def _forget_pieces(self) -> None:
        self._pieces, self._pieces_bytes = [], 0

    def _end(self, reason: str) -> None:
        if self._state is not _State.ENDED:
            logger.warning("connection to %s ended: %s", self.address, reason)
            self._state = _State.ENDED
            self._forget_pieces()
            self._transport.abort()
