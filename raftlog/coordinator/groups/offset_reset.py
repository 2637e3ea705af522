"""A reset plans a table of offsets. Pure.

The caller looks up bounds and times, shows the table (`validate_only`) or commits it. It also
ensures that the group has no members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raftlog.coordinator.groups.offset_messages import (
    ByDuration,
    OffsetToCommit,
    PartitionBounds,
    ResetRow,
    ResetTarget,
    ShiftBy,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToTimestamp,
)


def lookup_time_ms(target: ResetTarget, now_ms: int) -> int | None:
    """Time to look up in each partition before `plan_reset`, or None for other targets."""
    if isinstance(target, ToTimestamp):
        return max(0, target.timestamp_ms)
    if isinstance(target, ByDuration):
        return max(0, now_ms - target.duration_ms)
    return None


def plan_reset(
    target: ResetTarget,
    partitions: Iterable[PartitionBounds],
    committed: Mapping[tuple[str, int], int],
    others: Mapping[tuple[str, int], int],
) -> tuple[ResetRow, ...]:
    """Compute the offset to set in each partition, clamped to its bounds.

    `committed` are the group's offsets by topic and partition, `others` those of the group that
    ToOffsetsOf names. A partition without the offset that the target starts from keeps its state.
    """
    return tuple(_row(target, bounds, committed, others) for bounds in partitions)


def offsets_to_commit(rows: Iterable[ResetRow]) -> tuple[OffsetToCommit, ...]:
    """The offsets that a reset commits."""
    return tuple(
        OffsetToCommit(row.topic, row.partition, row.new_offset, topic_id=row.topic_id)
        for row in rows
        if row.new_offset is not None
    )


def _row(
    target: ResetTarget,
    bounds: PartitionBounds,
    committed: Mapping[tuple[str, int], int],
    others: Mapping[tuple[str, int], int],
) -> ResetRow:
    name = (bounds.topic, bounds.partition)
    old = committed.get(name)
    wanted = _wanted(target, bounds, old, others.get(name))
    new = None if wanted is None else min(max(wanted, bounds.start_offset), bounds.end_offset)
    return ResetRow(*name, bounds.topic_id, old, new, is_clamped=new != wanted)


def _wanted(
    target: ResetTarget, bounds: PartitionBounds, old: int | None, other: int | None
) -> int | None:
    match target:
        case ToEarliest():
            return bounds.start_offset
        case ToLatest():
            return bounds.end_offset
        case ToOffset(offset=offset):
            return offset
        case ShiftBy(count=count):
            return None if old is None else old + count
        case ToTimestamp() | ByDuration():
            at_time = bounds.offset_at_time
            return bounds.end_offset if at_time is None else at_time
        case _:
            return other
