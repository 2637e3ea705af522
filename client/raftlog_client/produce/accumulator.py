"""Gathers records into batches before they are sent, within one bound on memory.

Records are encoded straight into the open batch of their partition. A batch is closed and leaves
when the next record does not fit. It leaves earlier when its linger time is over, on a flush, or
when the buffer is full.

`StallReporter` logs the reason for partitions with waiting records. A partition stalls while its
oldest due batch has stayed without an outcome for `STALL_S`. Slow bulk work does not stall, because
its batches settle one after the other.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from raftlog.api.transactions import TRANSACTIONAL_ID_PATTERN
from raftlog.record.compression import Compression
from raftlog.record.errors import UNKNOWN_PARTITION, LogError
from raftlog_client.errors import BufferFullError, RaftlogClientError, TopicNotFoundError
from raftlog_client.metadata import ClusterMetadata
from raftlog_client.produce.batches import BulkListener, PendingBatch, RawBatchBuilder, RawBatchSend
from raftlog_client.produce.delivery import PartitionQueue
from raftlog_client.types import TopicDescription, TopicPartition, require_at_least

ACKS: Final = {"all": -1, -1: -1, 1: 1, 0: 0}
BATCH_BYTES_MIN: Final = 1_024
RECORD_OVERHEAD_BYTES: Final = 24
"""Bytes of a record besides key, value and headers, for varints of usual sizes."""
FUTURE_BYTES: Final = 200
"""Bytes of an awaited record's future and of its place in the lists."""

BULK_LINGER_S: Final = 0.005
"""Shortest seconds that batches of bulk work may fill. More records are coming, and no caller waits
for a single record."""


class TopicQueues:
    """The partitions of one topic, with the sticky partition for records without a key."""

    __slots__ = ("_turn", "name", "queues", "sticky", "times_missing", "topic_id")

    def __init__(self, description: TopicDescription, *, is_idempotent: bool) -> None:
        self.name = description.name
        self.topic_id = description.topic_id
        self.queues: list[PartitionQueue] = []
        self.times_missing = 0
        """Consecutive metadata responses without the topic."""
        self.grow(description, is_idempotent=is_idempotent)
        self._turn = random.randrange(len(self.queues))
        self.sticky = self.queues[self._turn]

    def grow(self, description: TopicDescription, *, is_idempotent: bool) -> None:
        """Add new partitions, or restart for a topic created again under the same name."""
        for partition in range(len(self.queues), len(description.partitions)):
            self.queues.append(
                PartitionQueue(TopicPartition(self.name, partition), is_idempotent=is_idempotent)
            )
        if description.topic_id != self.topic_id:
            self.topic_id = description.topic_id
            for queue in self.queues:
                queue.forget_identity()

    def next_sticky(self) -> PartitionQueue:
        """Select the next partition, passing over partitions in back-off."""
        queues = self.queues
        for _ in queues:
            self._turn = (self._turn + 1) % len(queues)
            queue = queues[self._turn]
            if not queue.is_waiting:
                break
        self.sticky = queue
        return queue

    def queue(self, partition: int) -> PartitionQueue:
        """Return a partition by number. Raises TopicNotFoundError."""
        if 0 <= partition < len(self.queues):
            return self.queues[partition]
        raise TopicNotFoundError(
            UNKNOWN_PARTITION,
            f"Topic {self.name!r} has {len(self.queues)} partitions, no {partition}.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of a producer's delivery. Raises ValueError for a setting out of bounds."""

    acks: Literal["all", -1, 0, 1]
    idempotent: bool
    compression: str
    linger_ms: float
    batch_bytes_max: int
    buffer_bytes_max: int
    request_bytes_max: int
    in_flight_requests_max: int
    request_timeout_ms: float
    delivery_timeout_ms: float
    transactional_id: str | None
    fencing_id: str | None
    transaction_timeout_ms: int
    keeps_prepared: bool

    def __post_init__(self) -> None:
        if self.acks not in ACKS:
            raise ValueError(f"acks must be 'all', -1, 1 or 0, not {self.acks!r}")
        try:
            Compression.from_name(self.compression)
        except LogError as error:
            raise ValueError(f"compression: {error.message}") from None
        if self.transactional_id is not None and self.fencing_id is not None:
            raise ValueError("transactional_id and fencing_id exclude each other")
        for name in ("transactional_id", "fencing_id"):
            value = getattr(self, name)
            if value is None:
                continue
            if not re.fullmatch(TRANSACTIONAL_ID_PATTERN, value):
                raise ValueError(f"{name} must have 1 to 255 printable characters")
            if ACKS[self.acks] != -1 or not self.idempotent:
                raise ValueError(f"a {name} must have acks='all' and idempotent=True")
        require_at_least(1, transaction_timeout_ms=self.transaction_timeout_ms)
        require_at_least(0, linger_ms=self.linger_ms)
        require_at_least(BATCH_BYTES_MIN, batch_bytes_max=self.batch_bytes_max)
        require_at_least(self.batch_bytes_max, request_bytes_max=self.request_bytes_max)
        require_at_least(self.batch_bytes_max, buffer_bytes_max=self.buffer_bytes_max)
        require_at_least(1, in_flight_requests_max=self.in_flight_requests_max)
        require_at_least(1, delivery_timeout_ms=self.delivery_timeout_ms)


class Accumulator:
    """All batches without an outcome yet, and their share of the buffer."""

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        on_ready: Callable[[PartitionQueue], None],
        on_failure: Callable[[RaftlogClientError], None] | None,
    ) -> None:
        """`on_failure` is called when a batch is given up."""
        self.buffered_bytes = 0
        self.buffer_bytes_max = settings.buffer_bytes_max
        self.unsettled: dict[PendingBatch, PartitionQueue] = {}
        """Batches without an outcome, oldest first. Bounded by the buffer."""
        self._compression = Compression.from_name(settings.compression)
        self._batch_bytes_max = settings.batch_bytes_max
        self._linger_s = settings.linger_ms / 1000
        self._delivery_timeout_s = settings.delivery_timeout_ms / 1000
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._is_transactional = settings.transactional_id is not None
        self.waiters: deque[asyncio.Future[None]] = deque()
        """Senders that wait for room, in order. At most as many as the application has sending
        tasks."""
        self._closed: RaftlogClientError | None = None

    def open_batch(self, queue: PartitionQueue, bulk: BulkListener | None = None) -> PendingBatch:
        """Open a batch for the partition. The previous batch is closed and may leave."""
        loop = asyncio.get_running_loop()
        self.close_batch(queue)
        batch = queue.open = PendingBatch(
            queue.target,
            compression=self._compression,
            size_bytes_max=min(self._batch_bytes_max, queue.batch_bytes_max),
            deadline=loop.time() + self._delivery_timeout_s,
            bulk=bulk,
            on_change=self._changed,
            is_transactional=self._is_transactional,
        )
        self.unsettled[batch] = queue
        linger_s = self._linger_s if bulk is None else max(self._linger_s, BULK_LINGER_S)
        if linger_s > 0:
            batch.linger_timer = loop.call_later(linger_s, self._linger_over, queue, batch)
        else:
            batch.is_due = True
        if queue.can_be_queued:
            self._on_ready(queue)
        return batch

    def add_encoded(self, queue: PartitionQueue, records: RawBatchBuilder) -> asyncio.Future[int]:
        """Send a full batch. The future gives its base offset, -1 if unknown."""
        self.close_batch(queue)
        listener = RawBatchSend()
        if self._is_transactional:
            records.make_transactional()
        batch = PendingBatch(
            queue.target,
            # Used for the parts if the batch is split.
            compression=records.header.compression,
            size_bytes_max=len(records.build()),
            deadline=asyncio.get_running_loop().time() + self._delivery_timeout_s,
            bulk=listener,
            on_change=self._changed,
            builder=records,
            is_transactional=self._is_transactional,
        )
        batch.is_due = True
        self.unsettled[batch] = queue
        self.reserve(batch, records.size_bytes)
        queue.sealed.append(batch)
        if queue.can_be_queued:
            self._on_ready(queue)
        return listener.future

    def close_batch(self, queue: PartitionQueue) -> None:
        """Close the partition's open batch, if there is one, so that it may leave."""
        if queue.open is not None:
            if queue.open.linger_timer is not None:
                queue.open.linger_timer.cancel()
            queue.seal()
            if queue.can_be_queued:
                self._on_ready(queue)

    def discard_empty(self, queue: PartitionQueue) -> None:
        """Remove an open batch whose first record was rejected."""
        batch = queue.open
        if batch is not None and not batch.record_count:
            queue.open = None
            if batch.linger_timer is not None:
                batch.linger_timer.cancel()
            del self.unsettled[batch]

    def reserve(self, batch: PendingBatch, size_bytes: int) -> None:
        """Charge the batch's bytes to the buffer."""
        batch.reserved_bytes += size_bytes
        self.buffered_bytes += size_bytes

    @property
    def must_wait(self) -> bool:
        """Return whether the next record has to wait. The buffer is full, or others wait."""
        return self.buffered_bytes >= self.buffer_bytes_max or bool(self.waiters)

    async def wait_for_room(self) -> None:
        """Return when the buffer has room, in the order of the calls.

        Raises BufferFullError after the delivery timeout, ClientClosedError if the producer closes.
        """
        if self._closed is not None:
            raise self._closed
        if not self.waiters:
            self.hurry()
        loop = asyncio.get_running_loop()
        timeout_s = self._delivery_timeout_s
        waiter = loop.create_future()
        self.waiters.append(waiter)
        timer = loop.call_later(timeout_s, _give_up, waiter, timeout_s)
        try:
            await waiter
        finally:
            timer.cancel()
            self.waiters.remove(waiter)
            # Runs after this sender has taken its room, so the next one sees the rest.
            loop.call_soon(self._wake)

    def hurry(self) -> None:
        """Let every batch leave now, without lingering."""
        for batch, queue in self.unsettled.items():
            self._linger_over(queue, batch)

    def close(self, error: RaftlogClientError) -> None:
        """Fail all waiting senders."""
        self._closed = error
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _linger_over(self, queue: PartitionQueue, batch: PendingBatch) -> None:
        if not batch.is_due:
            batch.is_due = True
            if queue.can_be_queued:
                self._on_ready(queue)

    def _changed(self, batch: PendingBatch, parts: Sequence[PendingBatch]) -> None:
        """Free the room of a settled batch, or continue with its parts."""
        queue = self.unsettled.pop(batch)
        if parts:
            self.unsettled.update(dict.fromkeys(parts, queue))
        else:
            self.buffered_bytes -= batch.reserved_bytes
            if batch.failure is not None and self._on_failure is not None:
                self._on_failure(batch.failure)
            self._wake()

    def _wake(self) -> None:
        """Wake the first sender in line if there is room. It leaves the line when it runs."""
        if not self.waiters:
            return
        if self.buffered_bytes >= self.buffer_bytes_max:
            # No batch may linger while a sender waits for its room.
            self.hurry()
        else:
            waiter = self.waiters[0]
            if not waiter.done():
                waiter.set_result(None)


def _give_up(waiter: asyncio.Future[None], timeout_s: float) -> None:
    if not waiter.done():
        waiter.set_exception(
            BufferFullError(
                f"The send buffer was full for {timeout_s:.3f} s; the record was never sent.",
                retriable=True,
            )
        )


STALL_S: Final = 2.0
LOOK_INTERVAL_S: Final = 0.5

logger = logging.getLogger("raftlog_client")


class StallReporter:
    """Reports the stalled partitions of one producer, each stall once. Call `look` periodically."""

    def __init__(self, accumulator: Accumulator, metadata: ClusterMetadata) -> None:
        self._accumulator = accumulator
        self._metadata = metadata
        self._oldest: dict[PartitionQueue, tuple[PendingBatch, float]] = {}
        """Oldest due batch of each partition, with the time since it became the oldest."""
        self._reported: set[PendingBatch] = set()

    def look(self, now: float) -> None:
        """Log the partitions that stall since the last call."""
        oldest: dict[PartitionQueue, tuple[PendingBatch, float]] = {}
        stalled: list[tuple[PartitionQueue, PendingBatch]] = []
        for batch, queue in self._accumulator.unsettled.items():
            if queue in oldest or (queue.open is batch and not batch.is_due):
                continue
            before, since = self._oldest.get(queue, (batch, now))
            oldest[queue] = (batch, since if before is batch else now)
            if now - oldest[queue][1] >= STALL_S and batch not in self._reported:
                stalled.append((queue, batch))
        self._oldest = oldest
        self._reported &= {batch for batch, _ in oldest.values()}
        self._reported |= {batch for _, batch in stalled}
        if stalled:
            (queue, batch), others = stalled[0], len(stalled) - 1
            logger.warning(
                "waiting for partition %d of %s%s: %s",
                queue.target.partition,
                queue.target.topic,
                f" (and {others} other partitions)" if others else "",
                self._reason(queue, batch),
            )

    def _reason(self, queue: PartitionQueue, batch: PendingBatch) -> str:
        address = self._metadata.leader_address(*queue.target)
        if batch.last_error is not None:
            return str(batch.last_error)
        return "no leader" if address is None else f"{address} has not answered yet"
