"""The fetcher of a followed partition is a state machine.

===========  ===================================  ==================================================
state        means                                left by
===========  ===================================  ==================================================
IDLE         not subscribed: no stream is open,   the stream opens, the task ends: SUBSCRIBING
             or a task still changes the log
SUBSCRIBING  subscription sent or queued, no      `Data`, `Marks`: FOLLOWING; `Diverged`:
             answer yet                           TRUNCATING; `Restart`: RESTARTING
FOLLOWING    received batches are appended        (below)
TRUNCATING   a task truncates the log             done: SUBSCRIBING
RESTARTING   a task empties the log               done: SUBSCRIBING
BACKOFF      refused, or an append failed: a      the timer: SUBSCRIBING
             gap, damaged batches, a full disk
STALE        the leader, or this node, has        `follow` with newer metadata; a long timer:
             applied another leader epoch         SUBSCRIBING
FAILED       the storage failed                   `follow` with another replica, or epoch
===========  ===================================  ==================================================

From SUBSCRIBING and FOLLOWING an error leads to BACKOFF, STALE or FAILED. The end of the stream
leads from these two to IDLE. The other states stay. `follow` with another leader epoch leads to
IDLE from every state.

Four rules
1. One task at a time changes the log. Until it ends the position for a subscription is unknown, so
   the subscription waits for the task, even for a task of an older leader epoch.
2. Data is appended within the receive callback. Only where the log must wait (for a new segment)
   the data is queued, with all data behind it.
3. Data is appended only where the leader takes the log to end. Each message names that end, so a
   gap that compaction left is known. Any other gap is a hole.
4. A dropped subscription is dropped whole. Its handle is never used again. The next subscription
   starts from the log's end at that time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from raftlog.peer.channel import redial_delay_s
from raftlog.record.errors import (
    ERROR_TABLE,
    INTERNAL,
    MALFORMED_BATCH,
    NO_LEADER,
    STORAGE_FAILED,
    LogError,
)
from raftlog.record.types import LeaderEpoch, Offset, PartitionId, TopicId
from raftlog.replication.follower.divergence import NO_EPOCH, Diverging
from raftlog.replication.partition import Partition
from raftlog.replication.streams.protocol import (
    CONTINUES,
    MORE,
    Data,
    Diverged,
    Refused,
    Restart,
    Subscription,
)
from raftlog.world import Backoff

if TYPE_CHECKING:
    from raftlog.replication.streams.leader_connection import LeaderConnection


STALE_RETRY_S: Final = 2.0
"""Seconds until the next subscription after the leader denied its leadership. Newer metadata should
come first."""


class FollowState(Enum):
    """The states, which the module describes."""

    IDLE = auto()
    SUBSCRIBING = auto()
    FOLLOWING = auto()
    TRUNCATING = auto()
    RESTARTING = auto()
    BACKOFF = auto()
    STALE = auto()
    FAILED = auto()


class ReplicaFetcher:
    """One followed partition, on the connection to its leader."""

    __slots__ = (
        "_acked",
        "_end",
        "_failures",
        "_follower",
        "_generation",
        "_handle",
        "_held_bytes",
        "_pieces",
        "_queue",
        "_refusals",
        "_subscribed_epoch",
        "_timer",
        "_watermarks",
        "_work",
        "error",
        "is_stopped",
        "key",
        "leader_epoch",
        "link",
        "partition",
        "state",
    )

    def __init__(self, partition: Partition, link: LeaderConnection) -> None:
        self.partition = partition
        self._follower = partition.follower_role
        self.key: tuple[TopicId, PartitionId] = (partition.topic_id, partition.partition)
        self.link = link
        self.state = FollowState.IDLE
        self.leader_epoch = partition.image.leader_epoch
        """The leader epoch that `follow` was called for."""
        self.error = ""
        """The last error. Empty while the subscription is accepted."""
        self.is_stopped = False
        """Not followed any more. Only the last task still runs."""
        self._handle = 0
        """The subscription's handle. 0 without a subscription."""
        self._subscribed_epoch = NO_EPOCH
        """The leader epoch that the subscription names."""
        self._end = Offset(0)
        """The log end once all received data is appended."""
        self._acked: tuple[Offset, Offset] = (Offset(0), Offset(0))
        """The durable end and log start offset acknowledged last."""
        self._queue: list[Data] = []
        self._pieces: list[memoryview] = []
        self._watermarks: tuple[Offset, Offset] | None = None
        """The last watermarks that came during a change of the log."""
        self._held_bytes = 0
        """Bytes of the queue and the pieces."""
        self._work: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._refusals = 0
        """Refused subscriptions in a row."""
        self._failures = 0
        """Failed appends in a row."""
        self._generation = 0
        """Count of ended subscriptions. An error of a task from an earlier generation is dropped.
        """
        self._follower.attach_fetcher(self._on_durable)

    @property
    def name(self) -> str:
        """Topic and partition, for logs."""
        return self.partition.name

    @property
    def is_working(self) -> bool:
        """Whether a task is changing the log."""
        return self._work is not None

    # For FollowerStreams and LeaderConnection

    def maybe_subscribe(self) -> None:
        """Subscribe if the state allows it. Harmless at any time."""
        stream = self.link.stream
        if self.state is not FollowState.IDLE or self._work is not None or stream is None:
            return
        self.state = FollowState.SUBSCRIBING
        stream.subscribe_soon(self)

    def switch_leader(self, link: LeaderConnection) -> None:
        """Drop the subscription and make a new subscription to another leader or epoch."""
        self._drop()
        self.link = link
        self.is_stopped = False
        self.leader_epoch = self.partition.image.leader_epoch
        self._refusals = self._failures = 0
        self._follower.attach_fetcher(self._on_durable)
        self.state = FollowState.IDLE
        self.maybe_subscribe()

    def stop(self) -> None:
        """Stop following. A change of the log that is under way runs to its end."""
        self._drop()
        self.is_stopped = True
        self.state = FollowState.IDLE
        self._follower.detach_fetcher()

    def stream_ended(self) -> None:
        """The stream has ended, and the subscription with it."""
        if self._handle:
            self._handle = 0
            self._generation += 1
            self._forget_queue()
        if self.state in (FollowState.SUBSCRIBING, FollowState.FOLLOWING):
            self.state = FollowState.IDLE

    # For FollowerStream

    def subscription(self, handle: int) -> Subscription | None:
        """The subscription to send with that handle. None if no longer due."""
        if self.state is not FollowState.SUBSCRIBING:
            return None
        try:
            position = self._follower.position()
        except LogError as error:
            self._on_error(error)
            return None
        self._handle = handle
        self._subscribed_epoch = position.leader_epoch
        self._end = position.offset
        self._acked = (position.durable_end, position.log_start_offset)
        topic_id, partition = self.key
        return Subscription(
            handle=handle, topic_id=topic_id, partition=partition, **position._asdict()
        )

    def next_ack(self) -> tuple[int, int, int] | None:
        """The next acknowledgement to send. None if nothing has changed."""
        if not self._handle:
            return None
        partition = self.partition
        acked_end = self._acked[0]
        # An acknowledgement never falls, even if the topic changes to the stricter flush mode, and
        # never goes beyond the data of this leader.
        durable_end = max(acked_end, min(partition.durable_end, self._end))
        # Completes deletions of records that wait at the leader.
        log_start_offset = partition.log.durable_log_start
        if self._acked == (durable_end, log_start_offset):
            return None
        self._acked = (durable_end, log_start_offset)
        return self._handle, durable_end, log_start_offset

    def on_data(self, data: Data) -> None:
        """Take received batches, or a piece of a batch."""
        self.link.bytes_received += len(data.payload)
        if self.state is not FollowState.FOLLOWING:
            self._on_accepted()
        if data.base_offset != self._end:
            self._on_error(
                LogError(
                    MALFORMED_BATCH,
                    f"{self.name}: received offset {data.base_offset}, expected {self._end}.",
                )
            )
        elif data.flags or self._pieces:
            self._on_piece(data)
        else:
            self._take(data)

    def on_marks(self, high_watermark: Offset, log_start_offset: Offset) -> None:
        """Take the leader's watermarks. The first watermarks accept the subscription."""
        if self.state is not FollowState.FOLLOWING:
            self._on_accepted()
        if self._work is not None:
            self._watermarks = (high_watermark, log_start_offset)
            return
        try:
            self._follower.update_watermarks(
                leader_epoch=self._subscribed_epoch,
                high_watermark=high_watermark,
                log_start_offset=log_start_offset,
            )
        except LogError as error:
            self._on_error(error)

    def on_diverged(self, message: Diverged) -> None:
        """Truncate the diverging log, and subscribe again."""
        self._handle = 0
        self.state = FollowState.TRUNCATING
        diverging = Diverging(LeaderEpoch(message.epoch), Offset(message.end_offset))
        leader_epoch = self._subscribed_epoch
        self._start(lambda: self._truncate(diverging, leader_epoch))

    def on_restart(self, message: Restart) -> None:
        """Restart at the leader's log start. All pieces are joined."""
        self._handle = 0
        self.state = FollowState.RESTARTING
        offset = Offset(message.log_start_offset)
        leader_epoch = self._subscribed_epoch
        self._start(
            lambda: self._follower.restart_at(
                offset,
                producers=message.producers,
                leader_epoch=leader_epoch,
                horizon=message.horizon,
                is_outrun=message.is_outrun,
            )
        )

    def on_refused(self, message: Refused) -> None:
        """The leader refused the subscription, or ended it."""
        self._handle = 0
        self._generation += 1
        self._forget_queue()
        self._refusals += 1
        entry = ERROR_TABLE.get(message.code, INTERNAL)
        self._wait(LogError(entry, f"{self.name} is refused: {message.message}"))

    async def _truncate(self, diverging: Diverging, leader_epoch: LeaderEpoch) -> None:
        before = self.partition.log_end_offset
        await self._follower.truncate_for(diverging, leader_epoch=leader_epoch)
        if self.partition.log_end_offset >= before:
            # The same subscription would get the same answer.
            raise LogError(INTERNAL, f"{self.name}: no agreement on the point of divergence.")

    # Appending

    def _take(self, data: Data) -> None:
        self._end = data.next_offset
        if self._work is None:
            try:
                if self._append_now(data):
                    return
            except LogError as error:
                self._on_error(error)
                return
            self._hold(data)
            handle = self._handle
            self._start(lambda: self._drain(handle))
        else:
            self._hold(data)

    def _append_now(self, data: Data) -> bool:
        self._require_end(data)
        is_done = self._follower.append_fetched_now(
            data.payload,
            leader_epoch=self._subscribed_epoch,
            high_watermark=data.high_watermark,
            log_start_offset=data.log_start_offset,
        )
        if is_done:
            self._check_end(data)
        return is_done

    async def _drain(self, handle: int) -> None:
        """Append the queue, until the subscription ends."""
        while self._queue:
            queue, self._queue = self._queue, []
            for data in queue:
                if self._handle != handle:
                    return
                self._release(len(data.payload))
                await self._append(data, handle)

    async def _append(self, data: Data, handle: int) -> None:
        if not self._append_now(data):
            await self._follower.append_fetched(
                data.payload,
                leader_epoch=self._subscribed_epoch,
                high_watermark=data.high_watermark,
                log_start_offset=data.log_start_offset,
            )
            if self._handle == handle:
                self._check_end(data)

    def _require_end(self, data: Data) -> None:
        """Raise LogError unless the log ends where the leader takes it to end.

        With a later end the log is longer than the leader knows. With an earlier end the append
        would leave a hole that looks like a gap of compaction.
        """
        end_offset = self.partition.log_end_offset
        if end_offset != data.base_offset:
            raise LogError(
                MALFORMED_BATCH,
                f"{self.name}: the log ends at {end_offset}, and the received batches belong at "
                f"{data.base_offset}.",
            )

    def _check_end(self, data: Data) -> None:
        end_offset = self.partition.log_end_offset
        if end_offset != data.next_offset:
            raise LogError(
                MALFORMED_BATCH,
                f"{self.name}: batches up to {data.next_offset} were announced, but the log ends "
                f"at {end_offset} with them.",
            )
        self._failures = 0

    def _on_piece(self, data: Data) -> None:
        """Join the pieces of a long batch."""
        if bool(data.flags & CONTINUES) != bool(self._pieces):
            self._on_error(LogError(MALFORMED_BATCH, f"{self.name}: pieces came out of order."))
            return
        self._pieces.append(data.payload)
        size_bytes = self._hold_bytes(len(data.payload))
        if self._handle and not data.flags & MORE:
            whole = memoryview(b"".join(self._pieces))
            self._pieces = []
            self._release(size_bytes)
            self._take(data._replace(flags=0, payload=whole))

    def _hold(self, data: Data) -> None:
        self._queue.append(data)
        self._hold_bytes(len(data.payload))

    def _hold_bytes(self, size_bytes: int) -> int:
        self._held_bytes += size_bytes
        self.link.hold(size_bytes)
        return self._held_bytes

    def _release(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self.link.release(size_bytes)

    def _forget_queue(self) -> None:
        self._queue = []
        self._pieces = []
        self._watermarks = None
        self._release(self._held_bytes)

    # Inner parts

    def _on_durable(self) -> None:
        stream = self.link.stream
        if self._handle and stream is not None:
            stream.ack_soon(self)

    def _on_accepted(self) -> None:
        self.state = FollowState.FOLLOWING
        self.error = ""
        self._refusals = 0

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        assert self._work is None, f"{self.name}: two tasks would change the log"
        self._work = self.link.spawn(self._run(work), f"replication-follow-{self.name}")

    async def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        generation = self._generation
        try:
            await work()
        except LogError as error:
            if generation == self._generation:
                self._on_error(error)
        finally:
            # In the same turn, because the next data must not queue behind a task that is over.
            self._work = None
        marks, self._watermarks = self._watermarks, None
        if marks is not None and self._handle:
            self.on_marks(*marks)
        if self.state in (FollowState.TRUNCATING, FollowState.RESTARTING):
            self.state = FollowState.IDLE
        if self.is_stopped:
            self.link.forget(self)
        else:
            self.maybe_subscribe()

    def _on_error(self, error: LogError) -> None:
        """End the subscription after an error. FAILED for the storage, else back off."""
        self._drop()
        if error.entry is STORAGE_FAILED:
            self.error = error.message
            self.state = FollowState.FAILED
            self.link.log_once(error)
        else:
            self._failures += 1
            self._wait(error)

    def _wait(self, error: LogError) -> None:
        """Subscribe again after a delay."""
        settings = self.link.settings
        self.error = error.message
        self.link.log_once(error)
        if error.entry is NO_LEADER:
            self.state = FollowState.STALE
            delay_s = STALE_RETRY_S
        else:
            self.state = FollowState.BACKOFF
            delay_s = redial_delay_s(
                self._refusals + self._failures,
                self.link.jitter(),
                Backoff(settings.retry_s_min, settings.retry_s_max),
            )
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.state = FollowState.IDLE
        self.maybe_subscribe()

    def _drop(self) -> None:
        """End the subscription, its queue and its timer."""
        stream = self.link.stream
        if stream is not None:
            stream.drop(self, self._handle)
        self._handle = 0
        self._generation += 1
        self._forget_queue()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
