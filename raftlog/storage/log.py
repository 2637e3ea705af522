"""One replica's log: append, flush, read.

==================  =======================================================================
`log_start_offset`  first offset that can be read; moves up only, but for `restart_at`
`flushed_offset`    every record below is durable; moves when a sync has returned
`log_end_offset`    offset that the next record gets; moves when a batch has been written
==================  =======================================================================

`log_start_offset <= flushed_offset <= log_end_offset`.

Appends are in `appending`, for leaders and for followers.

Operations that rearrange files (`log_operations`) run to their end even if their caller is
cancelled. An I/O error ends the log's service for good: what the disk holds is unknown, and a retry
could make it worse (mistake 9 of replication.md).

Lives in the event loop; not for other threads.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from raftlog.record.batch import RecordBatch
from raftlog.record.errors import (
    ILLEGAL_STATE,
    OFFSET_OUT_OF_RANGE,
    STORAGE_FAILED,
    LogError,
)
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.storage.appending import Appender
from raftlog.storage.checkpoints import ReplicaCheckpoint, StartKind
from raftlog.storage.compaction_run import compact_log
from raftlog.storage.config import FlushMode, LogConfig
from raftlog.storage.leader_epochs import LeaderEpochs
from raftlog.storage.log_core import Appended, LogCore, LogShared, publish_nothing
from raftlog.storage.log_operations import LogOperations
from raftlog.storage.opening import open_log
from raftlog.storage.producer_state import ProducerStates
from raftlog.storage.reader import DamageFoundError, LogReader, find_offset_for_timestamp
from raftlog.storage.results import (
    AppendResult,
    CompactionReport,
    DamagedRange,
    LogState,
    PossibleLoss,
    ReadResult,
    UnreadableBatch,
)
from raftlog.world import Buffer, Clock, Disk, DiskError

__all__ = ["AppendResult", "Log", "LogShared", "ReadResult"]

DAMAGED_RANGES_MAX: Final = 16
"""Damaged places of one log that are remembered for its status."""

logger = logging.getLogger(__name__)


class Log:
    """One replica's log. Made by `Log.open`."""

    def __init__(self, core: LogCore) -> None:
        self._core = core
        self._operations = LogOperations(core)
        self._reader = LogReader(core)
        self._appender = Appender(core, self._operations)
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
    def flush_mode(self) -> FlushMode:
        """What counts as durable now: a change of `config` to ASYNC holds once it is known to the
        next start."""
        return self._core.flush_mode

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
    def durable_log_start(self) -> Offset:
        """The log start offset that holds after a crash, too; it follows the present one."""
        return self._core.durable_log_start

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
        """What power cuts may have taken (flush=async), until it is forgotten; kept over starts."""
        return self._core.possible_loss

    async def forget_possible_loss(self) -> None:
        """The owner has dealt with it: forget it, durably, or not at all.

        Only then may others count on the log: a start that still tells of the loss would have them
        give up what was acknowledged since. Raises LogError; after DISK_FULL it may be tried again.
        """
        await self._core.run_shielded(self._core.forget_possible_loss())

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The epoch of the last record; -1 if there is none."""
        return self._core.last_epoch

    @property
    def damage_found(self) -> str | None:
        """What `on_damaged` told, or would have."""
        return self._core.damage_found

    def declare_damaged(self, reason: str) -> None:
        """End the log's service: it is DAMAGED until it is renewed, over later starts, too.

        A log whose service has ended already stays as it is.
        """
        self._core.declare_damaged(reason)

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
        self._core.configure(config)

    def on_flushed(self, callback: Callable[[Offset], None]) -> None:
        """Be told in the event loop whenever `flushed_offset` moved."""
        self._core.told.flushed.append(callback)

    def on_failed(self, callback: Callable[[LogError], None]) -> None:
        """Be told in the event loop when the log fails for good; at most once."""
        self._core.told.failed.append(callback)

    def on_appended(self, callback: Appended) -> None:
        """Be told in the event loop right after each `append` (not `append_fetched`) was written.

        With base offset, next offset, the buffers as written, which stay as they are for as long
        as somebody holds them, and their bytes. It must not raise, nor use the log.
        """
        self._core.told.appended.append(callback)

    def on_damaged(self, callback: Callable[[str], None]) -> None:
        """Be told, once, why the log needs repair, when a reader or the scrubber met damage.

        The log goes on serving what is whole until `declare_damaged`. See `damage_found`. It must
        not raise; after `restart_at` it can be told again.
        """
        self._core.told.damaged.append(callback)

    # Append

    async def append(
        self,
        batches: Sequence[RecordBatch],
        leader_epoch: LeaderEpoch,
        *,
        guard: Callable[[], None] | None = None,
    ) -> list[AppendResult]:
        """Append batches, whole or not at all, and start their way to durability.

        `guard` is called right before anything is decided, each time it is tried, and may raise:
        the append may have waited for a segment. Returns when they are written, not when they are
        durable. Raises LogError: nothing was written, unless it is STORAGE_FAILED, whose outcome
        is unknown.
        """
        return await self._appender.append(batches, leader_epoch, guard)

    def append_fetched_now(self, data: Buffer, leader_epoch: LeaderEpoch) -> bool:
        """Append what the leader of `leader_epoch` sent: whole batches, as they are.

        False, and nothing was done: something must be made durable first, or other writers wait;
        then `append_fetched` does it. The log's end must be where the leader was asked to begin:
        a later first offset is taken for what compaction left out, an earlier one is refused.
        Raises LogError, nothing was written: CORRUPT_BATCH, DISK_FULL; or STORAGE_FAILED.
        """
        return self._appender.append_fetched_now(data, leader_epoch)

    async def append_fetched(self, data: Buffer, leader_epoch: LeaderEpoch) -> None:
        """The same, waiting for what must come first."""
        await self._appender.append_fetched(data, leader_epoch)

    def become_leader(self, leader_epoch: LeaderEpoch) -> None:
        """Begin `leader_epoch` at the log end in the epoch history, before its first append.

        Raises LogError: NO_LEADER if the history knows a newer one.
        """
        self._appender.become_leader(leader_epoch)

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
        return await self._core.run_shielded(self._operations.checkpoint())

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
            raise self._cannot_read(start, error) from error
        # What was read while the log ended may be of other files under the same names.
        self._core.require_online()
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
            raise self._cannot_read(None, error) from error

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
        self._core.found_damage(error.reason)
        return LogError(STORAGE_FAILED, f"Damaged on disk and not served: {error.reason}.")

    def _cannot_read(self, offset: Offset | None, error: DiskError) -> LogError:
        # The log goes on: one place that cannot be read says nothing of the others.
        what = self.directory if offset is None else f"{self.directory}: offset {offset}"
        self._core.found_damage(f"{what} cannot be read: {error}")
        return LogError(STORAGE_FAILED, f"{what} cannot be read: {error}")

    # Rearrange

    async def truncate_to(self, offset: Offset) -> None:
        """Forget every batch with a record at or above `offset`. Durable when it returns.

        Raises LogError: OFFSET_OUT_OF_RANGE below the log start offset, STORAGE_FAILED.
        """
        await self._core.run_shielded(self._operations.truncate_to(offset))

    def producers_below(self, offset: Offset) -> bytes:
        """What a log that begins at `offset`, empty, is to know of producers: for `restart_at`."""
        core = self._core
        producers = core.producers.below(offset)
        if not len(producers):
            return b""
        return producers.to_bytes(offset, now_ms=core.shared.monotonic_ms())

    async def restart_at(self, offset: Offset, producers: bytes = b"") -> None:
        """Empty the log and begin it at `offset`, below or above its present end. Durable.

        Epoch history, producers and all else that followed from its records go, too; it knows of
        `producers` instead, the leader's `producers_below`. A crash leaves the old log or the new
        one, with them. The high watermark is `offset` afterwards. Raises LogError, nothing was
        changed: CORRUPT_BATCH if `producers` is not a snapshot of that offset, DISK_FULL.
        """
        await self._core.run_shielded(self._operations.restart_with_producers(offset, producers))
        self._damaged_ranges.clear()

    async def delete_records_before(self, offset: Offset) -> Offset:
        """Move the log start offset up to `offset`, and return it. Durable when it returns.

        While a compaction runs, the files that lie below stay until retention comes by.
        Raises LogError: OFFSET_OUT_OF_RANGE beyond the log end offset, DISK_FULL, STORAGE_FAILED.
        """
        return await self._core.run_shielded(self._operations.delete_records_before(offset))

    async def apply_retention(self, now_ms: int) -> int:
        """Remove segments that are due by age or size; return how many. Raises LogError.

        Removes none while a compaction runs: what is due stays due.
        """
        return await self._core.run_shielded(self._operations.apply_retention(now_ms))

    async def compact(self, now_ms: int, *, go_on: bool = False) -> CompactionReport | None:
        """Remove records that a newer one of the same key replaces, if it is worth it.

        After a partial pass, call it again at once with `go_on`. Raises LogError.
        """
        return await self._core.run_shielded(
            compact_log(self._core, self._operations, self._reader, now_ms, go_on=go_on)
        )

    async def close(self) -> None:
        """Flush, checkpoint, and let go of the files. A log that failed is only let go.

        Raises LogError if the last checkpoint could not be taken; the log is closed all the same.
        """
        await self._core.run_shielded(self._close())

    async def _close(self) -> None:
        core = self._core
        closed = LogError(ILLEGAL_STATE, f"{self.directory} is closed.")
        core.pending_rearrangements += 1
        try:
            async with core.arrange_lock, core.write_lock:
                if core.state is LogState.ONLINE:
                    await self._operations.checkpoint()
                    core.end(closed, LogState.CLOSED)
        finally:
            core.pending_rearrangements -= 1
            self.discard(closed)

    async def retire(self, reason: LogError) -> None:
        """Discard the log, and return when nothing of it touches its directory any more."""
        await self._core.run_shielded(self._retire(reason))

    async def _retire(self, reason: LogError) -> None:
        self.discard(reason)
        core = self._core
        core.pending_rearrangements += 1
        try:
            async with core.arrange_lock, core.write_lock, core.derived_lock:
                # What was on its way has come to its end, and may have opened files again.
                self.discard(reason)
        finally:
            core.pending_rearrangements -= 1

    def discard(self, reason: LogError) -> None:
        """Let go of the files as they are, for good: whoever uses the log is told `reason`."""
        core = self._core
        if core.failure is None:
            core.end(reason, LogState.FAILED)
        for segment in core.segments.all:
            segment.let_go()
            for path in segment.paths:
                core.shared.files.forget(path)
