"""Decide when and what to compact, over plain facts. Pure.

`run` does the work. A compacted log keeps the newest record of each key. It has a clean part,
compacted before, and a dirty part behind it. A pass reads the dirty part to map each key to its
newest offset, and then rewrites everything below the end of the read part without the outdated
records.

A pass never touches the active segment, anything at or above the high watermark, segments with a
record younger than `min.compaction.lag.ms` and all later segments.

**Tombstones.** A record without a value deletes its key. The tombstone must stay until every
earlier reader has had time to read it. That is `delete.retention.ms` from the time it became clean,
the time of the first pass that removed the deleted record. Kafka first derived this time from the
segments' last-modified times, by which tombstones could live forever or go too early (KAFKA-4545,
KAFKA-8522), and since KIP-534 writes the time into the batch, over its base timestamp. Here the
time is kept beside the log, as `CompactionHistory`, which holds up to which offset the log was
clean, and when. So batches are not rewritten for the time's sake and keep their timestamps. If the
history is lost, tombstones only stay longer, except for its `DeletionHorizon`, which the replica's
marks also keep.

**Followers.** A replica that was away for longer comes back with the deleted record, and must not
continue without the tombstone. So a log knows how far its tombstones may be gone
(`DeletionHorizon`), durably before the first tombstone goes, see
docs/decisions/retention-and-compaction.md.

**Order of writing.** A pass counts once its segments have replaced the old segments durably. Only
then may `CompactionHistory.after` be stored. In the opposite order, a crash between the two leaves
outdated records in a part that counts as clean, where outdated records reappear once their
tombstone is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from raftlog.record.types import LeaderEpoch, Offset
from raftlog.storage.compaction.retention import SegmentInfo, newest_record_times
from raftlog.storage.leader_epochs import LeaderEpochs
from raftlog.storage.types import NO_EPOCH

HISTORY_PASSES_MAX: Final = 128
HISTORY_GRAIN: Final = 32
"""Part of `delete.retention.ms`. Passes closer together than this may share an entry."""
GROUP_OFFSETS_MAX: Final = 2**31 - 1
"""Most offsets of one segment. Index entries are relative to its base offset."""


class CleanTo(msgspec.Struct, frozen=True, array_like=True):
    """One pass, or several merged passes."""

    end_offset: Offset
    """Offset below which the log was clean."""
    at_ms: int
    """Latest time at which the log had become clean."""


class DeletionHorizon(
    msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True
):
    """Extent to which tombstones may be gone from a log. Transaction markers use the same offset.

    Below `offset` the log holds no record that is older than a tombstone of its key. From `offset`
    to its end the log holds each tombstone of the partition, or a newer record of the key. A copy
    takes its source's horizon, which is beyond the copy's end at first.
    """

    offset: Annotated[Offset, Meta(ge=0, le=2**62)] = Offset(0)
    leader_epoch: Annotated[LeaderEpoch, Meta(ge=-1, le=2**31 - 1)] = NO_EPOCH
    """Leader epoch of the record before `offset`. By log matching, offset and epoch together name
    one history of the partition. After an unclean election another history has the same offsets."""

    def within(self, epochs: LeaderEpochs) -> DeletionHorizon:
        """The horizon of a log with these epochs.

        It is lower where the log has left the history before `offset`, because an incomplete copy
        was elected uncleanly and started a later epoch there.
        """
        end = epochs.end_offset_for(self.leader_epoch, self.offset)
        return self if end is None else self.lowered_to(end.end_offset, epochs)

    def lowered_to(self, offset: Offset, epochs: LeaderEpochs) -> DeletionHorizon:
        """Lower the horizon to `offset`, where the log has lost no record at or above."""
        return self if self.offset <= offset else _horizon(offset, epochs)


NO_HORIZON: Final = DeletionHorizon()
"""The horizon of a log that has all its tombstones."""


def _horizon(offset: Offset, epochs: LeaderEpochs) -> DeletionHorizon:
    epoch = epochs.epoch_for(Offset(offset - 1))
    return DeletionHorizon(offset, NO_EPOCH if epoch is None else epoch)


class CompactionHistory(msgspec.Struct, frozen=True, array_like=True):
    """Compactions of one log so far. Part of the replica's checkpoint."""

    passes: tuple[CleanTo, ...] = ()
    """Passes, oldest first. Both fields grow."""
    deleted_before: Offset = Offset(0)
    """Offset below which tombstones were due in the last pass, and are gone."""
    awaits_deletion: bool = False
    """Whether the last pass left tombstones or markers to be removed later."""
    known_horizon: DeletionHorizon | None = None
    """Horizon, or None if written by a version without horizons."""

    @property
    def horizon(self) -> DeletionHorizon:
        """Offset below which tombstones may be gone. Not yet `within` the log's epochs."""
        return self.known_horizon or DeletionHorizon(self.deleted_before)

    @property
    def first_dirty_offset(self) -> Offset:
        """Offset below which all is clean."""
        return self.passes[-1].end_offset if self.passes else Offset(0)

    def deletable_before(self, now_ms: int, delete_retention_ms: int) -> Offset:
        """Offset below which tombstones have been clean for `delete.retention.ms`."""
        due = [entry for entry in self.passes if now_ms - entry.at_ms >= delete_retention_ms]
        return due[-1].end_offset if due else Offset(0)

    def has_due(self, deletable_before: Offset) -> bool:
        """Whether tombstones or markers have become due for a pass."""
        return self.awaits_deletion and deletable_before > self.deleted_before

    def before_deleting(self, deletable_before: Offset, epochs: LeaderEpochs) -> CompactionHistory:
        """The history to store before a pass may remove the tombstones below `deletable_before`.

        All these are in the clean part, with none of the records that they delete. The horizon
        stands still where the last pass has left none to remove.
        """
        horizon = self.horizon.within(epochs)
        if self.awaits_deletion and deletable_before > horizon.offset:
            horizon = _horizon(deletable_before, epochs)
        return msgspec.structs.replace(self, known_horizon=horizon)

    def after(
        self,
        end_offset: Offset,
        *,
        now_ms: int,
        delete_retention_ms: int,
        deleted_before: Offset,
        awaits_deletion: bool,
    ) -> CompactionHistory:
        """The history once a pass has made the log clean below `end_offset`, durably."""
        assert end_offset >= self.first_dirty_offset
        # After a jump back of the clock a younger pass must not look older than an earlier pass.
        at_ms = max(now_ms, self.passes[-1].at_ms) if self.passes else now_ms
        # Of the passes long enough ago only the last matters.
        kept = [entry for entry in self.passes if at_ms - entry.at_ms < delete_retention_ms]
        kept = [*self.passes[: len(self.passes) - len(kept)][-1:], *kept]
        grain_ms = delete_retention_ms // HISTORY_GRAIN
        if len(kept) >= 2 and at_ms - kept[-2].at_ms < grain_ms:
            # The last entry takes this pass's later time. Its tombstones stay a grain longer at
            # most.
            kept.pop()
        kept.append(CleanTo(end_offset, at_ms))
        passes = tuple(kept[-HISTORY_PASSES_MAX:])
        return CompactionHistory(passes, deleted_before, awaits_deletion, self.horizon)

    def truncate_to(self, end_offset: Offset, epochs: LeaderEpochs) -> CompactionHistory:
        """The history of the log truncated to `end_offset`. Later appends are dirty."""
        return msgspec.structs.replace(
            self,
            passes=tuple(
                CleanTo(min(entry.end_offset, end_offset), entry.at_ms) for entry in self.passes
            ),
            deleted_before=min(self.deleted_before, end_offset),
            known_horizon=self.horizon.lowered_to(end_offset, epochs),
        )


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Read [first_dirty_offset, end_offset), then rewrite from the start of the log."""

    first_dirty_offset: Offset
    end_offset: Offset
    """Base offset of the first segment excluded from compaction."""
    clean_bytes: int
    dirty_bytes: int


def plan_compaction(
    segments: Sequence[SegmentInfo],
    history: CompactionHistory,
    *,
    now_ms: int,
    latest_ms: int,
    high_watermark: Offset,
    segment_ms: int,
    min_compaction_lag_ms: int,
    min_cleanable_dirty_ratio: float,
    deletable_before: Offset,
) -> CompactionPlan | None:
    """Plan a pass over the segments (oldest first, the last active) if it is worthwhile.

    A pass is due if the dirty part has its share (`min.cleanable.dirty.ratio`), or if tombstones
    have become due. After a pass stopped by a full map (`Stop.MAP_FULL`), call this again at once
    with a ratio of 0.
    """
    cleanable = _cleanable(
        segments,
        now_ms=now_ms,
        latest_ms=latest_ms,
        high_watermark=high_watermark,
        segment_ms=segment_ms,
        min_compaction_lag_ms=min_compaction_lag_ms,
    )
    if not cleanable:
        return None
    end_offset = cleanable[-1].next_offset
    first_dirty_offset = max(history.first_dirty_offset, cleanable[0].base_offset)
    first_dirty_offset = min(first_dirty_offset, end_offset)
    total_bytes = sum(segment.size_bytes for segment in cleanable)
    dirty_bytes = sum(
        segment.size_bytes for segment in cleanable if segment.next_offset > first_dirty_offset
    )
    is_dirty = dirty_bytes > 0 and dirty_bytes >= min_cleanable_dirty_ratio * total_bytes
    if not is_dirty and not history.has_due(deletable_before):
        return None
    return CompactionPlan(first_dirty_offset, end_offset, total_bytes - dirty_bytes, dirty_bytes)


def _cleanable(
    segments: Sequence[SegmentInfo],
    *,
    now_ms: int,
    latest_ms: int,
    high_watermark: Offset,
    segment_ms: int,
    min_compaction_lag_ms: int,
) -> Sequence[SegmentInfo]:
    times = newest_record_times(segments, now_ms=now_ms, latest_ms=latest_ms, segment_ms=segment_ms)
    for index, segment in enumerate(segments):
        if (
            index == len(segments) - 1
            or segment.next_offset > high_watermark
            or (min_compaction_lag_ms > 0 and now_ms - times[index] < min_compaction_lag_ms)
        ):
            return segments[:index]
    return ()


def group_segments(
    segments: Sequence[SegmentInfo], *, end_offset: Offset, segment_bytes: int
) -> list[tuple[SegmentInfo, ...]]:
    """Group the segments below `end_offset` (of a survey), to rewrite each group into one segment.

    The new segment takes the base offset of the group's first segment, so compacted segments grow
    together again instead of wasting away. The old sizes stand for the new size, which is never
    larger.
    """
    groups: list[list[SegmentInfo]] = []
    size_bytes = 0
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        size_bytes += segment.size_bytes
        if (
            groups
            and size_bytes <= segment_bytes
            and segment.next_offset - groups[-1][0].base_offset <= GROUP_OFFSETS_MAX
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size_bytes = segment.size_bytes
    return [tuple(group) for group in groups]
