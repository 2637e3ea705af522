"""Shared state of one log, with its offsets, durability and failure.

Durability is a pair of numbers. `flushed_offset` follows the log end offset whenever a sync
returns. A failed sync, or any other I/O error on data, ends the log's service. `fail` ends all
waits, once, and from then on every use raises the same error.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from raftlog.record.errors import DISK_FULL, STORAGE_FAILED, LogError
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.storage.checkpoints.checkpoints import EffectiveFlushMode, ReplicaCheckpoint, StartKind
from raftlog.storage.compaction.plan import CompactionHistory, DeletionHorizon
from raftlog.storage.files import Lease, OpenFiles
from raftlog.storage.log.derived_state import Marks, write_marks
from raftlog.storage.log.flush import Flusher
from raftlog.storage.log.opening import Opened
from raftlog.storage.segments.segments import Segment, Segments
from raftlog.storage.types import (
    NO_EPOCH,
    DamagedRange,
    FlushMode,
    LogConfig,
    LogState,
    PossibleLoss,
    UnreadableBatch,
)
from raftlog.world import Buffer, Clock, Disk, DiskError, DiskFullError, Sync
from raftlog.world.cluster_clock import ClusterClock

T = TypeVar("T")

Appended: TypeAlias = Callable[[Offset, Offset, Sequence[Buffer], int], None]
"""Listener of a leader's append. Called with base offset, next offset, the buffers as written, and
their bytes. The buffers never change while a reference to them is held. The listener must not use
the log."""

COLD_READS_MAX: Final = 4
"""Most reads by disk threads at once, of all logs. The other threads stay free for syncs."""
DECODES_MAX: Final = 2
"""Most batches decoded by disk threads at once, of all logs."""
UNFLUSHED_BYTES_MAX: Final = 32 << 20
"""Bytes after which a sync starts before its time, with flush=async."""

REFUSALS_LOGGED_S: Final = 60.0
"""Seconds between two log lines about rejected producers."""

logger = logging.getLogger(__name__)


LOOKUPS_MAX: Final = 2
"""Most lookups by time at once, of all logs. They read much, and leave cold reads to the readers.
"""
UNKNOWN_ROOM_BYTES: Final = 1 << 62
"""Room before the first measurement of the disk."""


class LogContext:
    """Resources shared by the logs of a node."""

    def __init__(self, disk: Disk, clock: Clock, files: OpenFiles | None = None) -> None:
        self.disk = disk
        self.clock = clock
        self.cluster_clock = ClusterClock(clock)
        """The time for decisions by age."""
        self.files = files or OpenFiles(disk)
        self.flusher = Flusher(disk, clock)
        self.cold_reads = asyncio.Semaphore(COLD_READS_MAX)
        self.decodes = asyncio.Semaphore(DECODES_MAX)
        self.room_bytes = UNKNOWN_ROOM_BYTES
        """Room on the disk beyond its reserve when last measured, minus the bytes appended since.
        Appends that do not fit are rejected, since the reserve belongs to the metadata and
        checkpoints."""
        self.changed: dict[LogCore, float] = {}
        """Logs with appends since their last checkpoint, and the time of the first append."""
        self.idle: dict[LogCore, float] = {}
        """Logs in ASYNC without appends since their last checkpoint, and its time, which rises."""
        self.lookups = asyncio.Semaphore(LOOKUPS_MAX)
        self.unpublished: dict[LogCore, None] = {}
        """Logs that may differ from their content in the checkpoint file. Logs in
        `changed` count as such anyway."""
        self.file_is_behind = False
        """Whether the checkpoint file must be written even if `changed` is empty."""

        self.refused_producers = 0
        """Appends rejected because a log had no room for their new producers."""
        self._refused_producers_logged_at = -math.inf

    def date_ms(self) -> int | None:
        """The date of an append now, or None while the cluster time is unknown.

        It does not follow a clock that is behind the cluster's. Once that clock is set right, its
        segments would look old.
        """
        clock = self.cluster_clock
        return None if clock.time_ms() is None else clock.latest_ms()

    def note_refused_producers(self, directory: str, error: LogError) -> None:
        """Count an append rejected for its new producers, and log it once in a while."""
        self.refused_producers += 1
        now = self.clock.monotonic()
        if now - self._refused_producers_logged_at >= REFUSALS_LOGGED_S:
            self._refused_producers_logged_at = now
            logger.warning("%s: new producers refused: %s", directory, error.message)

    def monotonic_ms(self) -> int:
        """The monotonic time in milliseconds, by which producers age."""
        return int(self.clock.monotonic() * 1000)


class Listeners:
    """Listeners of one log, called in the event loop. A listener must not raise."""

    def __init__(self) -> None:
        self.flushed: list[Callable[[Offset], None]] = []
        """Callbacks with the new `flushed_offset` whenever it moved."""
        self.failed: list[Callable[[LogError], None]] = []
        """Callbacks called at most once, when the log fails for good."""
        self.appended: list[Appended] = []
        """Callbacks right after each leader's append (not `append_fetched`) was written."""
        self.log_start_durable: list[Callable[[], None]] = []
        """Callbacks whenever `durable_log_start` has risen."""
        self.horizon_raised: list[Callable[[], None]] = []
        """Callbacks when `deletion_horizon` has risen, before a tombstone below is removed."""
        self.damaged: list[Callable[[str], None]] = []
        """Callbacks with the reason when a reader or the scrubber first meets damage.

        The log continues to serve its intact batches until `declare_damaged`. Called again only for
        damage found after a restart of the log. See `damage_found`.
        """


class _Syncing(NamedTuple):
    """A running sync."""

    end_offset: Offset
    """End offset of the records that it makes durable."""
    segment: Segment
    lease: Lease


class TombstoneHold(Protocol):
    """Keeps tombstones for followers that catch up, whatever their age."""

    def tombstones_held_from(self) -> Offset | None:
        """The offset from which tombstones stay. None if all may go."""
        ...


class LogCore:
    """State of one log. Lives in the event loop."""

    start: StartKind
    """Kind of stop before the log was opened. An offline repair judges the log's end by it."""
    damage_found: str | None = None
    """First damage found while the log was in service."""
    tombstone_hold: TombstoneHold | None = None
    """The hold on tombstones. None if all may go by their age."""
    pending_rearrangements = 0
    """Truncations and closings, for which a compaction gives way."""
    is_compacting = False
    """Whether a compaction holds `arrange_lock`, or is next. It takes minutes if the log is large.
    """
    is_discarded = False
    """Whether the files are closed for good, and another log may use the directory."""
    stable_bound: Offset | None = None
    """Bound of the last stable offset while the producers are being rebuilt."""
    unreadable: UnreadableBatch | None = None
    """Batch at which the last compaction stopped because decoding failed."""
    promised_end: Offset | None = None
    """Offset from which nothing is promised, while a truncation is being prepared."""
    restart_at: Offset | None = None
    """Offset at which the log starts again, while it is being emptied."""
    batches_since_recovery = 0
    _unflushed_bytes = 0
    _sync_wanted = False
    pending_loss_resets = 0
    """Callers that wait for a checkpoint file without `possible_loss`."""

    def __init__(
        self,
        shared: LogContext,
        directory: str,
        config: LogConfig,
        opened: Opened,
        *,
        checkpoint: ReplicaCheckpoint | None,
        start: StartKind,
        publish: Callable[[], Awaitable[None]],
    ) -> None:
        self.shared = shared
        self.directory = directory
        self.config = config
        self.segments = Segments(opened.segments, opened.log_start_offset)
        self.segments.set_first_appends(
            () if checkpoint is None else checkpoint.first_appends, shared.date_ms()
        )
        self.leader_epochs = opened.leader_epochs
        self.producers = opened.producers
        self.possible_loss = _combine_losses(
            None if checkpoint is None else checkpoint.possible_loss, opened.possible_loss
        )
        self.start = start
        self.state, self.damage = LogState.ONLINE, ""
        self.failure: LogError | None = None
        self.flushed_offset = self.segments.end_offset
        self.high_watermark = Offset(0) if checkpoint is None else checkpoint.high_watermark
        if opened.damage is None:
            self.high_watermark = self.segments.clamp(self.high_watermark)
        self.effective_flush = EffectiveFlushMode(config.flush, checkpoint)
        self.gaps_below = opened.gaps_below
        self.compaction = (
            CompactionHistory(known_horizon=opened.marked_horizon)
            if checkpoint is None
            else checkpoint.compaction
        )
        # At the first segment, all derived state needs a full scan.
        self.recovery = opened.recovery_point or initial_checkpoint(
            self.segments.all[0].base_offset, is_unknown=opened.damage is not None
        )
        # Several locks are taken in this order.
        self.arrange_lock = asyncio.Lock()
        """Lock held while segments are removed, swapped or cut."""
        self.write_lock = asyncio.Lock()
        """Lock held while appends must wait."""
        self.derived_lock = asyncio.Lock()
        """Lock held while index files of the active segment, epochs or snapshots are written."""
        self.damaged_ranges: dict[tuple[Offset, int], DamagedRange] = {}
        """Batches found damaged by readers, by segment and position, a bounded number."""
        self.damaged_segments: set[Offset | None] = set()
        """Base offsets of the segments with damage found in service, None for an unknown place."""
        self.published_recovery_point = (
            Offset(0) if checkpoint is None else checkpoint.recovery_point
        )
        """Recovery point in the node's checkpoint file. Its producer snapshot must stay."""
        self._published_log_start = (
            opened.log_start_offset if checkpoint is None else checkpoint.log_start_offset
        )
        self.listeners = Listeners()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._publish = publish
        self._waiters: deque[tuple[Offset, asyncio.Future[None]]] = deque()
        self._repair_waiters: set[asyncio.Future[None]] = set()
        self._syncing: _Syncing | None = None
        if opened.damage is not None:
            self.state, self.damage = LogState.DAMAGED, opened.damage.reason
            self.failure = _damaged(directory, self.damage)

    def note_high_watermark(self, offset: Offset) -> None:
        """Note the replica's high watermark, for checkpoints, retention and compaction."""
        self.high_watermark = offset

    def hold_tombstones(self, hold: TombstoneHold | None) -> None:
        """Let each compaction from now on keep the tombstones that `hold` names."""
        self.tombstone_hold = hold

    def current_checkpoint(self) -> ReplicaCheckpoint:
        """The checkpoint to write for this log, with everything durable now."""
        if self.damage:
            # Earlier promises stay as they were, since the repair of the log needs them.
            return msgspec.structs.replace(
                self.recovery, damage=self.damage, possible_loss=self._published_loss
            )
        if self.restart_at is not None:
            return msgspec.structs.replace(
                initial_checkpoint(self.restart_at, self._published_loss, restart=True),
                compaction=self.compaction,
            )
        flushed_offset, high_watermark = self.flushed_offset, self.high_watermark
        if self.promised_end is not None:
            flushed_offset = min(flushed_offset, self.promised_end)
            high_watermark = min(high_watermark, self.promised_end)
        return msgspec.structs.replace(
            self.recovery,
            flushed_offset=flushed_offset,
            log_start_offset=self.segments.log_start_offset,
            high_watermark=high_watermark,
            gaps_below=self.gaps_below,
            compaction=self.compaction,
            first_appends=self.segments.first_appends(),
            possible_loss=self._published_loss,
            flush=self.effective_flush.to_publish(flushed_offset, self.segments.end_offset),
        )

    @property
    def undamaged_checkpoint(self) -> ReplicaCheckpoint | None:
        """The checkpoint of a damaged log as it was before, or None if unknown."""
        if self.recovery.is_unknown:
            return None
        return msgspec.structs.replace(self.current_checkpoint(), damage="")

    @property
    def _published_loss(self) -> PossibleLoss | None:
        return None if self.pending_loss_resets else self.possible_loss

    @property
    def flush_mode(self) -> FlushMode:
        """The flush mode in effect."""
        return self.effective_flush.mode

    @property
    def log_start_offset(self) -> Offset:
        """First readable offset."""
        return self.segments.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """Offset of the next record."""
        return self.segments.end_offset

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """Offset below which records and the ends of their transactions are committed.

        At most `high_watermark`, which must not be lower than at the last call. Where the log
        starts within an open transaction, at least the log start offset.
        """
        first = self.stable_bound
        if first is None:
            if not self.producers.has_unstable:
                return high_watermark
            first = self.producers.first_unstable(high_watermark)
            if first is None:
                return high_watermark
        return max(min(first, high_watermark), self.segments.log_start_offset)

    @property
    def size_bytes(self) -> int:
        """Bytes of record batches on disk."""
        return self.segments.size_bytes

    @property
    def unrecovered_bytes(self) -> int:
        """Approximate bytes that an unclean start would have to scan."""
        number = self.segments.number(self.recovery.segment_base_offset)
        unscanned = sum(segment.size_bytes for segment in self.segments.all[number:])
        return unscanned - self.recovery.segment_position

    def producers_below(self, offset: Offset) -> bytes:
        """Snapshot of the producers of records below `offset`, for another log's `restart_at`."""
        producers = self.producers.below(offset)
        if not len(producers):
            return b""
        return producers.to_bytes(offset, now_ms=self.shared.monotonic_ms())

    def configure(self, config: LogConfig) -> None:
        """Use other settings from now on."""
        self.config = config
        if self.effective_flush.configure(config.flush, self.segments.end_offset):
            self.mark_changed()
        if config.flush is FlushMode.SYNC:
            self.request_sync()
        if self.effective_flush.waits_for_checkpoint:
            self._publish_async()

    def _publish_async(self) -> None:
        self.shared.file_is_behind = True
        self.start_shielded(self._begin_async())

    def note_idle(self) -> None:
        """Note that all appends so far are checkpointed, see `rest`."""
        if self.flush_mode is FlushMode.ASYNC and self.failure is None:
            # The log moves to the end, since the times rise.
            self.shared.idle.pop(self, None)
            self.shared.idle[self] = self.shared.clock.monotonic()

    def rest(self) -> None:
        """Acknowledge no record before its sync, until the append that ends the idle time.

        A power cut takes nothing from a log that rests, and its next start knows that.
        """
        end_offset = self.segments.end_offset
        is_synced = self.failure is None and self.flushed_offset == end_offset
        if is_synced and self.effective_flush.rest(end_offset):
            self.mark_unpublished()
            self.shared.file_is_behind = True

    async def _begin_async(self) -> None:
        # `published` puts ASYNC into effect once the file has it, perhaps after a later write.
        try:
            await self.publish()
        except LogError as error:
            logger.info("%s: flush=async does not hold yet: %s", self.directory, error.message)

    def published(self, checkpoint: ReplicaCheckpoint) -> None:
        """Note the log's content in the node's checkpoint file."""
        start_before = self.durable_log_start
        self.published_recovery_point = checkpoint.recovery_point
        self._published_log_start = checkpoint.log_start_offset
        self.effective_flush.published(checkpoint.flush)
        if self.durable_log_start > start_before:
            for listener in self.listeners.log_start_durable:
                listener()

    @property
    def durable_log_start(self) -> Offset:
        """The log start offset after a crash, at most the present offset."""
        return min(self._published_log_start, self.segments.log_start_offset)

    @property
    def deletion_horizon(self) -> DeletionHorizon:
        """Offset below which tombstones may be gone from the log, with its epoch."""
        return self.compaction.horizon.within(self.leader_epochs)

    def raise_deletion_horizon(self, history: CompactionHistory) -> None:
        """Take the history of a pass that is about to remove tombstones."""
        self.compaction = history
        for listener in self.listeners.horizon_raised:
            listener()

    async def forget_possible_loss(self) -> None:
        """Forget `possible_loss`, durably or not at all, once the owner has handled it.

        Other replicas may count on the log only afterwards. A start that still finds the loss in
        the checkpoint file would give up records acknowledged since. Raises LogError. After
        DISK_FULL the caller may try again.
        """
        await self.run_shielded(self._forget_possible_loss())

    async def _forget_possible_loss(self) -> None:
        if self.possible_loss is None:
            return
        self.pending_loss_resets += 1
        try:
            await self.publish()
            self.possible_loss = None
        finally:
            self.pending_loss_resets -= 1

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The epoch of the log's last record, or NO_EPOCH.

        This is not the newest epoch of the history, where a leader's epoch stands before its first
        append.
        """
        epoch = self.leader_epochs.epoch_for(Offset(self.segments.end_offset - 1))
        return NO_EPOCH if epoch is None else epoch

    def require_online(self) -> None:
        """Raise the error that ended the log's service, if any."""
        if self.failure is not None:
            raise LogError(self.failure.entry, self.failure.message)

    def fail(self, error: Exception) -> LogError:
        """End the log's service for good, and end all waits. Returns the error to raise."""
        if self.failure is None:
            failure = LogError(STORAGE_FAILED, f"{self.directory} is offline: {error}")
            logger.error("%s", failure.message, exc_info=error)
            self.end_service(failure, LogState.FAILED)
        assert self.failure is not None
        return LogError(self.failure.entry, self.failure.message)

    def end_service(self, failure: LogError, state: LogState) -> None:
        """End service. Every later use and all pending waits raise `failure`."""
        self.failure = failure
        self.state = state
        self.shared.changed.pop(self, None)
        self.shared.idle.pop(self, None)
        self.mark_unpublished()
        self._wake_repair_waiters()
        waiters, self._waiters = self._waiters, deque()
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(LogError(failure.entry, failure.message))
        for callback in self.listeners.failed:
            callback(failure)

    def report_damage(self, reason: str, segment_base_offset: Offset | None = None) -> None:
        """Report damaged bytes to the owner, which decides. The log stays in service."""
        self.damaged_segments.add(segment_base_offset)
        if self.damage_found is not None or self.failure is not None:
            return
        self.damage_found = reason
        for callback in self.listeners.damaged:
            callback(reason)

    def forget_damage(self, segment_base_offset: Offset) -> None:
        """Note that a segment is whole again. With the last segment, so is the log."""
        self.damaged_segments.discard(segment_base_offset)
        for place in [place for place in self.damaged_ranges if place[0] == segment_base_offset]:
            del self.damaged_ranges[place]
        if not self.damaged_segments:
            self.damage_found = None
            self._wake_repair_waiters()

    async def wait_repaired(self, timeout_s: float) -> bool:
        """Wait until no damage is known in service.

        False if the time is up or service ends.
        """
        if self.damage_found is not None and self.failure is None:
            waiter = asyncio.get_running_loop().create_future()
            self._repair_waiters.add(waiter)
            try:
                await asyncio.wait([waiter], timeout=timeout_s)
            finally:
                self._repair_waiters.discard(waiter)
        return self.damage_found is None and self.failure is None

    def _wake_repair_waiters(self) -> None:
        for waiter in self._repair_waiters:
            if not waiter.done():
                waiter.set_result(None)

    def declare_damaged(self, reason: str) -> None:
        """End the log's service until its repair, also across later starts."""
        if self.failure is not None:
            return
        self.recovery = self.current_checkpoint()
        self.damage = reason
        # This is as after a crash of the process, since the files have every byte written in
        # service.
        self.start = StartKind.PROCESS_CRASH
        failure = _damaged(self.directory, reason)
        logger.error("%s", failure.message)
        self.shared.file_is_behind = True
        self.end_service(failure, LogState.DAMAGED)
        self.start_shielded(self.mark())

    async def mark(self) -> None:
        """Durably mark facts that an unreadable checkpoint file must not hide. Raises LogError.

        Deletions of records do not hold `arrange_lock`, so several may come at once. Each in turn
        writes the facts that hold then.
        """
        async with self.derived_lock:
            await self.write_marks()

    async def write_marks(self) -> None:
        """Write the marks as `mark`. The caller holds `derived_lock`."""
        if not self.is_discarded:
            horizon = self.compaction.horizon
            marks = Marks(self.segments.log_start_offset, self.damage, horizon)
            await self.run(write_marks, self.shared.disk, self.directory, marks)

    async def run_shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` to its end, even if the caller stops waiting in the middle."""
        return await asyncio.shield(self.start_shielded(work))

    def start_shielded(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work` as `run_shielded`, without waiting. Returns the task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # A waiting caller gets the error. Without a caller, only an unexpected error is worth a log
        # line.
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, LogError):
            logger.critical("%s: unexpected failure", self.directory, exc_info=error)

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Run disk work that changes files off the loop.

        Raises LogError, DISK_FULL if there was no room. Any other error of the disk is final.
        """
        try:
            return await self.shared.disk.run(partial(work, *arguments))
        except DiskFullError as error:
            raise disk_full(self.directory) from error
        except DiskError as error:
            raise self.fail(error) from error

    async def publish(self) -> None:
        """Return once the node's checkpoint file holds the present `current_checkpoint`."""
        self.mark_unpublished()
        try:
            await self._publish()
        except DiskFullError as error:
            raise disk_full(self.directory) from error
        except DiskError as error:
            raise self.fail(error) from error
        finally:
            # Some promises are lowered only for the time of the call.
            self.mark_unpublished()

    def mark_unpublished(self) -> None:
        """Include the log in the next write of the checkpoint file, whatever causes the write."""
        self.shared.unpublished[self] = None

    # Durability

    def note_append(self, size_bytes: int, batches: int) -> None:
        """Count appended batches, and start a sync where flush mode or size requires it."""
        self._unflushed_bytes += size_bytes
        self.shared.room_bytes -= size_bytes
        self.batches_since_recovery += batches
        self.shared.idle.pop(self, None)
        if self.effective_flush.wake():
            self._publish_async()
        self.mark_changed()
        if self.flush_mode is FlushMode.SYNC or self._unflushed_bytes >= UNFLUSHED_BYTES_MAX:
            self.request_sync()

    def mark_changed(self) -> None:
        """Mark the log for the next checkpoint."""
        self.mark_unpublished()
        if self.failure is not None:
            self.shared.file_is_behind = True
            return
        changed = self.shared.changed
        if self not in changed:
            changed[self] = self.shared.clock.monotonic()

    def request_sync(self) -> None:
        """Start a sync, or schedule it after the running sync."""
        if self._syncing is not None:
            self._sync_wanted = True
        elif self.failure is None and self.flushed_offset < self.segments.end_offset:
            self.shared.flusher.request(self.begin_sync, self.end_sync)

    def begin_sync(self) -> Sync | None:
        """Return the sync of everything written so far. Called by the flusher."""
        if self.failure is not None or self._syncing is not None:
            return None
        end_offset = self.segments.end_offset
        if self.flushed_offset >= end_offset:
            return None
        self._sync_wanted = False
        self._unflushed_bytes = 0
        # Older segments were synced before this segment took its first batch. The lease keeps the
        # file open during the sync, even if the segment releases its file before the end.
        active = self.segments.active
        lease = self.shared.files.lease(active.path)
        self._syncing = _Syncing(end_offset, active, lease)
        return Sync(lease.file, None if active.is_name_durable else self.directory)

    def end_sync(self, error: Exception | None) -> None:
        """Note that the sync is over. Called by the flusher."""
        assert self._syncing is not None
        flushed_offset, segment, lease = self._syncing
        self._syncing = None
        lease.release()
        if error is not None:
            self.fail(error)
            return
        segment.is_name_durable = True
        if self.failure is not None:
            return
        assert self.flushed_offset <= flushed_offset <= self.segments.end_offset
        self.flushed_offset = flushed_offset
        waiters = self._waiters
        while waiters and waiters[0][0] <= flushed_offset:
            waiter = waiters.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)
        if self._sync_wanted or waiters:
            self.request_sync()
        for callback in self.listeners.flushed:
            callback(flushed_offset)

    async def flush(self) -> None:
        """Return once everything appended before the call is durable. Raises LogError."""
        self.require_online()
        end_offset = self.segments.end_offset
        if self.flushed_offset >= end_offset:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((end_offset, waiter))
        self.request_sync()
        await waiter


def disk_full(directory: str) -> LogError:
    """The error for a change rejected for lack of room, with nothing changed."""
    return LogError(DISK_FULL, f"{directory}: the disk is full; nothing was written.")


def _damaged(directory: str, reason: str) -> LogError:
    return LogError(STORAGE_FAILED, f"{directory} is damaged and offline: {reason}")


def initial_checkpoint(
    offset: Offset,
    possible_loss: PossibleLoss | None = None,
    *,
    restart: bool = False,
    is_unknown: bool = False,
) -> ReplicaCheckpoint:
    """The checkpoint of a log starting at `offset`, with no derived state yet.

    With `restart` the log counts as empty, whatever its files contain.
    """
    return ReplicaCheckpoint(
        recovery_point=Offset(0),
        flushed_offset=offset,
        log_start_offset=offset,
        high_watermark=offset,
        segment_base_offset=offset,
        segment_position=0,
        offset_index_entries=0,
        time_index_entries=0,
        possible_loss=possible_loss,
        restart_at=offset if restart else None,
        is_unknown=is_unknown,
    )


def _combine_losses(earlier: PossibleLoss | None, now: PossibleLoss | None) -> PossibleLoss | None:
    """Combine two losses. Each stands until the owner has handled both."""
    if earlier is None or now is None:
        return earlier or now
    return PossibleLoss(
        min(earlier.from_offset, now.from_offset), earlier.torn_bytes + now.torn_bytes
    )
