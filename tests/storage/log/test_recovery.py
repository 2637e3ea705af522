from __future__ import annotations

import msgspec
import pytest

from raftlog.record.types import Offset
from raftlog.storage.checkpoints.checkpoints import ReplicaCheckpoint, StartKind
from raftlog.storage.log.recovery import (
    Damage,
    RecoveryPlan,
    SegmentFacts,
    Verdict,
    judge,
    plan_recovery,
)
from raftlog.storage.segments.scan import Stop

CHECKPOINT = ReplicaCheckpoint(
    recovery_point=Offset(250),
    flushed_offset=Offset(260),
    log_start_offset=Offset(0),
    high_watermark=Offset(260),
    segment_base_offset=Offset(200),
    segment_position=500,
    offset_index_entries=3,
    time_index_entries=3,
)


def segments(*bases: int, sizes: int = 1000) -> list[SegmentFacts]:
    """Segments of which each ends where the next begins."""
    ends: list[int | None] = [*bases[1:], None]
    return [
        SegmentFacts(Offset(base), sizes, None if end is None else Offset(end))
        for base, end in zip(bases, ends, strict=True)
    ]


def with_start(offset: int) -> ReplicaCheckpoint:
    return msgspec.structs.replace(CHECKPOINT, log_start_offset=Offset(offset))


@pytest.mark.parametrize("start", list(StartKind))
def test_the_scan_begins_at_the_recovery_point(start: StartKind) -> None:
    plan = plan_recovery(segments(0, 100, 200), CHECKPOINT, start)
    assert plan == RecoveryPlan(0, 2, 500, Offset(250), trusted=False)


def test_only_a_clean_stop_with_nothing_behind_the_recovery_point_is_trusted() -> None:
    found = segments(0, 100, 200, sizes=500)
    for start in StartKind:
        plan = plan_recovery(found, CHECKPOINT, start)
        assert isinstance(plan, RecoveryPlan)
        assert plan.trusted is (start is StartKind.CLEAN)
    more = segments(0, 100, 200, 300, sizes=500)
    plan = plan_recovery(more, CHECKPOINT, StartKind.CLEAN)
    assert plan == RecoveryPlan(0, 2, 500, Offset(250), trusted=False)


def test_segments_below_the_log_start_offset_are_dropped() -> None:
    plan = plan_recovery(segments(0, 100, 200), with_start(150), StartKind.POWER_LOSS)
    assert plan == RecoveryPlan(1, 1, 500, Offset(250), trusted=False)
    plan = plan_recovery(segments(100, 200), with_start(200), StartKind.POWER_LOSS)
    assert plan == RecoveryPlan(1, 0, 500, Offset(250), trusted=False)


def test_a_recovery_point_that_retention_has_passed_is_replaced_by_the_first_segment() -> None:
    plan = plan_recovery(segments(300, 400), with_start(300), StartKind.PROCESS_CRASH)
    assert plan == RecoveryPlan(0, 0, 0, Offset(300), trusted=False)


def test_missing_records_are_damage() -> None:
    assert isinstance(plan_recovery(segments(100, 200), CHECKPOINT, StartKind.CLEAN), Damage), (
        "the first segment is missing"
    )
    assert isinstance(plan_recovery(segments(0, 100), CHECKPOINT, StartKind.POWER_LOSS), Damage), (
        "the segment of the recovery point is missing"
    )
    assert isinstance(
        plan_recovery(segments(0, 100, 200, sizes=499), CHECKPOINT, StartKind.POWER_LOSS), Damage
    ), "bytes below the recovery point are missing"


def test_a_segment_that_does_not_end_where_the_next_begins_is_scanned() -> None:
    found = segments(0, 50, 100, 200)
    for end in (None, Offset(90)):
        found[1] = SegmentFacts(Offset(50), 1000, end)
        plan = plan_recovery(found, CHECKPOINT, StartKind.CLEAN)
        assert plan == RecoveryPlan(0, 1, 0, Offset(50), trusted=False)


def test_without_derived_state_or_checkpoint_everything_is_scanned() -> None:
    everything = RecoveryPlan(0, 0, 0, Offset(0), trusted=False)
    found = segments(0, 100, 200)
    plan = plan_recovery(found, CHECKPOINT, StartKind.CLEAN, derived_whole=False)
    assert plan == everything
    assert plan_recovery(found, None, StartKind.POWER_LOSS) == everything


CRASH, POWER, CLEAN = StartKind.PROCESS_CRASH, StartKind.POWER_LOSS, StartKind.CLEAN
TORN, WHOLE, DAMAGED = Verdict.TORN, Verdict.WHOLE, Damage


@pytest.mark.parametrize(
    ("stop", "end", "following", "start", "flushed", "later", "outcome"),
    [
        # The end of the last segment.
        (Stop.END, 100, None, POWER, 100, None, WHOLE),
        (Stop.END, 100, None, CRASH, 90, None, WHOLE),
        (Stop.END, 99, None, POWER, 100, None, DAMAGED),
        # Below the synced offset.
        (Stop.INCOMPLETE, 99, None, CRASH, 100, None, DAMAGED),
        (Stop.INVALID, 99, None, POWER, 100, None, DAMAGED),
        # Not in the last segment.
        (Stop.END, 100, 100, POWER, 50, None, WHOLE),
        (Stop.END, 90, 100, POWER, 50, None, DAMAGED),
        (Stop.INCOMPLETE, 90, 100, POWER, 50, None, DAMAGED),
        (Stop.INVALID, 90, 100, CRASH, 50, None, DAMAGED),
        # The kernel kept running: a write is cut short, and nothing follows.
        (Stop.INCOMPLETE, 100, None, CRASH, 100, None, TORN),
        (Stop.INCOMPLETE, 100, None, CLEAN, 100, None, TORN),
        (Stop.INCOMPLETE, 100, None, CRASH, 100, 120, DAMAGED),
        (Stop.INVALID, 100, None, CRASH, 100, None, DAMAGED),
        # Power was lost: unsynced bytes may be missing in any pattern.
        (Stop.INCOMPLETE, 100, None, POWER, 100, None, TORN),
        (Stop.INVALID, 100, None, POWER, 100, None, TORN),
        (Stop.INVALID, 100, None, POWER, 100, 120, TORN),
        # Without a checkpoint: a later batch proves an earlier one, which is not cut.
        (Stop.INVALID, 100, None, POWER, None, None, TORN),
        (Stop.INVALID, 100, None, POWER, None, 120, DAMAGED),
    ],
)
def test_verdicts(
    *,
    stop: Stop,
    end: int,
    following: int | None,
    start: StartKind,
    flushed: int | None,
    later: int | None,
    outcome: object,
) -> None:
    verdict = judge(
        stop,
        "a reason",
        Offset(end),
        next_base_offset=None if following is None else Offset(following),
        start=start,
        flushed_offset=None if flushed is None else Offset(flushed),
        later_batch=None if later is None else Offset(later),
    )
    assert verdict is outcome or (outcome is Damage and isinstance(verdict, Damage))
