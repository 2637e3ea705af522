"""One channel: a protocol's connections to its peers, at most one for each.

A protocol brings the channel's name, its messages, and small parts: a `Session`, which receives
the bytes of one connection; an `Opener`, which admits the other side's hello and makes the session;
and, on the called side, a `Listener`, which also answers. The channel brings the rest: opening, the
registry in which the newest connection wins, redial with back-off and jitter, keep-alive on the
world's clock, and the reassembly of bodies in pieces.

The channel knows no payload. A session hands its bytes to `connection.send`, and the network hands
messages to `Session.received`, without the channel in between.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from raftlog.peer.hello import Hello, HelloT, ProtocolError, encode_hello
from raftlog.peer.tasks import TaskGroup
from raftlog.record.errors import NOT_READY, OVERLOADED
from raftlog.record.types import Buffer
from raftlog.world import Backoff, Clock, Randomness
from raftlog.world.network import Connection, Network, RejectedError

STABLE_S: Final = 1.0
"""Age from which a lost connection is replaced at once."""
YOUNG_S: Final = 3.0
"""A younger connection may be of the other of two calls at the same time, see `keeps_old`. Above
`connect_timeout_s`, because the second of the two calls may take as long."""
PEERS_MAX: Final = 1_100
"""Voters and brokers of the largest cluster, with a reserve for removed ones."""


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """Times and bounds of one channel. Protocols derive their own settings from it."""

    connections_max: int = PEERS_MAX
    connect_timeout_s: float = 2.0
    redial_s_min: float = 0.05
    redial_s_max: float = 1.0
    ping_s: float = 1.0
    """Interval of the keep-alive: a side without a message in one pings."""
    silent_pings_max: int = 4
    """A connection ends after so many intervals without a message of the peer."""

    def __post_init__(self) -> None:
        assert 0 < self.redial_s_min <= self.redial_s_max
        assert self.connect_timeout_s < YOUNG_S
        assert self.silent_pings_max >= 2


class Session(ABC):
    """One connection with one peer, and its only end. Satisfies `world.network.Receiver`.

    A protocol derives its receiver. `received` must set `has_heard`; a protocol that pings sets
    `has_sent` with each message.
    """

    connection: Connection
    """Set when the connection opens, right after `Opener.opened`."""

    def __init__(self, peer_id: int) -> None:
        self.peer_id = peer_id
        self.is_open = False
        """The connection has opened; it may have ended since."""
        self.is_ended = False
        self.is_replaced = False
        """A newer connection of the peer takes its place."""
        self.is_dialled = False
        """This side dialled."""
        self.ended = asyncio.Event()
        self.opened_s = 0.0
        """Time of the opening, by the monotonic clock."""
        self.has_heard = True
        """A message has arrived in this interval of the keep-alive."""
        self.has_sent = False
        """A message was sent in this interval."""
        self.was_defended = False
        """It has stayed once against a newer call of the peer."""
        self._unregister: Callable[[], object] | None = None
        self._keep_alive: asyncio.Task[None] | None = None

    def start(
        self,
        connection: Connection,
        *,
        is_dialled: bool,
        opened_s: float,
        keep_alive: asyncio.Task[None] | None,
        unregister: Callable[[], object],
    ) -> None:
        """Begin, as registered by the channel; `unregister` is called at the end."""
        self.connection = connection
        self.is_open = True
        self.is_dialled = is_dialled
        self.opened_s = opened_s
        self._keep_alive = keep_alive
        self._unregister = unregister

    @abstractmethod
    def received(self, message: bytes) -> None:
        """Take a message. Nothing arrives before the session is open, or after its end."""

    @abstractmethod
    def on_ended(self, reason: str) -> None:
        """Release the protocol's state. Called once at the end, also of a session never opened."""

    def ping(self) -> None:  # noqa: B027 (not every protocol pings)
        """Send a keep-alive message. Called after each interval without `has_sent`."""

    def closed(self) -> None:
        """The connection has ended, by itself or by the other side."""
        self.end("the connection has ended")

    def end(self, reason: str) -> None:
        """End the connection. Harmless if it has ended."""
        if self.is_ended:
            return
        self.is_ended = True
        if self._unregister is not None:
            self._unregister()
        self.ended.set()
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        if self.is_open:
            self.connection.close()
        self.on_ended(reason)

    async def watch(self, clock: Clock, interval_s: float, silent_max: int) -> None:
        """Ping after each interval without sending; end the session when the peer is silent.

        Intervals are counted, not time: a process that was stopped for long wakes to one interval
        more, and receives the waiting messages before the next.
        """
        silent = 0
        while silent < silent_max:
            await clock.sleep(interval_s)
            silent = 0 if self.has_heard else silent + 1
            self.has_heard = False
            if not self.has_sent:
                self.ping()
            self.has_sent = False
        self.end("it has been silent for too long")


SessionT = TypeVar("SessionT", bound=Session)
SessionT_co = TypeVar("SessionT_co", bound=Session, covariant=True)


class Opener(Protocol[HelloT, SessionT_co]):
    """A protocol's part in the opening of a connection, on either side."""

    def admit(self, content: bytes) -> HelloT:
        """Decode and check the other side's hello. Raises RejectedError.

        Called twice for a caller: with its hello, and when its connection opens, as the facts may
        have changed in between.
        """
        ...

    def opened(self, connection: Connection, theirs: HelloT) -> SessionT_co:
        """Make the session, after the end of an older one. Raises RejectedError."""
        ...


class Listener(Opener[HelloT, SessionT_co], Protocol[HelloT, SessionT_co]):
    """The called side of a protocol."""

    def hello(self, theirs: HelloT) -> Hello:
        """This node's hello, for an admitted caller."""
        ...


class Channel(Generic[SessionT]):
    """The sessions of one side of a protocol. Lives in the event loop; not for other threads."""

    def __init__(
        self,
        name: str,
        *,
        node_id: int,
        network: Network,
        clock: Clock,
        tasks: TaskGroup,
        settings: ChannelSettings,
        keeps_alive: bool = True,
    ) -> None:
        self.name = name
        self.sessions: dict[int, SessionT] = {}
        """Open sessions, by the peer's node id."""
        self._node_id = node_id
        self._network = network
        self._clock = clock
        self._tasks = tasks
        self._settings = settings
        self._keeps_alive = keeps_alive
        self._is_closed = False

    def listen(self, listener: Listener[HelloT, SessionT]) -> None:
        """Accept connections of peers."""
        self._network.accept(self.name, _ChannelAcceptor(self, listener))

    async def connect(self, address: str, hello: Hello, opener: Opener[HelloT, SessionT]) -> None:
        """Dial a node once; the session is open when this returns.

        Raises RefusedError, NetworkError, or RejectedError by either side.
        """
        await self._network.connect(
            address,
            self.name,
            encode_hello(hello),
            partial(self.open, opener, is_dialled=True),
            timeout_s=self._settings.connect_timeout_s,
        )

    async def keep_connected(
        self,
        peer_id: int,
        call: Callable[[int], Awaitable[float | None]],
        randomness: Randomness,
    ) -> None:
        """Keep a session with a peer open, until cancelled.

        `call` dials the peer once; its argument is the number of failures in a row. Returns None,
        or the pause in seconds before the next call for a call that does not count as a failure.
        """
        settings = self._settings
        failures = 0
        while True:
            session = self.sessions.get(peer_id)
            if session is not None:
                await session.ended.wait()
                lasted_s = self._clock.monotonic() - session.opened_s
                failures = 0 if lasted_s >= STABLE_S else failures + 1
            else:
                pause_s = await call(failures)
                if pause_s is not None:
                    await self._clock.sleep(pause_s)
                    continue
                if peer_id in self.sessions:
                    continue
                failures += 1
            delay_s = redial_delay_s(
                failures,
                randomness.uniform(0.0, 1.0),
                Backoff(settings.redial_s_min, settings.redial_s_max),
            )
            await self._clock.sleep(delay_s)

    def close(self, reason: str) -> None:
        """End all sessions, and open none any more. Harmless if done already."""
        self._is_closed = True
        for session in list(self.sessions.values()):
            session.end(reason)

    # Openings

    def admit(
        self, opener: Opener[HelloT, SessionT], content: bytes, *, is_dialled: bool
    ) -> HelloT:
        """The other side's hello, if it may connect now. Raises RejectedError."""
        if self._is_closed:
            raise RejectedError(NOT_READY.code, f"Node {self._node_id} is stopping.")
        theirs = opener.admit(content)
        old = self.sessions.get(theirs.node_id)
        if old is None:
            if len(self.sessions) >= self._settings.connections_max:
                raise RejectedError(
                    OVERLOADED.code,
                    f"Node {self._node_id} has {len(self.sessions)} connections, which is the "
                    "limit.",
                )
        elif self._stays(old, is_dialled):
            raise RejectedError(
                NOT_READY.code, f"Nodes {self._node_id} and {theirs.node_id} have just connected."
            )
        return theirs

    def open(
        self, opener: Opener[HelloT, SessionT], connection: Connection, *, is_dialled: bool
    ) -> SessionT:
        """Take a new connection. Raises RejectedError."""
        theirs = self.admit(opener, connection.hello, is_dialled=is_dialled)
        peer_id = theirs.node_id
        old = self.sessions.get(peer_id)
        if old is not None:
            old.is_replaced = True
            old.end("a newer connection takes its place")
        session = opener.opened(connection, theirs)
        assert session.peer_id == peer_id
        assert not session.is_ended
        self.sessions[peer_id] = session
        keep_alive = None
        if self._keeps_alive:
            settings = self._settings
            keep_alive = self._tasks.spawn(
                session.watch(self._clock, settings.ping_s, settings.silent_pings_max),
                f"{self.name}-watch-{peer_id}",
            )
        session.start(
            connection,
            is_dialled=is_dialled,
            opened_s=self._clock.monotonic(),
            keep_alive=keep_alive,
            unregister=partial(self.sessions.pop, peer_id),
        )
        return session

    def _stays(self, old: SessionT, new_dialled: bool) -> bool:
        """Whether a session stays when a new connection of its peer opens."""
        is_young = self._clock.monotonic() - old.opened_s < YOUNG_S
        stays = keeps_old(
            self._node_id,
            old.peer_id,
            old_dialled=old.is_dialled,
            new_dialled=new_dialled,
            old_is_young=is_young and not old.was_defended,
        )
        if stays and not new_dialled:
            # A peer that calls a second time has lost the old one, however young it is.
            old.was_defended = True
        return stays


class _ChannelAcceptor(Generic[HelloT, SessionT]):
    """`Acceptor` of a channel."""

    def __init__(self, channel: Channel[SessionT], listener: Listener[HelloT, SessionT]) -> None:
        self._channel = channel
        self._listener = listener

    def hello(self, hello: bytes) -> bytes:
        theirs = self._channel.admit(self._listener, hello, is_dialled=False)
        return encode_hello(self._listener.hello(theirs))

    def opened(self, connection: Connection) -> SessionT:
        return self._channel.open(self._listener, connection, is_dialled=False)


def redial_delay_s(failures: int, jitter: float, backoff: Backoff) -> float:
    """Return the delay before the next call after so many failures in a row; 0 after none.

    `jitter` in [0, 1] takes up to half of the pause away, so that nodes that lost each other at
    once do not call in step.
    """
    assert failures >= 0
    assert 0 <= jitter <= 1
    return 0.0 if failures == 0 else backoff.delay_s(failures - 1) * (1 - jitter / 2)


def keeps_old(
    node_id: int, peer_id: int, *, old_dialled: bool, new_dialled: bool, old_is_young: bool
) -> bool:
    """Whether the open connection to a peer stays when a new one opens, instead of giving way.

    `*_dialled`: this side dialled. A side dials only without a connection. So a new connection
    means that its caller has lost the old one, unless both sides dialled at the same time: then
    each sees an old connection, opened a moment ago by one call, and the new one of the other call.
    If the newest always won, each side would end the connection that the other keeps, and both
    would dial again, for ever. So the call of the higher id wins, on both sides, whatever the
    order. Where only one side of a pair ever dials, the newest always wins.
    """
    if old_dialled == new_dialled or not old_is_young:
        return False
    return old_dialled == (node_id > peer_id)


class PieceBuffer:
    """A body that arrives in pieces. Holds the bytes that have arrived, within a bound."""

    __slots__ = ("_pieces", "_size_bytes_max", "size_bytes")

    def __init__(self, size_bytes_max: int) -> None:
        self.size_bytes = 0
        self._size_bytes_max = size_bytes_max
        self._pieces: list[Buffer] = []

    def add(self, piece: Buffer, *, is_last: bool) -> Buffer | None:
        """Add a piece; the whole body with the last one. Raises ProtocolError."""
        self.size_bytes += len(piece)
        if self.size_bytes > self._size_bytes_max:
            raise ProtocolError(f"a body is longer than {self._size_bytes_max} bytes")
        if is_last:
            return b"".join((*self._pieces, piece)) if self._pieces else piece
        if not piece:
            # Empty pieces would make a body without end.
            raise ProtocolError("a piece of a body is empty")
        self._pieces.append(piece)
        return None
