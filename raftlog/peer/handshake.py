"""The two sides of an opening, on their transports: bytes to steps, and in the end a `NodeSocket`.

Each is its transport's protocol until the handshake (auth.py) is done, and everything happens
within the read callback. The called side begins behind HTTP's answer, the calling side with its own
request; both hold at most one message of the handshake.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, cast

from raftlog.peer.auth import STEP_BYTES_MAX, AuthError, Callee, Caller
from raftlog.peer.dial import join_address
from raftlog.peer.frames import (
    FRAME_BYTES_MAX,
    LENGTH_BYTES,
    MASK_BYTES,
    FrameError,
    FrameReader,
    frame,
    pack_length,
)
from raftlog.peer.opening import KEY_BYTES, OpeningError, ResponseReader, request_head
from raftlog.peer.socket import NodeSocket
from raftlog.record.errors import ILLEGAL_STATE, NOT_READY, UNAUTHORIZED
from raftlog.world.network import (
    Acceptor,
    Connection,
    NetworkError,
    Opened,
    Receiver,
    RejectedError,
)

logger = logging.getLogger(__name__)

HANDSHAKE_S: Final = 5.0
"""A caller's time for the handshake, from the answer to its request on."""

SAME_SECRET: Final = (
    "Start every node of a cluster with the same secret: RAFTLOG_CLUSTER_SECRET, or the file "
    "`cluster.secret` that the cluster's first node has created in its data directory."
)


class Openings:
    """The transports of one node's network, from their first bytes to their ends."""

    def __init__(self, on_broken_invariant: Callable[[AssertionError], None] | None) -> None:
        """`on_broken_invariant` gets the assertions that fail in receivers and acceptors."""
        self.callees: set[CalleeSide] = set()
        self.callers: set[CallerSide] = set()
        self.sockets: set[NodeSocket] = set()
        """Open connections."""
        self.is_closed = False
        self._on_broken_invariant = on_broken_invariant

    def begin(self, side: CallerSide | CalleeSide) -> None:
        """Register a transport that is being opened; abort it if the network is closed."""
        if self.is_closed:
            side.abort()
        if isinstance(side, CalleeSide):
            self.callees.add(side)
        else:
            self.callers.add(side)

    def end(self, side: CallerSide | CalleeSide) -> None:
        """Unregister a transport that is open, or never will be. Harmless if done already."""
        if isinstance(side, CalleeSide):
            self.callees.discard(side)
        else:
            self.callers.discard(side)

    def report_failure(self, error: Exception) -> None:
        """Report the failure of a receiver or an acceptor, after the end of its connection."""
        if isinstance(error, AssertionError) and self._on_broken_invariant is not None:
            self._on_broken_invariant(error)

    def close(self) -> None:
        """End all transports, and open none any more. Harmless if done already."""
        self.is_closed = True
        for side in [*self.callees, *self.callers]:
            side.abort()
        for socket in list(self.sockets):
            socket.close()


class _Side(asyncio.Protocol):
    """The parts that both sides share: the transport, the reader, and the last step."""

    def __init__(self, openings: Openings, *, is_caller: bool) -> None:
        self._openings = openings
        self._is_caller = is_caller
        self._transport: asyncio.Transport | None = None
        # One reader for the steps and all later messages, which may arrive with the last step.
        self._reader = FrameReader(is_masked=not is_caller, bytes_max=STEP_BYTES_MAX + LENGTH_BYTES)

    def eof_received(self) -> bool:
        """The peer has ended its half: close the transport."""
        return False

    def abort(self) -> None:
        """End the opening."""
        if self._transport is not None:
            self._transport.abort()

    def _begin(self, transport: asyncio.BaseTransport, first: bytes) -> asyncio.Transport:
        # uvloop's transport has the interface, but not the base class.
        self._transport = begun = cast(asyncio.Transport, transport)
        begun.write(first)
        return begun

    def _write(self, message: bytes) -> None:
        assert self._transport is not None
        mask = secrets.token_bytes(MASK_BYTES) if self._is_caller else None
        pieces = (pack_length(len(message)), message)
        for data in frame(pieces, LENGTH_BYTES + len(message), mask):
            self._transport.write(data)

    def _peer_is_proven(self) -> None:
        self._reader.bytes_max = FRAME_BYTES_MAX

    def _offer(
        self,
        hello: bytes | None,
        address: str,
        opened: Callable[[Connection], Receiver],
        on_lost: Callable[[BaseException | None], None],
    ) -> tuple[NodeSocket, Receiver]:
        """Hand the connection to its owner. The owner's exceptions pass."""
        assert self._transport is not None
        assert hello is not None

        def lost(error: BaseException | None) -> None:
            self._openings.sockets.discard(socket)
            on_lost(error)

        socket = NodeSocket(
            self._transport,
            self._reader,
            hello=hello,
            address=address,
            is_caller=self._is_caller,
            on_lost=lost,
            on_broken_invariant=self._openings.report_failure,
        )
        try:
            return socket, opened(socket)
        except BaseException:
            socket.withdraw()
            raise

    def _let_go(self, socket: NodeSocket, receiver: Receiver, rest: list[bytes]) -> None:
        """Make the socket the transport's protocol."""
        assert self._transport is not None
        self._openings.sockets.add(socket)
        self._transport.set_protocol(socket)
        socket.start(receiver)
        socket.deliver(rest)


class CallerSide(_Side):
    """The calling side. `done` has the outcome; with `done`, this object's work is over."""

    def __init__(
        self, openings: Openings, address: str, channel: str, caller: Caller, opened: Opened
    ) -> None:
        super().__init__(openings, is_caller=True)
        self.done: asyncio.Future[NodeSocket] = asyncio.get_running_loop().create_future()
        self._address = address
        self._caller = caller
        self._opened = opened
        key = secrets.token_bytes(KEY_BYTES)
        self._request = request_head(address, channel, key, caller.nonce, caller.opening())
        self._response: ResponseReader | None = ResponseReader(key)

    def give_up(self) -> None:
        """End the opening: the caller has stopped waiting for `done`."""
        self.done.cancel()
        self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._begin(transport, self._request)
        self._openings.begin(self)

    def data_received(self, data: bytes) -> None:
        """Take the next steps of the handshake."""
        if self.done.done():
            return
        try:
            self._take(data)
        except AuthError as error:
            logger.warning("The node at %s has not proven itself: %s", self._address, error)
            self._fail(_rejected(f"The node at {self._address} has another cluster secret."))
        except (OpeningError, FrameError) as error:
            self._fail(NetworkError(f"{self._address} does not answer as a raftlog node: {error}"))
        except Exception as error:
            # Raised by the callee, or by the connection's new owner: `done` passes it on.
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport has ended before the connection opened."""
        self._openings.end(self)
        self._fail(NetworkError(f"{self._address} ended the connection while it was opened"))

    def _fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
        self.abort()

    def _take(self, data: bytes) -> None:
        if self._response is not None:
            found = self._response.feed(data)
            if found is None:
                return
            self._response = None
            challenge, data = found
            if challenge.status != HTTPStatus.SWITCHING_PROTOCOLS:
                raise _refusal(self._address, challenge.status)
            self._write(self._caller.challenged(challenge.nonce, challenge.proof))
        messages = self._reader.feed(data)
        for index, message in enumerate(messages):
            if self._caller.hello is None:
                self._write(self._caller.answered(message))
                self._peer_is_proven()
                continue
            self._caller.welcomed(message)
            socket, receiver = self._offer(
                self._caller.hello, self._address, self._opened, lambda _error: None
            )
            self._openings.end(self)
            self.done.set_result(socket)
            self._let_go(socket, receiver, messages[index + 1 :])
            return
        if self._reader.is_ended:
            raise FrameError("it ends the connection")


class CalleeSide(_Side):
    """The called side, from HTTP's answer on."""

    def __init__(
        self,
        openings: Openings,
        callee: Callee,
        response: bytes,
        acceptor: Acceptor | None,
        *,
        on_lost: Callable[[BaseException | None], None],
    ) -> None:
        """`on_lost` is called when the transport is gone; no `acceptor`: reject all callers."""
        super().__init__(openings, is_caller=False)
        self._callee = callee
        self._response = response
        self._acceptor = acceptor
        self._on_lost = on_lost
        self._deadline: asyncio.TimerHandle | None = None
        self._is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer the caller's request."""
        begun = self._begin(transport, self._response)
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_S, begun.abort)
        self._openings.begin(self)

    def data_received(self, data: bytes) -> None:
        """Take the next steps of the handshake."""
        if self._is_over:
            return
        try:
            self._take(self._reader.feed(data))
        except (AuthError, FrameError) as error:
            logger.info("The opening by %s ends: %s", self._peer(), error)
            self._is_over = True
            self.abort()
        except RejectedError as error:
            self._write(self._callee.rejection(error))
            self._close()
        except Exception as error:
            logger.exception("The opening by %s failed", self._peer())
            self._is_over = True
            self.abort()
            self._openings.report_failure(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport has ended before the connection opened."""
        self._end()
        self._on_lost(exc)

    def _take(self, messages: list[bytes]) -> None:
        for index, message in enumerate(messages):
            if self._callee.hello is None:
                hello = self._callee.take_hello(message)
                if self._acceptor is None:
                    raise RejectedError(
                        NOT_READY.code, "The node takes no connections of this kind yet."
                    )
                self._write(self._callee.answer(self._acceptor.hello(hello)))
                continue
            self._callee.confirmed(message)
            self._peer_is_proven()
            acceptor = self._acceptor
            assert acceptor is not None
            socket, receiver = self._offer(
                self._callee.hello, self._peer(), acceptor.opened, self._on_lost
            )
            # Before the owner's first messages, which the socket holds back until `_let_go`.
            self._write(self._callee.welcome())
            self._end()
            self._let_go(socket, receiver, messages[index + 1 :])
            return
        if self._reader.is_ended:
            self._close()

    def _close(self) -> None:
        """End once the written bytes have left; the deadline stays, for peers that do not read."""
        assert self._transport is not None
        self._is_over = True
        self._transport.close()

    def _end(self) -> None:
        self._is_over = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._openings.end(self)

    def _peer(self) -> str:
        assert self._transport is not None
        return peer_address(self._transport)


def peer_address(transport: asyncio.BaseTransport) -> str:
    """Address of a transport's other end, as `host:port`."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple) or len(peer) < 2:
        return "unknown"
    host, port = peer[:2]
    return join_address(host, port)


def _rejected(what: str) -> RejectedError:
    return RejectedError(UNAUTHORIZED.code, f"{what} {SAME_SECRET}")


def _refusal(address: str, status: int) -> Exception:
    """The exception for an answer other than 101."""
    if status == HTTPStatus.UNAUTHORIZED:
        return _rejected(f"The node at {address} does not know this node's cluster secret.")
    if status == HTTPStatus.BAD_REQUEST:
        return RejectedError(
            ILLEGAL_STATE.code,
            f"The node at {address} speaks another version of the protocol between nodes: "
            "run releases on all nodes that are made to work together.",
        )
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        return NetworkError(f"The node at {address} takes no connections now (HTTP {status}).")
    return NetworkError(f"{address} does not answer as a raftlog node: HTTP {status}.")
