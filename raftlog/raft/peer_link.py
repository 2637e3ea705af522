"""One connection with a peer, who owns it, and the bounds that hold for all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from raftlog.raft.hello import Hello
from raftlog.raft.identity import KNOWN_PEERS_MAX
from raftlog.world.network import Connection


@dataclass(frozen=True, slots=True)
class PeersLimits:
    """Bounds and times. The defaults are right for all but tests."""

    connections_max: int = KNOWN_PEERS_MAX
    connect_timeout_s: float = 2.0
    redial_s_min: float = 0.05
    redial_s_max: float = 1.0
    rejected_redial_s: float = 2.0
    """A rejection lasts until a person acts."""
    stable_s: float = 1.0
    """A connection that lasted so long is replaced at once when it is lost."""
    young_s: float = 3.0
    """Above `connect_timeout_s`: of two calls at the same time, the second may take as long."""
    probe_timeout_s: float = 1.0
    probe_pause_s: float = 0.005
    """Before the second probe; doubles. The kernel closes a killed process' connections a moment
    before or after the socket that it listened on."""
    probes_s: float = 0.5
    """No probe begins later than that after the loss."""
    early_frames_max: int = 64
    early_bytes_max: int = 1024 * 1024
    """Held back until the peer's directory is durable; above, the connection is ended."""


class PeersHandler(Protocol):
    """The owner of the connections. Called from the event loop; must not raise."""

    def peer_up(self, node_id: int) -> None:
        """A new connection is open. If there was an old one, its `peer_down` came before."""
        ...

    def peer_down(self, node_id: int, *, refused: bool) -> None:
        """The connection has ended; or, if `refused`, perhaps a second time: the process has."""
        ...

    def received(self, node_id: int, frame: bytes) -> None:
        """A message, in the order in which it was sent on this connection."""
        ...

    def hello(self) -> Hello:
        """One's own, as of now. Its node id never changes."""
        ...


class LinkOwner(Protocol):
    """Who is told what happens on a link."""

    def on_received(self, link: Link, message: bytes) -> None:
        """A message has arrived."""
        ...

    def on_closed(self, link: Link) -> None:
        """The connection has ended, whoever ended it."""
        ...


class Link:
    """One connection with a peer. Satisfies `Receiver`."""

    def __init__(
        self,
        owner: LinkOwner,
        connection: Connection,
        hello: Hello,
        *,
        dialled: bool,
        opened_s: float,
    ) -> None:
        self._owner = owner
        self.connection = connection
        self.hello = hello
        self.dialled = dialled
        """This side called."""
        self.opened_s = opened_s
        """When, by the monotonic clock."""
        self.defended = False
        """It has stayed once although the peer called again."""
        self.is_up = False
        """The handler was told of it, and not yet of its end."""
        self.ended = asyncio.Event()
        self.early: deque[bytes] = deque()
        """What arrived before it was up."""
        self.early_bytes = 0
        self.greeting: asyncio.Task[None] | None = None
        """What makes it count."""

    @property
    def node_id(self) -> int:
        """Who is on the other side."""
        return self.hello.node_id

    def received(self, message: bytes) -> None:
        """Hand on what has arrived."""
        self._owner.on_received(self, message)

    def closed(self) -> None:
        """Hand on that it is over."""
        self._owner.on_closed(self)
