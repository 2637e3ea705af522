"""One replica's log: append, flush, read.

==================  =======================================================================
`log_start_offset`  first offset that can be read; moves up only
`flushed_offset`    every record below is durable; moves when a sync has returned
`log_end_offset`    offset that the next record gets; moves when a batch has been written
==================  =======================================================================

`log_start_offset <= flushed_offset <= log_end_offset`.

An append is one gathered write, made in the event loop without a chance for another one to come
between: no state moves unless it succeeded, and all of it moves together. Only where a new segment
must be begun first do appends wait, in the order in which they came.

Operations that rearrange files (`upkeep`) go on to their end even if their caller stops waiting. An
I/O error ends the log's service for good: what the disk holds is not known any more, and trying
again could make it worse (mistake 9 of replication.md).

Lives in the event loop; not for other threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from raftlog.record.batch import RecordBatch, stamped, with_log_append_time
from raftlog.record.errors import (
    CORRUPT_BATCH,
    ILLEGAL_STATE,
    NO_LEADER,
    OFFSET_OUT_OF_RANGE,
    OVERLOADED,
    RECORD_TOO_LARGE,
    STORAGE_FAILED,
    LogError,
)
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.storage.checkpoints import ReplicaCheckpoint, StartKind
from raftlog.storage.compacting import compact_log
from raftlog.storage.compaction_pass import refuse_keyless
from raftlog.storage.config import FlushMode, LogConfig
from raftlog.storage.core import LogCore, LogShared, disk_full, publish_nothing
from raftlog.storage.index import POSITION_MAX, RELATIVE_OFFSET_MAX
from raftlog.storage.leader_epochs import LeaderEpochs
from raftlog.storage.opening import open_log
from raftlog.storage.producer_state import NO_TIME, AppendPlan, Duplicate, ProducerStates
from raftlog.storage.reader import DamageFoundError, LogReader
from raftlog.storage.results import (
    AppendResult,
    CompactionReport,
    DamagedRange,
    LogState,
    PossibleLoss,
    ReadResult,
    UnreadableBatch,
)
from raftlog.storage.timestamps import find_offset_for_timestamp
from raftlog.storage.upkeep import Upkeep
from raftlog.world import Buffer, Clock, Disk, DiskError, DiskFullError

__all__ = ["AppendResult", "Log", "LogShared", "ReadResult"]

WRITERS_WAITING_MAX: Final = 10_000
"""Appends of one log that may wait while a segment is begun; more are refused."""
DAMAGED_RANGES_MAX: Final = 16
"""Damaged places of one log that are remembered for its status."""

KEYED_BATCH_BYTES_MAX: Final = 16 << 20
"""What a batch for a compacted topic may unpack to. It is unpacked in the event loop, so that the
order of appends holds, and must not keep it for long; compaction can read four times as much."""

_T = TypeVar("_T")

logger = logging.getLogger(__name__)


class Log:
    """One replica's log. Made by `Log.open`."""

    def __init__(self, core: LogCore) -> None:
        self._core = core
        self._upkeep = Upkeep(core)
        self._reader = LogReader(core)
        self._writers_waiting = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._damaged_ranges: dict[tuple[Offset, int], DamagedRange] = {}

    @classmethod
    def open(
        cls,
        disk: Disk,
        clock: Clock,
        directory: str,
        config: LogConfig,
        *,
        checkpoint: ReplicaCheckpoint | None,
        start: StartKind,
        shared: LogShared | None = None,
        publish: Callable[[], Awaitable[None]] = publish_nothing,
    ) -> Log:
        """Open the log in `directory`, which exists, or begin one there. Blocks: inside `Disk.run`.

        `checkpoint` is what the node wrote down about it, `start` how the node stopped. `publish`
        makes `current_checkpoint` durable. A damaged log is opened, too: its `state` says so, and
        every use raises STORAGE_FAILED. Raises DiskError.
        """
        shared = shared or LogShared(disk, clock)
        opened = open_log(
            disk,
            shared.files,
            directory,
            config,
            checkpoint=checkpoint,
            start=start,
            now_ms=shared.monotonic_ms(),
        )
        return cls(
            LogCore(shared, directory, config, opened, checkpoint=checkpoint, publish=publish)
        )

    # What is known of it

    @property
    def core(self) -> LogCore:
        """Its inside, for the maintenance of this package."""
        return self._core

    def mark_changed(self) -> None:
        """Have the next checkpoints include it."""
        self._core.mark_changed()

    @property
    def directory(self) -> str:
        """Where its files are."""
        return self._core.directory

    @property
    def config(self) -> LogConfig:
        """Its settings."""
        return self._core.config

    @property
    def state(self) -> LogState:
        """Whether it can be used."""
        return self._core.state

    @property
    def failure(self) -> LogError | None:
        """Why it cannot be used."""
        return self._core.failure

    @property
    def log_start_offset(self) -> Offset:
        """First offset that can still be read."""
        return self._core.segments.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """Offset that the next record gets."""
        return self._core.segments.end_offset

    @property
    def flushed_offset(self) -> Offset:
        """Every record below it is durable."""
        return self._core.flushed_offset

    @property
    def recovery_point(self) -> Offset:
        """Everything derived from the records below it is durable: a start scans from here."""
        return self._core.recovery.recovery_point

    @property
    def unrecovered_bytes(self) -> int:
        """Bytes that an unclean start would have to scan, more or less."""
        recovery = self._core.recovery
        segments = self._core.segments
        number = segments.number(recovery.segment_base_offset)
        return sum(part.size_bytes for part in segments.all[number:]) - recovery.segment_position

    @property
    def unrecovered_batches(self) -> int:
        """Batches appended since the recovery point was taken."""
        return self._core.batches_since_recovery

    @property
    def high_watermark(self) -> Offset:
        """What replication last said is committed; written down with the checkpoint."""
        return self._core.high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: Offset) -> None:
        self._core.high_watermark = offset

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """The epoch history."""
        return self._core.leader_epochs

    @property
    def producers(self) -> ProducerStates:
        """The idempotent producers."""
        return self._core.producers

    @property
    def possible_loss(self) -> PossibleLoss | None:
        """What the last power cut may have taken (flush=async)."""
        return self._core.possible_loss

    @property
    def damaged_ranges(self) -> tuple[DamagedRange, ...]:
        """Batches that readers found damaged."""
        return tuple(self._damaged_ranges.values())

    @property
    def unreadable(self) -> UnreadableBatch | None:
        """What keeps compaction from going on, if something does."""
        return self._core.unreadable

    @property
    def size_bytes(self) -> int:
        """Bytes of record batches on disk."""
        return self._core.segments.size_bytes

    @property
    def segment_count(self) -> int:
        """Number of its segments."""
        return len(self._core.segments)

    def configure(self, config: LogConfig) -> None:
        """Use other settings from now on."""
        self._core.config = config
        if config.flush is FlushMode.SYNC:
            self._core.request_sync()

    def on_flushed(self, callback: Callable[[Offset], None]) -> None:
        """Be told in the event loop whenever `flushed_offset` moved."""
        self._core.flushed_callbacks.append(callback)

    def on_failed(self, callback: Callable[[LogError], None]) -> None:
        """Be told in the event loop when the log fails for good; at most once."""
        self._core.failed_callbacks.append(callback)

    # Append

    async def append(
        self, batches: Sequence[RecordBatch], leader_epoch: LeaderEpoch
    ) -> list[AppendResult]:
        """Append batches, whole or not at all, and start their way to durability.

        Returns when they are written, not when they are durable. Raises LogError: nothing was
        written, unless it is STORAGE_FAILED, whose outcome is unknown.
        """
        if self._core.config.compacts:
            for batch in batches:
                refuse_keyless(batch, decompressed_bytes_max=KEYED_BATCH_BYTES_MAX)
        if not self._writers_waiting and not self._core.write_lock.locked():
            results = self._append_now(batches, leader_epoch)
            if results is not None:
                return results
        if self._writers_waiting >= WRITERS_WAITING_MAX:
            raise LogError(OVERLOADED, f"{self.directory}: too many appends wait for a segment.")
        self._writers_waiting += 1
        return await self._to_its_end(self._append_in_turn(batches, leader_epoch))

    async def _append_in_turn(
        self, batches: Sequence[RecordBatch], leader_epoch: LeaderEpoch
    ) -> list[AppendResult]:
        """Wait for the log to be free, begin a segment if need be, and append."""
        try:
            await self._core.write_lock.acquire()
        finally:
            self._writers_waiting -= 1
        try:
            results = self._append_now(batches, leader_epoch)
            if results is None:
                await self._upkeep.roll()
                results = self._append_now(batches, leader_epoch)
            assert results is not None, "a new segment takes any append"
            return results
        finally:
            self._core.write_lock.release()

    def _append_now(
        self, batches: Sequence[RecordBatch], leader_epoch: LeaderEpoch
    ) -> list[AppendResult] | None:
        """Check, write, and only then remember. None: a new segment must be begun first."""
        core = self._core
        core.require_online()
        end_offset = core.segments.end_offset
        size_bytes, following = self._extent(batches, end_offset)
        if size_bytes > core.shared.room_bytes:
            raise disk_full(self.directory)
        active = core.segments.active
        now_ms = core.shared.clock.time_ms()
        if not active.fits(size_bytes, following, core.config.segment_bytes) or active.is_due(
            now_ms, core.config.segment_ms
        ):
            return None
        if not core.leader_epochs.accepts(leader_epoch, end_offset):
            raise LogError(
                NO_LEADER, f"{self.directory}: leader epoch {leader_epoch} has been replaced."
            )
        stamp_ms = now_ms if core.config.log_append_time else NO_TIME
        plan = core.producers.prepare(
            [batch.header for batch in batches],
            end_offset,
            now_ms=core.shared.monotonic_ms(),
            log_append_time_ms=stamp_ms,
        )
        results, placed = _place(batches, plan, end_offset, stamp_ms)
        if not placed:
            return results
        buffers: list[Buffer] = []
        for batch, base_offset in placed:
            buffers.extend(stamped(batch, base_offset, leader_epoch))
        try:
            position = active.file.append(buffers)
        except DiskFullError as error:
            raise disk_full(self.directory) from error
        except DiskError as error:
            raise core.fail(error) from error
        # From here on nothing can fail: the batches are in the log.
        assert position == active.size_bytes, f"{active.path}: written behind foreign bytes"
        core.leader_epochs.assign(leader_epoch, end_offset)
        core.producers.apply(plan)
        if active.first_append_ms is None:
            active.first_append_ms = now_ms
        interval = core.config.index_interval_bytes
        for batch, base_offset in placed:
            active.note(batch.header, position, base_offset, interval)
            position += batch.header.size_bytes
        core.wrote(size_bytes, len(placed))
        return results

    def _extent(self, batches: Sequence[RecordBatch], end_offset: Offset) -> tuple[int, Offset]:
        """How many bytes the batches take, and where the log would end behind them."""
        size_bytes_max = self._core.config.max_message_bytes
        size_bytes = 0
        following = end_offset
        for batch in batches:
            header = batch.header
            if header.size_bytes > size_bytes_max:
                raise LogError(
                    RECORD_TOO_LARGE,
                    f"A record batch has {header.size_bytes} bytes; max.message.bytes is "
                    f"{size_bytes_max}.",
                )
            size_bytes += header.size_bytes
            following = Offset(following + header.last_offset_delta + 1)
        if following - end_offset > RELATIVE_OFFSET_MAX or size_bytes > POSITION_MAX:
            raise LogError(CORRUPT_BATCH, "The batches are more than one segment can hold.")
        return size_bytes, following

    # Durability

    async def flush(self) -> None:
        """Return once all that was appended before the call is durable. Raises LogError."""
        await self._core.flush()

    def request_flush(self) -> None:
        """Start a sync in the background if there is something to sync (flush=async)."""
        self._core.request_sync()

    async def checkpoint(self) -> ReplicaCheckpoint:
        """Advance the recovery point to the present end, and say what may be written down.

        Raises LogError; after DISK_FULL the recovery point is where it was.
        """
        return await self._to_its_end(self._upkeep.checkpoint())

    def current_checkpoint(self) -> ReplicaCheckpoint:
        """What may be written down as durable now."""
        return self._core.current_checkpoint()

    # Read

    async def read(self, start: Offset, *, end: Offset, max_bytes: int) -> ReadResult:
        """Whole, checked batches from the one that holds `start`: `max_bytes`, or one if larger.

        No batch that begins at or behind `end`; nothing if `start >= end`. Raises LogError:
        OFFSET_OUT_OF_RANGE with the range that can be read, STORAGE_FAILED where the disk does not
        give back what was written.
        """
        self._core.require_online()
        self._check_range(start)
        end = min(end, self.log_end_offset)
        if start >= end:
            return ReadResult(b"", start)
        try:
            result = await self._reader.read(start, end=end, max_bytes=max_bytes)
        except DamageFoundError as error:
            raise self._found_damage(error) from error
        except DiskError as error:
            # The log goes on: one place that cannot be read says nothing of the others.
            raise LogError(STORAGE_FAILED, f"Offset {start} cannot be read: {error}") from error
        if not result.data:
            # Retention may have been faster.
            self._check_range(start)
        return result

    async def offset_for_timestamp(
        self, timestamp_ms: int, *, end: Offset
    ) -> tuple[Offset, int] | None:
        """Offset and timestamp of the first record below `end` that is not older than a time.

        Raises LogError(STORAGE_FAILED).
        """
        self._core.require_online()
        try:
            return await find_offset_for_timestamp(
                self._core, self._reader, timestamp_ms, min(end, self.log_end_offset)
            )
        except DamageFoundError as error:
            raise self._found_damage(error) from error
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{self.directory} cannot be read: {error}") from error

    def _check_range(self, offset: Offset) -> None:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise LogError(
                OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is out of range: {self.log_start_offset} to "
                f"{self.log_end_offset} can be read.",
            )

    def _found_damage(self, error: DamageFoundError) -> LogError:
        place = (error.damaged.segment_base_offset, error.damaged.position)
        if place not in self._damaged_ranges and len(self._damaged_ranges) < DAMAGED_RANGES_MAX:
            self._damaged_ranges[place] = error.damaged
            logger.error("damage on disk: %s", error.reason)
        return LogError(STORAGE_FAILED, f"Damaged on disk and not served: {error.reason}.")

    # Rearrange

    async def truncate_to(self, offset: Offset) -> None:
        """Forget every batch with a record at or above `offset`. Durable when it returns.

        Raises LogError: OFFSET_OUT_OF_RANGE below the log start offset, STORAGE_FAILED.
        """
        await self._to_its_end(self._upkeep.truncate_to(offset))

    async def delete_records_before(self, offset: Offset) -> Offset:
        """Move the log start offset up to `offset`, and return it. Durable when it returns.

        While a compaction runs, the files that lie below stay until retention comes by.
        Raises LogError: OFFSET_OUT_OF_RANGE beyond the log end offset, DISK_FULL, STORAGE_FAILED.
        """
        return await self._to_its_end(self._upkeep.delete_records_before(offset))

    async def apply_retention(self, now_ms: int) -> int:
        """Remove segments that are due by age or size; return how many. Raises LogError.

        Removes none while a compaction runs: what is due stays due.
        """
        return await self._to_its_end(self._upkeep.apply_retention(now_ms))

    async def compact(self, now_ms: int, *, go_on: bool = False) -> CompactionReport | None:
        """Remove records that a newer one of the same key replaces, if it is worth it.

        After a partial pass, call it again at once with `go_on`. Raises LogError.
        """
        return await self._to_its_end(
            compact_log(self._core, self._upkeep, self._reader, now_ms, go_on=go_on)
        )

    async def close(self) -> None:
        """Flush, checkpoint, and let go of the files. A log that failed is only let go.

        Raises LogError if the last checkpoint could not be taken; the log is closed all the same.
        """
        await self._to_its_end(self._close())

    async def _close(self) -> None:
        core = self._core
        closed = LogError(ILLEGAL_STATE, f"{self.directory} is closed.")
        core.arrangers_waiting += 1
        try:
            async with core.arrange_lock, core.write_lock:
                if core.state is LogState.ONLINE:
                    await self._upkeep.checkpoint()
                    core.end(closed, LogState.CLOSED)
        finally:
            core.arrangers_waiting -= 1
            self.discard(closed)

    def discard(self, reason: LogError) -> None:
        """Let go of the files as they are, for good: whoever uses the log is told `reason`."""
        core = self._core
        if core.failure is None:
            core.end(reason, LogState.FAILED)
        for segment in core.segments.all:
            segment.let_go()
            for path in segment.paths:
                core.shared.files.forget(path)

    async def _to_its_end(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do `work` to its end, even if the caller stops waiting in the middle."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)


def _place(
    batches: Sequence[RecordBatch], plan: AppendPlan, end_offset: Offset, stamp_ms: int
) -> tuple[list[AppendResult], list[tuple[RecordBatch, Offset]]]:
    """What to answer for each batch, and the new ones with the offsets they get."""
    results: list[AppendResult] = []
    placed: list[tuple[RecordBatch, Offset]] = []
    offset = end_offset
    for batch, outcome in zip(batches, plan.outcomes, strict=True):
        if isinstance(outcome, Duplicate):
            base_offset, last_offset = outcome.base_offset, outcome.last_offset
            time_ms = outcome.log_append_time_ms
            results.append(AppendResult(base_offset, last_offset, time_ms, duplicate=True))
            continue
        new = batch if stamp_ms == NO_TIME else with_log_append_time(batch, stamp_ms)
        placed.append((new, offset))
        last_offset = Offset(offset + batch.header.last_offset_delta)
        results.append(AppendResult(offset, last_offset, stamp_ms))
        offset = Offset(last_offset + 1)
    return results, placed
