"""One replica's log, with its state, its parts, and its life from `open` to `close`.

==================  =======================================================================
`log_start_offset`  first offset that can be read; moves up only, but for `restart_at`
`flushed_offset`    every record below is durable; moves when a sync has returned
`log_end_offset`    offset of the next record; moves when a batch has been written
==================  =======================================================================

`log_start_offset <= flushed_offset <= log_end_offset`.

A `Log` is the shared state (`core`) with the parts working on it, `appender`, `reader` and
`operations`. Operations that rearrange files run to their end even if their caller is cancelled. An
I/O error ends the log's service for good. The content of the disk is unknown, and a retry could
make it worse (mistake 9, docs/decisions/ten-mistakes.md).

Lives in the event loop. Not for other threads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from raftlog.record.errors import ILLEGAL_STATE, LogError
from raftlog.storage.checkpoints.checkpoints import ReplicaCheckpoint, StartKind
from raftlog.storage.compaction.run import compact_log
from raftlog.storage.log.appending import Appender
from raftlog.storage.log.core import LogContext, LogCore
from raftlog.storage.log.opening import Opened, open_log
from raftlog.storage.log.operations import LogOperations
from raftlog.storage.log.reader import LogReader
from raftlog.storage.repair.batch_repair import Copies, repair_batches
from raftlog.storage.repair.offline_repair import OfflineRepair
from raftlog.storage.types import CompactionReport, LogConfig, LogState


class Log(LogCore):
    """One replica's log. Made by `Log.open`."""

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
        super().__init__(
            shared, directory, config, opened, checkpoint=checkpoint, start=start, publish=publish
        )
        self._offline_repair = OfflineRepair(self)
        self.operations = LogOperations(self)
        self.reader = LogReader(self)
        self.appender = Appender(self, self.operations)

    @classmethod
    def open(
        cls,
        shared: LogContext,
        directory: str,
        config: LogConfig,
        *,
        checkpoint: ReplicaCheckpoint | None,
        start: StartKind,
        is_new: bool = False,
        publish: Callable[[], Awaitable[None]],
    ) -> Log:
        """Open the log in `directory`, which exists, or start it there. Blocks.

        Call it inside `Disk.run`. `checkpoint` is the node's record of the log, `start` how the
        node stopped. `is_new` means that no record was ever appended. `publish` makes
        `current_checkpoint` durable. A damaged log is opened as well. Its `state` shows the damage,
        and every use raises STORAGE_FAILED. Raises DiskError.
        """
        opened = open_log(
            shared.disk,
            shared.files,
            directory,
            config,
            checkpoint=checkpoint,
            start=start,
            is_new=is_new,
            now_ms=shared.monotonic_ms(),
        )
        return cls(
            shared, directory, config, opened, checkpoint=checkpoint, start=start, publish=publish
        )

    async def compact(self, now_ms: int, *, resume: bool = False) -> CompactionReport | None:
        """Remove records replaced by newer records of their key, if worth the cost.

        After a partial pass, call again at once with `resume`. Raises LogError.
        """
        return await self.run_shielded(
            compact_log(self, self.operations, self.reader, now_ms, resume=resume)
        )

    async def repair(self, copies: Copies) -> bool:
        """Repair damage found in service from copies of other replicas, see `repair_batches`."""
        return await self.run_shielded(repair_batches(self, self.operations, copies))

    async def repair_offline(self, copies: Copies) -> bool:
        """Repair the files of a damaged log, which stays offline, see `OfflineRepair`."""
        return await self.run_shielded(self._offline_repair.run(copies))

    async def close(self) -> None:
        """Flush, checkpoint, and close the files. The files of a failed log are only closed.

        Raises LogError if the last checkpoint could not be taken. The log is closed all the same.
        """
        await self.run_shielded(self._close())

    async def _close(self) -> None:
        closed = LogError(ILLEGAL_STATE, f"{self.directory} is closed.")
        self.pending_rearrangements += 1
        try:
            async with self.arrange_lock, self.write_lock:
                if self.state is LogState.ONLINE:
                    await self.operations.advance_recovery_point()
                    self.end_service(closed, LogState.CLOSED)
        finally:
            self.pending_rearrangements -= 1
            self.discard(closed)

    async def retire(self, reason: LogError) -> None:
        """Discard the log. Returns when no work of the log touches its directory any more."""
        await self.run_shielded(self._retire(reason))

    async def _retire(self, reason: LogError) -> None:
        self.discard(reason)
        self.pending_rearrangements += 1
        try:
            async with self.arrange_lock, self.write_lock, self.derived_lock:
                # Running work has ended, and may have opened files again.
                self.discard(reason)
        finally:
            self.pending_rearrangements -= 1

    def discard(self, reason: LogError) -> None:
        """Close the files as they are, for good. Every later use raises `reason`."""
        self.is_discarded = True
        if self.failure is None:
            self.end_service(reason, LogState.FAILED)
        for segment in self.segments.all:
            segment.release_file()
            for path in segment.paths:
                self.shared.files.forget(path)
