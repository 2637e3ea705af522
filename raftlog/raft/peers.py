"""The connections to the other members: one for each, kept, replaced when lost.

A connection opens with a hello from each side (hello.py). It counts, for the owner and for what is
sent, once the other's data directory is durably noted (identity.py). What arrives before is held
back, so that nothing is missing in between.

Per peer, the handler is told: `peer_up`, what is `received`, `peer_down`, and so on in turns. After
a `peer_down` it may be told again that the peer *refuses* connections: then its process has ended.
A node that vanished from the network is not noticed here; the owner, who knows what should have
been heard, ends such a connection by `disconnect`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from raftlog.raft.dead_peers import DeadPeerProbe
from raftlog.raft.dial_plan import dial_targets, keeps_old, redial_delay_s
from raftlog.raft.hello import Hello, check_hello, decode_hello, encode_hello, is_passing
from raftlog.raft.identity import KnownPeers
from raftlog.raft.joining import JOIN_CHANNEL, JoinAcceptor
from raftlog.raft.peer_link import Link, PeersHandler, PeersLimits
from raftlog.raft.rejections import Rejections
from raftlog.raft.voters import NO_VOTERS, Voter, VoterSet
from raftlog.record.errors import ILLEGAL_STATE, NOT_READY, OVERLOADED, LogError
from raftlog.world import Clock, DiskError, Randomness
from raftlog.world.network import (
    MESSAGE_BYTES_MAX,
    Connection,
    Network,
    NetworkError,
    Receiver,
    RefusedError,
    RejectedError,
)

__all__ = ["CHANNEL", "Peers", "PeersHandler", "PeersLimits"]

CHANNEL: Final = "quorum"

logger = logging.getLogger(__name__)


class _PeersAcceptor:
    """`Acceptor` of the members' channel."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def hello(self, hello: bytes) -> bytes:
        """Answer a caller."""
        return self._peers.on_called(hello)

    def opened(self, connection: Connection) -> Receiver:
        """Take a caller's connection."""
        return self._peers.on_opened(connection, None)


class Peers:
    """The connections of one member. Lives in the event loop; not for other threads."""

    def __init__(
        self,
        *,
        network: Network,
        clock: Clock,
        randomness: Randomness,
        handler: PeersHandler,
        known: KnownPeers,
        limits: PeersLimits | None = None,
    ) -> None:
        self._network = network
        self._clock = clock
        self._randomness = randomness
        self._handler = handler
        self._known = known
        self._limits = limits or PeersLimits()
        self._rejections = Rejections()
        self._me = handler.hello().node_id
        self._voters = NO_VOTERS
        self._targets: dict[int, Voter] = {}
        self._links: dict[int, Link] = {}
        self._dials: dict[int, asyncio.Task[None]] = {}
        self._losses = DeadPeerProbe(network, clock, self._limits, self._spawn, self._on_dead)
        self._pin_failure = ""
        # Not a set: the order in which tasks are cancelled must not depend on their addresses.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._joiners = JoinAcceptor(self._check_joiner)
        self._started = False
        self._closing = False

    # What the owner does

    @property
    def connected(self) -> dict[int, Hello]:
        """The connected peers and what they said when they connected, ascending by id."""
        return {
            node_id: self._links[node_id].hello
            for node_id in sorted(self._links)
            if self._links[node_id].is_up
        }

    @property
    def rejections(self) -> dict[str, RejectedError]:
        """Who was not let in, or did not let this node in, by address, until it is connected."""
        return self._rejections.by_address

    def start(self) -> None:
        """Begin to call and to be called."""
        assert not self._started
        self._started = True
        self._network.accept(CHANNEL, _PeersAcceptor(self))
        self._network.accept(JOIN_CHANNEL, self._joiners)
        self._dial_targets()

    async def close(self) -> None:
        """End all connections and tasks; the owner is told nothing more. Closes `known` too."""
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        for link in list(self._links.values()):
            link.is_up = False
            link.ended.set()
            link.connection.close()
        self._links.clear()
        self._joiners.close()
        # Each one's failure is told by its callback.
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._known.close()

    def retarget(self, me_is_voter: bool, voters: VoterSet) -> None:
        """Whom to call from now on: at the start, and whenever the newest voter set has changed.

        Connections stay, also to nodes that are no voters any more: they observe.
        """
        self._voters = voters
        targets = dial_targets(self._me, me_is_voter, voters)
        self._targets = {voter.node_id: voter for voter in targets}
        if self._started and not self._closing:
            self._dial_targets()

    def send(self, node_id: int, frame: bytes) -> bool:
        """Send to a peer; False if it is not connected. Nothing promises that it arrives."""
        assert len(frame) <= MESSAGE_BYTES_MAX
        link = self._links.get(node_id)
        if link is None or not link.is_up:
            return False
        link.connection.send(frame)
        return True

    def disconnect(self, node_id: int, reason: str) -> None:
        """End the connection with a peer, if there is one: it is silent, or talks nonsense."""
        link = self._links.get(node_id)
        if link is not None:
            self._lose(link, reason)

    def forget(self, node_id: int, *, unless: str | None = None) -> None:
        """Let a node come with another data directory than it is known with.

        A committed voter set dropped it, or the cluster forgot it. Nothing happens if it is known
        with the directory `unless`.
        """
        if not self._closing and (unless is None or self._known.directory_id(node_id) != unless):
            self._spawn(self._forget(node_id), f"quorum-forget-{node_id}")

    def address(self, node_id: int) -> str | None:
        """Where a voter is by the newest voter set, any other node by its last hello."""
        voter = self._voters.find(node_id)
        if voter is not None:
            return voter.address
        link = self._links.get(node_id) or self._losses.find(node_id)
        return None if link is None else link.hello.address

    # Calling

    def _dial_targets(self) -> None:
        for node_id in sorted(self._dials.keys() - self._targets.keys()):
            self._dials.pop(node_id).cancel()
        for node_id in sorted(self._targets.keys() - self._dials.keys()):
            self._dials[node_id] = self._spawn(self._dial(node_id), f"quorum-dial-{node_id}")

    async def _dial(self, node_id: int) -> None:
        """Keep a connection with a voter, for as long as it is a target."""
        failures = 0
        while True:
            link = self._links.get(node_id)
            if link is not None:
                await link.ended.wait()
                lasted_s = self._clock.monotonic() - link.opened_s
                failures = 0 if lasted_s >= self._limits.stable_s else failures + 1
            else:
                rejected = await self._call(self._targets[node_id], failures)
                if rejected:
                    await self._clock.sleep(self._limits.rejected_redial_s)
                    continue
                if node_id in self._links:
                    continue
                failures += 1
            await self._clock.sleep(
                redial_delay_s(
                    failures,
                    self._randomness.uniform(0.0, 1.0),
                    delay_s_min=self._limits.redial_s_min,
                    delay_s_max=self._limits.redial_s_max,
                )
            )

    async def _call(self, target: Voter, failures: int) -> bool:
        """Call a voter once. True if it will not do before a person acts."""
        lost = self._losses.find(target.node_id)
        try:
            await self._network.connect(
                target.address,
                CHANNEL,
                encode_hello(self._handler.hello()),
                lambda connection: self.on_opened(connection, target),
                timeout_s=self._limits.connect_timeout_s,
            )
        except RejectedError as error:
            if not is_passing(error):
                self._rejections.add(target.address, error)
                return True
            if failures == 0:
                logger.info("node %d is not ready: %s", target.node_id, error.message)
        except NetworkError as error:
            if failures == 0:
                logger.info(
                    "node %d at %s cannot be reached: %s", target.node_id, target.address, error
                )
            refused = isinstance(error, RefusedError) and target.node_id not in self._links
            if refused and lost is not None:
                self._losses.refused(lost)
        return False

    # Being called, and what comes of both

    def on_called(self, content: bytes) -> bytes:
        """Answer a caller's hello. Raises RejectedError."""
        theirs = self._decode(content)
        self._admit(theirs, None)
        return encode_hello(self._handler.hello())

    def on_opened(self, connection: Connection, target: Voter | None) -> Receiver:
        """Take a new connection; `target` if this side called. Raises RejectedError."""
        theirs = decode_hello(connection.hello)
        self._admit(theirs, target)
        node_id = theirs.node_id
        old = self._links.get(node_id)
        if old is not None:
            self._end(old, "a newer connection takes its place")
        self._losses.stop_probe(node_id)
        link = Link(
            self,
            connection,
            theirs,
            dialled=target is not None,
            opened_s=self._clock.monotonic(),
        )
        self._links[node_id] = link
        self._rejections.clear(theirs.address)
        if target is not None:
            self._rejections.clear(target.address)
        # Not from here: the connection is the network's until this has returned.
        link.greeting = self._spawn(self._greet(link), f"quorum-greet-{node_id}")
        return link

    def _decode(self, content: bytes) -> Hello:
        """A caller's hello. Raises RejectedError."""
        try:
            return decode_hello(content)
        except RejectedError as error:
            # Its address would be in what cannot be read.
            self._rejections.add("an unknown address", error)
            raise

    def _admit(self, theirs: Hello, target: Voter | None) -> None:
        """Raise RejectedError if that node may not connect, or not now."""
        if self._closing:
            raise RejectedError(NOT_READY.code, f"Node {self._me} is stopping.")
        if target is not None and theirs.node_id != target.node_id:
            raise RejectedError(
                ILLEGAL_STATE.code,
                f"At {target.address} answers node {theirs.node_id}, not node {target.node_id}: "
                "check the addresses of the voters, and how both nodes were started.",
            )
        old = self._links.get(theirs.node_id)
        try:
            self._check(theirs, old)
        except RejectedError as error:
            if target is None:
                self._rejections.add(theirs.address, error)
            raise
        if old is None:
            if len(self._links) >= self._limits.connections_max:
                raise RejectedError(
                    OVERLOADED.code,
                    f"Node {self._me} has {len(self._links)} connections, which is the limit.",
                )
        elif self._stays(old, target is not None):
            raise RejectedError(
                NOT_READY.code, f"Nodes {self._me} and {theirs.node_id} have just connected."
            )

    def _stays(self, old: Link, new_dialled: bool) -> bool:
        """Whether a connection stays although a new one opens."""
        young = self._clock.monotonic() - old.opened_s < self._limits.young_s
        stays = keeps_old(
            self._me,
            old.node_id,
            old_dialled=old.dialled,
            new_dialled=new_dialled,
            old_is_young=young and not old.defended,
        )
        if stays and not new_dialled:
            # Who calls a second time has lost the old one, however young it is.
            old.defended = True
        return stays

    def _check(self, theirs: Hello, old: Link | None) -> None:
        check_hello(
            self._handler.hello(),
            theirs,
            self._known.directory_id(theirs.node_id),
            live=None if old is None else old.hello.directory_id,
        )

    def _check_joiner(self, content: bytes) -> bytes:
        """Answer a node that looks for its cluster. Raises RejectedError."""
        theirs = self._decode(content)
        try:
            self._check(theirs, self._links.get(theirs.node_id))
        except RejectedError as error:
            self._rejections.add(theirs.address, error)
            raise
        return encode_hello(self._handler.hello())

    async def _greet(self, link: Link) -> None:
        """Note the peer's directory durably, then let the connection count."""
        try:
            await self._known.pin(link.node_id, link.hello.directory_id)
        except (DiskError, LogError) as error:
            if str(error) != self._pin_failure:
                self._pin_failure = str(error)
                logger.error("node %d is not connected: %s", link.node_id, error)
            self._lose(link, "its data directory could not be noted")
            return
        if link.ended.is_set():
            return
        link.is_up = True
        self._losses.discard(link.node_id)
        logger.info(
            "node %d connected: %s, raftlog %s",
            link.node_id,
            link.connection.address,
            link.hello.software_version,
        )
        self._handler.peer_up(link.node_id)
        # The handler may end the connection at any of these.
        while link.early and link.is_up:
            self._handler.received(link.node_id, link.early.popleft())

    def on_received(self, link: Link, message: bytes) -> None:
        """A message has arrived on a connection."""
        if link.is_up:
            self._handler.received(link.node_id, message)
            return
        if link.ended.is_set():
            return
        link.early.append(message)
        link.early_bytes += len(message)
        if (
            len(link.early) > self._limits.early_frames_max
            or link.early_bytes > self._limits.early_bytes_max
        ):
            self._lose(link, "too much arrived before its data directory was noted")

    # Losing

    def on_closed(self, link: Link) -> None:
        """A connection has ended by itself, or by the other side."""
        if not link.ended.is_set():
            self._lose(link, "the connection has ended")

    def _lose(self, link: Link, reason: str) -> None:
        """End a connection that no other one takes the place of."""
        self._end(link, reason)
        address = self.address(link.node_id)
        # The handler, told of the end, cannot have opened another one.
        assert link.node_id not in self._links
        if address is not None:
            self._losses.start_probe(link.node_id, address)

    def _end(self, link: Link, reason: str) -> None:
        assert self._links.get(link.node_id) is link
        del self._links[link.node_id]
        link.ended.set()
        if link.greeting is not None:
            link.greeting.cancel()
        link.early.clear()
        link.connection.close()
        if link.is_up:
            link.is_up = False
            self._losses.add(link)
            logger.info("node %d disconnected: %s", link.node_id, reason)
            self._handler.peer_down(link.node_id, refused=False)

    def _on_dead(self, node_id: int) -> None:
        logger.info("node %d refuses connections: its process has ended", node_id)
        self._handler.peer_down(node_id, refused=True)

    # Odds and ends

    async def _forget(self, node_id: int) -> None:
        try:
            await self._known.forget(node_id)
        except DiskError as error:
            logger.warning("node %d is not forgotten durably: %s", node_id, error)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            # What no task expects is a broken invariant: the loop's handler ends the process.
            task.result()
