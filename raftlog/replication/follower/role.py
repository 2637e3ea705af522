"""A follower appends fetched batches, truncates, restarts, and takes the leader's watermarks.

Every change of a follower's log names the leader epoch that sent it, and is refused in any other.
While a change waits for the disk no other change starts, and no leader uses this log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from raftlog.record.errors import DISK_FULL, ILLEGAL_STATE, NO_LEADER, NOT_READY, LogError
from raftlog.record.types import Buffer, LeaderEpoch, Offset
from raftlog.replication.follower import divergence
from raftlog.replication.follower.divergence import Diverging, FetchPosition
from raftlog.replication.replica import Replica
from raftlog.storage.compaction.plan import DeletionHorizon
from raftlog.storage.types import FlushMode

TRIM_RETRY_S: Final = 0.5
"""Seconds between two attempts to move the log start on a full disk."""

logger = logging.getLogger(__name__)


class FollowerRole:
    """The follower's side of one replica, for all leader epochs. Lives in the event loop."""

    def __init__(
        self,
        replica: Replica,
        *,
        may_have_lost_data: Callable[[], bool],
        on_rearranged: Callable[[], None],
    ) -> None:
        """`on_rearranged` is called at the end of each change that waited for the disk."""
        self._replica = replica
        self._log = replica.log
        self._may_have_lost_data = may_have_lost_data
        self._on_rearranged = on_rearranged
        self._trim: asyncio.Task[None] | None = None
        self._start_target = Offset(-1)
        self._work: asyncio.Task[None] | None = None
        self._on_durable: Callable[[], None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a change of the log is under way."""
        return self._work is not None

    def attach_fetcher(self, on_durable: Callable[[], None]) -> None:
        """Call `on_durable` whenever the durable end or the log start has moved."""
        self._on_durable = on_durable

    def detach_fetcher(self) -> None:
        """Call no fetcher any more."""
        self._on_durable = None

    def durable_moved(self) -> None:
        """Report to the fetcher that the replica's durable end, or its log start, has moved."""
        if self._on_durable is not None:
            self._on_durable()

    def close(self) -> None:
        """Cancel the trimming of the log start. Other changes run to their end."""
        if self._trim is not None:
            self._trim.cancel()

    async def until_idle(self) -> None:
        """Return when no change of the log is under way. Only then may another replica use it."""
        for task in (self._work, self._trim):
            if task is not None:
                await asyncio.wait([task])

    def position(self) -> FetchPosition:
        """The position to subscribe from.

        Raises LogError NO_LEADER, or NOT_READY during a change.
        """
        self._require_following(self._replica.image.leader_epoch)
        log = self._log
        return FetchPosition(
            leader_epoch=self._replica.image.leader_epoch,
            offset=log.log_end_offset,
            last_epoch=log.last_epoch,
            durable_end=self._replica.durable_end,
            log_start_offset=log.durable_log_start,
            horizon=log.deletion_horizon,
        )

    def append_fetched_now(
        self,
        data: Buffer,
        *,
        leader_epoch: LeaderEpoch,
        high_watermark: Offset,
        log_start_offset: Offset,
    ) -> bool:
        """Append batches of that epoch's leader if no wait is needed, else return False. Raises
        LogError NO_LEADER, CORRUPT_BATCH, MALFORMED_BATCH, DISK_FULL or STORAGE_FAILED."""
        self._require_following(leader_epoch)
        if not self._log.appender.append_fetched_now(data, leader_epoch):
            return False
        self._on_fetched(len(data), high_watermark, log_start_offset)
        return True

    async def append_fetched(
        self,
        data: Buffer,
        *,
        leader_epoch: LeaderEpoch,
        high_watermark: Offset,
        log_start_offset: Offset,
    ) -> None:
        """Append like `append_fetched_now`, also where a new segment must be created first."""
        self._require_following(leader_epoch)
        await self._rearrange(self._log.appender.append_fetched(data, leader_epoch))
        if self._replica.image.leader_epoch == leader_epoch and not self._replica.is_closed:
            self._on_fetched(len(data), high_watermark, log_start_offset)

    def _on_fetched(
        self, size_bytes: int, high_watermark: Offset, log_start_offset: Offset
    ) -> None:
        self._replica.committed_bytes.appended(self._log.log_end_offset, size_bytes)
        self._update_watermarks(high_watermark, log_start_offset)
        if self._log.flush_mode is FlushMode.ASYNC:
            self.durable_moved()

    def update_watermarks(
        self, *, leader_epoch: LeaderEpoch, high_watermark: Offset, log_start_offset: Offset
    ) -> None:
        """Take over the leader's high watermark and log start. Raises LogError(NO_LEADER)."""
        self._require_following(leader_epoch)
        self._update_watermarks(high_watermark, log_start_offset)

    def _update_watermarks(self, high_watermark: Offset, log_start_offset: Offset) -> None:
        known = min(high_watermark, self._log.log_end_offset)
        if known > self._replica.high_watermark:
            self._replica.move_high_watermark(known)
        start = min(log_start_offset, self._replica.high_watermark)
        if start > self._log.log_start_offset:
            if self._trim is not None:
                self._start_target = max(self._start_target, start)
            else:
                # The earlier target may be another leader's log start, so the larger of both is
                # wrong.
                self._start_target = start
                self._trim = asyncio.get_running_loop().create_task(self._trim_log())

    async def _trim_log(self) -> None:
        done = Offset(-1)
        try:
            # A target set during the move may be the leader's last message about it.
            while self._start_target > done:
                target = self._start_target
                try:
                    await self._log.operations.delete_records_before(target)
                except LogError as error:
                    logger.info("%s: log start not moved: %s", self._replica.name, error.message)
                    if error.entry is not DISK_FULL:
                        break
                    # An idle leader sends no more watermarks, and waits for this log start.
                    await self._replica.host.clock.sleep(TRIM_RETRY_S)
                else:
                    done = target
        finally:
            self._trim = None

    async def truncate_for(self, diverging: Diverging, *, leader_epoch: LeaderEpoch) -> None:
        """Truncate to the point where the log diverges from that epoch's leader.

        `diverging` is the leader's response. Subscribe again afterwards. Raises LogError NO_LEADER,
        STORAGE_FAILED, or ILLEGAL_STATE if committed records would be lost or no record would be
        cut.
        """
        self._require_following(leader_epoch)
        log = self._log
        point = divergence.truncation_point(
            log.leader_epochs,
            log_start=log.log_start_offset,
            log_end=log.log_end_offset,
            diverging=diverging,
        )
        if point >= log.log_end_offset:
            raise LogError(
                ILLEGAL_STATE, f"{self._replica.name}: {diverging} is no reason to truncate."
            )
        try:
            self._require_expendable(point)
        except LogError:
            self._report_lost_epochs(diverging)
            raise
        logger.info(
            "%s: truncating from %d to %d, where the log diverges from leader epoch %d",
            self._replica.name,
            log.log_end_offset,
            point,
            leader_epoch,
        )
        await self._rearrange(log.operations.truncate_to(point))

    def _report_lost_epochs(self, diverging: Diverging) -> None:
        """Have this replica fetched again if the leader's log is whole, but its history short.

        Version 0.3 compacted whole leader epochs away. A leader with such a log takes its older
        epoch to reach beyond all that is known here to be committed, which it therefore has, and
        would refuse this follower for ever.
        """
        log, high_watermark = self._log, self._replica.high_watermark
        if log.config.compacts and diverging.end_offset >= high_watermark:
            log.report_damage(
                f"{self._replica.name}: compaction at the leader has removed a leader epoch later "
                f"than {diverging.epoch}: the replica is to be fetched again"
            )

    async def restart_at(
        self,
        offset: Offset,
        *,
        producers: bytes,
        leader_epoch: LeaderEpoch,
        horizon: DeletionHorizon,
        is_outrun: bool,
    ) -> None:
        """Empty the log and restart at `offset`, the leader's log start.

        `producers` are the leader's `producers_below`, `horizon` is its deletion horizon. The
        leader has deleted the records below, or, with `is_outrun`, compacted away tombstones that
        this log lacks. Raises LogError NO_LEADER, CORRUPT_BATCH, DISK_FULL, STORAGE_FAILED, or
        ILLEGAL_STATE if committed records would be lost.
        """
        self._require_following(leader_epoch)
        if is_outrun:
            self._require_not_counted_on()
        elif offset < self._replica.high_watermark:
            self._require_expendable(offset)
        logger.info(
            "%s: restarting at offset %d, the leader's log start%s",
            self._replica.name,
            offset,
            f": it lacks tombstones from {self._log.log_end_offset} on" if is_outrun else "",
        )
        await self._rearrange(self._log.operations.restart_at(offset, producers, horizon))

    def _require_not_counted_on(self) -> None:
        """Raise LogError if this replica may be elected, and so must keep its records.

        A leader deletes only tombstones that are committed, so no such replica lacks a tombstone.
        Its row here may be older than the leader's, and is newer at the next attempt.
        """
        row, broker_id = self._replica.image, self._replica.host.broker_id
        if broker_id in row.isr or broker_id in row.elr:
            raise LogError(
                ILLEGAL_STATE,
                f"{self._replica.name}: the leader's tombstones go further than this log, which "
                "is in sync: not restarted.",
            )

    def _require_expendable(self, point: Offset) -> None:
        """Raise LogError if records from `point` on are committed, and not lost by the metadata.

        The metadata counts them as lost if an unclean election, as a topic or an operator allowed,
        made this leader, or an earlier leader with a log that this replica has not followed.
        """
        if point >= self._replica.high_watermark:
            return
        own = self._log.leader_epochs.latest
        if own is not None and self._replica.image.unclean_epoch <= own.epoch:
            raise LogError(
                ILLEGAL_STATE,
                f"{self._replica.name}: the leader lacks committed records from {point} to "
                f"{self._replica.high_watermark} without an unclean election: not truncated.",
            )
        logger.error(
            "%s: committed records from %d to %d are lost: unclean election in leader epoch %d",
            self._replica.name,
            point,
            self._replica.high_watermark,
            self._replica.image.unclean_epoch,
        )

    async def _rearrange(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a change of the log, during which no role may lead with this log."""
        assert self._work is None, "one at a time"
        self._work = task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._rearranged)
        await asyncio.shield(task)

    def _rearranged(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            # A waiting caller gets the error. Without a waiting caller it must not be lost
            # silently.
            error = task.exception()
            if error is not None and not isinstance(error, LogError):
                logger.critical("%s: changing the log failed", self._replica.name, exc_info=error)
        self._work = None
        self._replica.committed_bytes.cut(self._log.log_end_offset)
        self._replica.fit_high_watermark()
        self._on_rearranged()

    def _require_following(self, leader_epoch: LeaderEpoch) -> None:
        replica = self._replica
        replica.require_open()
        row = replica.image
        if row.leader == replica.host.broker_id or row.leader_epoch != leader_epoch:
            raise LogError(
                NO_LEADER, f"{replica.name}: not a follower in leader epoch {leader_epoch}."
            )
        if self.is_busy or self._may_have_lost_data():
            raise LogError(NOT_READY, f"{replica.name}: its log is not ready to follow.")
