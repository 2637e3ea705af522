"""The network between nodes, with kept, authenticated connections of whole messages.

A connection belongs to a *channel* (its protocol's name) and opens with a *hello* from each side,
bytes with the side's identity. The called side may reject the caller by a `RejectedError`, and so
may the caller after reading the response. By then both sides have proven to hold the cluster's
secret.

A connection promises that messages arrive whole, in order, none twice, none missing in between. The
last messages before the end may be lost, and either side may notice the end late. A vanished peer
shows only by its silence. `peer.channel` watches for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""A longer message ends the connection, on either side."""
QUEUED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Most bytes waiting to be sent. A connection with more ends, since its peer does not read."""


class NetworkError(Exception):
    """No connection, because no response came in time or no route exists."""


class RefusedError(NetworkError):
    """The address refuses connections, so the machine is up and the process is not."""


class RejectedError(Exception):
    """The peer is up and rejects the connection. `code` is of the error table."""

    def __init__(self, code: int, message: str, *, is_proven: bool = True) -> None:
        """`is_proven` means that the responding node holds the secret. Otherwise any program may
        have responded."""
        super().__init__(message)
        self.code = code
        self.is_proven = is_proven

    @property
    def message(self) -> str:
        """The reason, for the operator."""
        return str(self.args[0])


class Connection(Protocol):
    """One side's end of an open connection."""

    @property
    def hello(self) -> bytes:
        """The other side's hello."""
        ...

    @property
    def address(self) -> str:
        """The other side's address, for logs."""
        ...

    @property
    def queued_bytes(self) -> int:
        """Bytes sent but not yet handed to the operating system."""
        ...

    def send(self, message: bytes) -> None:
        """Send a message. Never blocks, never raises, has no effect on an ended connection."""
        ...

    def close(self) -> None:
        """End the connection. Messages not sent yet are lost. Harmless if it has ended."""
        ...


class Receiver(Protocol):
    """The owner's callbacks of a connection, in the event loop. Must not raise."""

    def received(self, message: bytes) -> None:
        """A message has arrived."""
        ...

    def closed(self) -> None:
        """The connection has ended, by either side. Called once, as the last callback."""
        ...


Opened: TypeAlias = Callable[[Connection], Receiver]
"""Takes a new connection. May raise RejectedError, which ends the connection."""


class Acceptor(Protocol):
    """The called side of a channel."""

    def hello(self, hello: bytes) -> bytes:
        """Return this side's hello in response to a caller's. Raises RejectedError."""
        ...

    def opened(self, connection: Connection) -> Receiver:
        """Take the connection of an accepted caller. Raises RejectedError."""
        ...


class Network(Protocol):
    """Connections to and from the other nodes of the cluster."""

    async def connect(
        self, address: str, channel: str, hello: bytes, opened: Opened, *, timeout_s: float
    ) -> None:
        """Open a connection to the node at `address` (`host:port`) for `opened`.

        Calls `opened` before returning, and before the first message arrives. Raises RefusedError,
        NetworkError, or RejectedError by either side.
        """
        ...

    async def is_refused(self, address: str, *, timeout_s: float) -> bool:
        """Whether `address` refuses connections. False also if no response comes in time."""
        ...

    def accept(self, channel: str, acceptor: Acceptor) -> None:
        """Let other nodes open connections of that channel, which are rejected until then."""
        ...
