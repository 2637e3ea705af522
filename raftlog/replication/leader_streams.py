"""The leader's side of the streams: who may follow, and one session for each who does.

A broker is known by its id and its epoch, which is one start of it. Only the start that the applied
metadata names is let in: what an earlier one acknowledged says nothing about the disk of this one.
A newer connection of a broker takes the place of the older one, which its caller must have lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from raftlog.metadata.image import BrokerImage
from raftlog.record.errors import BAD_REQUEST, ILLEGAL_STATE, NOT_READY
from raftlog.record.types import BrokerEpoch, BrokerId, PartitionId, TopicId
from raftlog.replication.catch_up_reader import Throttle
from raftlog.replication.partition import Partition
from raftlog.replication.stream_protocol import (
    CHANNEL,
    PROTOCOL,
    Hello,
    ProtocolError,
    decode_hello,
    encode_hello,
)
from raftlog.replication.stream_session import StreamSession
from raftlog.replication.stream_settings import StreamSettings
from raftlog.world import Clock
from raftlog.world.network import Connection, Network, Receiver, RejectedError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """One follower's connection, for metrics and status."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    address: str
    feeds: int
    """Partitions that it follows here."""
    feeds_behind: int
    """Those that are being read for it from the log."""
    bytes_sent: int
    """Of batches, since the connection opened."""
    bytes_in_flight: int
    """Of batches, sent and not acknowledged."""


def no_throttle() -> int:
    """No bound for replicas that are being added."""
    return 0


class LeaderStreams:
    """`Acceptor` of the followers' channel. Lives in the event loop; not for other threads."""

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
        adding_bytes_per_s: Callable[[], int] = no_throttle,
        settings: StreamSettings | None = None,
    ) -> None:
        """`own_epoch`: this node's, None before it is registered. `brokers` and `find` answer from
        the applied metadata. `adding_bytes_per_s` bounds what replicas are sent that a reassignment
        adds, all of them together; 0 is no bound.
        """
        self._network = network
        self._clock = clock
        self._broker_id = broker_id
        self._directory_id = directory_id
        self._cluster_id = cluster_id
        self._own_epoch = own_epoch
        self._brokers = brokers
        self._find = find
        self._throttle = Throttle(clock, adding_bytes_per_s)
        self._settings = settings or StreamSettings()
        self._sessions: dict[BrokerId, StreamSession] = {}
        # Not a set: the order in which tasks are cancelled must not depend on their addresses.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_closed = False
        self._bytes_sent = 0
        """In sessions that are over."""

    def start(self) -> None:
        """Let followers connect."""
        self._network.accept(CHANNEL, self)

    async def close(self) -> None:
        """End all sessions, and let nobody in any more. Harmless if done already."""
        self._is_closed = True
        for session in list(self._sessions.values()):
            session.end("this node is stopping")
        for task in list(self._tasks):
            task.cancel()
        # Each one's failure is told by its callback.
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def broker_changed(self, broker_id: BrokerId) -> None:
        """The applied metadata says something else of that broker than before."""
        session = self._sessions.get(broker_id)
        if session is not None:
            broker = self._brokers(broker_id)
            if broker is None or broker.broker_epoch != session.broker_epoch:
                session.end("the broker has started again, or left the cluster")

    @property
    def session_count(self) -> int:
        """Followers that are connected."""
        return len(self._sessions)

    @property
    def bytes_sent(self) -> int:
        """Bytes of batches sent since the start."""
        return self._bytes_sent + sum(each.bytes_sent for each in self._sessions.values())

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
            for _, session in sorted(self._sessions.items())
        ]

    # Acceptor

    def hello(self, hello: bytes) -> bytes:
        """Answer a follower. Raises RejectedError."""
        self._admit(hello)
        epoch, cluster_id = self._own_epoch(), self._cluster_id()
        assert epoch is not None
        assert cluster_id is not None
        return encode_hello(Hello(PROTOCOL, self._broker_id, epoch, self._directory_id, cluster_id))

    def opened(self, connection: Connection) -> Receiver:
        """Take a follower's connection. Raises RejectedError."""
        # Asked again: metadata may have been applied since the hello.
        theirs = self._admit(connection.hello)
        old = self._sessions.get(theirs.broker_id)
        if old is not None:
            old.end("a newer connection takes its place")
        session = StreamSession(
            connection=connection,
            broker_id=theirs.broker_id,
            broker_epoch=theirs.broker_epoch,
            clock=self._clock,
            find=self._find,
            throttle=self._throttle,
            settings=self._settings,
            spawn=self._spawn,
            on_ended=self._on_ended,
        )
        self._sessions[theirs.broker_id] = session
        logger.info("broker %d follows from %s", theirs.broker_id, connection.address)
        return session

    def _admit(self, content: bytes) -> Hello:
        """Raise RejectedError if that broker may not follow, or not now."""
        own_epoch, cluster_id = self._own_epoch(), self._cluster_id()
        if self._is_closed or own_epoch is None or cluster_id is None:
            raise RejectedError(NOT_READY.code, f"Broker {self._broker_id} starts, or stops.")
        try:
            theirs = decode_hello(content)
        except ProtocolError as error:
            raise RejectedError(BAD_REQUEST.code, f"It cannot replicate: {error}.") from error
        name = f"Broker {theirs.broker_id}"
        if theirs.cluster_id != cluster_id:
            raise RejectedError(
                ILLEGAL_STATE.code,
                f"{name} belongs to cluster {theirs.cluster_id}, broker {self._broker_id} to "
                f"cluster {cluster_id}: check the addresses that they were given.",
            )
        broker = self._brokers(theirs.broker_id)
        if broker is None or theirs.broker_epoch > broker.broker_epoch:
            # Its registration may be in the metadata that this node has not applied yet.
            raise RejectedError(NOT_READY.code, f"{name} is not known here yet.")
        if theirs.broker_epoch < broker.broker_epoch:
            raise RejectedError(
                ILLEGAL_STATE.code,
                f"{name} has started again since: epoch {theirs.broker_epoch} is over, "
                f"{broker.broker_epoch} has begun.",
            )
        if theirs.directory_id != broker.directory_id or theirs.broker_id == self._broker_id:
            raise RejectedError(
                ILLEGAL_STATE.code, f"{name} is registered with another data directory."
            )
        return theirs

    def _on_ended(self, session: StreamSession) -> None:
        if self._sessions.get(session.broker_id) is session:
            del self._sessions[session.broker_id]
            self._bytes_sent += session.bytes_sent

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
