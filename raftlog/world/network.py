"""The network between nodes: kept connections that carry whole messages, authenticated.

A connection belongs to a *channel* (what it is for) and opens with a *hello* from each side: bytes
in which each says who it is. The side that is called may reject the other by a `RejectedError`,
and so may the caller after it has read the answer. Both sides have proven by then that they hold
the cluster's secret.

What a connection promises: messages arrive whole, in order, none twice, none missing in between.
What it does not: that the last ones sent before its end arrive, or that either side learns of the
end soon. A peer that has vanished is noticed by its silence, which is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""A longer message ends the connection, on either side."""
QUEUED_BYTES_MAX: Final = 64 * 1024 * 1024
"""A connection whose peer does not read is ended once so much waits to be sent on it."""


class NetworkError(Exception):
    """No connection: the peer did not answer in time, or the way to it is broken."""


class RefusedError(NetworkError):
    """Nobody listens at that address: the machine is there, the process is not."""


class RejectedError(Exception):
    """The peer is there and does not want this connection. `code` is of the error table."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def message(self) -> str:
        """Why, for a person."""
        return str(self.args[0])


class Connection(Protocol):
    """One side's end of an open connection."""

    @property
    def hello(self) -> bytes:
        """What the other side said of itself."""
        ...

    @property
    def address(self) -> str:
        """Where the other side is, for logs."""
        ...

    @property
    def queued_bytes(self) -> int:
        """What was sent but not yet handed to the operating system."""
        ...

    def send(self, message: bytes) -> None:
        """Send a message. Never blocks, never raises; on a connection that has ended, nothing."""
        ...

    def close(self) -> None:
        """End the connection; what was sent and has not left is lost. Harmless if it has ended."""
        ...


class Receiver(Protocol):
    """What a connection tells its owner, from the event loop. Must not raise."""

    def received(self, message: bytes) -> None:
        """A message has arrived."""
        ...

    def closed(self) -> None:
        """The connection has ended, whoever ended it. Told once; nothing is received after it."""
        ...


Opened: TypeAlias = Callable[[Connection], Receiver]
"""Takes a new connection. May raise RejectedError, which ends it."""


class Acceptor(Protocol):
    """The called side of a channel."""

    def hello(self, hello: bytes) -> bytes:
        """Answer a caller's hello with one's own. Raises RejectedError."""
        ...

    def opened(self, connection: Connection) -> Receiver:
        """Take the connection of a caller that was answered. Raises RejectedError."""
        ...


class Network(Protocol):
    """The way to the other nodes of the cluster."""

    async def connect(
        self, address: str, channel: str, hello: bytes, opened: Opened, *, timeout_s: float
    ) -> None:
        """Open a connection to the node at `address` (`host:port`) and hand it to `opened`.

        `opened` is called before this returns, and before anything is received. Raises
        RefusedError, NetworkError, or RejectedError by either side.
        """
        ...

    async def is_refused(self, address: str, *, timeout_s: float) -> bool:
        """Whether nobody listens at `address`. False also if that cannot be found out in time."""
        ...

    def accept(self, channel: str, acceptor: Acceptor) -> None:
        """Let other nodes open connections of that channel. Until then they are rejected."""
        ...
