"""Recovery decisions at a start, over plain facts about the files. Pure.

`plan_recovery` decides where the scan must start, given the checkpoint. `judge` decides whether the
first invalid batch of a scan is the torn end of an unacknowledged write, or damage to data that may
have been acknowledged.

| first invalid batch, at offset x | verdict |
|---|---|
| x is below the checkpoint's flushed offset | damaged |
| not in the last segment (each was synced before the next segment took data) | damaged |
| the kernel did not stop, and the bytes are not just the start of a batch | damaged |
| the kernel did not stop, or no checkpoint is there, and a valid batch follows | damaged |
| anything else | torn: cut at x |

A damaged log is left exactly as it is. Only a torn end is ever cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from raftlog.record.types import Offset
from raftlog.storage.checkpoints.checkpoints import ReplicaCheckpoint, StartKind
from raftlog.storage.segments.scan import Stop


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """Facts about a segment known at a start without reading its records."""

    base_offset: Offset
    size_bytes: int
    sealed_end: Offset | None
    """End offset by the last entry of the time index, or None without an entry."""


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Segments to drop, and the place to scan from."""

    dropped: int
    """Number of first segments below the log start offset, left by interrupted retention."""
    scan_from: int
    """Number of the first segment to scan (after dropping). Earlier segments are trusted."""
    scan_position: int
    scan_offset: Offset
    """Offset of the batch at `scan_position`."""
    trusted: bool
    """Whether nothing needs scanning, since the log ends at `scan_offset`."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Reason why the log cannot be served, for the operator."""

    reason: str


class Verdict(StrEnum):
    """Meaning of the end of a scan."""

    WHOLE = "whole"
    TORN = "torn"


def plan_recovery(
    segments: Sequence[SegmentFacts],
    checkpoint: ReplicaCheckpoint | None,
    start: StartKind,
    *,
    derived_whole: bool = True,
) -> RecoveryPlan | Damage:
    """Decide where to scan. `segments` are in order, and there is at least one.

    Without `derived_whole` (leader epochs or producers as of the recovery point are unreadable)
    everything is scanned, to rebuild both.
    """
    assert segments
    if checkpoint is None:
        return RecoveryPlan(0, 0, 0, segments[0].base_offset, trusted=False)
    log_start_offset = checkpoint.log_start_offset
    dropped = 0
    while dropped + 1 < len(segments) and segments[dropped + 1].base_offset <= log_start_offset:
        dropped += 1
    kept = segments[dropped:]
    if kept[0].base_offset > log_start_offset:
        return Damage(
            f"the records from {log_start_offset} to {kept[0].base_offset} are missing: there is "
            "no segment that begins with them"
        )
    found = _recovery_segment(kept, checkpoint)
    if isinstance(found, Damage):
        return found
    scan_from, position, offset = found
    unproven = 0 if not derived_whole else _first_unproven(kept[: scan_from + 1])
    if unproven < scan_from or (not derived_whole and position):
        return RecoveryPlan(dropped, unproven, 0, kept[unproven].base_offset, trusted=False)
    trusted = (
        start is StartKind.CLEAN
        and scan_from == len(kept) - 1
        and position == kept[scan_from].size_bytes
    )
    return RecoveryPlan(
        dropped=dropped,
        scan_from=scan_from,
        scan_position=position,
        scan_offset=offset,
        trusted=trusted,
    )


def _recovery_segment(
    kept: Sequence[SegmentFacts], checkpoint: ReplicaCheckpoint
) -> tuple[int, int, Offset] | Damage:
    """Number of the segment with the recovery point, and position and offset to scan from."""
    base_offset = checkpoint.segment_base_offset
    if base_offset < kept[0].base_offset:
        # Retention continued after the checkpoint was taken, so the remaining segments lie above
        # it.
        return 0, 0, kept[0].base_offset
    for number, segment in enumerate(kept):
        if segment.base_offset == base_offset:
            if segment.size_bytes < checkpoint.segment_position:
                return Damage(
                    f"segment {base_offset} has {segment.size_bytes} bytes; "
                    f"{checkpoint.segment_position} had been synced"
                )
            return number, checkpoint.segment_position, checkpoint.recovery_point
    return Damage(f"segment {base_offset} is missing; it holds offset {checkpoint.recovery_point}")


def _first_unproven(segments: Sequence[SegmentFacts]) -> int:
    """First finished segment that does not end, by its index, at the next segment's start.

    The index may be wrong, or a segment missing. The scan decides.
    """
    for number in range(len(segments) - 1):
        if segments[number].sealed_end != segments[number + 1].base_offset:
            return number
    return len(segments) - 1


def judge(
    stop: Stop,
    reason: str,
    end_offset: Offset,
    *,
    next_base_offset: Offset | None,
    start: StartKind,
    flushed_offset: Offset | None,
    later_batch: Offset | None,
) -> Verdict | Damage:
    """Decide about the scan of a segment that ended at `end_offset`.

    `next_base_offset` is None for the last segment, `flushed_offset` None without a checkpoint.
    `later_batch` is a valid batch found behind the invalid batch.
    """
    damage: str | None = None
    kernel_kept_running = start is not StartKind.POWER_LOSS
    if next_base_offset is not None:
        if stop is not Stop.END:
            damage = f"{reason}; later segments exist"
        elif end_offset != next_base_offset:
            damage = f"the records up to {next_base_offset} are missing"
    elif flushed_offset is not None and end_offset < flushed_offset:
        damage = f"{reason or 'the log ends'}; it was synced up to {flushed_offset}"
    elif stop is Stop.END:
        pass
    elif later_batch is not None and (kernel_kept_running or flushed_offset is None):
        damage = f"{reason}; a valid batch follows at {later_batch}"
    elif stop is Stop.INVALID and kernel_kept_running:
        damage = f"{reason}; not left by an interrupted write"
    if damage is not None:
        return Damage(f"offset {end_offset}: {damage}")
    return Verdict.WHOLE if stop is Stop.END else Verdict.TORN
