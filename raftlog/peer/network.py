"""The network between nodes over each node's HTTP server.

`connect` dials, requests an upgrade of `/v1/internal/{channel}`, and does the handshake. `answer`
is the called side for the route (`http/peer_route.py`). The owner of the connection then has a
`NodeSocket`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from raftlog.peer.auth import KEYS_MAX, AuthError, Callee, check_hello
from raftlog.peer.dial import address_group, dial, parse_address
from raftlog.peer.handshake import (
    SAME_SECRET,
    CalleeSide,
    CallerSide,
    Openings,
)
from raftlog.peer.nonces import OpeningNonces
from raftlog.peer.opening import (
    CALLEE_NONCE_HEADER,
    NONCE_HEADER,
    PROOF_HEADER,
    SUBPROTOCOL,
    SUBPROTOCOL_FAMILY,
    challenge_headers,
    is_channel,
    is_upgrade,
    response_head,
    token,
)
from raftlog.peer.socket import NodeSocket
from raftlog.record.errors import (
    BAD_REQUEST,
    NOT_READY,
    OVERLOADED,
    UNAUTHORIZED,
    LogError,
)
from raftlog.world.network import Acceptor, NetworkError, Opened, RefusedError

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 4_096
"""Most open connections, accepted or dialled."""
STRANGER_LOG_INTERVAL_S: Final = 10.0
"""Shortest seconds between two log lines about callers without the secret."""


class UnprovenError(LogError):
    """A caller without a fresh proof of the secret."""

    def __init__(self, nonce: bytes) -> None:
        super().__init__(UNAUTHORIZED, f"This path is for nodes. {SAME_SECRET}")
        self.headers = challenge_headers(nonce)
        """Headers of the response, with the nonce to prove."""


class HttpNetwork:
    """`Network` between nodes that hold the same secret."""

    def __init__(
        self,
        keys: Sequence[bytes],
        *,
        on_broken_invariant: Callable[[AssertionError], None] | None = None,
    ) -> None:
        """Prepare without connections. `keys` are as for `replace_keys`.

        `on_broken_invariant` gets the assertions that fail in receivers and acceptors.
        """
        self._keys: tuple[bytes, ...] = ()
        self._acceptors: dict[str, Acceptor] = {}
        self._openings = Openings(on_broken_invariant)
        self._nonces = OpeningNonces()
        self._stranger_log_due = 0.0
        self.replace_keys(keys)

    def replace_keys(self, keys: Sequence[bytes]) -> int:
        """Use these keys (`auth.derive_key`) from now on. Returns the number of ended connections.

        The first key is used to prove, and each key is accepted. Connections proven by a removed
        key end, and their owners redial.
        """
        assert 1 <= len(keys) <= KEYS_MAX
        self._keys = tuple(keys)
        return self._openings.end_without_key(self._keys)

    # Network

    async def connect(
        self, address: str, channel: str, hello: bytes, opened: Opened, *, timeout_s: float
    ) -> None:
        """Open a connection to the node at `address` and pass it to `opened`.

        Raises RefusedError, NetworkError, or RejectedError by either side, and exceptions of
        `opened`.
        """
        if self._openings.is_closed:
            raise NetworkError("this node is stopping")
        check_hello(hello)
        side = CallerSide(
            self._openings, address, channel, hello=hello, keys=self._keys, opened=opened
        )
        try:
            async with asyncio.timeout(timeout_s):
                await self._dial(address, side)
                await side.done
        except TimeoutError:
            if _socket_of(side) is None:
                side.give_up()
                raise NetworkError(f"{address} did not answer within {timeout_s} s") from None
        except BaseException:
            socket = _socket_of(side)
            if socket is not None:
                # The caller stopped waiting in the same turn in which the connection opened.
                socket.close()
            side.give_up()
            raise

    async def _dial(self, address: str, side: CallerSide) -> None:
        try:
            host, port = parse_address(address)
            connected = await dial(host, port)
            try:
                await asyncio.get_running_loop().create_connection(lambda: side, sock=connected)
            except BaseException:
                connected.close()
                raise
            if side.is_lost:
                # uvloop has closed the descriptor before it took the socket over. The socket would
                # close it again, when it may belong to another socket or file.
                connected.detach()
        except ConnectionRefusedError:
            raise RefusedError(f"connection refused at {address}") from None
        except (OSError, ValueError) as error:
            # OSError includes the operating system's TimeoutError, which must not pass for the
            # TimeoutError of `asyncio.timeout`.
            raise NetworkError(f"{address} cannot be reached: {error}") from None

    async def is_refused(self, address: str, *, timeout_s: float) -> bool:
        """Return whether `address` refuses connections. False if no response comes in time."""
        try:
            async with asyncio.timeout(timeout_s):
                connected = await dial(*parse_address(address))
        except ConnectionRefusedError:
            return True
        except (OSError, ValueError):
            return False
        connected.close()
        return False

    def accept(self, channel: str, acceptor: Acceptor) -> None:
        """Let other nodes open connections of that channel, which are rejected until then."""
        assert is_channel(channel), f"{channel!r} cannot name a channel"
        assert channel not in self._acceptors, f"{channel} has an acceptor"
        self._acceptors[channel] = acceptor

    # The route

    def answer(
        self,
        channel: str,
        headers: Mapping[str, str],
        address: str,
        on_lost: Callable[[BaseException | None], None],
    ) -> asyncio.Protocol:
        """Return the protocol that continues a caller's request on the request's transport.

        `on_lost` is called when that transport is gone. Raises LogError. A caller without a fresh
        proof of the secret gets UnprovenError, whatever else is wrong with the request.
        """
        now = asyncio.get_running_loop().time()
        version = headers.get("Sec-WebSocket-Protocol", "")
        if version != SUBPROTOCOL and version.startswith(SUBPROTOCOL_FAMILY):
            # The version is no secret, and a node of another release needs the reason.
            raise LogError(BAD_REQUEST, f"This node speaks {SUBPROTOCOL} only.")
        nonce = token(headers, CALLEE_NONCE_HEADER)
        proof = token(headers, PROOF_HEADER)
        if not proof or not self._nonces.is_fresh(nonce, address, now):
            raise UnprovenError(self._nonces.issue(address, now))
        try:
            callee = Callee(self._keys, channel, token(headers, NONCE_HEADER), nonce, proof)
        except AuthError:
            self._log_stranger(address, now)
            raise UnprovenError(self._nonces.issue(address, now)) from None
        self._nonces.use(nonce, now)
        if version != SUBPROTOCOL or not is_channel(channel) or not is_upgrade(headers):
            raise LogError(BAD_REQUEST, "This is not the request of a node.")
        if self._openings.is_closed:
            raise LogError(NOT_READY, "The node is stopping.")
        openings, place = self._openings, address_group(address)
        if len(openings.sockets) >= CONNECTIONS_MAX or not openings.make_room(place):
            raise LogError(OVERLOADED, "Too many connections between nodes are being opened.")
        response = response_head(token(headers, "Sec-WebSocket-Key"), callee.challenge())
        return CalleeSide(
            openings,
            callee,
            response,
            self._acceptors.get(channel),
            place=place,
            on_lost=on_lost,
        )

    def _log_stranger(self, address: str, now: float) -> None:
        if now >= self._stranger_log_due:
            self._stranger_log_due = now + STRANGER_LOG_INTERVAL_S
            logger.warning(
                "%s tried to connect as a node without this cluster's secret. %s",
                address,
                SAME_SECRET,
            )

    # The end

    async def close(self) -> None:
        """End all connections and open no more. Harmless to repeat."""
        self._openings.close()
        # Transports report their ends in the next turn of the event loop.
        await asyncio.sleep(0)


def _socket_of(side: CallerSide) -> NodeSocket | None:
    """Return the connection if it was opened."""
    done = side.done
    if done.done() and not done.cancelled() and done.exception() is None:
        return done.result()
    return None
