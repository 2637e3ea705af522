"""One partition as its follower keeps it up: a state machine.

===========  ===================================  ==================================================
state        means                                left by
===========  ===================================  ==================================================
IDLE         not asked for: there is no stream,   the stream opens, the task ends: SUBSCRIBING
             or a task still changes the log
SUBSCRIBING  asked for, or in line for it; no     `Data`, `Marks`: FOLLOWING; `Diverged`:
             answer yet                           TRUNCATING; `Restart`: RESTARTING
FOLLOWING    what comes is appended               (below)
TRUNCATING   a task cuts the log's end            done: SUBSCRIBING
RESTARTING   a task empties the log               done: SUBSCRIBING
BACKOFF      refused, or could not be taken: a    the timer: SUBSCRIBING
             gap, damaged batches, a full disk
STALE        the leader, or this node, knows of   `follow` with newer metadata; a long timer:
             another leader epoch by now          SUBSCRIBING
FAILED       the storage failed                   `follow` with another replica, or epoch
===========  ===================================  ==================================================

From SUBSCRIBING and FOLLOWING an error leads to BACKOFF, STALE or FAILED; the end of the stream
leads to IDLE, but for those that wait for something else. `follow` with another leader epoch leads
to IDLE from everywhere.

Four rules
1. One task at a time changes the log, and while one does, the position that a subscription would
   name is not known: so it waits for the task, also if that serves an older leader epoch.
2. Data is appended within the receive callback. Only where the log must wait (a segment is begun)
   it is queued, and everything behind it.
3. What comes is appended only where the leader takes the log to end, which it says with each
   message, also where compaction has left batches out. Anything else is a hole.
4. What is dropped is dropped whole: the handle is never heard of again, and the next subscription
   begins from what the log holds then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from raftlog.raft.dial_plan import redial_delay_s
from raftlog.record.errors import (
    CORRUPT_BATCH,
    ERROR_TABLE,
    INTERNAL,
    NO_LEADER,
    STORAGE_FAILED,
    LogError,
)
from raftlog.record.types import LeaderEpoch, Offset, PartitionId, TopicId
from raftlog.replication.divergence import NO_EPOCH, Diverging
from raftlog.replication.stream_protocol import (
    CONTINUES,
    MORE,
    Data,
    Diverged,
    Refused,
    Restart,
    Subscription,
)
from raftlog.replication.stream_replicas import FollowingReplica

if TYPE_CHECKING:
    from raftlog.replication.leader_connection import LeaderConnection


STALE_RETRY_S: Final = 2.0
"""Until the next subscription after the leader denied its leadership: newer metadata should come
first."""


class FollowState(Enum):
    """See the module."""

    IDLE = auto()
    SUBSCRIBING = auto()
    FOLLOWING = auto()
    TRUNCATING = auto()
    RESTARTING = auto()
    BACKOFF = auto()
    STALE = auto()
    FAILED = auto()


class ReplicaFetcher:
    """One partition, on the link to its leader."""

    __slots__ = (
        "_acked",
        "_asked_epoch",
        "_end",
        "_failures",
        "_generation",
        "_handle",
        "_held_bytes",
        "_marks",
        "_pieces",
        "_queue",
        "_refusals",
        "_timer",
        "_work",
        "error",
        "is_retired",
        "key",
        "leader_epoch",
        "link",
        "partition",
        "state",
    )

    def __init__(self, partition: FollowingReplica, link: LeaderConnection) -> None:
        self.partition = partition
        self.key: tuple[TopicId, PartitionId] = (partition.topic_id, partition.partition)
        self.link = link
        self.state = FollowState.IDLE
        self.leader_epoch = partition.leader_epoch
        """The one that `follow` was called for."""
        self.error = ""
        """Why it does not follow, or did not the last time."""
        self.is_retired = False
        """Not followed any more; only its task is still at work."""
        self._handle = 0
        """Of the subscription; 0: none."""
        self._asked_epoch = NO_EPOCH
        """The leader epoch that the subscription names."""
        self._end = Offset(0)
        """Where the log ends once all that was received is appended."""
        self._acked: tuple[Offset, Offset] = (Offset(0), Offset(0))
        """The durable end and log start offset that the leader was told."""
        self._queue: list[Data] = []
        self._pieces: list[memoryview] = []
        self._marks: tuple[Offset, Offset] | None = None
        """The last that came while a task was changing the log."""
        self._held_bytes = 0
        """Of the queue and the pieces."""
        self._work: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._refusals = 0
        """In a row; so are the failures to take what came."""
        self._failures = 0
        self._generation = 0
        """Counts what a task may serve: an error of a task that is out of date is nobody's."""
        partition.on_durable = self._on_durable

    @property
    def name(self) -> str:
        """For logs."""
        return f"{self.partition.topic}-{self.partition.partition}"

    @property
    def is_working(self) -> bool:
        """Whether a task is changing the log."""
        return self._work is not None

    # What the owner asks

    def go(self) -> None:
        """Subscribe, if nothing speaks against it. Harmless at any time."""
        stream = self.link.stream
        if self.state is not FollowState.IDLE or self._work is not None or stream is None:
            return
        self.state = FollowState.SUBSCRIBING
        stream.subscribe_soon(self)

    def follow_anew(self, link: LeaderConnection) -> None:
        """There is another leader, or another epoch of it: begin from scratch."""
        self._drop()
        self.link = link
        self.is_retired = False
        self.leader_epoch = self.partition.leader_epoch
        self._refusals = self._failures = 0
        self.partition.on_durable = self._on_durable
        self.state = FollowState.IDLE
        self.go()

    def retire(self) -> None:
        """It is not followed any more."""
        self._drop()
        self.is_retired = True
        self.state = FollowState.IDLE
        self.partition.on_durable = None

    def stream_ended(self) -> None:
        """The stream is gone, and the subscription with it."""
        if self._handle:
            self._handle = 0
            self._generation += 1
            self._forget_queue()
        if self.state in (FollowState.SUBSCRIBING, FollowState.FOLLOWING):
            self.state = FollowState.IDLE

    # What the stream asks

    def subscription(self, handle: int) -> Subscription | None:
        """The subscription by that handle, as of now; None if it is not wanted any more."""
        if self.state is not FollowState.SUBSCRIBING:
            return None
        try:
            position = self.partition.position()
        except LogError as error:
            self._on_error(error)
            return None
        self._handle = handle
        self._asked_epoch = position.leader_epoch
        self._end = position.offset
        self._acked = (position.durable_end, position.log_start_offset)
        topic_id, partition = self.key
        return Subscription(
            handle=handle, topic_id=topic_id, partition=partition, **position._asdict()
        )

    def next_ack(self) -> tuple[int, int, int] | None:
        """What the leader is to be told; None if it knows."""
        if not self._handle:
            return None
        partition = self.partition
        acked_end = self._acked[0]
        # It does not fall, also where a topic has changed to the stricter flush mode; and what this
        # leader has not sent is not for it to hear of.
        durable_end = max(acked_end, min(partition.durable_end, self._end))
        # Who deletes records is told that it is done by this.
        log_start_offset = partition.durable_start
        if self._acked == (durable_end, log_start_offset):
            return None
        self._acked = (durable_end, log_start_offset)
        return self._handle, durable_end, log_start_offset

    def on_data(self, data: Data) -> None:
        """Batches have come, or a piece of them."""
        self.link.bytes_received += len(data.payload)
        if self.state is not FollowState.FOLLOWING:
            self._accepted()
        if data.base_offset != self._end:
            self._on_error(
                LogError(
                    CORRUPT_BATCH,
                    f"{self.name}: offset {data.base_offset} came where {self._end} belongs.",
                )
            )
        elif data.flags or self._pieces:
            self._on_piece(data)
        else:
            self._take(data)

    def on_marks(self, high_watermark: Offset, log_start_offset: Offset) -> None:
        """The leader's high watermark and log start have moved; or it has accepted."""
        if self.state is not FollowState.FOLLOWING:
            self._accepted()
        if self._work is not None:
            self._marks = (high_watermark, log_start_offset)
            return
        try:
            self.partition.learned(
                leader_epoch=self._asked_epoch,
                high_watermark=high_watermark,
                log_start_offset=log_start_offset,
            )
        except LogError as error:
            self._on_error(error)

    def on_diverged(self, message: Diverged) -> None:
        """The leader has another history: cut, and ask again."""
        self._handle = 0
        self.state = FollowState.TRUNCATING
        diverging = Diverging(LeaderEpoch(message.epoch), Offset(message.end_offset))
        leader_epoch = self._asked_epoch
        self._start(lambda: self._truncate(diverging, leader_epoch))

    def on_restart(self, message: Restart) -> None:
        """The leader's log begins behind this one's end: begin there, too. It is whole."""
        self._handle = 0
        self.state = FollowState.RESTARTING
        offset = Offset(message.log_start_offset)
        leader_epoch = self._asked_epoch
        self._start(
            lambda: self.partition.restart_at(
                offset, producers=message.producers, leader_epoch=leader_epoch
            )
        )

    def on_refused(self, message: Refused) -> None:
        """The leader does not send, or no more."""
        self._handle = 0
        self._generation += 1
        self._forget_queue()
        self._refusals += 1
        entry = ERROR_TABLE.get(message.code, INTERNAL)
        self._wait(LogError(entry, f"{self.name} is refused: {message.message}"))

    async def _truncate(self, diverging: Diverging, leader_epoch: LeaderEpoch) -> None:
        before = self.partition.log_end_offset
        await self.partition.truncate_for(diverging, leader_epoch=leader_epoch)
        if self.partition.log_end_offset >= before:
            # To ask again at once would have the same answer.
            raise LogError(INTERNAL, f"{self.name}: no agreement on where the histories part.")

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
        is_done = self.partition.append_fetched_now(
            data.payload,
            leader_epoch=self._asked_epoch,
            high_watermark=data.high_watermark,
            log_start_offset=data.log_start_offset,
        )
        if is_done:
            self._check_end(data)
        return is_done

    async def _drain(self, handle: int) -> None:
        """Append what is queued, for as long as the subscription lives."""
        while self._queue:
            queue, self._queue = self._queue, []
            for data in queue:
                if self._handle != handle:
                    return
                self._release(len(data.payload))
                await self._append(data, handle)

    async def _append(self, data: Data, handle: int) -> None:
        if not self._append_now(data):
            await self.partition.append_fetched(
                data.payload,
                leader_epoch=self._asked_epoch,
                high_watermark=data.high_watermark,
                log_start_offset=data.log_start_offset,
            )
            if self._handle == handle:
                self._check_end(data)

    def _require_end(self, data: Data) -> None:
        """The log must end where the leader takes it to: behind a later end it is longer than the
        leader knows, and behind an earlier one it would get a hole that looks like one that
        compaction made."""
        end_offset = self.partition.log_end_offset
        if end_offset != data.base_offset:
            raise LogError(
                CORRUPT_BATCH,
                f"{self.name}: the log ends at {end_offset}, and what came belongs at "
                f"{data.base_offset}.",
            )

    def _check_end(self, data: Data) -> None:
        end_offset = self.partition.log_end_offset
        if end_offset != data.next_offset:
            raise LogError(
                CORRUPT_BATCH,
                f"{self.name}: batches up to {data.next_offset} were announced, and the log ends "
                f"at {end_offset} with them.",
            )
        self._failures = 0

    def _on_piece(self, data: Data) -> None:
        """Put the pieces of a long batch together."""
        if bool(data.flags & CONTINUES) != bool(self._pieces):
            self._on_error(LogError(CORRUPT_BATCH, f"{self.name}: pieces came out of order."))
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
        self._marks = None
        self._release(self._held_bytes)

    # Inner parts

    def _on_durable(self) -> None:
        stream = self.link.stream
        if self._handle and stream is not None:
            stream.ack_soon(self)

    def _accepted(self) -> None:
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
            # In the same turn: what comes next must not queue behind a task that is over.
            self._work = None
        marks, self._marks = self._marks, None
        if marks is not None and self._handle:
            self.on_marks(*marks)
        if self.state in (FollowState.TRUNCATING, FollowState.RESTARTING):
            self.state = FollowState.IDLE
        if self.is_retired:
            self.link.forget(self)
        else:
            self.go()

    def _on_error(self, error: LogError) -> None:
        """What came could not be taken, or the replica does not follow as it did."""
        self._drop()
        if error.entry is STORAGE_FAILED:
            self.error = error.message
            self.state = FollowState.FAILED
            self.link.tell(error)
        else:
            self._failures += 1
            self._wait(error)

    def _wait(self, error: LogError) -> None:
        """Ask again, but not now."""
        settings = self.link.settings
        self.error = error.message
        self.link.tell(error)
        if error.entry is NO_LEADER:
            self.state = FollowState.STALE
            delay_s = STALE_RETRY_S
        else:
            self.state = FollowState.BACKOFF
            delay_s = redial_delay_s(
                self._refusals + self._failures,
                self.link.jitter(),
                delay_s_min=settings.retry_s_min,
                delay_s_max=settings.retry_s_max,
            )
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.state = FollowState.IDLE
        self.go()

    def _drop(self) -> None:
        """End the subscription, and whatever waits."""
        stream = self.link.stream
        if stream is not None:
            stream.drop(self, self._handle)
        self._handle = 0
        self._generation += 1
        self._forget_queue()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
