from __future__ import annotations

import pytest

from raftlog.coordinator.groups.offset_messages import (
    ByDuration,
    OffsetToCommit,
    PartitionBounds,
    ResetTarget,
    ShiftBy,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToOffsetsOf,
    ToTimestamp,
)
from raftlog.coordinator.groups.offset_reset import (
    lookup_time_ms,
    offsets_to_commit,
    plan_reset,
)
from raftlog.record.types import TopicId

ID = TopicId("a" * 32)
BOUNDS = PartitionBounds("t", 0, ID, start_offset=10, end_offset=100, offset_at_time=40)


@pytest.mark.parametrize(
    ("target", "new_offset", "is_clamped"),
    [
        (ToEarliest(), 10, False),
        (ToLatest(), 100, False),
        (ToOffset(50), 50, False),
        (ToOffset(9), 10, True),
        (ToOffset(101), 100, True),
        (ToTimestamp(1), 40, False),
        (ByDuration(1), 40, False),
        (ShiftBy(5), 35, False),
        (ShiftBy(-21), 10, True),
        (ShiftBy(71), 100, True),
        (ToOffsetsOf("other"), 60, False),
    ],
)
def test_each_target_gives_an_offset_within_the_bounds(
    target: ResetTarget, new_offset: int, is_clamped: bool
) -> None:
    [row] = plan_reset(target, [BOUNDS], {("t", 0): 30}, {("t", 0): 60})
    assert (row.old_offset, row.new_offset, row.is_clamped) == (30, new_offset, is_clamped)
    assert offsets_to_commit([row]) == (OffsetToCommit("t", 0, new_offset, topic_id=ID),)


@pytest.mark.parametrize("target", [ShiftBy(1), ToOffsetsOf("other")])
def test_a_target_without_its_starting_offset_leaves_the_partition(target: ResetTarget) -> None:
    [row] = plan_reset(target, [BOUNDS], {}, {})
    assert (row.old_offset, row.new_offset, row.is_clamped) == (None, None, False)
    assert offsets_to_commit([row]) == ()


def test_a_time_after_all_records_is_the_end() -> None:
    bounds = PartitionBounds("t", 0, ID, 10, 100)
    assert plan_reset(ToTimestamp(1), [bounds], {}, {})[0].new_offset == 100


def test_times_to_look_up() -> None:
    assert lookup_time_ms(ToTimestamp(7), 1_000) == 7
    assert lookup_time_ms(ByDuration(300), 1_000) == 700
    assert lookup_time_ms(ByDuration(3_000), 1_000) == 0
    assert lookup_time_ms(ToEarliest(), 1_000) is None
