"""Compact a log on disk, reading, writing and swapping around `rewrite`.

Reads go through the same checked path as a consumer's, so damage ends the pass instead of being
copied. Decoding and rewriting run in disk threads, a chunk at a time. Appends never wait for a
pass. A truncation or a stop makes the pass discard all segments not swapped yet.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from raftlog.record.batch import RecordBatch, iterate_batches
from raftlog.record.header import parse_header
from raftlog.record.types import Offset
from raftlog.storage.compaction.plan import (
    CompactionHistory,
    group_segments,
    plan_compaction,
)
from raftlog.storage.compaction.retention import SegmentInfo
from raftlog.storage.compaction.rewrite import CompactionPass, Stop
from raftlog.storage.log.core import LogCore
from raftlog.storage.log.operations import LogOperations
from raftlog.storage.log.reader import DamageFoundError, LogReader
from raftlog.storage.segments.segments import CLEANED_SUFFIX, Segment, segment_name
from raftlog.storage.transactions.aborted_index import Wanted
from raftlog.storage.transactions.aborted_lookup import aborted_of, find_aborted
from raftlog.storage.transactions.transactions import AbortedEntry
from raftlog.storage.types import CompactionReport, UnreadableBatch
from raftlog.world import Buffer, DiskError, File

CHUNK_BYTES: Final = 1 << 20
GROUP_SEGMENTS_MAX: Final = 64
"""Most segments replaced by one swap. Their files stay open during the swap."""

ABORTED_MAX: Final = 100_000
"""Most aborted transactions of one pass. More transactions take another pass."""

logger = logging.getLogger(__name__)


async def compact_log(
    core: LogCore,
    operations: LogOperations,
    reader: LogReader,
    now_ms: int,
    *,
    resume: bool = False,
) -> CompactionReport | None:
    """Run one pass if worthwhile. Returns None if not, or if interrupted.

    With `resume` any dirty part is worth a pass, since the last pass was partial. Raises LogError.
    Damage ends the pass without an error, because its readers get the error.
    """
    core.require_online()
    if not core.config.compacts or core.is_compacting:
        return None
    core.is_compacting = True
    try:
        async with core.arrange_lock:
            return await _Compaction(core, operations, reader, now_ms, resume=resume).run()
    except DamageFoundError as error:
        logger.error("%s: compaction stopped at damage: %s", core.directory, error.reason)
        core.report_damage(error.reason, error.damaged.segment_base_offset)
        return None
    finally:
        core.is_compacting = False


class _InterruptedError(Exception):
    """A truncation or a close waits for the log."""


class _Compaction:
    def __init__(
        self,
        core: LogCore,
        operations: LogOperations,
        reader: LogReader,
        now_ms: int,
        *,
        resume: bool,
    ) -> None:
        self._core = core
        self._operations = operations
        self._reader = reader
        self._now_ms = now_ms
        self._resume = resume
        self._markers: set[Offset] = set()
        """Abort markers of the segments being rewritten that have not been kept (yet)."""

    async def run(self) -> CompactionReport | None:
        core = self._core
        config = core.config
        infos = self._operations.segment_infos()
        due = core.compaction.deletable_before(self._now_ms, config.delete_retention_ms)
        hold = core.tombstone_hold
        held_from = None if hold is None else hold.tombstones_held_from()
        deletable = due if held_from is None else min(due, held_from)
        # While tombstones are held, the due tombstones below are not worth a pass, and go with the
        # next pass.
        worth_before = due if deletable == due else Offset(0)
        plan = plan_compaction(
            infos,
            core.compaction,
            now_ms=self._now_ms,
            latest_ms=core.shared.cluster_clock.latest_ms(),
            # A transaction that may yet be aborted is left alone.
            high_watermark=min(core.last_stable_offset(core.high_watermark), core.flushed_offset),
            segment_ms=config.segment_ms,
            min_compaction_lag_ms=config.min_compaction_lag_ms,
            min_cleanable_dirty_ratio=0.0 if self._resume else config.min_cleanable_dirty_ratio,
            deletable_before=worth_before,
        )
        if plan is None:
            return None
        # Records aborted below the dirty part are gone already.
        aborted = await self._find_aborted(plan.first_dirty_offset, plan.end_offset)
        end_offset = plan.end_offset
        if len(aborted) >= ABORTED_MAX and aborted[-1].stable_offset > plan.first_dirty_offset:
            # All that start below are known.
            end_offset = min(aborted[-1].stable_offset, end_offset)
        history = core.compaction.before_deleting(deletable, core.leader_epochs)
        work = CompactionPass(
            history,
            now_ms=self._now_ms,
            delete_retention_ms=config.delete_retention_ms,
            deletable_before=deletable,
            last_offsets=core.producers.last_offsets(),
            epoch_starts={entry.start_offset for entry in core.leader_epochs.entries},
            aborted=aborted,
        )
        try:
            await self._survey(work, plan.first_dirty_offset, end_offset)
            is_partial = end_offset < plan.end_offset
            end_offset = work.finish_survey(end_offset)
            self._report_unreadable(work, end_offset)
            if end_offset <= plan.first_dirty_offset < plan.end_offset and not (
                core.compaction.has_due(worth_before)
            ):
                # The survey stopped at the same batch as the last survey. Rewriting all before
                # would remove nothing.
                return None
            groups = group_segments(
                infos, end_offset=end_offset, segment_bytes=config.segment_bytes
            )
            if not groups:
                return None
            await self._announce(history, groups[-1][-1].next_offset)
            rewritten = await self._rewrite_all(work, groups)
        except _InterruptedError:
            return None
        core.compaction = work.finish()
        await core.publish()
        return CompactionReport(
            rewritten,
            work.stats.bytes_read,
            work.stats.bytes_written,
            end_offset,
            is_partial=is_partial or work.stopped is Stop.MAP_FULL,
        )

    async def _announce(self, history: CompactionHistory, end_offset: Offset) -> None:
        """Make durable all facts that must precede a rewrite below `end_offset`."""
        core = self._core
        # The recovery point's position must not lie in a rewritten segment.
        await self._operations.advance_recovery_point()
        core.gaps_below = max(core.gaps_below, end_offset)
        if history.horizon != core.compaction.horizon:
            # Durable before the first tombstone goes, with and without the checkpoint file.
            core.raise_deletion_horizon(history)
            await core.mark()
        await core.publish()

    def _report_unreadable(self, work: CompactionPass, offset: Offset) -> None:
        """Log once the batch that stops compaction."""
        core = self._core
        found = None
        if work.unreadable is not None:
            found = UnreadableBatch(offset, work.unreadable.message)
            if found != core.unreadable:
                logger.error(
                    "%s: compaction cannot go beyond offset %d: %s",
                    core.directory,
                    offset,
                    found.reason,
                )
        core.unreadable = found

    async def _find_aborted(self, start: Offset, end: Offset) -> list[AbortedEntry]:
        core = self._core
        try:
            return await find_aborted(core, Wanted(start, end, ABORTED_MAX))
        except DiskError as error:
            raise core.fail(error) from error

    async def _survey(self, work: CompactionPass, start: Offset, end: Offset) -> None:
        offset = start
        while offset < end:
            data, offset = await self._chunk(offset, end)
            if not await self._core.run(_survey_chunk, work, data):
                return

    async def _chunk(self, offset: Offset, end: Offset) -> tuple[Buffer, Offset]:
        if self._core.pending_rearrangements or self._core.failure is not None:
            raise _InterruptedError
        result = await self._reader.read_raw(offset, end=end, max_bytes=CHUNK_BYTES)
        return result.data, result.next_offset

    async def _rewrite_all(
        self, work: CompactionPass, groups: Sequence[Sequence[SegmentInfo]]
    ) -> int:
        """Rewrite the groups in order, and return the number of old segments."""
        rewritten = 0
        for group in groups:
            for start in range(0, len(group), GROUP_SEGMENTS_MAX):
                part = group[start : start + GROUP_SEGMENTS_MAX]
                await self._rewrite(work, part)
                rewritten += len(part)
        return rewritten

    async def _rewrite(self, work: CompactionPass, group: Sequence[SegmentInfo]) -> None:
        """Write one segment to replace a group, and swap."""
        core = self._core
        base_offset, end_offset = group[0].base_offset, group[-1].next_offset
        cleaned = segment_name(base_offset) + CLEANED_SUFFIX
        path = f"{core.directory}/{cleaned}"
        file = await core.run(self._begin, path)
        first = core.segments.number(base_offset)
        old = core.segments.all[first : first + len(group)]
        assert [segment.base_offset for segment in old] == [info.base_offset for info in group]
        aborted: list[AbortedEntry] = []
        try:
            for segment in old:
                aborted += await aborted_of(core, segment)
            new = Segment(core.shared.files, core.directory, base_offset)
            self._markers = {entry.last_offset for entry in aborted}
            offset = base_offset
            while offset < end_offset:
                data, offset = await self._chunk(offset, end_offset)
                await core.run(self._rewrite_chunk, work, data, offset >= end_offset, file, new)
            await core.run(file.sync)
        except BaseException:
            # Nothing has been swapped, so the old segments stay and the copy goes.
            core.shared.disk.remove(path)
            raise
        finally:
            file.close()
        assert new.next_offset == end_offset, "compaction must keep where a segment ends"
        new.note_time()
        for entry in aborted:
            # Without its marker, no record of the transaction is left.
            if entry.last_offset not in self._markers:
                new.aborted.add(entry)
        new.first_append_ms = old[-1].first_append_ms if new.size_bytes else None
        await self._operations.swap_in(cleaned, old, new)

    def _begin(self, path: str) -> File:
        self._core.shared.disk.remove(path)
        return self._core.shared.disk.open(path, create=True)

    def _rewrite_chunk(
        self, work: CompactionPass, data: Buffer, is_end: bool, file: File, new: Segment
    ) -> None:
        interval = self._core.config.index_interval_bytes
        batches = list(iterate_batches(data, check_crc=False))
        kept: list[Buffer] = []
        position = file.size
        for number, batch in enumerate(batches):
            is_last = is_end and number == len(batches) - 1
            rewritten = work.rewrite(batch, is_last=is_last)
            if rewritten is not None:
                kept.append(rewritten)
                if batch.header.is_control and rewritten is batch.data:
                    self._markers.discard(batch.header.last_offset)
                new.note(parse_header(rewritten), position, batch.header.base_offset, interval)
                position += len(rewritten)
        if kept:
            file.append(kept)


def _survey_chunk(work: CompactionPass, data: Buffer) -> bool:
    batches: Sequence[RecordBatch] = list(iterate_batches(data, check_crc=False))
    return all(work.survey(batch) for batch in batches)
