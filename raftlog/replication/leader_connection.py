"""The way to one leader: a connection that is kept for as long as partitions are followed there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from raftlog.metadata.image import BrokerImage
from raftlog.raft.dial_plan import redial_delay_s
from raftlog.record.errors import (
    BAD_REQUEST,
    CORRUPT_BATCH,
    ILLEGAL_STATE,
    STORAGE_FAILED,
    LogError,
)
from raftlog.record.types import PartitionId, TopicId
from raftlog.replication.follower_stream import FollowerStream
from raftlog.replication.replica_fetcher import ReplicaFetcher
from raftlog.replication.stream_protocol import (
    CHANNEL,
    Hello,
    ProtocolError,
    decode_hello,
    encode_hello,
)
from raftlog.replication.stream_settings import StreamSettings
from raftlog.world import Clock, Randomness
from raftlog.world.network import Connection, Network, NetworkError, Receiver, RejectedError

CONNECT_TIMEOUT_S: Final = 2.0
STABLE_S: Final = 1.0
"""A connection that lasted so long is replaced at once when it is lost."""

logger = logging.getLogger(__name__)


class LinkOwner(Protocol):
    """What a link needs of who made it."""

    network: Network
    clock: Clock
    randomness: Randomness
    settings: StreamSettings

    def hello(self) -> Hello | None:
        """This node's, as of now; None before it is registered."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task whose failure ends the process."""
        ...

    def replica_over(self, replica: ReplicaFetcher) -> None:
        """The task of a replica that is not followed any more has ended."""
        ...

    def link_over(self, link: LeaderConnection) -> None:
        """The link has closed itself: nothing was followed on it for long."""
        ...


class LeaderConnection:
    """The way to one leader."""

    def __init__(self, owner: LinkOwner, leader: BrokerImage) -> None:
        self.leader = leader
        self.settings = owner.settings
        self.stream: FollowerStream | None = None
        """The open connection."""
        self.replicas: dict[tuple[TopicId, PartitionId], ReplicaFetcher] = {}
        self.bytes_received = 0
        """Of batches, over all connections."""
        self.held_bytes = 0
        """Received and not appended yet."""
        self.corrupt_count = 0
        """How often batches came that are damaged, or not those that belong there."""
        self.rejection: str | None = None
        """Why the leader does not let this node in."""
        self._owner = owner
        self._told: dict[int, None] = {}
        """Codes of errors that were logged since the connection opened."""
        self._linger: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None
        self._is_closed = False
        self._dial = self._start_dial()
        self._rest()

    # What the owner asks

    def add(self, replica: ReplicaFetcher) -> None:
        """A partition is followed here."""
        self.replicas[replica.key] = replica
        self._rest()

    def remove(self, replica: ReplicaFetcher) -> None:
        """It is not any more."""
        self.replicas.pop(replica.key, None)
        self._rest()

    def retarget(self, leader: BrokerImage) -> None:
        """The applied metadata says this of the leader. Calls it anew if need be."""
        old, self.leader = self.leader, leader
        has_moved = (leader.host, leader.port) != (old.host, old.port)
        stream = self.stream
        if stream is not None and (has_moved or stream.leader_broker_epoch < leader.broker_epoch):
            stream.end("the leader has started again")
        if has_moved or leader.broker_epoch != old.broker_epoch:
            # It may wait before it tries again, or for an address where nobody is any more.
            self._dial.cancel()
            self._dial = self._start_dial()

    def close(self, reason: str) -> None:
        """End the connection, and do not call again."""
        self._is_closed = True
        self._dial.cancel()
        if self._linger is not None:
            self._linger.cancel()
        if self.stream is not None:
            self.stream.end(reason)

    # What replicas ask

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task."""
        return self._owner.spawn(work, name)

    def jitter(self) -> float:
        """In [0, 1]."""
        return self._owner.randomness.uniform(0.0, 1.0)

    def forget(self, replica: ReplicaFetcher) -> None:
        """The replica is not followed, and its task has ended."""
        self._owner.replica_over(replica)

    def hold(self, size_bytes: int) -> None:
        """So many bytes were received and cannot be appended yet."""
        self.held_bytes += size_bytes
        bytes_max = self.settings.window_bytes + self.settings.batch_bytes_max
        if self.held_bytes > bytes_max and self.stream is not None:
            # More than a leader sends before it hears that it was taken.
            self.stream.end(f"it has sent {self.held_bytes} bytes too early")

    def release(self, size_bytes: int) -> None:
        """They were, or were dropped."""
        self.held_bytes -= size_bytes

    def tell(self, error: LogError) -> None:
        """Log why a partition is not followed, unless such a thing was logged."""
        if error.entry is CORRUPT_BATCH:
            self.corrupt_count += 1
        if error.entry.code in self._told:
            return
        self._told[error.entry.code] = None
        serious = error.entry in (CORRUPT_BATCH, STORAGE_FAILED)
        logger.log(
            logging.ERROR if serious else logging.INFO,
            "from broker %d: %s (%s)",
            self.leader.broker_id,
            error.message,
            error.entry.name,
        )

    # The connection

    def _start_dial(self) -> asyncio.Task[None]:
        return self._owner.spawn(self._keep(), f"replication-dial-{self.leader.broker_id}")

    async def _keep(self) -> None:
        """Keep a connection."""
        owner, settings = self._owner, self.settings
        failures = 0
        while True:
            delay_s = redial_delay_s(
                failures,
                self.jitter(),
                delay_s_min=settings.redial_s_min,
                delay_s_max=settings.redial_s_max,
            )
            await owner.clock.sleep(delay_s)
            if self.stream is None:
                hello = owner.hello()
                if hello is None:
                    # No failure of the leader's: it is called as soon as this node may.
                    await owner.clock.sleep(settings.redial_s_min)
                    continue
                await self._call(hello, failures)
            stream = self.stream
            if stream is None:
                failures += 1
                continue
            await stream.ended.wait()
            lasted_s = owner.clock.monotonic() - stream.opened_s
            failures = 0 if lasted_s >= STABLE_S else failures + 1

    async def _call(self, hello: Hello, failures: int) -> None:
        leader = self.leader
        try:
            await self._owner.network.connect(
                address_of(leader),
                CHANNEL,
                encode_hello(hello),
                lambda connection: self._opened(connection, hello),
                timeout_s=CONNECT_TIMEOUT_S,
            )
        except RejectedError as error:
            if error.message != self.rejection:
                self.rejection = error.message
                logger.info("broker %d does not let follow: %s", leader.broker_id, error.message)
        except NetworkError as error:
            if failures == 0:
                logger.info("broker %d cannot be followed: %s", leader.broker_id, error)

    def _opened(self, connection: Connection, mine: Hello) -> Receiver:
        """Take the connection. Raises RejectedError."""
        try:
            theirs = decode_hello(connection.hello)
        except ProtocolError as error:
            raise RejectedError(BAD_REQUEST.code, f"It cannot be followed: {error}.") from error
        leader = self.leader
        if (
            theirs.broker_id != leader.broker_id
            or theirs.directory_id != leader.directory_id
            or theirs.cluster_id != mine.cluster_id
        ):
            raise RejectedError(
                ILLEGAL_STATE.code,
                f"At {address_of(leader)} is broker {theirs.broker_id} of cluster "
                f"{theirs.cluster_id}, directory {theirs.directory_id}, not broker "
                f"{leader.broker_id}, directory {leader.directory_id}.",
            )
        if self.stream is not None:
            self.stream.end("a newer connection takes its place")
        stream = FollowerStream(
            connection, theirs.broker_epoch, self._owner.clock, self.settings, self._on_ended
        )
        self.stream = stream
        self.rejection = None
        self._told.clear()
        self._watch = self._owner.spawn(
            stream.watch(), f"replication-watch-{self.leader.broker_id}"
        )
        logger.info("broker %d is followed at %s", leader.broker_id, connection.address)
        for replica in self.replicas.values():
            replica.go()
        return stream

    def _on_ended(self, stream: FollowerStream, reason: str) -> None:
        assert self.stream is stream
        self.stream = None
        if self._watch is not None:
            self._watch.cancel()
        logger.info("broker %d is not followed any more: %s", self.leader.broker_id, reason)
        for replica in self.replicas.values():
            replica.stream_ended()

    def _rest(self) -> None:
        """See to it that the link ends some time after nothing is followed here any more."""
        if self._is_closed:
            return
        if self.replicas and self._linger is not None:
            self._linger.cancel()
            self._linger = None
        elif not self.replicas and self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(
                self.settings.linger_s, self._owner.link_over, self
            )


def address_of(broker: BrokerImage) -> str:
    """`host:port` where other nodes reach a broker."""
    host = f"[{broker.host}]" if ":" in broker.host else broker.host
    return f"{host}:{broker.port}"
