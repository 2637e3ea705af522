"""The leader's side of the streams admits followers, and has one session for each.

A broker is identified by its id and its epoch, which is one incarnation. Only the incarnation of
the applied metadata is admitted, because the acknowledgements of an earlier incarnation prove
nothing about the disk of this incarnation. A newer connection of a broker replaces the older
connection, which the broker must have lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from raftlog.metadata.image import BrokerImage
from raftlog.peer.channel import Channel
from raftlog.peer.tasks import TaskGroup
from raftlog.record.errors import ILLEGAL_STATE, NOT_READY
from raftlog.record.types import BrokerEpoch, BrokerId, PartitionId, TopicId
from raftlog.replication.partition import Partition
from raftlog.replication.streams.protocol import CHANNEL, StreamHello, decode_stream_hello
from raftlog.replication.streams.session import StreamSession
from raftlog.replication.streams.settings import StreamSettings, Throttle
from raftlog.world import Clock
from raftlog.world.network import Connection, Network, RejectedError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """One follower's connection, for metrics and status."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    address: str
    feeds: int
    """Partitions followed here."""
    feeds_behind: int
    """Partitions read from the log for the follower to catch up."""
    bytes_sent: int
    """Bytes of batches, since the connection opened."""
    bytes_in_flight: int
    """Bytes of batches, sent and not acknowledged."""


def no_throttle() -> int:
    """No bound for replicas that are being added."""
    return 0


class LeaderStreams:
    """`Listener` of the followers' channel. Lives in the event loop, not for other threads."""

    def __init__(
        self,
        *,
        network: Network,
        clock: Clock,
        broker_id: BrokerId,
        directory_id: str,
        cluster_id: Callable[[], str | None],
        own_epoch: Callable[[], BrokerEpoch | None],
        brokers: Callable[[BrokerId], BrokerImage | None],
        find: Callable[[TopicId, PartitionId], Partition | None],
        on_fatal: Callable[[str], None],
        adding_bytes_per_s: Callable[[], int] = no_throttle,
        settings: StreamSettings | None = None,
    ) -> None:
        """`own_epoch` is the epoch of this node, None before its registration. `brokers` and `find`
        read the applied metadata. `adding_bytes_per_s` bounds the bytes sent to all replicas
        together that a reassignment adds. 0 is no bound."""
        self._clock = clock
        self._broker_id = broker_id
        self._directory_id = directory_id
        self._cluster_id = cluster_id
        self._own_epoch = own_epoch
        self._brokers = brokers
        self._find = find
        self._throttle = Throttle(clock, adding_bytes_per_s)
        self._settings = settings or StreamSettings()
        self._tasks = TaskGroup(on_fatal)
        self._channel: Channel[StreamSession] = Channel(
            CHANNEL,
            node_id=broker_id,
            network=network,
            clock=clock,
            tasks=self._tasks,
            settings=self._settings,
        )
        self._bytes_sent = 0
        """Bytes sent in ended sessions."""

    def start(self) -> None:
        """Accept followers."""
        self._channel.listen(self)

    async def close(self) -> None:
        """End all sessions, and accept none any more. Harmless if done already."""
        self._channel.close("this node is stopping")
        await self._tasks.close()

    def broker_changed(self, broker_id: BrokerId) -> None:
        """The broker's row of the applied metadata has changed."""
        session = self._channel.sessions.get(broker_id)
        if session is not None:
            broker = self._brokers(broker_id)
            if broker is None or broker.broker_epoch != session.broker_epoch:
                session.end("the broker has started again, or left the cluster")

    @property
    def session_count(self) -> int:
        """Connected followers."""
        return len(self._channel.sessions)

    @property
    def bytes_sent(self) -> int:
        """Bytes of batches sent since the start."""
        return self._bytes_sent + sum(each.bytes_sent for each in self._channel.sessions.values())

    def describe(self) -> list[SessionStatus]:
        """All sessions, ascending by broker id."""
        return [
            SessionStatus(
                broker_id=session.broker_id,
                broker_epoch=session.broker_epoch,
                address=session.address,
                feeds=session.feed_count,
                feeds_behind=session.behind_count,
                bytes_sent=session.bytes_sent,
                bytes_in_flight=session.bytes_in_flight,
            )
            for _, session in sorted(self._channel.sessions.items())
        ]

    # Listener

    def admit(self, content: bytes) -> StreamHello:
        """A follower's hello. Raises RejectedError if the broker may not follow, or not now."""
        own_epoch, cluster_id = self._own_epoch(), self._cluster_id()
        if own_epoch is None or cluster_id is None:
            raise RejectedError(NOT_READY.code, f"Broker {self._broker_id} starts, or stops.")
        theirs = decode_stream_hello(content)
        name = f"Broker {theirs.node_id}"
        if theirs.cluster_id != cluster_id:
            raise RejectedError(
                ILLEGAL_STATE.code,
                f"{name} belongs to cluster {theirs.cluster_id}, broker {self._broker_id} to "
                f"cluster {cluster_id}: check the addresses that they were given.",
            )
        broker = self._brokers(BrokerId(theirs.node_id))
        if broker is None or theirs.broker_epoch > broker.broker_epoch:
            # The registration may be in metadata that this node has not applied yet.
            raise RejectedError(NOT_READY.code, f"{name} is not known here yet.")
        if theirs.broker_epoch < broker.broker_epoch:
            raise RejectedError(
                ILLEGAL_STATE.code,
                f"{name} has started again since: epoch {theirs.broker_epoch} is over, "
                f"{broker.broker_epoch} has begun.",
            )
        if theirs.directory_id != broker.directory_id or theirs.node_id == self._broker_id:
            raise RejectedError(
                ILLEGAL_STATE.code, f"{name} is registered with another data directory."
            )
        return theirs

    def hello(self, theirs: StreamHello) -> StreamHello:
        """This broker's hello, for an admitted follower."""
        epoch, cluster_id = self._own_epoch(), self._cluster_id()
        assert epoch is not None
        assert cluster_id is not None
        return StreamHello(
            node_id=self._broker_id,
            broker_epoch=epoch,
            directory_id=self._directory_id,
            cluster_id=cluster_id,
        )

    def opened(self, connection: Connection, theirs: StreamHello) -> StreamSession:
        """Serve a follower on its new connection."""
        logger.info(
            "replication stream to broker %d opened from %s", theirs.node_id, connection.address
        )
        return StreamSession(
            broker_id=BrokerId(theirs.node_id),
            broker_epoch=theirs.broker_epoch,
            clock=self._clock,
            find=self._find,
            throttle=self._throttle,
            settings=self._settings,
            spawn=self._tasks.spawn,
            on_ended=self._on_ended,
        )

    def _on_ended(self, session: StreamSession) -> None:
        self._bytes_sent += session.bytes_sent
