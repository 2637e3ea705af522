"""Background work for logs, a bounded piece at each tick.

| each tick | for |
|---|---|
| start due syncs | logs with flush=async that took appends |
| let logs rest | logs with flush=async without appends for a while, see `checkpoints` |
| measure the free room | the node |
| advance recovery points | logs far behind, or behind for long, the farthest first |
| write the checkpoint file | the node, once a second while logs change |
| retention | some logs, in turn |
| one compaction at a time | logs with cleanup.policy=compact, in turn |
| remove files | deleted topics and replicas |
| read finished segments again | damage not found by a reader, see `scrub` |

A failed log is skipped, after its report. Any other error ends maintenance, and `on_failed` gets
the reason. The node must then end, as its logs take no more checkpoints, and only a start reads the
disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from raftlog.record.errors import DISK_FULL, LogError
from raftlog.record.types import PartitionId, TopicId
from raftlog.storage.checkpoints.checkpoint_file import CheckpointFile
from raftlog.storage.log.core import LogContext
from raftlog.storage.log.log import Log
from raftlog.storage.repair.scrub import Scrubber
from raftlog.storage.types import LogState, StorageSettings
from raftlog.world import Disk, DiskError, DiskFullError

TICK_INTERVAL_S: Final = 0.25
CHECKPOINT_INTERVAL_S: Final = 1.0
"""Greatest age of the checkpoint file while logs change."""
RECOVERY_BATCHES_MAX: Final = 16_384
"""Unrecovered batches of one log beyond which its recovery point is advanced. In a scan, many small
batches cost more than their bytes."""
CHECKPOINTS_PER_TICK_MAX: Final = 16
RETENTIONS_PER_TICK_MAX: Final = 64
REMOVALS_PER_TICK_MAX: Final = 16
"""Most files of deleted topics removed by one tick."""
REMOVED_DIRECTORIES_PER_TICK_MAX: Final = 256
REMOVALS_WAITING_MAX: Final = 100_000
"""Most deleted topics waiting for removal of their files. Further topics wait for the next start.
"""

IDLE_S: Final = 10.0
"""Time without appends after which a log in ASYNC rests. A power cut then takes nothing of it."""
FLUSH_INTERVAL_S: Final = 1.0
"""Longest time that a change waits for a sync in the background."""

logger = logging.getLogger(__name__)


class Maintenance:
    """The background work of a node's storage."""

    def __init__(
        self,
        shared: LogContext,
        settings: StorageSettings,
        logs: Mapping[tuple[TopicId, PartitionId], Log],
        file: CheckpointFile,
        on_failed: Callable[[str], None],
    ) -> None:
        """`on_failed` is called after maintenance has ended by an error. The node must end."""
        self._on_failed = on_failed
        self.free_bytes = 0
        self.scrubber = Scrubber(shared, settings, logs)
        self._shared = shared
        self._settings = settings
        self._reserve_bytes = settings.reserve_bytes
        self._logs = logs
        self._file = file
        self._task: asyncio.Task[None] | None = None
        self._compaction: asyncio.Task[None] | None = None
        self._retention_queue: deque[tuple[TopicId, PartitionId]] = deque()
        self._retention_round_at: float = 0.0
        self._removals: deque[str] = deque()
        self._written_at = 0.0

    def limit(self, *, reserve_bytes: int, scrub_bytes_per_s: int) -> None:
        """Change the room that appends leave, and the scrubber's rate. Takes effect at once."""
        self._shared.room_bytes += self._reserve_bytes - reserve_bytes
        self._reserve_bytes = reserve_bytes
        self.scrubber.limit(scrub_bytes_per_s)

    def start(self) -> None:
        """Start ticking."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """End the present tick and a running compaction, and stop ticking."""
        for task in (self._task, self._compaction):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self._task = self._compaction = None

    def opened(self, log: Log) -> None:
        """Mark a log for a checkpoint if recovery had to scan for its derived state."""
        log.mark_unpublished()
        if log.state is not LogState.ONLINE:
            return
        if log.recovery.recovery_point < log.log_end_offset:
            log.mark_changed()
        else:
            log.note_idle()

    def schedule_removal(self, directory: str) -> None:
        """Remove a directory of a deleted topic, little by little."""
        if len(self._removals) < REMOVALS_WAITING_MAX:
            self._removals.append(directory)

    async def tick(self) -> None:
        """Run one round. Raises DiskError where the node's files fail."""
        if self._file.failure is not None:
            # The write of one replica found it. Without the file no other may be opened or renewed.
            raise DiskError(str(self._file.failure)) from self._file.failure
        now = self._shared.clock.monotonic()
        await self.measure_room()
        self._start_syncs(now)
        self._rest_idle(now)
        await self._advance_recovery_points(now)
        await self._apply_retention(now)
        self._start_compaction()
        await self._remove_some()
        await self.scrubber.scrub_some()

    async def measure_room(self) -> None:
        """Measure the room for appends."""
        shared = self._shared
        self.free_bytes = await shared.disk.run(shared.disk.free_bytes)
        shared.room_bytes = self.free_bytes - self._reserve_bytes

    async def _run(self) -> None:
        interval = TICK_INTERVAL_S
        while True:
            await self._shared.clock.sleep(interval)
            await self.tick()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        reason = f"storage maintenance ended: {error}"
        logger.critical("%s", reason, exc_info=error)
        self._on_failed(reason)

    def _start_syncs(self, now: float) -> None:
        for core, since in self._shared.changed.items():
            if now - since >= FLUSH_INTERVAL_S:
                core.request_sync()

    def _rest_idle(self, now: float) -> None:
        idle = self._shared.idle
        while idle:
            log, since = next(iter(idle.items()))
            if now - since < IDLE_S:
                return
            del idle[log]
            log.rest()

    async def _advance_recovery_points(self, now: float) -> None:
        settings = self._settings
        changed = self._shared.changed
        due: list[tuple[int, Log]] = []
        for log, since in changed.items():
            assert isinstance(log, Log)
            behind = log.unrecovered_bytes
            if (
                behind > settings.recovery_bytes_max
                or log.batches_since_recovery > RECOVERY_BATCHES_MAX
                or (now - since) * 1000 > settings.recovery_age_max_ms
            ):
                due.append((behind, log))
        due.sort(key=lambda pair: pair[0], reverse=True)
        await asyncio.gather(*(self._checkpoint(log) for _, log in due[:CHECKPOINTS_PER_TICK_MAX]))
        if (changed or due or self._shared.file_is_behind) and (
            now - self._written_at >= CHECKPOINT_INTERVAL_S
        ):
            self._written_at = now
            self._shared.file_is_behind = False
            try:
                await self._file.write()
            except DiskFullError as error:
                # The old content stands. A restart scans more, or finds damage once more.
                self._shared.file_is_behind = True
                logger.warning("the checkpoint file could not be written: %s", error)

    async def _checkpoint(self, log: Log) -> None:
        try:
            await log.operations.checkpoint()
        except LogError as error:
            _report(log, "checkpoint", error)

    async def _apply_retention(self, now: float) -> None:
        now_ms = self._shared.cluster_clock.expiry_ms()
        if not self._retention_queue and (now - self._retention_round_at) * 1000 >= (
            self._settings.retention_interval_ms
        ):
            self._retention_round_at = now
            self._retention_queue.extend(self._logs)
        for _ in range(min(RETENTIONS_PER_TICK_MAX, len(self._retention_queue))):
            log = self._logs.get(self._retention_queue.popleft())
            if log is None or log.state is not LogState.ONLINE:
                continue
            log.producers.expire(self._shared.monotonic_ms())
            await self._retain(log, now_ms)

    async def _retain(self, log: Log, now_ms: int | None) -> None:
        try:
            await log.operations.apply_retention(now_ms)
        except LogError as error:
            _report(log, "retention", error)

    def _start_compaction(self) -> None:
        if self._compaction is not None and not self._compaction.done():
            return
        if self._compaction is not None:
            self._compaction.result()
        if any(log.config.compacts for log in self._logs.values()):
            self._compaction = asyncio.get_running_loop().create_task(self._compact())

    async def _compact(self) -> None:
        """Run one pass over each compacted log, one after the other."""
        now_ms = self._shared.cluster_clock.expiry_ms()
        while now_ms is None:
            await self._shared.clock.sleep(TICK_INTERVAL_S)
            now_ms = self._shared.cluster_clock.expiry_ms()
        for key in list(self._logs):
            log = self._logs.get(key)
            if log is None or not log.config.compacts or log.state is not LogState.ONLINE:
                continue
            try:
                report = await log.compact(now_ms)
                # A pass delays retention, and each pass gets further than the pass before.
                await self._retain(log, now_ms)
                while report is not None and report.is_partial:
                    report = await log.compact(now_ms, resume=True)
                    await self._retain(log, now_ms)
            except LogError as error:
                _report(log, "compaction", error)
        await self._shared.clock.sleep(self._settings.retention_interval_ms / 1000)

    async def _remove_some(self) -> None:
        if self._removals:
            disk = self._shared.disk
            work = partial(_remove_some, disk, self._removals[0])
            try:
                if await disk.run(work):
                    self._removals.popleft()
            except DiskError as error:
                logger.warning("%s: not removed: %s", self._removals.popleft(), error)


def _report(log: Log, what: str, error: LogError) -> None:
    """Log an error. A full disk will pass, and a failed log has reported itself."""
    level = logging.DEBUG if error.entry is DISK_FULL else logging.WARNING
    logger.log(level, "%s: %s: %s", log.directory, what, error.message)


def _remove_some(disk: Disk, directory: str) -> bool:
    """Remove some files of a deleted topic. True when nothing is left.

    Blocks. Raises DiskError.
    """
    left = REMOVALS_PER_TICK_MAX
    partitions = disk.list_directory(directory)
    for partition in partitions[:REMOVED_DIRECTORIES_PER_TICK_MAX]:
        for name in disk.list_directory(f"{directory}/{partition}"):
            if not left:
                return False
            disk.remove(f"{directory}/{partition}/{name}")
            left -= 1
        disk.remove_tree(f"{directory}/{partition}")
    if len(partitions) > REMOVED_DIRECTORIES_PER_TICK_MAX:
        return False
    disk.remove_tree(directory)
    return True
