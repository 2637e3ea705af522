"""The way to one leader: a connection that is kept for as long as partitions are followed there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from raftlog.metadata.image import BrokerImage
from raftlog.peer.channel import Channel
from raftlog.peer.dial import join_address
from raftlog.peer.tasks import TaskGroup
from raftlog.record.errors import CORRUPT_BATCH, ILLEGAL_STATE, STORAGE_FAILED, LogError
from raftlog.record.types import PartitionId, TopicId
from raftlog.replication.follower_stream import FollowerStream
from raftlog.replication.replica_fetcher import ReplicaFetcher
from raftlog.replication.stream_protocol import StreamHello, decode_stream_hello
from raftlog.replication.stream_settings import StreamSettings
from raftlog.world import Randomness
from raftlog.world.network import Connection, NetworkError, RejectedError

logger = logging.getLogger(__name__)


class LeaderConnection:
    """The way to one leader. `Opener` of its connections."""

    def __init__(
        self,
        leader: BrokerImage,
        *,
        channel: Channel[FollowerStream],
        tasks: TaskGroup,
        randomness: Randomness,
        settings: StreamSettings,
        hello: Callable[[], StreamHello | None],
        replica_over: Callable[[ReplicaFetcher], None],
        link_over: Callable[[LeaderConnection], None],
    ) -> None:
        """`hello`: this node's, as of now; None before it is registered. `replica_over`: the task
        of a replica that is not followed any more has ended. `link_over`: nothing was followed here
        for long; `close` must follow.
        """
        self.leader = leader
        self.settings = settings
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
        self._channel = channel
        self._tasks = tasks
        self._randomness = randomness
        self._hello = hello
        self._replica_over = replica_over
        self._link_over = link_over
        self._told: dict[int, None] = {}
        """Codes of errors that were logged since the connection opened."""
        self._linger: asyncio.TimerHandle | None = None
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
        return self._tasks.spawn(work, name)

    def jitter(self) -> float:
        """In [0, 1]."""
        return self._randomness.uniform(0.0, 1.0)

    def forget(self, replica: ReplicaFetcher) -> None:
        """The replica is not followed, and its task has ended."""
        self._replica_over(replica)

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
        leader_id = self.leader.broker_id
        return self._tasks.spawn(
            self._channel.keep_connected(leader_id, self._call, self._randomness),
            f"replication-dial-{leader_id}",
        )

    async def _call(self, failures: int) -> float | None:
        """Call the leader once; see `Channel.keep_connected`."""
        hello, leader = self._hello(), self.leader
        if hello is None:
            # No failure of the leader's: it is called as soon as this node may.
            return self.settings.redial_s_min
        try:
            await self._channel.connect(join_address(leader.host, leader.port), hello, self)
        except RejectedError as error:
            if error.message != self.rejection:
                self.rejection = error.message
                logger.info("broker %d does not let follow: %s", leader.broker_id, error.message)
        except NetworkError as error:
            if failures == 0:
                logger.info("broker %d cannot be followed: %s", leader.broker_id, error)
        return None

    # Opener

    def admit(self, content: bytes) -> StreamHello:
        """The leader's hello, if it is the leader. Raises RejectedError."""
        theirs = decode_stream_hello(content)
        mine, leader = self._hello(), self.leader
        if (
            mine is None
            or theirs.node_id != leader.broker_id
            or theirs.directory_id != leader.directory_id
            or theirs.cluster_id != mine.cluster_id
        ):
            raise RejectedError(
                ILLEGAL_STATE.code,
                f"At {join_address(leader.host, leader.port)} is broker {theirs.node_id} of "
                f"cluster {theirs.cluster_id}, directory {theirs.directory_id}, not broker "
                f"{leader.broker_id}, directory {leader.directory_id}.",
            )
        return theirs

    def opened(self, connection: Connection, theirs: StreamHello) -> FollowerStream:
        """Follow on a new connection."""
        assert self.stream is None
        stream = FollowerStream(theirs.node_id, theirs.broker_epoch, self._on_ended)
        self.stream = stream
        self.rejection = None
        self._told.clear()
        logger.info("broker %d is followed at %s", self.leader.broker_id, connection.address)
        for replica in self.replicas.values():
            replica.maybe_subscribe()
        return stream

    def _on_ended(self, stream: FollowerStream, reason: str) -> None:
        assert self.stream is stream
        self.stream = None
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
                self.settings.linger_s, self._link_over, self
            )
