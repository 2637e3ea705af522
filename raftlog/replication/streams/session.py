"""A follower's connection at the leader has partition streams, a window and watermarks.

A stream is *live* once the whole log was sent. An append then goes out within the append itself,
from memory. The stream falls *behind* when the window is full, or an append is too long. The
`CatchUpReader` then reads the log, round-robin, until the stream has caught up. Appends happen in
the event loop, so no append can come between "has sent everything" and "is live".

The reader waits while the window is full, the throttle holds all streams that are behind, or none
is behind. Chunks wait for room in the connection, as the window does not bound a batch in pieces.

The window counts the bytes in flight (sent and not acknowledged) of all streams together. It bounds
the connection's queue, and the follower's memory. Watermarks are gathered for a few milliseconds,
as `Data` mostly carries them anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeAlias

from raftlog.peer.channel import Session
from raftlog.peer.hello import ProtocolError
from raftlog.record.errors import NOT_READY, RETRIABLE, LogError
from raftlog.record.types import (
    BrokerEpoch,
    BrokerId,
    Buffer,
    LeaderEpoch,
    Offset,
    PartitionId,
    TopicId,
)
from raftlog.replication.follower.divergence import BelowStart, Diverging, FetchPosition, Outrun
from raftlog.replication.leader.role import Feed
from raftlog.replication.partition import Partition
from raftlog.replication.streams.protocol import (
    CONTINUES,
    ENTRIES_MAX,
    MORE,
    PRODUCERS_BYTES_MAX,
    PRODUCERS_PIECE_BYTES,
    Acks,
    Diverged,
    Marks,
    Message,
    Ping,
    Refused,
    Restart,
    Subscribe,
    Subscription,
    Unsubscribe,
    decode_from_follower,
    encode,
    encode_data,
)
from raftlog.replication.streams.settings import StreamSettings, Throttle
from raftlog.world import Clock, Wakeup


class CatchUpReader:
    """The only task that reads for a session."""

    def __init__(self, session: StreamSession, clock: Clock) -> None:
        self._session = session
        self._clock = clock
        self._wakeup = Wakeup(clock)
        self._held: OrderedDict[int, PartitionStream] = OrderedDict()
        """Streams to replicas in addition, while the throttle holds them."""
        self._held_until_s = 0.0
        self._is_waiting_for_window = False

    def window_moved(self) -> None:
        """Wake the reader if it waits for the window."""
        if self._is_waiting_for_window:
            self._wakeup.set()

    def wake(self) -> None:
        """Wake the reader because another stream is behind."""
        self._wakeup.set()

    async def run(self) -> None:
        """Read and send, until cancelled."""
        while True:
            self._is_waiting_for_window = self._is_window_full()
            stream = None if self._is_waiting_for_window else self._next()
            if self._is_waiting_for_window:
                await self._wakeup.wait(None)
            elif stream is None:
                await self._wakeup.wait(self._held_until_s if self._held else None)
            else:
                await self._push(stream)
                # A read from memory never waits, so let other tasks run.
                await self._clock.sleep(0)

    def _is_window_full(self) -> bool:
        settings = self._session.settings
        return self._session.bytes_in_flight + settings.chunk_bytes > settings.window_bytes

    def _next(self) -> PartitionStream | None:
        """The next stream to read for, taken from the queue. None to wait."""
        session = self._session
        behind = session.behind
        if self._held and self._clock.monotonic() >= self._held_until_s:
            behind.update(self._held)
            self._held.clear()
        while behind:
            handle, stream = behind.popitem(last=False)
            if stream.is_ended:
                continue
            if session.broker_id in stream.replica.image.adding:
                wait_s = session.throttle.wait_s()
                if wait_s > 0:
                    self._held[handle] = stream
                    self._held_until_s = self._clock.monotonic() + wait_s
                    continue
            return stream
        return None

    async def _push(self, stream: PartitionStream) -> None:
        """Send one chunk. Afterwards the stream is live, queued again, or ended."""
        if stream.restart is not None:
            await self._restart(stream, *stream.restart)
            return
        session = self._session
        error = await self._read(stream)
        if stream.is_ended:
            return
        if error is not None:
            stream.detach()
            session.refuse(stream, error)
        elif stream.read_offset == stream.replica.log_end_offset:
            # No append can come in between, because appends happen in the event loop.
            stream.is_behind = False
        else:
            session.behind[stream.handle] = stream

    async def _restart(
        self, stream: PartitionStream, answer: BelowStart | Outrun, leader_epoch: LeaderEpoch
    ) -> None:
        """Send the follower a restart."""
        session, offset = self._session, answer.log_start_offset
        try:
            role = stream.replica.require_leader()
            producers = role.producers_below(offset, leader_epoch=leader_epoch)
            horizon = role.deletion_horizon
        except LogError as error:
            session.refuse(stream, error)
            return
        assert len(producers) <= PRODUCERS_BYTES_MAX, "the storage remembers fewer"
        if session.broker_id in stream.replica.image.adding:
            session.throttle.took(len(producers))
        start = 0
        while await self._has_room(stream):
            end = start + PRODUCERS_PIECE_BYTES
            has_more = end < len(producers)
            piece = producers[start:end]
            is_outrun = isinstance(answer, Outrun)
            session.send(
                Restart(
                    handle=stream.handle,
                    log_start_offset=offset,
                    producers=piece,
                    has_more=has_more,
                    horizon=horizon,
                    is_outrun=is_outrun,
                )
            )
            if not has_more:
                session.restarted(stream)
                return
            start = end

    async def _read(self, stream: PartitionStream) -> LogError | None:
        """Read a chunk and send it. Returns an error that ends the stream."""
        offset = stream.read_offset
        if offset == stream.replica.log_end_offset:
            return None
        try:
            result = await stream.replica.require_leader().read_uncommitted(
                offset, max_bytes=self._session.settings.chunk_bytes
            )
        except LogError as error:
            return error
        if stream.is_ended:
            return None
        if result.data:
            await self._send(stream, result.next_offset, result.data)
        elif result.next_offset > offset:
            # Compaction has removed the whole range. The next batch shows the gap by its offset.
            stream.read_offset = result.next_offset
        else:
            return LogError(RETRIABLE, f"No batch could be read at offset {offset}.")
        return None

    async def _has_room(self, stream: PartitionStream) -> bool:
        """Wait until the connection takes more. False if the stream ended during the wait. The
        window does not bound the connection's queue, as it counts no bytes of ended streams."""
        session = self._session
        while session.connection.queued_bytes > session.settings.queued_bytes_max:
            await self._clock.sleep(session.settings.pace_s)
        return not stream.is_ended

    async def _send(self, stream: PartitionStream, next_offset: Offset, data: Buffer) -> None:
        session = self._session
        size_bytes = len(data)
        if session.broker_id in stream.replica.image.adding:
            session.throttle.took(size_bytes)
        piece_bytes = session.settings.piece_bytes
        if size_bytes <= piece_bytes:
            if await self._has_room(stream):
                session.send_data(stream, next_offset, (data,), size_bytes)
            return
        view = memoryview(data)
        for start in range(0, size_bytes, piece_bytes):
            if not await self._has_room(stream):
                return
            piece = view[start : start + piece_bytes]
            flags = CONTINUES if start else 0
            if start + piece_bytes < size_bytes:
                flags |= MORE
            session.send_data(stream, next_offset, (piece,), len(piece), flags)


FEEDS_MAX: Final = 200_000
"""Most partitions on one connection."""
MESSAGE_CHARACTERS_MAX: Final = 1000
"""Most characters of an error message that is sent."""

logger = logging.getLogger(__name__)


Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Starts a task by its name. A failure of the task ends the process."""


class PartitionStream:
    """One partition on a session."""

    __slots__ = (
        "_session",
        "acked_end",
        "feed",
        "handle",
        "high_watermark",
        "is_behind",
        "is_ended",
        "log_start_offset",
        "read_offset",
        "replica",
        "restart",
        "sent_end",
        "unacked",
    )

    def __init__(
        self,
        session: StreamSession,
        handle: int,
        replica: Partition,
        position: FetchPosition,
    ) -> None:
        self._session = session
        self.feed = Feed(
            broker_id=session.broker_id,
            broker_epoch=session.broker_epoch,
            on_appended=self._on_appended,
            on_watermarks=self._on_watermarks,
            on_ended=self._on_ended,
        )
        """The leader's view of this stream."""
        self.handle = handle
        self.replica = replica
        self.sent_end = position.offset
        """The follower's log end once all sent batches are appended there."""
        self.read_offset = position.offset
        """The next offset to read, above `sent_end` where compaction left no batches between."""
        self.acked_end = position.durable_end
        self.unacked: deque[tuple[Offset, int]] | None = None
        """End offset and bytes of each message in flight. Created on first use, as an empty deque
        is larger than all the rest, and most streams are idle."""
        self.high_watermark = Offset(-1)
        """The high watermark sent last."""
        self.log_start_offset = Offset(-1)
        """The log start offset sent last."""
        self.restart: tuple[BelowStart | Outrun, LeaderEpoch] | None = None
        """Response and leader epoch of a restart that the catch-up reader must send. Until then the
        feed is not attached."""
        self.is_behind = True
        self.is_ended = False

    def detach(self) -> None:
        """Take the stream from its leader role. Harmless if the role has ended."""
        role = self.replica.leader_role
        if role is not None:
            role.detach(self.feed)

    # Feed

    def _on_appended(
        self,
        base_offset: Offset,
        next_offset: Offset,
        buffers: Sequence[Buffer],
        size_bytes: int,
    ) -> None:
        """Send an append from memory, or leave it to the catch-up reader."""
        if self.is_behind or self.is_ended:
            return
        assert base_offset == self.read_offset, f"{base_offset} follows {self.read_offset}"
        session = self._session
        if session.takes_live(size_bytes):
            session.send_data(self, next_offset, buffers, size_bytes)
        else:
            session.fell_behind(self)

    def _on_watermarks(self) -> None:
        """Schedule the watermarks."""
        if not self.is_ended:
            self._session.schedule_watermarks(self)

    def _on_ended(self, error: LogError) -> None:
        """Refuse the subscription from now on."""
        self._session.refuse(self, error)


class StreamSession(Session):
    """One follower's connection."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
        clock: Clock,
        find: Callable[[TopicId, PartitionId], Partition | None],
        throttle: Throttle,
        settings: StreamSettings,
        spawn: Spawn,
        on_ended: Callable[[StreamSession], None],
    ) -> None:
        super().__init__(broker_id)
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.settings = settings
        self.throttle = throttle
        self.bytes_sent = 0
        self.bytes_in_flight = 0
        self._find = find
        self._on_ended = on_ended
        self._streams: dict[int, PartitionStream] = {}
        self._handles: dict[tuple[TopicId, PartitionId], int] = {}
        self._last_handle = 0
        self._watermarks_due: dict[int, PartitionStream] = {}
        self._watermarks_timer: asyncio.TimerHandle | None = None
        self.behind: OrderedDict[int, PartitionStream] = OrderedDict()
        """Streams that the catch-up reader reads for, the next one first."""
        self._reader = CatchUpReader(self, clock)
        self._reading = spawn(self._reader.run(), f"replication-pump-{broker_id}")

    @property
    def address(self) -> str:
        """The follower's address."""
        return self.connection.address

    @property
    def feed_count(self) -> int:
        """Partitions on this session."""
        return len(self._streams)

    @property
    def behind_count(self) -> int:
        """Partitions that the catch-up reader reads for."""
        return sum(1 for stream in self._streams.values() if stream.is_behind)

    # Session

    def received(self, message: bytes) -> None:
        """Handle a message of the follower."""
        if self.is_ended:
            return
        self.has_heard = True
        try:
            decoded = decode_from_follower(message)
            match decoded:
                case Acks():
                    self._on_acks(decoded)
                case Subscribe():
                    self._on_subscribe(decoded)
                case Unsubscribe():
                    self._on_unsubscribe(decoded)
                case Ping():
                    pass
        except ProtocolError as error:
            self.end(f"protocol error: {error}")

    def ping(self) -> None:
        """Send a sign of life."""
        self.send(Ping())

    def on_ended(self, reason: str) -> None:
        """Detach all feeds."""
        logger.info("broker %d: replication session ended: %s", self.broker_id, reason)
        self._reading.cancel()
        if self._watermarks_timer is not None:
            self._watermarks_timer.cancel()
        streams, self._streams = self._streams, {}
        self._handles.clear()
        self.behind.clear()
        for stream in streams.values():
            stream.is_ended = True
            stream.detach()
        self._on_ended(self)

    # Messages of the follower

    def _on_acks(self, acks: Acks) -> None:
        streams = self._streams
        for handle, durable_end, log_start_offset in acks.ends:
            stream = streams.get(handle)
            if stream is None:
                if handle > self._last_handle:
                    raise ProtocolError(f"handle {handle} was never given")
                # The acknowledgement crossed with the end of the stream.
                continue
            if not stream.acked_end <= durable_end <= stream.sent_end:
                raise ProtocolError(
                    f"{durable_end} is acknowledged, between {stream.acked_end} and "
                    f"{stream.sent_end}"
                )
            stream.acked_end = Offset(durable_end)
            unacked = stream.unacked
            while unacked and unacked[0][0] <= durable_end:
                self.bytes_in_flight -= unacked.popleft()[1]
            role = stream.replica.leader_role
            if role is not None:
                role.acked(stream.feed, Offset(durable_end), Offset(log_start_offset))
        self._reader.window_moved()

    def _on_subscribe(self, message: Subscribe) -> None:
        for subscription in message.subscriptions:
            if subscription.handle <= self._last_handle:
                raise ProtocolError(f"handle {subscription.handle} is used twice")
            self._last_handle = subscription.handle
            if len(self._streams) >= FEEDS_MAX:
                raise ProtocolError("it follows too many partitions")
            self._subscribe(subscription)
        # The watermarks accept the subscriptions.
        self._send_watermarks()

    def _subscribe(self, subscription: Subscription) -> None:
        partition = PartitionId(subscription.partition)
        key = (subscription.topic_id, partition)
        old = self._streams.get(self._handles.get(key, 0))
        if old is not None:
            self._forget(old)
            old.detach()
        replica = self._find(*key)
        if replica is None:
            # Unknown yet, or gone. Newer metadata will reach the follower, or this node.
            self._send_refused(subscription.handle, LogError(NOT_READY, "No such replica here."))
            return
        position = FetchPosition(
            leader_epoch=subscription.leader_epoch,
            offset=subscription.offset,
            last_epoch=subscription.last_epoch,
            durable_end=subscription.durable_end,
            log_start_offset=subscription.log_start_offset,
            horizon=subscription.horizon,
        )
        # The log start may be above the offset, after an interrupted restart in mid-batch.
        if position.durable_end > position.offset:
            raise ProtocolError(f"a replica cannot stand at {position}")
        stream = PartitionStream(self, subscription.handle, replica, position)
        try:
            answer = replica.attach(stream.feed, position)
        except LogError as error:
            self._send_refused(subscription.handle, error)
            return
        if isinstance(answer, Diverging):
            self.send(Diverged(subscription.handle, answer.epoch, answer.end_offset))
            return
        self._streams[subscription.handle] = stream
        self._handles[key] = subscription.handle
        if answer is not None:
            stream.restart = (answer, subscription.leader_epoch)
            self.fell_behind(stream)
        else:
            self._watermarks_due[subscription.handle] = stream
            if stream.sent_end == replica.log_end_offset:
                stream.is_behind = False
            else:
                self.fell_behind(stream)

    def _on_unsubscribe(self, message: Unsubscribe) -> None:
        for handle in message.handles:
            if handle > self._last_handle:
                raise ProtocolError(f"handle {handle} was never given")
            stream = self._streams.get(handle)
            if stream is not None:
                self._forget(stream)
                stream.detach()

    # For streams and the catch-up reader

    def takes_live(self, size_bytes: int) -> bool:
        """Whether an append of that size may be sent from memory."""
        return (
            self.bytes_in_flight + size_bytes <= self.settings.window_bytes
            and size_bytes <= self.settings.live_bytes_max
        )

    def fell_behind(self, stream: PartitionStream) -> None:
        """Queue the stream for the catch-up reader."""
        stream.is_behind = True
        self.behind[stream.handle] = stream
        self._reader.wake()

    def send_data(
        self,
        stream: PartitionStream,
        next_offset: Offset,
        buffers: Iterable[Buffer],
        size_bytes: int,
        flags: int = 0,
    ) -> None:
        """Send batches that begin at `sent_end`. MORE in `flags` sends a piece of a batch."""
        replica = stream.replica
        stream.high_watermark = replica.high_watermark
        stream.log_start_offset = replica.log_start_offset
        self.connection.send(
            encode_data(
                stream.handle,
                stream.sent_end,
                next_offset,
                stream.high_watermark,
                stream.log_start_offset,
                buffers,
                flags,
            )
        )
        self.has_sent = True
        self.bytes_sent += size_bytes
        self.bytes_in_flight += size_bytes
        if stream.unacked is None:
            stream.unacked = deque()
        stream.unacked.append((next_offset, size_bytes))
        if not flags & MORE:
            stream.sent_end = stream.read_offset = next_offset

    def schedule_watermarks(self, stream: PartitionStream) -> None:
        """Send the stream's watermarks within a few milliseconds, unless data carries them."""
        self._watermarks_due[stream.handle] = stream
        if self._watermarks_timer is None:
            self._watermarks_timer = asyncio.get_running_loop().call_later(
                self.settings.marks_s, self._send_watermarks
            )

    def refuse(self, stream: PartitionStream, error: LogError) -> None:
        """Send the follower the reason, and forget the stream. The caller has detached the feed."""
        if not stream.is_ended:
            self._forget(stream)
            self._send_refused(stream.handle, error)

    def restarted(self, stream: PartitionStream) -> None:
        """Forget a stream after its restart was sent. The follower will subscribe again."""
        self._forget(stream)

    def send(self, message: Message) -> None:
        """Send a message without batches."""
        self.has_sent = True
        self.connection.send(encode(message))

    # Inner parts

    def _send_watermarks(self) -> None:
        if self._watermarks_timer is not None:
            self._watermarks_timer.cancel()
            self._watermarks_timer = None
        due, self._watermarks_due = self._watermarks_due, {}
        marks: list[tuple[int, int, int]] = []
        for handle, stream in due.items():
            if self._streams.get(handle) is not stream:
                continue
            high_watermark = stream.replica.high_watermark
            log_start_offset = stream.replica.log_start_offset
            if (
                high_watermark != stream.high_watermark
                or log_start_offset != stream.log_start_offset
            ):
                stream.high_watermark = high_watermark
                stream.log_start_offset = log_start_offset
                marks.append((handle, high_watermark, log_start_offset))
        for start in range(0, len(marks), ENTRIES_MAX):
            self.send(Marks(marks[start : start + ENTRIES_MAX]))

    def _send_refused(self, handle: int, error: LogError) -> None:
        message = error.message[:MESSAGE_CHARACTERS_MAX]
        self.send(Refused(handle, error.entry.code, message))

    def _forget(self, stream: PartitionStream) -> None:
        stream.is_ended = True
        del self._streams[stream.handle]
        key = (stream.replica.topic_id, stream.replica.partition)
        if self._handles.get(key) == stream.handle:
            del self._handles[key]
        self.behind.pop(stream.handle, None)
        self.bytes_in_flight -= sum(size_bytes for _, size_bytes in stream.unacked or ())
        self._reader.window_moved()
