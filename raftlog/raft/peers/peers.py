"""The connections to the other members, with one connection per peer on channel `quorum`.

A connection opens with a hello from each side (peers/hello.py). It is up, for the handler and for
`send`, once the peer's data directory is durably pinned (peers/identity.py). Earlier messages are
held back, so that none is missing in between.

Per peer, the handler gets `peer_up`, then `received` as often as messages arrive, then `peer_down`,
and so on in turns. A second `peer_down` in a row means that the peer's address *refuses*
connections, so its process has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from raftlog.peer.channel import Channel, ChannelSettings, Session
from raftlog.peer.hello import encode_hello, is_passing
from raftlog.peer.tasks import TaskGroup
from raftlog.raft.peers.dead_peers import DeadPeerProbe
from raftlog.raft.peers.hello import (
    CHANNEL,
    QuorumHello,
    check_hello,
    decode_quorum_hello,
    dial_targets,
)
from raftlog.raft.peers.identity import KnownPeers
from raftlog.raft.peers.joining import JOIN_CHANNEL, JoinAcceptor, join_hello
from raftlog.raft.voters import NO_VOTERS, Voter, VoterSet
from raftlog.record.errors import ILLEGAL_STATE, LogError
from raftlog.world import Clock, DiskError, Randomness
from raftlog.world.network import (
    MESSAGE_BYTES_MAX,
    Connection,
    Network,
    NetworkError,
    RefusedError,
    RejectedError,
)

REJECTED_REDIAL_S: Final = 2.0
"""Pause after a rejection, which lasts until an operator acts."""
EARLY_BYTES_MAX: Final = 1024 * 1024
"""Bytes of messages held back until the peer's directory is durable."""
REJECTIONS_MAX: Final = 256
"""Rejections kept. The oldest are dropped first."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PeersLimits(ChannelSettings):
    """Bounds and times. The defaults are right for all but tests."""

    early_frames_max: int = 64
    """Messages held back until the peer's directory is durable. Above, the connection ends."""


class PeersHandler(Protocol):
    """The user of the connections. Called from the event loop. Must not raise."""

    def peer_up(self, node_id: int) -> None:
        """A new connection is up. `peer_down` of an old connection came before."""
        ...

    def peer_down(self, node_id: int, *, refused: bool) -> None:
        """The connection has ended. With `refused`, which may follow, the process has ended."""
        ...

    def received(self, node_id: int, frame: bytes) -> None:
        """A message has arrived. Messages come in the order of sending on this connection."""
        ...

    def ping(self, node_id: int) -> None:
        """A sign of life is due, so send any message to the peer."""
        ...

    def hello(self) -> QuorumHello:
        """This member's hello, as of now. The node id never changes."""
        ...


class Link(Session):
    """One connection with a peer."""

    def __init__(self, owner: Peers, hello: QuorumHello) -> None:
        super().__init__(hello.node_id)
        self._owner = owner
        self.hello = hello
        self.is_up = False
        """Whether the handler knows of the connection, and not yet of its end."""
        self.early: deque[bytes] = deque()
        """Messages from before it was up."""
        self.early_bytes = 0
        self.greeting: asyncio.Task[None] | None = None
        """Pins the peer's directory."""

    def received(self, message: bytes) -> None:
        """Pass a message to the peers."""
        self.has_heard = True
        self._owner.on_received(self, message)

    def ping(self) -> None:
        """Have the handler ping."""
        if self.is_up:
            self._owner.on_ping(self)

    def on_ended(self, reason: str) -> None:
        """Pass the end to the peers."""
        self._owner.on_ended(self, reason)


class Rejections:
    """Present rejections, by the other node's address. Logged once, and kept for the status."""

    def __init__(self) -> None:
        self.by_address: dict[str, RejectedError] = {}
        # Two nodes may appear under one address. Their reasons would replace each other there.
        self._logged: dict[str, None] = {}

    def add(self, address: str, error: RejectedError) -> None:
        """Note a rejection. Log a reason when it is new, not at each repetition."""
        self.by_address.pop(address, None)
        self.by_address[address] = error
        if error.message not in self._logged:
            logger.error("no connection with %s: %s", address, error.message)
            self._logged[error.message] = None
        for noted in (self.by_address, self._logged):
            if len(noted) > REJECTIONS_MAX:
                del noted[next(iter(noted))]

    def clear(self, address: str) -> None:
        """Forget the rejection of a connected node, so that the next rejection is logged again."""
        error = self.by_address.pop(address, None)
        if error is not None:
            self._logged.pop(error.message, None)


class _Opener:
    """`Listener` of the members' channel. With a target, `Opener` of calls to a voter."""

    def __init__(self, peers: Peers, target: Voter | None) -> None:
        self._peers = peers
        self._target = target

    def admit(self, content: bytes) -> QuorumHello:
        return self._peers.admit(content, self._target)

    def hello(self, theirs: QuorumHello) -> QuorumHello:
        return self._peers.hello()

    def opened(self, connection: Connection, theirs: QuorumHello) -> Link:
        return self._peers.on_opened(theirs, self._target)


class Peers:
    """The connections of one member. Lives in the event loop and is not for other threads."""

    def __init__(
        self,
        *,
        network: Network,
        clock: Clock,
        randomness: Randomness,
        handler: PeersHandler,
        known: KnownPeers,
        on_fatal: Callable[[str], None],
        limits: PeersLimits | None = None,
    ) -> None:
        self._network = network
        self._randomness = randomness
        self._handler = handler
        self._known = known
        self._limits = limits or PeersLimits()
        self._rejections = Rejections()
        self._me = handler.hello().node_id
        self._voters = NO_VOTERS
        self._targets: dict[int, Voter] = {}
        self._dials: dict[int, asyncio.Task[None]] = {}
        self._tasks = TaskGroup(on_fatal)
        self._channel: Channel[Link] = Channel(
            CHANNEL,
            node_id=self._me,
            network=network,
            clock=clock,
            tasks=self._tasks,
            settings=self._limits,
        )
        self._links = self._channel.sessions
        self._dead_peers: DeadPeerProbe[Link] = DeadPeerProbe(
            network, clock, self._tasks, self._on_dead
        )
        self._pin_failure = ""
        self._joiners = JoinAcceptor(self._check_joiner)
        self._started = False
        self._closing = False

    # Calls of the owner

    @property
    def connected(self) -> dict[int, QuorumHello]:
        """The connected peers and their hellos, ascending by id."""
        return {
            node_id: self._links[node_id].hello
            for node_id in sorted(self._links)
            if self._links[node_id].is_up
        }

    @property
    def rejections(self) -> dict[str, RejectedError]:
        """Rejections by either side, by the peer's address, until the peer is connected."""
        return self._rejections.by_address

    def start(self) -> None:
        """Start to dial and to accept."""
        assert not self._started
        self._started = True
        self._channel.listen(_Opener(self, None))
        self._network.accept(JOIN_CHANNEL, self._joiners)
        self._dial_targets()

    async def close(self) -> None:
        """End all connections and tasks, without calls of the handler. Also closes `known`."""
        self._closing = True
        for link in self._links.values():
            link.is_up = False
        self._channel.close("this node is stopping")
        self._joiners.close()
        await self._tasks.close()
        await self._known.close()

    def retarget(self, me_is_voter: bool, voters: VoterSet) -> None:
        """Set the voters to dial at the start and when the newest voter set changes.

        Connections stay, also those of former voters, which observe.
        """
        self._voters = voters
        targets = dial_targets(self._me, me_is_voter, voters)
        self._targets = {voter.node_id: voter for voter in targets}
        if self._started and not self._closing:
            self._dial_targets()

    def send(self, node_id: int, frame: bytes) -> bool:
        """Send to a peer. False if not connected. Delivery is not guaranteed."""
        assert len(frame) <= MESSAGE_BYTES_MAX
        link = self._links.get(node_id)
        if link is None or not link.is_up:
            return False
        link.connection.send(frame)
        return True

    def disconnect(self, node_id: int, reason: str) -> None:
        """End the connection of a peer that breaks the protocol, if there is one."""
        link = self._links.get(node_id)
        if link is not None:
            link.end(reason)

    def forget(self, node_id: int, *, unless: str | None = None) -> None:
        """Let a node come with another data directory than the pinned directory.

        A committed voter set dropped the node, or the cluster forgot it. No effect if the pinned
        directory is `unless`.
        """
        if not self._closing and (unless is None or self._known.directory_id(node_id) != unless):
            self._tasks.spawn(self._forget(node_id), f"quorum-forget-{node_id}")

    def address(self, node_id: int) -> str | None:
        """Address of a voter by the newest voter set.

        Other nodes have the address of their last hello.
        """
        voter = self._voters.find(node_id)
        if voter is not None:
            return voter.address
        link = self._links.get(node_id) or self._dead_peers.find(node_id)
        return None if link is None else link.hello.address

    # Dialling

    def _dial_targets(self) -> None:
        for node_id in sorted(self._dials.keys() - self._targets.keys()):
            self._dials.pop(node_id).cancel()
        for node_id in sorted(self._targets.keys() - self._dials.keys()):
            self._dials[node_id] = self._tasks.spawn(
                self._channel.keep_connected(
                    node_id, partial(self._call, node_id), self._randomness
                ),
                f"quorum-dial-{node_id}",
            )

    async def _call(self, node_id: int, failures: int) -> float | None:
        """Call a voter once, see `Channel.keep_connected`."""
        target = self._targets[node_id]
        lost = self._dead_peers.find(node_id)
        try:
            await self._channel.connect(target.address, self.hello(), _Opener(self, target))
        except RejectedError as error:
            if not is_passing(error) or not error.is_proven:
                self._rejections.add(target.address, error)
                return REJECTED_REDIAL_S
            if failures == 0:
                logger.info("node %d is not ready: %s", target.node_id, error.message)
        except NetworkError as error:
            if failures == 0:
                logger.info(
                    "node %d at %s cannot be reached: %s", target.node_id, target.address, error
                )
            refused = isinstance(error, RefusedError) and target.node_id not in self._links
            if refused and lost is not None:
                self._dead_peers.refused(lost)
        return None

    # Opening, on either side

    def hello(self) -> QuorumHello:
        """This member's, as of now."""
        return self._handler.hello()

    def admit(self, content: bytes, target: Voter | None) -> QuorumHello:
        """Check the hello of a node that may connect. `target` is set if this side dialled.

        Raises RejectedError.
        """
        if target is None:
            theirs = self._decode(content, CHANNEL)
            try:
                self._check(theirs)
            except RejectedError as error:
                self._rejections.add(theirs.address, error)
                raise
            return theirs
        theirs = decode_quorum_hello(content)
        if theirs.node_id != target.node_id:
            raise RejectedError(
                ILLEGAL_STATE.code,
                f"At {target.address} answers node {theirs.node_id}, not node {target.node_id}: "
                "check the addresses of the voters, and how both nodes were started.",
            )
        self._check(theirs)
        return theirs

    def on_opened(self, theirs: QuorumHello, target: Voter | None) -> Link:
        """Open a new connection. `target` is set if this side dialled."""
        node_id = theirs.node_id
        self._dead_peers.stop_probe(node_id)
        link = Link(self, theirs)
        self._rejections.clear(theirs.address)
        if target is not None:
            self._rejections.clear(target.address)
        # A task does this, as the connection belongs to the network until this returns.
        link.greeting = self._tasks.spawn(self._greet(link), f"quorum-greet-{node_id}")
        return link

    def _decode(self, content: bytes, channel: str) -> QuorumHello:
        """Decode a caller's hello. Raises RejectedError."""
        try:
            return decode_quorum_hello(content, channel)
        except RejectedError as error:
            # The address would be in the unreadable hello.
            self._rejections.add("an unknown address", error)
            raise

    def _check(self, theirs: QuorumHello) -> None:
        old = self._links.get(theirs.node_id)
        check_hello(
            self._handler.hello(),
            theirs,
            self._known.directory_id(theirs.node_id),
            live=None if old is None else old.hello.directory_id,
        )

    def _check_joiner(self, content: bytes) -> bytes:
        """Check a joining node and return the response. Raises RejectedError."""
        theirs = self._decode(content, JOIN_CHANNEL)
        try:
            self._check(theirs)
        except RejectedError as error:
            self._rejections.add(theirs.address, error)
            raise
        return encode_hello(join_hello(self._handler.hello()))

    async def _greet(self, link: Link) -> None:
        """Pin the peer's directory durably, then mark the connection as up."""
        try:
            await self._known.pin(link.peer_id, link.hello.directory_id)
        except (DiskError, LogError) as error:
            if str(error) != self._pin_failure:
                self._pin_failure = str(error)
                logger.error("node %d is not connected: %s", link.peer_id, error)
            link.end("its data directory could not be pinned")
            return
        if link.is_ended:
            return
        link.is_up = True
        self._dead_peers.discard(link.peer_id)
        logger.info(
            "node %d connected: %s, raftlog %s",
            link.peer_id,
            link.connection.address,
            link.hello.software_version,
        )
        self._handler.peer_up(link.peer_id)
        # The handler may end the connection at any message.
        while link.early and link.is_up:
            self._handler.received(link.peer_id, link.early.popleft())

    def on_received(self, link: Link, message: bytes) -> None:
        """A message has arrived on a connection."""
        if link.is_up:
            self._handler.received(link.peer_id, message)
            return
        if link.is_ended:
            return
        link.early.append(message)
        link.early_bytes += len(message)
        if len(link.early) > self._limits.early_frames_max or link.early_bytes > EARLY_BYTES_MAX:
            link.end("too many messages before its data directory was pinned")

    def on_ping(self, link: Link) -> None:
        """A sign of life is due on a connection."""
        self._handler.ping(link.peer_id)

    # Losing

    def on_ended(self, link: Link, reason: str) -> None:
        """Notify the handler of a connection's end, and probe whether the process has ended."""
        node_id = link.peer_id
        if link.greeting is not None:
            link.greeting.cancel()
        link.early.clear()
        if link.is_up:
            link.is_up = False
            self._dead_peers.add(link)
            logger.info("node %d disconnected: %s", node_id, reason)
            self._handler.peer_down(node_id, refused=False)
        if link.is_replaced or self._closing:
            return
        address = self.address(node_id)
        # The handler cannot have opened another connection in `peer_down`.
        assert node_id not in self._links
        if address is not None:
            self._dead_peers.start_probe(node_id, address)

    def _on_dead(self, node_id: int) -> None:
        logger.info("node %d refuses connections, its process has ended", node_id)
        self._handler.peer_down(node_id, refused=True)

    # Tasks

    async def _forget(self, node_id: int) -> None:
        try:
            await self._known.forget(node_id)
        except DiskError as error:
            logger.warning("forgetting node %d is not durable: %s", node_id, error)
