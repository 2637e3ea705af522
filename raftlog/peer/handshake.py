"""The two sides of an opening on their transports, which end with a `NodeSocket`.

Each side is its transport's protocol until the handshake (auth.py) is done. Everything happens
within the read callback. The called side starts behind the HTTP response, the calling side with its
request. Each holds at most one message of the handshake.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Final, cast

from raftlog.peer.auth import NONCE_BYTES, STEP_BYTES_MAX, AuthError, Callee, Caller
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
from raftlog.peer.opening import KEY_BYTES, Challenge, OpeningError, ResponseReader, request_head
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
"""A caller's seconds for the handshake, from the response to its request."""

SAME_SECRET: Final = (
    "Start every node of a cluster with the same secret: RAFTLOG_CLUSTER_SECRET, or the file "
    "`cluster.secret` that the cluster's first node has created in its data directory."
)


HANDSHAKES_MAX: Final = 256
"""Most openings by callers in progress, each within HANDSHAKE_S."""
HANDSHAKES_PER_ADDRESS_MAX: Final = HANDSHAKES_MAX // 4
"""Most openings of one address or IPv6 /64 network, a quarter of all."""


class Openings:
    """The transports of one node's network, from their first bytes to their ends."""

    def __init__(self, on_broken_invariant: Callable[[AssertionError], None] | None) -> None:
        """`on_broken_invariant` gets the assertions that fail in receivers and acceptors."""
        self.callees: dict[CalleeSide, None] = {}
        """Openings by callers, oldest first."""
        self.callers: set[CallerSide] = set()
        self.sockets: dict[NodeSocket, bytes] = {}
        """Open connections, with the key by which both sides have proven themselves."""
        self.is_closed = False
        self._on_broken_invariant = on_broken_invariant

    def begin(self, side: CallerSide | CalleeSide) -> None:
        """Register a transport that is being opened, or abort it if the network is closed."""
        if self.is_closed:
            side.abort()
        if isinstance(side, CalleeSide):
            self.callees[side] = None
        else:
            self.callers.add(side)

    def make_room(self, place: str) -> bool:
        """Make room for one more caller from `place`. Returns whether there is room.

        Over a bound, the oldest caller that has not proven its hello is dropped. A node proves its
        hello within a round trip. A caller that repeats recorded bytes never does.
        """
        here = [side for side in self.callees if side.place == place]
        if len(here) >= HANDSHAKES_PER_ADDRESS_MAX:
            return _end_oldest_unproven(here)
        if len(self.callees) >= HANDSHAKES_MAX:
            return _end_oldest_unproven(self.callees)
        return True

    def end_without_key(self, keys: Sequence[bytes]) -> int:
        """End all connections proven by a key outside `keys`, and return their number."""
        ended = [socket for socket, key in self.sockets.items() if key not in keys]
        for socket in ended:
            socket.close()
        sides: list[CalleeSide | CallerSide] = [*self.callees, *self.callers]
        for side in sides:
            if side.key is not None and side.key not in keys:
                side.abort()
        return len(ended)

    def end(self, side: CallerSide | CalleeSide) -> None:
        """Unregister a transport that is open or will never open. Harmless to repeat."""
        if isinstance(side, CalleeSide):
            self.callees.pop(side, None)
        else:
            self.callers.discard(side)

    def report_failure(self, error: Exception) -> None:
        """Report the failure of a receiver or an acceptor after the end of its connection."""
        if isinstance(error, AssertionError) and self._on_broken_invariant is not None:
            self._on_broken_invariant(error)

    def close(self) -> None:
        """End all transports and open no more. Harmless to repeat."""
        self.is_closed = True
        for side in [*self.callees, *self.callers]:
            side.abort()
        for socket in list(self.sockets):
            socket.close()


def _end_oldest_unproven(sides: Iterable[CalleeSide]) -> bool:
    for side in sides:
        if not side.is_proven:
            side.give_way()
            return True
    return False


class _Side(asyncio.Protocol):
    """The parts shared by the two sides."""

    def __init__(self, openings: Openings, *, is_caller: bool) -> None:
        self._openings = openings
        self._is_caller = is_caller
        self._transport: asyncio.Transport | None = None
        # A single reader takes the steps and all later messages, which may arrive with the last
        # step.
        self._reader = FrameReader(is_masked=not is_caller, bytes_max=STEP_BYTES_MAX + LENGTH_BYTES)

    def eof_received(self) -> bool:
        """Close the transport, because the peer has ended its half."""
        return False

    def abort(self) -> None:
        """End the opening."""
        if self._transport is not None:
            self._transport.abort()

    def _begin(self, transport: asyncio.BaseTransport) -> asyncio.Transport:
        # uvloop's transport has the interface but not the base class.
        self._transport = begun = cast(asyncio.Transport, transport)
        return begun

    def _write(self, message: bytes) -> None:
        assert self._transport is not None
        mask = secrets.token_bytes(MASK_BYTES) if self._is_caller else None
        pieces = (pack_length(len(message)), message)
        for data in frame(pieces, LENGTH_BYTES + len(message), mask):
            self._transport.write(data)

    def _peer_is_proven(self) -> None:
        self._reader.allow(FRAME_BYTES_MAX)

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
            self._openings.sockets.pop(socket, None)
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

    def _let_go(
        self, socket: NodeSocket, key: bytes, receiver: Receiver, rest: list[bytes]
    ) -> None:
        """Make the socket the transport's protocol."""
        assert self._transport is not None
        self._openings.sockets[socket] = key
        self._transport.set_protocol(socket)
        socket.start(receiver)
        socket.deliver(rest)


class CallerSide(_Side):
    """The calling side. Its work is over when the outcome `done` is set."""

    def __init__(
        self,
        openings: Openings,
        address: str,
        channel: str,
        *,
        hello: bytes,
        keys: Sequence[bytes],
        opened: Opened,
    ) -> None:
        """`keys` are tried in order until the callee knows a key."""
        super().__init__(openings, is_caller=True)
        self.done: asyncio.Future[NodeSocket] = asyncio.get_running_loop().create_future()
        self.is_lost = False
        """Whether the transport has ended before the connection opened."""
        self._address = address
        self._channel = channel
        self._hello = hello
        self._untried = list(keys)
        self._opened = opened
        self._nonce = b""
        self._caller: Caller | None = None
        """The handshake with the key tried last."""
        self._response: ResponseReader | None = None

    @property
    def key(self) -> bytes | None:
        """The key tried last, or None before the first."""
        return None if self._caller is None else self._caller.key

    def give_up(self) -> None:
        """End the opening, because the caller has stopped waiting for `done`."""
        self.done.cancel()
        self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._begin(transport)
        self._request()
        self._openings.begin(self)

    def data_received(self, data: bytes) -> None:
        """Execute the next steps of the handshake."""
        if self.done.done():
            return
        try:
            self._take(data)
        except AuthError as error:
            logger.warning("The node at %s has not proven itself: %s", self._address, error)
            self._fail(_unproven(f"The node at {self._address} has another cluster secret."))
        except (OpeningError, FrameError) as error:
            self._fail(NetworkError(f"{self._address} does not answer as a raftlog node: {error}"))
        except Exception as error:
            # Raised by the callee or by the connection's new owner. `done` passes it on.
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail, because the transport has ended before the connection opened."""
        self.is_lost = True
        self._openings.end(self)
        self._fail(NetworkError(f"{self._address} ended the connection while it was opened"))

    def _fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
        self.abort()

    def _request(self, callee_nonce: bytes = b"") -> None:
        """Send a request, first without a proof, then with a proof for each key."""
        assert self._transport is not None
        proof = b""
        self._nonce = self._nonce or secrets.token_bytes(NONCE_BYTES)
        if callee_nonce:
            self._caller = Caller(
                self._untried.pop(0), self._channel, self._hello, self._nonce, callee_nonce
            )
            proof = self._caller.opening()
        key = secrets.token_bytes(KEY_BYTES)
        self._response = ResponseReader(key)
        self._transport.write(
            request_head(
                self._address,
                self._channel,
                key,
                self._nonce,
                callee_nonce=callee_nonce,
                proof=proof,
            )
        )

    def _take(self, data: bytes) -> None:
        if self._response is not None:
            found = self._response.feed(data)
            if found is None:
                return
            challenge, data = found
            if challenge.status != HTTPStatus.SWITCHING_PROTOCOLS:
                self._refused(challenge, data)
                return
            if self._caller is None:
                raise OpeningError("it accepts the connection without a proof")
            self._response = None
            self._write(self._caller.challenged(challenge.proof))
        assert self._caller is not None
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
            self._let_go(socket, self._caller.key, receiver, messages[index + 1 :])
            return
        if self._reader.is_ended:
            raise FrameError("it ends the connection")

    def _refused(self, challenge: Challenge, rest: bytes) -> None:
        """Prove the next key for the nonce in the response. Raises if no key is left."""
        is_asked = challenge.status == HTTPStatus.UNAUTHORIZED and challenge.nonce
        if not is_asked or not self._untried:
            raise _refusal(self._address, challenge.status)
        if rest:
            raise OpeningError("it sends a message out of turn")
        self._request(challenge.nonce)


class CalleeSide(_Side):
    """The called side, starting with the HTTP response."""

    def __init__(
        self,
        openings: Openings,
        callee: Callee,
        response: bytes,
        acceptor: Acceptor | None,
        *,
        place: str,
        on_lost: Callable[[BaseException | None], None],
    ) -> None:
        """`on_lost` is called when the transport is gone. No `acceptor` rejects all callers."""
        super().__init__(openings, is_caller=False)
        self.place = place
        """Address group by which the openings are limited."""
        self._callee = callee
        self._response = response
        self._acceptor = acceptor
        self._on_lost = on_lost
        self._deadline: asyncio.TimerHandle | None = None
        self._is_over = False

    @property
    def key(self) -> bytes:
        """The key of the caller's proof."""
        return self._callee.key

    @property
    def is_proven(self) -> bool:
        """Whether the caller has proven its hello."""
        return self._callee.hello is not None

    def give_way(self) -> None:
        """End the opening in favour of a newer opening."""
        logger.info("The opening by %s ends because newer openings need its place", self._peer())
        self._is_over = True
        self._openings.end(self)
        self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the response to the caller's request."""
        begun = self._begin(transport)
        begun.write(self._response)
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_S, begun.abort)
        self._openings.begin(self)

    def data_received(self, data: bytes) -> None:
        """Execute the next steps of the handshake."""
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
        """Note that the transport has ended before the connection opened."""
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
            # Sent before the owner's first messages, which the socket keeps until `_let_go`.
            self._write(self._callee.welcome())
            self._end()
            self._let_go(socket, self._callee.key, receiver, messages[index + 1 :])
            return
        if self._reader.is_ended:
            self._close()

    def _close(self) -> None:
        """Close once the written bytes have left. The deadline stays for peers that do not read."""
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
    """Return the address of a transport's other end, as `host:port`."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple) or len(peer) < 2:
        return "unknown"
    host, port = peer[:2]
    return join_address(host, port)


def _unproven(what: str) -> RejectedError:
    return RejectedError(UNAUTHORIZED.code, f"{what} {SAME_SECRET}", is_proven=False)


def _refusal(address: str, status: int) -> Exception:
    """Return the exception for a response other than 101. Any status means that it is unproven."""
    if status == HTTPStatus.UNAUTHORIZED:
        return _unproven(
            f"{address} does not know this node's cluster secret (HTTP 401), or something on the "
            "way answers in the node's place."
        )
    if status == HTTPStatus.BAD_REQUEST:
        return RejectedError(
            ILLEGAL_STATE.code,
            f"{address} does not speak this version of the protocol between nodes (HTTP 400): run "
            "releases on all nodes that are made to work together.",
            is_proven=False,
        )
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        return NetworkError(f"The node at {address} takes no connections now (HTTP {status}).")
    return NetworkError(f"{address} does not answer as a raftlog node: HTTP {status}.")
