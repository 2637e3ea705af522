"""The connection to one leader, kept while this node follows partitions there.

`FollowerStream` is one open connection. It gathers messages for a turn of the event loop. A flush
mostly makes batches of many partitions durable, and a metadata change subscribes many of them. Each
turn sends one message of each kind, however many partitions are due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any, Final

import msgspec

from raftlog.metadata.image import BrokerImage
from raftlog.peer.channel import Channel, PieceBuffer, Session
from raftlog.peer.dial import join_address
from raftlog.peer.hello import ProtocolError
from raftlog.peer.tasks import TaskGroup
from raftlog.record.errors import (
    CORRUPT_BATCH,
    ILLEGAL_STATE,
    MALFORMED_BATCH,
    STORAGE_FAILED,
    LogError,
)
from raftlog.record.types import BrokerEpoch, Offset, PartitionId, TopicId
from raftlog.replication.streams.protocol import (
    ENTRIES_MAX,
    HANDLE_MAX,
    PRODUCERS_BYTES_MAX,
    Acks,
    Diverged,
    Marks,
    Message,
    Ping,
    Refused,
    Restart,
    StreamHello,
    Subscribe,
    Unsubscribe,
    decode_data,
    decode_from_leader,
    decode_stream_hello,
    encode,
    is_data,
)
from raftlog.replication.streams.replica_fetcher import ReplicaFetcher
from raftlog.replication.streams.settings import StreamSettings
from raftlog.world import Randomness
from raftlog.world.network import Connection, NetworkError, RejectedError


class FollowerStream(Session):
    """`Session` of one connection to a leader."""

    def __init__(
        self,
        leader_id: int,
        leader_broker_epoch: BrokerEpoch,
        on_ended: Callable[[FollowerStream, str], None],
    ) -> None:
        super().__init__(leader_id)
        self.leader_broker_epoch = leader_broker_epoch
        """The leader's incarnation, by its own hello."""
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._handles: dict[int, ReplicaFetcher] = {}
        self._last_handle = 0
        self._restart: tuple[int, PieceBuffer] | None = None
        """Handle and producers of an incomplete `Restart`."""
        # Due at the end of this turn and of later turns, in the order of the calls.
        self._subscribe_due: dict[ReplicaFetcher, None] = {}
        self._acks_due: dict[ReplicaFetcher, None] = {}
        self._unsubscribe_due: list[int] = []
        self._is_flush_due = False

    # Calls of replicas

    def subscribe_soon(self, replica: ReplicaFetcher) -> None:
        """Subscribe a partition with the next message."""
        self._subscribe_due[replica] = None
        self._flush_soon()

    def ack_soon(self, replica: ReplicaFetcher) -> None:
        """Acknowledge the replica's durable end with the next message."""
        self._acks_due[replica] = None
        self._flush_soon()

    def drop(self, replica: ReplicaFetcher, handle: int) -> None:
        """Forget the replica and its handle, and unsubscribe soon. A handle of 0 is none, so the
        subscription was due at most."""
        # The replica may move to another leader, where the same handle is another replica.
        self._subscribe_due.pop(replica, None)
        self._acks_due.pop(replica, None)
        if self._handles.pop(handle, None) is not None:
            self._unsubscribe_due.append(handle)
            self._flush_soon()

    # Session

    def received(self, message: bytes) -> None:
        """Take a message of the leader."""
        if self.is_ended:
            return
        self.has_heard = True
        try:
            if is_data(message):
                data = decode_data(message)
                replica = self._find(data.handle)
                if replica is not None:
                    replica.on_data(data)
            else:
                self._on_message(message)
        except ProtocolError as error:
            self.end(f"it does not keep to the protocol: {error}")

    def ping(self) -> None:
        """Send a sign of life."""
        self._send(Ping())

    def on_ended(self, reason: str) -> None:
        """Forget all handles, and report the reason to the owner."""
        self._handles.clear()
        self._restart = None
        self._subscribe_due.clear()
        self._acks_due.clear()
        self._unsubscribe_due.clear()
        self._on_ended(self, reason)

    # Inner parts

    def _on_message(self, content: bytes) -> None:
        message = decode_from_leader(content)
        match message:
            case Marks():
                for handle, high_watermark, log_start_offset in message.marks:
                    replica = self._find(handle)
                    if replica is not None:
                        replica.on_marks(Offset(high_watermark), Offset(log_start_offset))
            case Ping():
                pass
            case _:
                replica = self._find(message.handle)
                if replica is None:
                    return
                if isinstance(message, Restart):
                    whole = self._put_together(message)
                    if whole is None:
                        return
                    message = whole
                # The leader has forgotten the handle already.
                del self._handles[message.handle]
                match message:
                    case Diverged():
                        replica.on_diverged(message)
                    case Restart():
                        replica.on_restart(message)
                    case Refused():
                        replica.on_refused(message)

    def _put_together(self, message: Restart) -> Restart | None:
        """The whole of a message in pieces. None before the last piece."""
        if self._restart is not None and self._restart[0] != message.handle:
            # A leader finishes one message before the next, unless the first handle was dropped.
            if self._restart[0] in self._handles:
                raise ProtocolError(f"handle {self._restart[0]} was left in the middle")
            self._restart = None
        if self._restart is None:
            self._restart = (message.handle, PieceBuffer(PRODUCERS_BYTES_MAX))
        producers = self._restart[1].add(message.producers, is_last=not message.has_more)
        if producers is None:
            return None
        self._restart = None
        return msgspec.structs.replace(message, producers=bytes(producers))

    def _find(self, handle: int) -> ReplicaFetcher | None:
        """The replica of a handle. None if dropped. Raises ProtocolError."""
        replica = self._handles.get(handle)
        if replica is None and handle > self._last_handle:
            raise ProtocolError(f"handle {handle} was never given")
        return replica

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if self.is_ended:
            return
        if self._unsubscribe_due:
            self._send(Unsubscribe(self._unsubscribe_due[:ENTRIES_MAX]))
            del self._unsubscribe_due[:ENTRIES_MAX]
        if self._acks_due:
            due = _taken(self._acks_due)
            acks = [ack for replica in due if (ack := replica.next_ack()) is not None]
            if acks:
                self._send(Acks(acks))
        if self._subscribe_due:
            self._subscribe(_taken(self._subscribe_due))
        if self._unsubscribe_due or self._acks_due or self._subscribe_due:
            # Only one message of each kind a turn. A new leader has thousands of subscriptions.
            self._flush_soon()

    def _subscribe(self, replicas: list[ReplicaFetcher]) -> None:
        if self._last_handle + len(replicas) > HANDLE_MAX:
            self.end("all handles are used up")
            return
        subscriptions = []
        for replica in replicas:
            subscription = replica.subscription(self._last_handle + 1)
            if subscription is not None:
                self._last_handle = subscription.handle
                self._handles[subscription.handle] = replica
                subscriptions.append(subscription)
        if subscriptions:
            self._send(Subscribe(subscriptions))

    def _send(self, message: Message) -> None:
        self.has_sent = True
        self.connection.send(encode(message))


def _taken(due: dict[ReplicaFetcher, None]) -> list[ReplicaFetcher]:
    """Remove and return the first replicas of `due` that fit into one message."""
    taken = list(islice(due, ENTRIES_MAX))
    for replica in taken:
        del due[replica]
    return taken


logger = logging.getLogger(__name__)

BATCH_ERRORS: Final = frozenset({CORRUPT_BATCH, MALFORMED_BATCH})
"""Errors of batches that no sound leader sends. They are counted, and logged as errors."""


class LeaderConnection:
    """The connection to one leader, dialled again when lost. `Opener` of the channel."""

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
        """`hello` gives this node's current hello, None before its registration. `replica_over` is
        called when the task of a retired replica has ended, `link_over` when no partition was
        followed here for `linger_s`. `close` must follow."""
        self.leader = leader
        self.settings = settings
        self.stream: FollowerStream | None = None
        """The open connection."""
        self.replicas: dict[tuple[TopicId, PartitionId], ReplicaFetcher] = {}
        self.bytes_received = 0
        """Bytes of batches, over all connections."""
        self.held_bytes = 0
        """Bytes received and not appended yet."""
        self.corrupt_count = 0
        """Batches that were damaged, or did not belong at their offsets."""
        self.rejection: str | None = None
        """The reason of the leader's present rejection."""
        self._channel = channel
        self._tasks = tasks
        self._randomness = randomness
        self._hello = hello
        self._replica_over = replica_over
        self._link_over = link_over
        self._logged: dict[int, None] = {}
        """Codes of errors logged since the connection opened."""
        self._linger: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._dial = self._start_dial()
        self._linger_if_idle()

    # Calls of the owner

    def add(self, replica: ReplicaFetcher) -> None:
        """Follow a partition here."""
        self.replicas[replica.key] = replica
        self._linger_if_idle()

    def remove(self, replica: ReplicaFetcher) -> None:
        """Stop following a partition here."""
        self.replicas.pop(replica.key, None)
        self._linger_if_idle()

    def retarget(self, leader: BrokerImage) -> None:
        """Take the leader's row of the metadata. Dials again if address or epoch have changed."""
        old, self.leader = self.leader, leader
        has_moved = (leader.host, leader.port) != (old.host, old.port)
        stream = self.stream
        if stream is not None and (has_moved or stream.leader_broker_epoch < leader.broker_epoch):
            stream.end("the leader has started again")
        if has_moved or leader.broker_epoch != old.broker_epoch:
            # The dial may wait for its next attempt, or for an abandoned address.
            self._dial.cancel()
            self._dial = self._start_dial()

    def close(self, reason: str) -> None:
        """End the connection, and stop dialling."""
        self._is_closed = True
        self._dial.cancel()
        if self._linger is not None:
            self._linger.cancel()
        if self.stream is not None:
            self.stream.end(reason)

    # Calls of replicas

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task. Its failure ends the node."""
        return self._tasks.spawn(work, name)

    def jitter(self) -> float:
        """A random number in [0, 1], for a delay."""
        return self._randomness.uniform(0.0, 1.0)

    def forget(self, replica: ReplicaFetcher) -> None:
        """Forget a retired replica, after the end of its task."""
        self._replica_over(replica)

    def hold(self, size_bytes: int) -> None:
        """Count bytes received that cannot be appended yet."""
        self.held_bytes += size_bytes
        bytes_max = self.settings.window_bytes + self.settings.batch_bytes_max
        if self.held_bytes > bytes_max and self.stream is not None:
            # A leader sends no more without acknowledgements.
            self.stream.end(f"it has sent {self.held_bytes} bytes too early")

    def release(self, size_bytes: int) -> None:
        """Uncount held bytes, appended or dropped."""
        self.held_bytes -= size_bytes

    def log_once(self, error: LogError) -> None:
        """Log an error of a partition, once per code and connection."""
        if error.entry in BATCH_ERRORS:
            self.corrupt_count += 1
        if error.entry.code in self._logged:
            return
        self._logged[error.entry.code] = None
        serious = error.entry in BATCH_ERRORS or error.entry is STORAGE_FAILED
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
        """Dial the leader once, as `Channel.keep_connected` needs."""
        hello, leader = self._hello(), self.leader
        if hello is None:
            # Not the leader's failure, so dial as soon as this node is registered.
            return self.settings.redial_s_min
        try:
            await self._channel.connect(join_address(leader.host, leader.port), hello, self)
        except RejectedError as error:
            if error.message != self.rejection:
                self.rejection = error.message
                logger.info(
                    "broker %d rejected the replication stream: %s", leader.broker_id, error.message
                )
        except NetworkError as error:
            if failures == 0:
                logger.info("broker %d is unreachable for replication: %s", leader.broker_id, error)
        return None

    # Opener

    def admit(self, content: bytes) -> StreamHello:
        """The hello, if sent by the leader of the applied metadata. Raises RejectedError."""
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
        self._logged.clear()
        logger.info(
            "replication stream from broker %d opened at %s",
            self.leader.broker_id,
            connection.address,
        )
        for replica in self.replicas.values():
            replica.maybe_subscribe()
        return stream

    def _on_ended(self, stream: FollowerStream, reason: str) -> None:
        assert self.stream is stream
        self.stream = None
        logger.info("replication stream from broker %d ended: %s", self.leader.broker_id, reason)
        for replica in self.replicas.values():
            replica.stream_ended()

    def _linger_if_idle(self) -> None:
        """End the connection `linger_s` after the last partition has left."""
        if self._is_closed:
            return
        if self.replicas and self._linger is not None:
            self._linger.cancel()
            self._linger = None
        elif not self.replicas and self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(
                self.settings.linger_s, self._link_over, self
            )
