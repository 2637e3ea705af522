"""Decide which segments may go, by size, by age, and by the log start offset.

Pure. The plan decides on plain facts about the segments how many of the oldest to drop. Nothing at
or above the high watermark is ever dropped, nor anything but a prefix of the log.

**Age.** A segment is as old as its largest timestamp (KIP-32, KIP-33). Records without a timestamp
count from the creation of their segment. Timestamps are the producers' (`message.timestamp.type`
CreateTime) unless the topic has LogAppendTime, and any clock can be wrong. So:

- A timestamp in the past is believed. A producer of year-old events in a topic that keeps a week
  sees them go at the next pass, as with Kafka. Such a topic needs `retention.ms=-1` or
  LogAppendTime.
- A timestamp in the future is not believed. It would keep its segment, and every later segment, for
  as long as a confused producer likes. Such a segment is as old as its last append could be. That
  was no later than the creation of the next segment, or than `segment.ms` after its own creation.
  Creation times in the future are not believed either. The newest believable creation time of this
  or any older segment counts, since appends follow each other in time.
- A segment of unknown age (every clue lies in the future) is kept until the clock gets there.

**Clock jumps.** Deletion is final and retention is not, so `now_ms` comes from the cluster's clock
(`raftlog.world.cluster_clock`), which is steady and never ahead of the median of the brokers'
clocks. Without a cluster time nothing ages.

**The active segment** is never dropped itself. If all its records are due too, `roll_first` is set.
Then the caller rolls the log, so that a new, empty segment keeps the log end offset, and drops the
old segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from raftlog.record.types import Offset

NO_TIMESTAMP: Final = -1
UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Facts about one segment for a plan."""

    base_offset: Offset
    next_offset: Offset
    """First offset after the segment. Equal to `base_offset` if the segment is empty."""
    size_bytes: int
    max_timestamp_ms: int
    """Largest timestamp of its records, or NO_TIMESTAMP."""
    created_ms: int
    """Time of the first append (wall clock), or later if no longer known."""


class DropReason(StrEnum):
    """Reason why a segment goes."""

    LOG_START = "log_start_offset"
    AGE = "retention.ms"
    SIZE = "retention.bytes"


@dataclass(frozen=True, slots=True)
class Drop:
    """One segment to drop."""

    base_offset: Offset
    reason: DropReason


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """Steps in this order: roll, move the log start offset up durably, remove files."""

    drops: tuple[Drop, ...]
    """Segments to drop, oldest first."""
    log_start_offset: Offset
    """The log start offset after the drop, never lower than before."""
    roll_first: bool
    """Whether the active segment is dropped. First start a new segment at the log end offset."""


def newest_record_times(
    segments: Sequence[SegmentInfo], *, now_ms: int, latest_ms: int, segment_ms: int
) -> list[int]:
    """Estimate the time of each segment's newest record, as far as credible.

    A time is credible up to `latest_ms`, see `ClusterClock.latest_ms`. With a clock that is
    behind, records of right times seem to come from the future, and creations to be old.
    """
    latest_ms = max(latest_ms, now_ms)
    times: list[int] = []
    begun_ms: int | None = None
    for index, segment in enumerate(segments):
        if segment.created_ms <= now_ms:
            begun_ms = max(begun_ms or segment.created_ms, segment.created_ms)
        if 0 <= segment.max_timestamp_ms <= latest_ms:
            times.append(segment.max_timestamp_ms)
            continue
        if segment.max_timestamp_ms < 0:
            times.append(min(segment.created_ms, now_ms))
            continue
        if index + 1 < len(segments) and segments[index + 1].created_ms <= now_ms:
            times.append(max(segments[index + 1].created_ms, begun_ms or 0))
        elif begun_ms is not None:
            times.append(min(begun_ms + segment_ms, now_ms))
        else:
            times.append(now_ms)
    return times


def plan_retention(
    segments: Sequence[SegmentInfo],
    *,
    now_ms: int,
    latest_ms: int,
    retention_ms: int,
    retention_bytes: int,
    segment_ms: int,
    log_start_offset: Offset,
    high_watermark: Offset,
    deletes: bool = True,
) -> RetentionPlan:
    """Decide which of the segments (oldest first, the last active) to drop.

    `deletes` is whether `cleanup.policy` has `delete`. Without it, only the log start offset
    (delete-records) frees segments. A limit of UNLIMITED drops nothing.
    """
    drops: list[Drop] = []
    excess_bytes = 0
    if deletes and retention_bytes != UNLIMITED:
        excess_bytes = sum(segment.size_bytes for segment in segments) - retention_bytes
    by_age = deletes and retention_ms != UNLIMITED
    times: Sequence[int] = ()
    if by_age:
        times = newest_record_times(
            segments, now_ms=now_ms, latest_ms=latest_ms, segment_ms=segment_ms
        )
    for index, segment in enumerate(segments):
        is_active = index == len(segments) - 1
        if segment.next_offset > high_watermark:
            break
        if is_active and segment.next_offset == segment.base_offset:
            break
        if segment.next_offset <= log_start_offset:
            reason = DropReason.LOG_START
        elif by_age and now_ms - times[index] > retention_ms:
            reason = DropReason.AGE
        elif excess_bytes > 0 and excess_bytes >= segment.size_bytes:
            reason = DropReason.SIZE
        else:
            break
        excess_bytes -= segment.size_bytes
        drops.append(Drop(segment.base_offset, reason))
    if drops:
        log_start_offset = max(log_start_offset, segments[len(drops) - 1].next_offset)
    return RetentionPlan(
        tuple(drops), log_start_offset, bool(drops) and len(drops) == len(segments)
    )
