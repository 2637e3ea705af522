"""Operations on a log's files, each in an order that survives a crash.

| operation | order |
|---|---|
| roll | sync the old segment, write and sync its indexes, create the new file, sync the directory |
| checkpoint | sync the log, then indexes, leader epochs, producer snapshot, then move the number |
| delete records, retention | write the log start offset, (1) then remove files |
| truncate | write the lower promises, remove segments from the last down, cut, sync |
| restart | (2) write that the log is empty, remove all, start, write that it is done |

Once records are removed, only a snapshot names their producers. So (1) before files are removed, a
snapshot exists from which a truncation can rebuild the producers, and (2) a file holds the
producers for the new log.

A crash in the middle leaves a log longer than necessary, never a log without promised records.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Final

import msgspec

from raftlog.record.errors import CORRUPT_BATCH, DISK_FULL, OFFSET_OUT_OF_RANGE, LogError
from raftlog.record.types import Offset
from raftlog.storage.checkpoints.checkpoints import ReplicaCheckpoint
from raftlog.storage.checksummed import Damaged
from raftlog.storage.compaction.plan import NO_HORIZON, CompactionHistory, DeletionHorizon
from raftlog.storage.compaction.retention import SegmentInfo, plan_retention
from raftlog.storage.leader_epochs import LeaderEpochs
from raftlog.storage.log.core import LogCore, initial_checkpoint
from raftlog.storage.log.derived_state import (
    EPOCHS_NAME,
    RESTART_NAME,
    Cut,
    find_cut,
    rebuild_producers,
    remove_snapshots,
    snapshot_name,
    snapshot_offsets,
    write_initial_state,
)
from raftlog.storage.log.opening import NO_GAPS, create_segment
from raftlog.storage.producers.state import ProducerStates, Truncation
from raftlog.storage.segments.segments import DELETED_SUFFIX, IndexTails, Segment, swap_segments
from raftlog.storage.types import UNLIMITED
from raftlog.world import Disk

SEGMENTS_DROPPED_MAX: Final = 64
"""Most segments removed by one call of retention. The next call continues."""


UNPUBLISHED_SNAPSHOTS_MAX: Final = 64
"""Most snapshots kept above the published recovery point, when the checkpoint file lags behind."""


class LogOperations:
    """Rearranges the files of one log."""

    def __init__(self, core: LogCore) -> None:
        self._core = core
        self._disk: Disk = core.shared.disk

    def segment_infos(self) -> list[SegmentInfo]:
        """Facts about the segments, on which retention and compaction decide.

        A first append before the first cluster time is dated here.
        """
        shared, segments = self._core.shared, self._core.segments
        now_ms = shared.clock.time_ms()
        for segment in segments.all:
            if segment.first_append_ms is None and segment.size_bytes:
                segment.first_append_ms = shared.date_ms()
        return [
            SegmentInfo(
                base_offset=segment.base_offset,
                next_offset=segments.end_of(segment),
                size_bytes=segment.size_bytes,
                max_timestamp_ms=segment.max_timestamp_ms,
                # Without a first append, a segment is empty, or nothing ages yet.
                created_ms=now_ms if segment.first_append_ms is None else segment.first_append_ms,
            )
            for segment in segments.all
        ]

    async def roll(self) -> None:
        """Start a new segment. The caller holds the write lock. Raises LogError."""
        core = self._core
        await core.flush()
        old = core.segments.active
        if not old.size_bytes:
            return
        async with core.derived_lock:
            tails = old.index_tails(is_finished=True)
            try:
                new = await core.run(self._make_segment, old, tails)
            except LogError:
                old.thin_indexes()
                raise
            old.confirm_indexes(tails)
        old.release_file()
        core.segments.roll(new)

    def _make_segment(self, old: Segment, tails: IndexTails) -> Segment:
        old.save_indexes(tails)
        return create_segment(
            self._disk, self._core.shared.files, self._core.directory, old.next_offset
        )

    async def checkpoint(self) -> ReplicaCheckpoint:
        """Advance the recovery point to the present end, and return the checkpoint to write.

        Raises LogError. After DISK_FULL the recovery point is unchanged.
        """
        return await self._core.run_shielded(self.advance_recovery_point())

    async def advance_recovery_point(self) -> ReplicaCheckpoint:
        """Advance as `checkpoint`, for callers that are shielded already."""
        core = self._core
        async with core.derived_lock:
            core.require_online()
            active = core.segments.active
            end_offset = core.segments.end_offset
            if end_offset == core.recovery.recovery_point and (
                active.base_offset == core.recovery.segment_base_offset
            ):
                core.shared.changed.pop(core, None)
                await core.flush()
                core.note_idle()
                core.mark_unpublished()
                return core.current_checkpoint()
            tails = active.index_tails(is_finished=False)
            position = active.size_bytes
            batches = core.batches_since_recovery
            core.shared.changed.pop(core, None)
            epochs = core.leader_epochs.to_bytes()
            producers = core.producers.to_bytes(end_offset, now_ms=core.shared.monotonic_ms())
            await core.flush()
            try:
                await core.run(
                    partial(
                        self._write_derived,
                        published=core.published_recovery_point,
                        committed=core.high_watermark,
                    ),
                    active,
                    tails,
                    epochs,
                    producers,
                    end_offset,
                )
            except LogError as error:
                if error.entry is DISK_FULL:
                    active.thin_indexes()
                    core.mark_changed()
                raise
            active.confirm_indexes(tails)
            core.batches_since_recovery -= batches
            core.recovery = msgspec.structs.replace(
                core.recovery,
                recovery_point=end_offset,
                segment_base_offset=active.base_offset,
                segment_position=position,
                offset_index_entries=active.offset_index.saved,
                time_index_entries=active.time_index.saved,
                aborted_entries=active.aborted.saved,
            )
        core.mark_unpublished()
        if core not in core.shared.changed:
            core.note_idle()
        return core.current_checkpoint()

    def _write_derived(
        self,
        segment: Segment,
        tails: IndexTails,
        epochs: bytes,
        producers: bytes,
        offset: Offset,
        *,
        published: Offset,
        committed: Offset,
    ) -> None:
        directory = self._core.directory
        segment.save_indexes(tails)
        self._disk.replace(f"{directory}/{EPOCHS_NAME}", epochs)
        self._disk.replace(f"{directory}/{snapshot_name(offset)}", producers)
        for known in outdated_snapshots(
            snapshot_offsets(self._disk.list_directory(directory)), published, committed, offset
        ):
            self._disk.remove(f"{directory}/{snapshot_name(known)}")

    async def delete_records_before(self, offset: Offset) -> Offset:
        """Move the log start offset up to `offset`, durably, and return the new offset.

        While a compaction runs, the files below stay until the next retention. Raises LogError,
        OFFSET_OUT_OF_RANGE beyond the log end offset, DISK_FULL, or STORAGE_FAILED.
        """
        return await self._core.run_shielded(self._delete_records_before(offset))

    async def _delete_records_before(self, offset: Offset) -> Offset:
        core = self._core
        core.require_online()
        segments = core.segments
        if offset > segments.end_offset:
            raise LogError(
                OFFSET_OUT_OF_RANGE,
                f"Records can be deleted up to {segments.end_offset}, not up to {offset}.",
            )
        await core.flush()
        kept_from = segments.holding(offset).base_offset
        if offset == segments.end_offset:
            # A new segment starts there soon.
            kept_from = offset
        if core.recovery.recovery_point < kept_from:
            # A start drops the segments below without reading their producers.
            await self.advance_recovery_point()
        segments.log_start_offset = max(segments.log_start_offset, offset)
        await core.mark()
        await core.publish()
        await self._apply_retention(None, by_start_only=True)
        return segments.log_start_offset

    async def apply_retention(self, now_ms: int | None) -> int:
        """Remove segments that are due by age or size, and return how many. Raises LogError.

        Without a trustworthy time (None) none is due by age. Removes none while a compaction runs,
        which can take minutes. Due segments stay due.
        """
        return await self._core.run_shielded(self._apply_retention(now_ms, by_start_only=False))

    async def _apply_retention(self, now_ms: int | None, *, by_start_only: bool) -> int:
        if self._core.is_compacting:
            return 0
        async with self._core.arrange_lock:
            return await self._remove_due(now_ms, by_start_only=by_start_only)

    async def _remove_due(self, now_ms: int | None, *, by_start_only: bool) -> int:
        core, config = self._core, self._core.config
        core.require_online()
        segments = core.segments
        infos = self.segment_infos()
        plan = plan_retention(
            infos,
            now_ms=0 if now_ms is None else now_ms,
            latest_ms=core.shared.cluster_clock.latest_ms(),
            retention_ms=UNLIMITED if now_ms is None else config.retention_ms,
            retention_bytes=config.retention_bytes,
            segment_ms=config.segment_ms,
            log_start_offset=segments.log_start_offset,
            high_watermark=min(core.high_watermark, core.flushed_offset),
            deletes=config.deletes and not by_start_only,
        )
        drops = min(len(plan.drops), SEGMENTS_DROPPED_MAX)
        if not drops:
            return 0
        if plan.roll_first:
            async with core.write_lock:
                await self.roll()
            if segments.all[drops - 1].next_offset != infos[drops - 1].next_offset:
                # An append was faster. Its batches are not due, nor perhaps committed.
                drops -= 1
                if not drops:
                    return 0
        # Due segments stay due, because only later segments have changed.
        dropped = segments.all[:drops]
        if core.recovery.recovery_point < segments.all[drops].base_offset:
            # A start could no longer derive the producers and sequences of the removed records.
            await self.advance_recovery_point()
        async with core.derived_lock:
            # A checkpoint also writes and removes snapshots. At once, both could write the same
            # file, or the found file be removed.
            await core.run(
                self._keep_snapshot,
                dropped,
                segments.all[drops].base_offset,
                min(core.high_watermark, core.flushed_offset),
                core.shared.monotonic_ms(),
            )
        segments.log_start_offset = max(segments.log_start_offset, segments.all[drops].base_offset)
        core.leader_epochs.truncate_from_start(segments.log_start_offset)
        await core.mark()
        await core.publish()
        segments.replace(0, drops, [])
        await core.run(self._remove, dropped)
        return drops

    def _keep_snapshot(
        self, dropped: Sequence[Segment], start: Offset, committed: Offset, now_ms: int
    ) -> None:
        """Ensure a snapshot exists from which a truncation can rebuild the producers.

        `start` is the log's next start, below which only the snapshot names the producers.
        """
        directory = self._core.directory
        known = snapshot_offsets(self._disk.list_directory(directory))
        if not any(start <= offset <= committed for offset in known):
            # Due segments are removed, damaged or not.
            producers = rebuild_producers(
                self._disk, directory, dropped, start, now_ms, stops_at_damage=True
            )
            snapshot = producers.to_bytes(start, now_ms=now_ms)
            self._disk.replace(f"{directory}/{snapshot_name(start)}", snapshot)

    async def swap_in(self, cleaned: str, old: Sequence[Segment], new: Segment) -> None:
        """Replace `old` by `new`, which is synced under the name `cleaned`. Raises LogError.

        The caller holds `arrange_lock`.
        """
        core, segments = self._core, self._core.segments
        first = segments.number(old[0].base_offset)
        last = first + len(old)
        assert [*segments.all[first:last]] == [*old]
        base_offset, end_offset = old[0].base_offset, segments.end_of(old[-1])
        with ExitStack() as held:
            # Readers of the old segments by name must not open the new files under these names.
            await core.run(self._hold, held, old)
            await core.run(
                swap_segments, self._disk, core.directory, cleaned, base_offset, end_offset
            )
            segments.replace(first, last, [new])
            for segment in old:
                for name in segment.paths:
                    core.shared.files.forget(name)
        tails = new.index_tails(is_finished=True)
        await core.run(new.save_indexes, tails)
        new.confirm_indexes(tails)

    def _hold(self, held: ExitStack, old: Sequence[Segment]) -> None:
        for segment in old:
            for path in segment.paths:
                if self._disk.exists(path):
                    held.enter_context(self._core.shared.files.lease(path))

    def _remove(self, dropped: Sequence[Segment]) -> None:
        """Rename segments' files, then remove them, so that no crash leaves half a segment."""
        for segment in dropped:
            for path in segment.paths:
                self._core.shared.files.forget(path)
                if self._disk.exists(path):
                    self._disk.rename(path, path + DELETED_SUFFIX)
                    self._disk.remove(path + DELETED_SUFFIX)

    async def truncate_to(self, offset: Offset) -> None:
        """Remove every batch with a record at or above `offset`. Durable when it returns.

        Raises LogError, OFFSET_OUT_OF_RANGE below the log start offset, or STORAGE_FAILED.
        """
        await self._core.run_shielded(self._truncate_arranged(offset))

    async def _truncate_arranged(self, offset: Offset) -> None:
        async with self._arranging():
            await self._truncate_to(offset)

    @asynccontextmanager
    async def _arranging(self) -> AsyncIterator[None]:
        """Hold `arrange_lock`. A compaction gives way."""
        core = self._core
        core.pending_rearrangements += 1
        try:
            await core.arrange_lock.acquire()
        finally:
            core.pending_rearrangements -= 1
        try:
            yield
        finally:
            core.arrange_lock.release()

    async def _truncate_to(self, offset: Offset) -> None:
        core = self._core
        async with core.write_lock, core.derived_lock:
            await core.flush()
            segments = core.segments
            if offset >= segments.end_offset:
                return
            if offset < segments.log_start_offset:
                raise LogError(
                    OFFSET_OUT_OF_RANGE,
                    f"{core.directory} begins at {segments.log_start_offset}: cannot truncate "
                    f"to {offset}.",
                )
            number = segments.number(offset)
            segment = segments.all[number]
            cut = await core.run(find_cut, segment, offset, core.gaps_below)
            if core.recovery.recovery_point > segment.base_offset:
                core.recovery = msgspec.structs.replace(
                    core.recovery,
                    recovery_point=segment.base_offset,
                    segment_base_offset=segment.base_offset,
                    segment_position=0,
                    offset_index_entries=0,
                    time_index_entries=0,
                    aborted_entries=0,
                )
            core.promised_end = cut.next_offset
            try:
                await core.publish()
            finally:
                core.promised_end = None
            # No await follows from here to the cut in memory, since a sync started in between would
            # take the old end for flushed.
            core.flushed_offset = cut.next_offset
            core.high_watermark = min(core.high_watermark, cut.next_offset)
            core.compaction = core.compaction.truncate_to(cut.next_offset, core.leader_epochs)
            core.gaps_below = min(core.gaps_below, cut.next_offset)
            dropped = segments.all[number + 1 :]
            if dropped:
                segment.hold(core.shared.files.lease(segment.path))
                segments.active.release_file()
            segment.cut(
                cut.next_offset,
                cut.size_bytes,
                cut.offset_entries,
                (cut.time_entries, cut.last_time),
                cut.aborted_entries,
            )
            segment.max_timestamp_ms = cut.max_timestamp_ms
            segments.replace(number + 1, len(segments), [])
            core.leader_epochs.truncate_from_end(cut.next_offset)
            await core.run(self._cut_files, segment, cut, dropped)
            core.stable_bound = core.producers.first_unstable(core.high_watermark)
            if core.producers.truncate_to(cut.next_offset) is Truncation.REBUILD:
                core.producers = await core.run(
                    rebuild_producers,
                    self._disk,
                    core.directory,
                    segments.all,
                    cut.next_offset,
                    core.shared.monotonic_ms(),
                )
            core.stable_bound = None
            if cut.next_offset < segments.log_start_offset:
                await self._restart_at_log_start()
        await self.advance_recovery_point()
        await core.publish()

    async def restart_at(
        self,
        offset: Offset,
        producers: bytes = b"",
        horizon: DeletionHorizon = NO_HORIZON,
    ) -> None:
        """Empty the log and start it at `offset`, below or above its present end. Durable.

        Epoch history, producers and all other state derived from its records go as well.
        `producers`, the leader's `producers_below`, takes their place, and so does `horizon`. A
        crash leaves the old log, or the new log with these producers. The high watermark is
        `offset` afterwards. Raises LogError, with nothing changed, CORRUPT_BATCH if `producers` is
        not a snapshot of that offset, or DISK_FULL.
        """
        await self._core.run_shielded(self._restart_with(offset, producers, horizon))
        self._core.damaged_ranges.clear()

    async def _restart_with(
        self, offset: Offset, snapshot: bytes, horizon: DeletionHorizon
    ) -> None:
        core = self._core
        producers = ProducerStates()
        if snapshot:
            # A snapshot may be long, so decode it outside the event loop.
            now_ms = core.shared.monotonic_ms()
            read = await core.run(
                partial(ProducerStates.from_bytes, snapshot, offset, now_ms=now_ms)
            )
            if isinstance(read, Damaged):
                raise LogError(
                    CORRUPT_BATCH, f"{core.directory}: invalid producer snapshot: {read.reason}."
                )
            producers = read
        await self.restart_empty(offset, producers, horizon)

    async def restart_empty(
        self,
        offset: Offset,
        producers: ProducerStates,
        horizon: DeletionHorizon,
        segment_base: Offset | None = None,
    ) -> None:
        """Empty the log and start it at `offset`. Raises LogError.

        DISK_FULL means that nothing was done. `producers` are the remembered producers of the
        records below, `horizon` that of the following records' log. The first segment starts at
        `segment_base`, if given, for a batch that contains `offset`. Until this batch is appended,
        the log ends below its start.
        """
        core = self._core
        async with self._arranging(), core.write_lock, core.derived_lock:
            await core.flush()
            snapshot = producers.to_bytes(offset, now_ms=core.shared.monotonic_ms())
            # The file is written even without producers, since a file of an earlier attempt must
            # not take its place.
            await core.run(self._disk.replace, f"{core.directory}/{RESTART_NAME}", snapshot)
            before = core.compaction
            core.restart_at, core.compaction = offset, CompactionHistory(known_horizon=horizon)
            try:
                await core.publish()
            except LogError as error:
                if error.entry is DISK_FULL:
                    core.restart_at, core.compaction = None, before
                raise
            # From here on there is no way back, since the next start would empty the log.
            base = offset if segment_base is None else segment_base
            try:
                await self._empty_and_begin(offset, base, producers)
                core.restart_at = None
                # This write precedes the first append, since a start would remove the append with
                # the rest.
                await core.publish()
                await core.run(self._disk.remove, f"{core.directory}/{RESTART_NAME}")
            except LogError as error:
                raise core.fail(error) from error
            core.mark_changed()

    async def _empty_and_begin(
        self, offset: Offset, base: Offset, producers: ProducerStates
    ) -> None:
        core = self._core
        segments = core.segments
        old = segments.all
        segments.active.release_file()
        # Memory changes first, so that no reader meets files being removed, and reports damage.
        segments.replace(0, len(old), [Segment(core.shared.files, core.directory, base)])
        segments.log_start_offset = core.high_watermark = offset
        core.flushed_offset = base
        core.recovery = initial_checkpoint(base)
        core.batches_since_recovery = 0
        core.leader_epochs, core.producers = LeaderEpochs(), producers
        if base < offset:
            core.producers = producers.below(base)
        core.gaps_below = NO_GAPS
        core.unreadable = core.damage_found = None
        core.damaged_segments.clear()
        snapshot = None
        if len(core.producers):
            snapshot = core.producers.to_bytes(base, now_ms=core.shared.monotonic_ms())
        new = await core.run(self._empty_directory, old, base, snapshot)
        if base < offset or core.compaction.horizon.offset:
            await core.write_marks()
        segments.replace(0, 1, [new])
        if snapshot is not None:
            core.recovery = msgspec.structs.replace(core.recovery, recovery_point=base)

    def _empty_directory(
        self, old: Sequence[Segment], base: Offset, snapshot: bytes | None
    ) -> Segment:
        directory = self._core.directory
        for segment in reversed(old):
            for path in segment.paths:
                self._core.shared.files.forget(path)
        # The newest files go first. Should the checkpoint file get lost, the rest is a shorter log.
        for name in reversed(self._disk.list_directory(directory)):
            if name != RESTART_NAME:
                self._disk.remove(f"{directory}/{name}")
        if snapshot is not None:
            write_initial_state(self._disk, directory, base, snapshot)
        return create_segment(self._disk, self._core.shared.files, directory, base)

    async def _restart_at_log_start(self) -> None:
        """Continue at the log start offset, empty, after its batch was truncated."""
        core = self._core
        segments = core.segments
        offset = segments.log_start_offset
        new = await core.run(create_segment, self._disk, core.shared.files, core.directory, offset)
        old = segments.all
        segments.active.release_file()
        segments.replace(0, len(old), [new])
        core.flushed_offset = core.high_watermark = offset
        # Left behind by a crash, these files lie below the log start offset, and the next start
        # removes them.
        await core.run(self._remove, old)

    def _cut_files(self, segment: Segment, cut: Cut, dropped: Sequence[Segment]) -> None:
        directory = self._core.directory
        # Snapshots above the cut must be gone durably, since a power cut must not bring any back.
        remove_snapshots(self._disk, directory, cut.next_offset)
        for unwanted in reversed(dropped):
            # Each removal is durable before the next, since a gap would look like damage.
            self._remove([unwanted])
            self._disk.sync_directory(directory)
        segment.file.truncate(cut.size_bytes)
        segment.file.sync()
        # The index files are cut by their next save. Until then their counts rule.


def outdated_snapshots(
    known: Sequence[Offset], published: Offset, committed: Offset, newest: Offset
) -> Sequence[Offset]:
    """Producer snapshots (rising) that may go, once the snapshot of `newest` is durable.

    The checkpoint file names `published`, or a later snapshot while a write is in progress. The
    newest snapshot below stays, since a truncation can rebuild the producers from it. So does the
    newest committed snapshot, since no truncation goes further back.
    """
    below = [offset for offset in known if offset < published]
    between = [offset for offset in known if published < offset < newest]
    rebuilds = max((offset for offset in known if offset <= committed), default=None)
    outdated = [*below[:-1], *between[:-UNPUBLISHED_SNAPSHOTS_MAX]]
    return [offset for offset in outdated if offset != rebuilds]
