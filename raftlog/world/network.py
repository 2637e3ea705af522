"""The network between nodes: kept, authenticated connections of whole messages.

A connection belongs to a *channel* (its purpose) and opens with a *hello* from each side: bytes
that identify the node. The called side may reject the caller by a `RejectedError`, and so may the
caller after reading the answer. By then both sides have proven possession of the cluster's secret.

A connection promises whole messages, in order, none twice, none missing in between. Not promised:
arrival of the last messages sent before its end, or notice of the end to either side soon. Only
silence shows a vanished peer; to detect silence is the caller's task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""A longer message ends the connection, on either side."""
QUEUED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Most unsent bytes of a connection; beyond, a connection whose peer does not read is ended."""


class NetworkError(Exception):
    """No connection: no answer from the peer in time, or the path is broken."""


class RefusedError(NetworkError):
    """No listener at the address: the machine is up, the process is not."""


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
        """The other side's hello."""
        ...

    @property
    def address(self) -> str:
        """Where the other side is, for logs."""
        ...

    @property
    def queued_bytes(self) -> int:
        """Bytes sent but not yet passed to the operating system."""
        ...

    def send(self, message: bytes) -> None:
        """Send a message. Never blocks, never raises; does nothing on an ended connection."""
        ...

    def close(self) -> None:
        """End the connection; unsent messages are lost. Harmless on an ended connection."""
        ...


class Receiver(Protocol):
    """The owner of a connection, called from the event loop. Must not raise."""

    def received(self, message: bytes) -> None:
        """A message has arrived."""
        ...

    def closed(self) -> None:
        """The connection has ended, by either side. Called once; nothing is received afterwards."""
        ...


Opened: TypeAlias = Callable[[Connection], Receiver]
"""Takes a new connection. May raise RejectedError, which ends the connection."""


class Acceptor(Protocol):
    """The called side of a channel."""

    def hello(self, hello: bytes) -> bytes:
        """Answer a caller's hello with the own one. Raises RejectedError."""
        ...

    def opened(self, connection: Connection) -> Receiver:
        """Take the connection of an answered caller. Raises RejectedError."""
        ...


class Network(Protocol):
    """The way to the other nodes of the cluster."""

    async def connect(
        self, address: str, channel: str, hello: bytes, opened: Opened, *, timeout_s: float
    ) -> None:
        """Open a connection to the node at `address` (`host:port`) and pass it to `opened`.

        `opened` is called before this returns, and before anything is received. Raises
        RefusedError, NetworkError, or RejectedError by either side.
        """
        ...

    async def is_refused(self, address: str, *, timeout_s: float) -> bool:
        """Whether no process listens at `address`. False also if unknown in time."""
        ...

    def accept(self, channel: str, acceptor: Acceptor) -> None:
        """Accept connections of other nodes on `channel`, which are rejected until then."""
        ...
