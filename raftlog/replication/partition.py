"""One partition on the node that leads it: append, commit, read.

State of a partition and what moves it:

=================  =====================================================================
`log_end_offset`   moves when a batch is written; owned by the log
`flushed_offset`   moves when a sync returns; owned by the log
`high_watermark`   the smallest durable end offset over the in-sync replicas; moves when the
                   slowest of them reports; never falls within one leader epoch
=================  =====================================================================

Invariants: `log_start_offset <= high_watermark <= log_end_offset`; an `acks=all` answer is given
only for offsets below the high watermark; a reader is given only offsets below it.

What counts as durable is the log's flush mode: with `sync` what was synced to disk, with `async`
what was handed to the operating system (promises 1 and 2).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from raftlog.metadata.image import BrokerImage, PartitionImage
from raftlog.record.batch import RecordBatch
from raftlog.record.errors import (
    NO_LEADER,
    NOT_ENOUGH_REPLICAS,
    OFFSET_OUT_OF_RANGE,
    OVERLOADED,
    RETRIABLE,
    LogError,
)
from raftlog.record.types import BrokerId, LeaderEpoch, Offset, PartitionId, TopicId
from raftlog.storage.config import FlushMode
from raftlog.storage.log import AppendResult, Log

COMMIT_WAITERS_MAX = 100_000
"""Appends of one partition that may wait for their commit at once; more are refused."""
READ_WAITERS_MAX = 100_000
"""Readers of one partition that may wait for records at once; more are refused."""


class Acks(IntEnum):
    """How far a batch must have come before its writer is answered."""

    NONE = 0
    LEADER = 1
    ALL = -1


@dataclass(frozen=True, slots=True)
class Fetched:
    """Committed record batches, whole, the first of them holding the offset asked for."""

    data: bytes | memoryview
    next_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset


@dataclass(frozen=True, slots=True)
class ReadWaiter:
    """A reader that waits for the high watermark to pass `offset`."""

    offset: Offset
    wake: Callable[[], None]


class Partition:
    """The leader's view of one partition. Lives in the event loop; not for other threads."""

    def __init__(
        self,
        *,
        topic: str,
        topic_id: TopicId,
        log: Log,
        image: PartitionImage,
        min_insync_replicas: int,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_act` is asked at each append: whether this node may act as a leader right now."""
        self.topic = topic
        self.topic_id = topic_id
        self.log = log
        self.image = image
        self.min_insync_replicas = min_insync_replicas
        self._may_act = may_act
        self._high_watermark = log.high_watermark = self._durable_end_offset()
        self._commits: list[tuple[Offset, int, asyncio.Future[None]]] = []
        self._commit_count = 0
        self._readers: dict[int, ReadWaiter] = {}
        self._reader_count = 0
        self._closed: LogError | None = log.failure
        self.write_refusal: LogError | None = None
        """Why appends are refused though reads go on."""
        log.on_flushed(self._on_flushed)
        log.on_failed(self._fail)

    @property
    def partition(self) -> PartitionId:
        """The partition's number in its topic."""
        return self.image.partition

    @property
    def leader(self) -> BrokerId:
        """The broker that leads, as of the applied metadata."""
        return self.image.leader

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch that batches appended now are stamped with."""
        return self.image.leader_epoch

    @property
    def high_watermark(self) -> Offset:
        """First offset that is not committed yet."""
        return self._high_watermark

    @property
    def log_start_offset(self) -> Offset:
        """First offset that can still be read."""
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """Offset that the next record gets."""
        return self.log.log_end_offset

    def update(self, image: PartitionImage, min_insync_replicas: int) -> None:
        """Take over newer applied metadata of this partition."""
        if image.partition_epoch < self.image.partition_epoch:
            raise AssertionError(f"{self.topic}-{self.partition}: metadata went back")
        self.image = image
        self.min_insync_replicas = min_insync_replicas

    async def append(
        self, batches: Sequence[RecordBatch], *, acks: Acks, timeout_s: float
    ) -> list[AppendResult]:
        """Append batches, whole or not at all, and return once `acks` is fulfilled.

        Raises LogError: NOT_ENOUGH_REPLICAS, DISK_FULL, PRODUCER_FENCED, OUT_OF_ORDER_SEQUENCE and
        the like mean that nothing was written; RETRIABLE (not committed within `timeout_s`) and
        STORAGE_FAILED mean that the outcome is unknown.
        """
        self._require_open()
        if self.write_refusal is not None:
            raise LogError(self.write_refusal.entry, self.write_refusal.message)
        if not self._may_act():
            # Asked, not told: a process that was stopped finds what waited for it before it is
            # told that its time as a leader is over (promise 7).
            raise LogError(
                NO_LEADER,
                f"{self.topic}-{self.partition}: this node has lost touch with the controller.",
            )
        if acks is Acks.ALL:
            if len(self.image.isr) < self.min_insync_replicas:
                raise LogError(
                    NOT_ENOUGH_REPLICAS,
                    f"{self.topic}-{self.partition} has {len(self.image.isr)} in-sync replicas; "
                    f"min.insync.replicas is {self.min_insync_replicas}.",
                )
            if len(self._commits) >= COMMIT_WAITERS_MAX:
                raise LogError(OVERLOADED, f"{self.topic}-{self.partition}: too many writers wait.")
        results = await self.log.append(batches, self.image.leader_epoch)
        if self.log.config.flush is FlushMode.ASYNC:
            self._advance(self.log.log_end_offset)
        if acks is Acks.ALL:
            # The append may have waited for a new segment, and the log have failed behind it:
            # whoever began to wait now would not be told.
            if self._closed is not None:
                raise _in_doubt(self._closed)
            last_offset = max(result.last_offset for result in results)
            if last_offset >= self._high_watermark:
                await self._committed(last_offset, timeout_s)
        return results

    async def read(
        self, offset: Offset, *, max_bytes: int, end_offset: Offset | None = None
    ) -> Fetched:
        """Committed batches from the one that holds `offset`; at least one if there is any.

        Empty if nothing at `offset` is committed yet. With `end_offset`, no batch that starts at
        or after it. Raises LogError: OFFSET_OUT_OF_RANGE, STORAGE_FAILED.
        """
        self._require_open()
        self._check_range(offset)
        high_watermark = self._high_watermark
        end = high_watermark if end_offset is None else min(end_offset, high_watermark)
        if offset >= end:
            return Fetched(b"", offset, high_watermark, self.log.log_start_offset)
        result = await self.log.read(offset, end=end, max_bytes=max_bytes)
        return Fetched(result.data, result.next_offset, high_watermark, self.log.log_start_offset)

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[Offset, int] | None:
        """Offset and timestamp of the first committed record at or after a time; None if none."""
        self._require_open()
        return await self.log.offset_for_timestamp(timestamp_ms, end=self._high_watermark)

    async def delete_records(self, before: Offset) -> Offset:
        """Make the records below `before` unreadable for good; return the new log start offset.

        -1 means all committed records. Durable when it returns. Raises LogError.
        """
        self._require_open()
        target = self._high_watermark if before == -1 else before
        if target < 0 or target > self._high_watermark:
            raise LogError(
                OFFSET_OUT_OF_RANGE,
                f"Records of {self.topic}-{self.partition} can be deleted up to the high watermark "
                f"{self._high_watermark}, not up to {before}.",
            )
        return await self.log.delete_records_before(target)

    def add_read_waiter(self, offset: Offset, wake: Callable[[], None]) -> int:
        """Call `wake` once when the high watermark passes `offset`; return a handle to forget it.

        Never called at once: look at `high_watermark` first. Also called when the partition closes
        or fails, so that the reader finds out by reading.
        """
        if len(self._readers) >= READ_WAITERS_MAX:
            raise LogError(OVERLOADED, f"{self.topic}-{self.partition}: too many readers wait.")
        self._reader_count += 1
        self._readers[self._reader_count] = ReadWaiter(offset, wake)
        return self._reader_count

    def remove_read_waiter(self, handle: int) -> None:
        """Forget a waiter, woken or not."""
        self._readers.pop(handle, None)

    def close(self, error: LogError) -> None:
        """Stop serving: every present and later caller gets `error`."""
        self._fail(error)

    def _require_open(self) -> None:
        if self._closed is not None:
            raise LogError(self._closed.entry, self._closed.message)

    def _check_range(self, offset: Offset) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        if not start <= offset <= end:
            raise LogError(
                OFFSET_OUT_OF_RANGE,
                f"Offset {offset} of {self.topic}-{self.partition} is out of range: "
                f"{start} to {self._high_watermark} can be read.",
            )

    def _durable_end_offset(self) -> Offset:
        if self.log.config.flush is FlushMode.ASYNC:
            return self.log.log_end_offset
        return self.log.flushed_offset

    def _on_flushed(self, flushed_offset: Offset) -> None:
        self._advance(flushed_offset)

    def _advance(self, durable_end_offset: Offset) -> None:
        """Move the high watermark up, and wake who waits for it.

        Alone in its in-sync set, the leader's durable end offset is the smallest of all.
        """
        if durable_end_offset <= self._high_watermark:
            return
        self._high_watermark = self.log.high_watermark = durable_end_offset
        commits = self._commits
        while commits and commits[0][0] < durable_end_offset:
            future = heapq.heappop(commits)[2]
            if not future.done():
                future.set_result(None)
        if self._readers:
            self._wake_readers(durable_end_offset)

    def _wake_readers(self, high_watermark: Offset) -> None:
        due = [h for h, waiter in self._readers.items() if waiter.offset < high_watermark]
        for handle in due:
            self._readers.pop(handle).wake()

    async def _committed(self, last_offset: Offset, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._commit_count += 1
        heapq.heappush(self._commits, (last_offset, self._commit_count, future))
        timer = loop.call_later(timeout_s, self._expire, future)
        try:
            await future
        finally:
            timer.cancel()

    def _expire(self, future: asyncio.Future[None]) -> None:
        if not future.done():
            future.set_exception(
                LogError(
                    RETRIABLE,
                    f"{self.topic}-{self.partition}: written, but not committed in time; the "
                    "outcome is unknown.",
                )
            )

    def _fail(self, error: LogError) -> None:
        self._closed = error
        commits, self._commits = self._commits, []
        for _, _, future in commits:
            if not future.done():
                future.set_exception(_in_doubt(error))
        readers, self._readers = self._readers, {}
        for waiter in readers.values():
            waiter.wake()


def _in_doubt(error: LogError) -> LogError:
    """What a writer is told whose batch is in the log when its partition ends with `error`.

    It may yet be committed: an error that says "not written" would have a client use its sequence
    numbers for other records.
    """
    if error.entry.outcome_unknown:
        return LogError(error.entry, error.message)
    return LogError(RETRIABLE, f"{error.message} The outcome of the write is unknown.")


def not_led_here(topic: str, partition: int, leader: BrokerImage | None) -> LogError:
    """The error for a partition that another broker leads, or none: with where to ask instead."""
    if leader is None:
        where = "no broker leads it at the moment"
    else:
        host = f"[{leader.host}]" if ":" in leader.host else leader.host
        where = f"broker {leader.broker_id} leads it, ask there: {host}:{leader.port}"
    return LogError(NO_LEADER, f"{topic}-{partition} is not led by this node; {where}.")
