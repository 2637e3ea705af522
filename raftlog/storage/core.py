"""What every part of one log shares: its state, its durability, and its failure.

Durability is a line of two numbers: `flushed_offset` follows the log end offset whenever a sync
returns. A failed sync, or any other I/O error on data, ends the log's service: `fail` tells
everybody who waits, once, and from then on every use raises the same error.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import msgspec

from raftlog.record.errors import DISK_FULL, STORAGE_FAILED, LogError
from raftlog.record.types import Offset
from raftlog.storage.checkpoints import ReplicaCheckpoint
from raftlog.storage.compaction import CompactionHistory
from raftlog.storage.config import FlushMode, LogConfig
from raftlog.storage.files import Lease, OpenFiles
from raftlog.storage.flush import Flusher
from raftlog.storage.opening import Opened
from raftlog.storage.results import LogState, UnreadableBatch
from raftlog.storage.segments import Segments
from raftlog.world import Clock, Disk, DiskError, DiskFullError

T = TypeVar("T")

COLD_READS_MAX: Final = 4
"""Reads by disk threads at once, of all logs: the other threads stay free for syncs."""
UNFLUSHED_BYTES_MAX: Final = 32 << 20
"""With flush=async: bytes after which a sync starts before its time."""

logger = logging.getLogger(__name__)


UNKNOWN_ROOM_BYTES: Final = 1 << 62
"""Before the first look at the disk."""


class LogShared:
    """What the logs of a node share."""

    def __init__(self, disk: Disk, clock: Clock, files: OpenFiles | None = None) -> None:
        self.disk = disk
        self.clock = clock
        self.files = files or OpenFiles(disk)
        self.flusher = Flusher(disk)
        self.cold_reads = asyncio.Semaphore(COLD_READS_MAX)
        self.room_bytes = UNKNOWN_ROOM_BYTES
        """Room on the disk beyond its reserve, as of the last look, less what was appended since.
        Appends that do not fit are refused: the reserve belongs to the metadata and checkpoints."""
        self.changed: dict[LogCore, float] = {}
        """Logs that took appends since their last checkpoint, with the time of the first."""

    def monotonic_ms(self) -> int:
        """The time that producers' ages are told in."""
        return int(self.clock.monotonic() * 1000)


async def publish_nothing() -> None:
    """For a log without a node: nobody writes its checkpoint down."""


class LogCore:
    """State of one log. Lives in the event loop."""

    def __init__(
        self,
        shared: LogShared,
        directory: str,
        config: LogConfig,
        opened: Opened,
        *,
        checkpoint: ReplicaCheckpoint | None,
        publish: Callable[[], Awaitable[None]],
    ) -> None:
        self.shared = shared
        self.directory = directory
        self.config = config
        self.segments = Segments(opened.segments, opened.log_start_offset)
        self.segments.set_first_appends(
            () if checkpoint is None else checkpoint.first_appends, shared.clock.time_ms()
        )
        self.leader_epochs = opened.leader_epochs
        self.producers = opened.producers
        self.possible_loss = opened.possible_loss
        self.state = LogState.ONLINE
        self.failure: LogError | None = None
        self.damage = ""
        self.flushed_offset = self.segments.end_offset
        self.high_watermark = Offset(0) if checkpoint is None else checkpoint.high_watermark
        self.gaps_below = opened.gaps_below
        self.compaction = CompactionHistory() if checkpoint is None else checkpoint.compaction
        self.recovery = opened.recovery_point or self.unrecovered()
        self.batches_since_recovery = 0
        # Taken in this order, where several are.
        self.arrange_lock = asyncio.Lock()
        """Held while segments are removed, swapped or cut."""
        self.write_lock = asyncio.Lock()
        """Held while appends must wait."""
        self.derived_lock = asyncio.Lock()
        """Held while index files of the active segment, epochs or snapshots are written."""
        self.arrangers_waiting = 0
        """Truncations and closings, for which a compaction gives way."""
        self.is_compacting = False
        """A compaction holds `arrange_lock`, or is next: for minutes, if the log is large."""
        self.unreadable: UnreadableBatch | None = None
        """The batch that the last compaction could not decode."""
        self.published_recovery_point = (
            Offset(0) if checkpoint is None else checkpoint.recovery_point
        )
        """The one that the node's checkpoint file names: its snapshot must stay."""
        self.promises_end: Offset | None = None
        """While a truncation is being prepared: nothing from this offset on is promised."""
        self.flushed_callbacks: list[Callable[[Offset], None]] = []
        self.failed_callbacks: list[Callable[[LogError], None]] = []
        self._publish = publish
        self._waiters: deque[tuple[Offset, asyncio.Future[None]]] = deque()
        self._syncing_to: Offset | None = None
        self._sync_wanted = False
        self._sync_lease: Lease | None = None
        self._unflushed_bytes = 0
        if opened.damage is not None:
            self.state = LogState.DAMAGED
            self.damage = opened.damage.reason
            self.failure = LogError(
                STORAGE_FAILED, f"{directory} is damaged and offline: {opened.damage.reason}"
            )

    def unrecovered(self) -> ReplicaCheckpoint:
        """A recovery point at the very start: all that is derived must be found by a full scan."""
        first = self.segments.all[0].base_offset
        return ReplicaCheckpoint(
            recovery_point=first,
            flushed_offset=first,
            log_start_offset=self.segments.log_start_offset,
            high_watermark=Offset(0),
            segment_base_offset=first,
            segment_position=0,
            offset_index_entries=0,
            time_index_entries=0,
        )

    def current_checkpoint(self) -> ReplicaCheckpoint:
        """What may be written down as durable now."""
        if self.damage:
            # What was promised stays as it was: whoever repairs the log must know it.
            return msgspec.structs.replace(self.recovery, damage=self.damage)
        flushed_offset, high_watermark = self.flushed_offset, self.high_watermark
        if self.promises_end is not None:
            flushed_offset = min(flushed_offset, self.promises_end)
            high_watermark = min(high_watermark, self.promises_end)
        return msgspec.structs.replace(
            self.recovery,
            flushed_offset=flushed_offset,
            log_start_offset=self.segments.log_start_offset,
            high_watermark=high_watermark,
            gaps_below=self.gaps_below,
            compaction=self.compaction,
            first_appends=self.segments.first_appends(),
        )

    def require_online(self) -> None:
        """Raise what ended the log's service, if something did."""
        if self.failure is not None:
            raise LogError(self.failure.entry, self.failure.message)

    def fail(self, error: Exception) -> LogError:
        """End the log's service for good, and tell everybody who waits. Returns what to raise."""
        if self.failure is None:
            failure = LogError(STORAGE_FAILED, f"{self.directory} is offline: {error}")
            logger.error("%s", failure.message, exc_info=error)
            self.end(failure, LogState.FAILED)
        assert self.failure is not None
        return LogError(self.failure.entry, self.failure.message)

    def end(self, failure: LogError, state: LogState) -> None:
        """From now on every use raises `failure`; so do the waits that run."""
        self.failure = failure
        self.state = state
        self.shared.changed.pop(self, None)
        waiters, self._waiters = self._waiters, deque()
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(LogError(failure.entry, failure.message))
        for callback in self.failed_callbacks:
            callback(failure)

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Run disk work that changes files off the loop.

        Raises LogError: DISK_FULL if there was no room; any other error of the disk is final.
        """
        try:
            return await self.shared.disk.run(partial(work, *arguments))
        except DiskFullError as error:
            raise disk_full(self.directory) from error
        except DiskError as error:
            raise self.fail(error) from error

    async def publish(self) -> None:
        """Return once the node's checkpoint file holds the present `current_checkpoint`."""
        try:
            await self._publish()
        except DiskFullError as error:
            raise disk_full(self.directory) from error
        except DiskError as error:
            raise self.fail(error) from error

    # Durability

    def wrote(self, size_bytes: int, batches: int) -> None:
        """Batches were appended: see to it that they become durable."""
        self._unflushed_bytes += size_bytes
        self.shared.room_bytes -= size_bytes
        self.batches_since_recovery += batches
        self.mark_changed()
        if self.config.flush is FlushMode.SYNC or self._unflushed_bytes >= UNFLUSHED_BYTES_MAX:
            self.request_sync()

    def mark_changed(self) -> None:
        """There is something that the next checkpoint will write down."""
        changed = self.shared.changed
        if self not in changed:
            changed[self] = self.shared.clock.monotonic()

    def request_sync(self) -> None:
        """Start a sync, or have one follow the one that runs."""
        if self._syncing_to is not None:
            self._sync_wanted = True
        elif self.failure is None and self.flushed_offset < self.segments.end_offset:
            self.shared.flusher.request(self)

    def begin_sync(self) -> Callable[[], None] | None:
        """For the flusher: the sync of all that is written now."""
        if self.failure is not None or self._syncing_to is not None:
            return None
        end_offset = self.segments.end_offset
        if self.flushed_offset >= end_offset:
            return None
        self._syncing_to = end_offset
        self._sync_wanted = False
        self._unflushed_bytes = 0
        # Older segments were synced before this one took its first batch. The lease keeps the file
        # open under the sync, whoever lets go of it meanwhile.
        self._sync_lease = self.shared.files.lease(self.segments.active.path)
        return self._sync_lease.file.sync

    def end_sync(self, error: Exception | None) -> None:
        """For the flusher: the sync is over."""
        flushed_offset, self._syncing_to = self._syncing_to, None
        lease, self._sync_lease = self._sync_lease, None
        assert flushed_offset is not None
        assert lease is not None
        lease.release()
        if error is not None:
            self.fail(error)
            return
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
        for callback in self.flushed_callbacks:
            callback(flushed_offset)

    async def flush(self) -> None:
        """Return once all that was appended before the call is durable. Raises LogError."""
        self.require_online()
        end_offset = self.segments.end_offset
        if self.flushed_offset >= end_offset:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((end_offset, waiter))
        self.request_sync()
        await waiter


def disk_full(directory: str) -> LogError:
    """The error for a change that found no room, and changed nothing."""
    return LogError(DISK_FULL, f"{directory}: the disk is full; nothing was written.")
