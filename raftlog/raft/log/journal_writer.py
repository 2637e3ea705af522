"""Writes the log to the disk in turns, with one sync per batch.

Records added to the log during a write wait for the next write, so that under load one sync serves
many records. A full disk loses nothing. The write is repeated until there is room, and until then
no message that rests on it leaves the node. Any other failure of the disk is final.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from raftlog.raft.interface import SyncTimes
from raftlog.raft.log.log import RaftLog
from raftlog.raft.log.store import QuorumStore
from raftlog.world import Clock, Disk, DiskFullError

FULL_DISK_RETRY_S: Final = 0.5
STUCK_S: Final = 0.1
"""A write is stuck once it takes longer than this."""
TRIM_WAITS_MAX: Final = 100
"""Writes before a trim, at most. Under constant load there are always records to write."""

logger = logging.getLogger(__name__)


class JournalWriter:
    """The journal's only writer."""

    def __init__(
        self,
        disk: Disk,
        store: QuorumStore,
        log: RaftLog,
        clock: Clock,
        on_durable: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._store = store
        self._log = log
        self._clock = clock
        self._on_durable = on_durable
        self._wake = asyncio.Event()
        self._trim_due = False
        self._trim_waits = 0
        self._closing = False
        self.is_full = False
        self._busy_since: float | None = None
        self.sync_times = SyncTimes()

    @property
    def is_stuck(self) -> bool:
        """Whether a write has taken longer than STUCK_S, or finds no room."""
        since = self._busy_since
        return self.is_full or (since is not None and self._clock.monotonic() - since > STUCK_S)

    def wake(self) -> None:
        """Write the log's new records."""
        self._wake.set()

    def trim(self) -> None:
        """Replace the journal, whose beginning was trimmed, when there is little to write."""
        self._trim_due = True
        self._wake.set()

    @property
    def is_trimming(self) -> bool:
        """Whether the journal still has trimmed entries."""
        return self._trim_due

    def finish(self) -> None:
        """Let `run` return once all is written, or does not fit."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        """Write until `finish` is called. Raises DiskError, which is final for this member."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._log.lsn > self._log.durable_lsn or self._trim_due:
                await self._write()
                self._on_durable()
                if self._closing and self.is_full:
                    # No peer or client knows of the unwritten records, and there may never be
                    # room.
                    return
            if self._closing:
                return

    async def _write(self) -> None:
        """Attempt the most urgent write once."""
        log, store = self._log, self._store
        may_trim = log.lsn == log.durable_lsn or self._trim_waits >= TRIM_WAITS_MAX
        if log.rewrite_due or (self._trim_due and may_trim):
            # If there is no room for the trim, the pending records go first again.
            self._trim_waits = 0
            content, lsn = log.content()
            done = await self._try(lambda: store.rewrite(content))
            self._trim_due = self._trim_due and not done
        else:
            self._trim_waits += self._trim_due
            records, lsn = log.take_pending()
            done = await self._try(lambda: store.write(records))
        if done:
            log.written(lsn)
        elif not self._closing:
            await self._clock.sleep(FULL_DISK_RETRY_S)

    async def _try(self, work: Callable[[], None]) -> bool:
        started = self._busy_since = self._clock.monotonic()
        try:
            await self._disk.run(work)
        except DiskFullError:
            if not self.is_full:
                logger.error("disk full, the metadata journal waits for free space")
            self.is_full = True
            return False
        if self.is_full:
            logger.info("disk no longer full, the metadata journal is written again")
        self.is_full = False
        self._busy_since = None
        took_s = self._clock.monotonic() - started
        times = self.sync_times
        self.sync_times = SyncTimes(
            times.count + 1, times.seconds_sum + took_s, max(times.seconds_max, took_s)
        )
        return True
