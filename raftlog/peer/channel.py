"""A protocol's connections to its peers, at most one connection per peer.

A protocol adds the channel's name, its messages, and small parts. A `Session` receives the bytes of
one connection. An `Opener` admits the other side's hello and makes the session. On the called side,
a `Listener` also responds. The channel does the opening, the registry in which the newest
connection wins, redial with back-off and jitter, keep-alive on the world's clock, and the
reassembly of bodies in pieces.

The channel does not read payloads. A session passes its bytes to `connection.send`, and the network
passes messages directly to `Session.received`.
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
"""Seconds of life after which a lost connection is replaced at once."""
YOUNG_S: Final = 3.0
"""Age in seconds below which `keeps_old` considers a second simultaneous call. Above
`connect_timeout_s`, because the second call may take as long."""
PEERS_MAX: Final = 1_100
"""Voters and brokers of the largest cluster, with a reserve for removed nodes."""


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """Times and bounds of one channel. Protocols derive their own settings from it."""

    connections_max: int = PEERS_MAX
    connect_timeout_s: float = 2.0
    redial_s_min: float = 0.05
    redial_s_max: float = 1.0
    ping_s: float = 1.0
    """Seconds between keep-alive checks. A side that sent no message in an interval pings."""
    silent_pings_max: int = 4
    """Most intervals without a message of the peer before the connection ends."""

    def __post_init__(self) -> None:
        assert 0 < self.redial_s_min <= self.redial_s_max
        assert self.connect_timeout_s < YOUNG_S
        assert self.silent_pings_max >= 2


class Session(ABC):
    """One connection with one peer. Satisfies `world.network.Receiver`.

    A protocol derives its receiver. `received` must set `has_heard`. A protocol that pings sets
    `has_sent` with each message.
    """

    connection: Connection
    """Set when the connection opens, right after `Opener.opened`."""

    def __init__(self, peer_id: int) -> None:
        self.peer_id = peer_id
        self.is_open = False
        """Whether the connection has opened. It may have ended since."""
        self.is_ended = False
        self.is_replaced = False
        """Whether a newer connection of the peer takes its place."""
        self.is_dialled = False
        """Whether this side dialled."""
        self.ended = asyncio.Event()
        self.opened_s = 0.0
        """Monotonic time of the opening in seconds."""
        self.has_heard = True
        """Whether a message has arrived in this interval of the keep-alive."""
        self.has_sent = False
        """Whether a message was sent in this interval."""
        self.was_defended = False
        """Whether it has already stayed against a newer call of the peer."""
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
        """Start as registered by the channel. `unregister` is called at the end."""
        self.connection = connection
        self.is_open = True
        self.is_dialled = is_dialled
        self.opened_s = opened_s
        self._keep_alive = keep_alive
        self._unregister = unregister

    @abstractmethod
    def received(self, message: bytes) -> None:
        """Take a message. None arrives before the session is open or after its end."""

    @abstractmethod
    def on_ended(self, reason: str) -> None:
        """Release the protocol's state. Called once at the end, even for a session that never
        opened.
        """

    def ping(self) -> None:  # noqa: B027 (not every protocol pings)
        """Send a keep-alive message. Called after each interval without `has_sent`."""

    def closed(self) -> None:
        """Note that the connection has ended, by itself or by the other side."""
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
        """Ping after each interval without sending. End the session when the peer is silent.

        Intervals are counted instead of time. A process that was stopped for long wakes to a single
        additional interval, and receives the waiting messages before the next.
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

        Called twice for a caller, with its hello and again when its connection opens, because the
        facts may have changed in between.
        """
        ...

    def opened(self, connection: Connection, theirs: HelloT) -> SessionT_co:
        """Make the session after the end of an older session. Raises RejectedError."""
        ...


class Listener(Opener[HelloT, SessionT_co], Protocol[HelloT, SessionT_co]):
    """The called side of a protocol."""

    def hello(self, theirs: HelloT) -> Hello:
        """Return this node's hello for an admitted caller."""
        ...


class Channel(Generic[SessionT]):
    """The sessions of one side of a protocol. Lives in the event loop and is not thread-safe."""

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
        """Open sessions by the peer's node id."""
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
        """Dial a node once. The session is open when this returns.

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
        """Keep a session with a peer open until cancelled.

        `call` dials the peer once. Its argument is the number of consecutive failures. It returns
        None, or the pause in seconds before the next call if the call does not count as a failure.
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
        """End all sessions and open no more. Harmless to repeat."""
        self._is_closed = True
        for session in list(self.sessions.values()):
            session.end(reason)

    # Openings

    def admit(
        self, opener: Opener[HelloT, SessionT], content: bytes, *, is_dialled: bool
    ) -> HelloT:
        """Return the other side's hello if it may connect now. Raises RejectedError."""
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
        """Return whether a session stays when a new connection of its peer opens."""
        is_young = self._clock.monotonic() - old.opened_s < YOUNG_S
        stays = keeps_old(
            self._node_id,
            old.peer_id,
            old_dialled=old.is_dialled,
            new_dialled=new_dialled,
            old_is_young=is_young and not old.was_defended,
        )
        if stays and not new_dialled:
            # A peer that calls a second time has lost the old connection, however young it is.
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
    """Return the delay before the next call after consecutive failures, 0 after none.

    `jitter` in [0, 1] removes up to half of the pause, so that nodes that lost each other at the
    same time do not call in step.
    """
    assert failures >= 0
    assert 0 <= jitter <= 1
    return 0.0 if failures == 0 else backoff.delay_s(failures - 1) * (1 - jitter / 2)


def keeps_old(
    node_id: int, peer_id: int, *, old_dialled: bool, new_dialled: bool, old_is_young: bool
) -> bool:
    """Return whether the open connection to a peer stays when a new connection opens.

    `*_dialled` is true if this side dialled. A side dials only without a connection. A new
    connection therefore means that its caller has lost the old connection, unless both sides
    dialled at the same time. Each side then sees an old connection, opened a moment ago by one
    call, and the new connection of the other call. If the newest always won, each side would end
    the connection that the other keeps, and both would redial for ever. Instead the call of the
    higher id wins on both sides, in any order. If only one side of a pair ever dials, the newest
    always wins.
    """
    if old_dialled == new_dialled or not old_is_young:
        return False
    return old_dialled == (node_id > peer_id)


class PieceBuffer:
    """A body that arrives in pieces. Keeps the received bytes within a bound."""

    __slots__ = ("_pieces", "_size_bytes_max", "size_bytes")

    def __init__(self, size_bytes_max: int) -> None:
        self.size_bytes = 0
        self._size_bytes_max = size_bytes_max
        self._pieces: list[Buffer] = []

    def add(self, piece: Buffer, *, is_last: bool) -> Buffer | None:
        """Add a piece and return the body with the last piece. Raises ProtocolError."""
        self.size_bytes += len(piece)
        if self.size_bytes > self._size_bytes_max:
            raise ProtocolError(f"a body is longer than {self._size_bytes_max} bytes")
        if is_last:
            return b"".join((*self._pieces, piece)) if self._pieces else piece
        if not piece:
            # Empty pieces would allow an endless body.
            raise ProtocolError("a piece of a body is empty")
        self._pieces.append(piece)
        return None
