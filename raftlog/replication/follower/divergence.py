"""Decides the leader's response to a fetch position, and the truncation point. Pure.

A follower never truncates by a high watermark (KIP-101). Records below its own may have been
replaced elsewhere, and records above may be committed. Leader and follower compare the leader
epochs of their logs, round by round, until both agree on the last common epoch (KIP-279).

Logs that agree may have been compacted apart. A follower below the leader's `DeletionHorizon` may
hold a deleted record, without its tombstone, and starts again from the leader's log start.
"""

from __future__ import annotations

from typing import NamedTuple

from raftlog.record.errors import ILLEGAL_STATE, LogError
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.storage.compaction.plan import NO_HORIZON, DeletionHorizon
from raftlog.storage.leader_epochs import LeaderEpochs

NO_EPOCH = LeaderEpoch(-1)
"""The last epoch of an empty log."""


class FetchPosition(NamedTuple):
    """The follower's position when it subscribes to a partition (KIP-320)."""

    leader_epoch: LeaderEpoch
    """The leader epoch that the follower has applied."""
    offset: Offset
    """The follower's log end."""
    last_epoch: LeaderEpoch
    """Epoch of the follower's last record, NO_EPOCH without records."""
    durable_end: Offset
    """Everything below is durable at the follower, by the topic's flush mode."""
    log_start_offset: Offset
    horizon: DeletionHorizon = NO_HORIZON
    """How far tombstones may be gone from the follower's log."""


class Diverging(NamedTuple):
    """The leader has no such epoch and offset. Its `epoch`, the largest not above the follower's
    last epoch, ended at `end_offset` (KIP-101, KIP-279)."""

    epoch: LeaderEpoch
    end_offset: Offset


class BelowStart(NamedTuple):
    """The leader has deleted the position. Its log starts at `log_start_offset`."""

    log_start_offset: Offset


class Outrun(NamedTuple):
    """The follower may need tombstones that the leader lacks. The leader has all records of the
    follower, or newer records of their keys. The follower starts again at `log_start_offset`."""

    log_start_offset: Offset


def compare(
    history: LeaderEpochs,
    *,
    log_start: Offset,
    log_end: Offset,
    horizon: DeletionHorizon,
    position: FetchPosition,
) -> Diverging | BelowStart | Outrun | None:
    """The leader's response to a follower at `position`, None if the follower continues.

    None means that the follower's log is a prefix of the leader's. Raises LogError(ILLEGAL_STATE)
    if the follower's log cannot belong to this partition.
    """
    answer = _compare_epochs(history, log_start=log_start, log_end=log_end, position=position)
    if answer is None and is_outrun(position.offset, position.horizon, horizon):
        return Outrun(log_start)
    return answer


def is_outrun(offset: Offset, follower: DeletionHorizon, leader: DeletionHorizon) -> bool:
    """Whether a follower that continues at `offset` could keep deleted records.

    Beyond both horizons the follower's log is complete, and the leader has all tombstones of the
    rest. An unfinished copy, below the horizons, continues only if its leader's horizon equals the
    horizon at the start of the copy. None of the copied records then has a tombstone below it. It
    does not suffice that `offset` is beyond the leader's horizon, because a leader with a lower
    horizon sends records that a tombstone below the follower's horizon deletes.
    """
    return offset < max(follower.offset, leader.offset) and follower != leader


def _compare_epochs(
    history: LeaderEpochs, *, log_start: Offset, log_end: Offset, position: FetchPosition
) -> Diverging | BelowStart | None:
    """Compare like `compare`, but only by the leader epochs.

    A follower without records agrees with any leader with a log that reaches its end. Its deleted
    records were committed, so the leader has them also, or has deleted them.
    """
    if position.offset < log_start:
        return BelowStart(log_start)
    if position.last_epoch == NO_EPOCH:
        return BelowStart(log_start) if position.offset > log_end else None
    found = history.end_offset_for(position.last_epoch, log_end)
    if found is None:
        # An epoch newer than all of the leader's cannot be explained, and records that cannot be
        # explained are not truncated.
        raise LogError(
            ILLEGAL_STATE,
            f"The follower has records of leader epoch {position.last_epoch}, which this leader "
            "does not know.",
        )
    oldest = history.epoch_for(log_start)
    if oldest is None:
        # The log begins in a gap of compaction.
        oldest = history.entries[0].epoch
    if log_start > 0 and position.last_epoch < oldest:
        # The deletion also took the start of the oldest epoch left, and the ends of those before.
        # The logs may have diverged below the leader's start. No record of the follower is worth
        # keeping.
        return BelowStart(log_start)
    if found.epoch != position.last_epoch or found.end_offset < position.offset:
        return Diverging(found.epoch, found.end_offset)
    return None


def truncation_point(
    history: LeaderEpochs, *, log_start: Offset, log_end: Offset, diverging: Diverging
) -> Offset:
    """The offset to truncate to after such an answer, before the follower subscribes again."""
    end = diverging.end_offset
    own = history.end_offset_for(diverging.epoch, log_end)
    if own is not None:
        # The common prefix ends in the last common epoch, at the shorter of its two ends.
        end = min(own.end_offset, end)
    return min(max(end, log_start), log_end)
