"""One open connection to a leader, on the follower's side: handles, and messages due.

Messages are gathered for a turn of the event loop: one flush mostly makes batches of many
partitions durable, and one change of metadata subscribes many of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from raftlog.peer.channel import PieceBuffer, Session
from raftlog.peer.hello import ProtocolError
from raftlog.record.types import BrokerEpoch, Offset
from raftlog.replication.replica_fetcher import ReplicaFetcher
from raftlog.replication.stream_protocol import (
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
    Subscribe,
    Unsubscribe,
    decode_data,
    decode_from_leader,
    encode,
    is_data,
)


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
        # Due at the end of this turn, in the order of the calls.
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
        """Forget the replica and its handle, and unsubscribe soon.

        A handle of 0 is none: the subscription was due at most.
        """
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
        """The whole of a message in pieces; None before the last piece."""
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
        """The replica of a handle; None if dropped. Raises ProtocolError."""
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
        unsubscribe_due, self._unsubscribe_due = self._unsubscribe_due, []
        for start in range(0, len(unsubscribe_due), ENTRIES_MAX):
            self._send(Unsubscribe(unsubscribe_due[start : start + ENTRIES_MAX]))
        if self._acks_due:
            acks_due, self._acks_due = self._acks_due, {}
            acks = [ack for replica in acks_due if (ack := replica.next_ack()) is not None]
            for start in range(0, len(acks), ENTRIES_MAX):
                self._send(Acks(acks[start : start + ENTRIES_MAX]))
        if self._subscribe_due:
            subscribe_due, self._subscribe_due = self._subscribe_due, {}
            self._subscribe(list(subscribe_due))

    def _subscribe(self, replicas: list[ReplicaFetcher]) -> None:
        if self._last_handle + len(replicas) > HANDLE_MAX:
            self.end("all handles are used up")
            return
        for start in range(0, len(replicas), ENTRIES_MAX):
            subscriptions = []
            for replica in replicas[start : start + ENTRIES_MAX]:
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
