"""Open a log's directory, and recover the provable log.

The order is:

1. finish or remove left-overs of interrupted operations,
2. collect facts about segments,
3. make the plan (`recovery`),
4. scan, which rebuilds all derived state,
5. judge the end,
6. cut a torn end, the only change to data allowed at a start,
7. sync everything scanned, since bytes that survived a process crash may still be in memory only.

A damaged log is not changed at all.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from raftlog.record.header import BatchHeader
from raftlog.record.types import Offset
from raftlog.storage.checkpoints.checkpoints import ReplicaCheckpoint, StartKind
from raftlog.storage.checksummed import Damaged
from raftlog.storage.compaction.plan import NO_HORIZON, DeletionHorizon
from raftlog.storage.files import OpenFiles
from raftlog.storage.leader_epochs import LeaderEpochs
from raftlog.storage.log.derived_state import (
    MARKS_NAME,
    RESTART_NAME,
    Derived,
    Marks,
    load_derived,
    load_restart_producers,
    older_producers,
    read_marks,
    remove_snapshots,
    write_initial_state,
    write_marks,
)
from raftlog.storage.log.recovery import (
    Damage,
    RecoveryPlan,
    SegmentFacts,
    Verdict,
    judge,
    plan_recovery,
)
from raftlog.storage.producers.state import ProducerStates
from raftlog.storage.segments.scan import Expectation, ScanEnd, Stop, find_later_batch, scan
from raftlog.storage.segments.segments import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    Segment,
    base_offset_of,
    finish_swaps,
    segment_name,
)
from raftlog.storage.transactions.scan import TransactionTracker, read_marker
from raftlog.storage.types import NO_EPOCH, NO_TIMESTAMP, FlushMode, LogConfig, PossibleLoss
from raftlog.world import Disk, DiskError, DiskFullError, File

NO_GAPS: Final = Offset(0)

logger = logging.getLogger(__name__)


@dataclass
class Opened:
    """The initial state of a log."""

    segments: list[Segment]
    log_start_offset: Offset
    leader_epochs: LeaderEpochs
    producers: ProducerStates
    scanned_bytes: int = 0
    damage: Damage | None = None
    possible_loss: PossibleLoss | None = None
    recovery_point: ReplicaCheckpoint | None = None
    """Checkpoint, if its recovery point still holds."""
    gaps_below: Offset = NO_GAPS
    """Offset below which compaction may have left gaps between batches."""
    marked_horizon: DeletionHorizon = NO_HORIZON
    """Extent to which tombstones may be gone, where the checkpoint does not have it."""


def open_log(
    disk: Disk,
    files: OpenFiles,
    directory: str,
    config: LogConfig,
    *,
    checkpoint: ReplicaCheckpoint | None,
    start: StartKind,
    is_new: bool,
    now_ms: int,
) -> Opened:
    """Open the log in `directory`, or start it if it has no segment. Blocks.

    `is_new` means that no record was ever appended. `now_ms` is the monotonic time by which
    producers age. Raises DiskError.
    """
    marks = None if checkpoint is not None else read_marks(disk, directory)
    known_damage = _known_damage(disk, directory, checkpoint, marks)
    if known_damage is not None:
        return _refused(files, disk, directory, checkpoint, known_damage)
    if checkpoint is not None and checkpoint.restart_at is not None:
        return _restart_empty(disk, files, directory, checkpoint, now_ms)
    finish_swaps(disk, directory)
    names = _remove_leftovers(disk, directory)
    if start is not StartKind.CLEAN and (names or not is_new):
        # Names created, changed or removed by a crashed process may be in memory only. Without this
        # sync, a power cut after further changes could bring the old names back.
        disk.sync_directory(directory)
    bases = sorted(base for name in names if (base := base_offset_of(name, LOG_SUFFIX)) is not None)
    if not bases:
        return _without_segments(
            disk,
            files,
            directory,
            config,
            checkpoint=checkpoint,
            marks=marks,
            start=start,
            is_new=is_new,
        )
    facts = [_facts(files, directory, base, last=base == bases[-1]) for base in bases]
    derived = load_derived(disk, directory, names, checkpoint, now_ms)
    plan = plan_recovery(
        [fact for fact, _ in facts], checkpoint, start, derived_whole=derived is not None
    )
    if isinstance(plan, Damage):
        return _refused(files, disk, directory, checkpoint, plan)
    segments = [segment for _, segment in facts[plan.dropped :]]
    recovery = _Recovery(
        directory,
        config,
        checkpoint=checkpoint,
        start=start,
        segments=segments,
        plan=plan,
        derived=derived,
        older=ProducerStates()
        if derived is not None
        else older_producers(disk, directory, names, checkpoint, now_ms),
        now_ms=now_ms,
        marked_start=marks.log_start_offset if isinstance(marks, Marks) else Offset(0),
    )
    opened = recovery.run()
    if isinstance(marks, Marks):
        opened.marked_horizon = marks.horizon
    if opened.damage is None:
        dropped = [fact.base_offset for fact, _ in facts[: plan.dropped]]
        _finish(disk, files, directory, opened, dropped, trusted=plan.trusted)
    return opened


def _finish(
    disk: Disk,
    files: OpenFiles,
    directory: str,
    opened: Opened,
    dropped: Sequence[Offset],
    *,
    trusted: bool,
) -> None:
    """Remove files outside of the recovered log, and start its active segment."""
    for base_offset in dropped:
        for suffix in SEGMENT_SUFFIXES:
            disk.remove(f"{directory}/{segment_name(base_offset, suffix)}")
    active = opened.segments[-1]
    if not trusted:
        remove_snapshots(disk, directory, active.next_offset)
    if active.next_offset < opened.log_start_offset:
        # A truncation below the log start offset's batch was interrupted.
        _restart_at_log_start(disk, files, directory, opened)
    else:
        active.hold(files.lease(active.path))
        # A first append without room leaves an empty file, of which no sync has taken the name.
        active.is_name_durable = active.size_bytes > 0


def _known_damage(
    disk: Disk,
    directory: str,
    checkpoint: ReplicaCheckpoint | None,
    marks: Marks | Damaged | None,
) -> Damage | None:
    """Damage evident from stored facts. A known log never starts again by itself."""
    if isinstance(marks, Damaged):
        # Without the checkpoint as well, deleted records would be served again.
        return Damage(f"neither checkpoint nor {MARKS_NAME} can be read: {marks.reason}")
    if marks is not None and marks.damage:
        return Damage(marks.damage)
    if checkpoint is None:
        return None
    if checkpoint.damage:
        return Damage(checkpoint.damage)
    if not disk.exists(directory):
        return Damage("its directory is missing")
    return None


def _proven_end(checkpoint: ReplicaCheckpoint | None, marks: Marks | Damaged | None) -> Offset:
    """Offset up to which records existed, by stored facts."""
    if checkpoint is not None:
        return checkpoint.flushed_offset
    return marks.log_start_offset if isinstance(marks, Marks) else Offset(0)


def _restart_at_log_start(disk: Disk, files: OpenFiles, directory: str, opened: Opened) -> None:
    """Continue, empty, at the log start offset."""
    new = create_segment(disk, files, directory, opened.log_start_offset)
    for segment in opened.segments:
        for path in segment.paths:
            files.forget(path)
            disk.remove(path)
    opened.segments = [new]
    opened.recovery_point = None


_NOTHING: Final = ReplicaCheckpoint(
    recovery_point=Offset(0),
    flushed_offset=Offset(0),
    log_start_offset=Offset(0),
    high_watermark=Offset(0),
    segment_base_offset=Offset(0),
    segment_position=0,
    offset_index_entries=0,
    time_index_entries=0,
)


def _remove_leftovers(disk: Disk, directory: str) -> list[str]:
    """Remove left-overs of interrupted operations, and return the remaining names."""
    kept: list[str] = []
    for name in disk.list_directory(directory):
        if name == RESTART_NAME or name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")):
            disk.remove(f"{directory}/{name}")
        else:
            kept.append(name)
    return kept


def _without_segments(
    disk: Disk,
    files: OpenFiles,
    directory: str,
    config: LogConfig,
    *,
    checkpoint: ReplicaCheckpoint | None,
    marks: Marks | Damaged | None,
    start: StartKind,
    is_new: bool,
) -> Opened:
    """Open a log without a segment.

    It took no record, or a power cut took the file with its records (flush=async).
    """
    flushed_offset = _proven_end(checkpoint, marks)
    if flushed_offset > 0:
        damage = Damage(f"all segments are missing; offset {flushed_offset} existed")
        return _refused(files, disk, directory, checkpoint, damage)
    if disk.list_directory(directory):
        opened = _begin(disk, files, directory, Offset(0))
    else:
        opened = _begin_unwritten(files, directory)
    if not is_new and _may_have_lost(checkpoint, start, config):
        opened.possible_loss = _possible_loss(directory, Offset(0), 0)
    return opened


def _begin_unwritten(files: OpenFiles, directory: str) -> Opened:
    segment = Segment(files, directory, Offset(0))
    segment.begin_unwritten()
    return Opened([segment], Offset(0), LeaderEpochs(), ProducerStates())


def _begin(disk: Disk, files: OpenFiles, directory: str, offset: Offset) -> Opened:
    segment = create_segment(disk, files, directory, offset)
    return Opened([segment], offset, LeaderEpochs(), ProducerStates())


def _restart_empty(
    disk: Disk, files: OpenFiles, directory: str, checkpoint: ReplicaCheckpoint, now_ms: int
) -> Opened:
    """Finish emptying a log, which counts as empty since the checkpoint has `restart_at`."""
    offset, horizon = checkpoint.restart_at, checkpoint.compaction.horizon
    assert offset is not None
    for name in disk.list_directory(directory):
        if name != RESTART_NAME:
            files.forget(f"{directory}/{name}")
            disk.remove(f"{directory}/{name}")
    logger.warning("%s: restarting empty at offset %d", directory, offset)
    producers = load_restart_producers(disk, directory, offset, now_ms)
    opened = _begin(disk, files, directory, offset)
    if horizon.offset:
        write_marks(disk, directory, Marks(offset, horizon=horizon))
    if len(producers):
        write_initial_state(disk, directory, offset, producers.to_bytes(offset, now_ms=now_ms))
        opened.producers = producers
        opened.recovery_point = msgspec.structs.replace(
            _NOTHING,
            recovery_point=offset,
            flushed_offset=offset,
            log_start_offset=offset,
            high_watermark=offset,
            segment_base_offset=offset,
        )
    return opened


def create_segment(disk: Disk, files: OpenFiles, directory: str, base_offset: Offset) -> Segment:
    """Create an empty active segment with a durable name. Blocks. Raises DiskError."""
    segment = Segment(files, directory, base_offset)
    for path in segment.paths:
        # These are left-overs of an attempt cut short by a crash or a full disk.
        files.forget(path)
        disk.remove(path)
    lease = files.lease(segment.path, create=True)
    try:
        disk.sync_directory(directory)
    except BaseException:
        lease.release()
        raise
    segment.hold(lease)
    return segment


def _refused(
    files: OpenFiles,
    disk: Disk,
    directory: str,
    checkpoint: ReplicaCheckpoint | None,
    damage: Damage,
) -> Opened:
    """Represent a damaged log, known by its files and not to be used."""
    known = checkpoint or _NOTHING
    segments = []
    for name in disk.list_directory(directory):
        base_offset = base_offset_of(name, LOG_SUFFIX)
        if base_offset is not None:
            with files.lease(f"{directory}/{name}") as file:
                size_bytes = file.size
            segments.append(Segment(files, directory, base_offset, size_bytes=size_bytes))
    if not segments:
        segments = [Segment(files, directory, known.recovery_point)]
    logger.error("%s: damaged: %s. The files are kept as they are.", directory, damage.reason)
    _mark_damaged(disk, directory, known.log_start_offset, damage)
    return Opened(
        segments,
        known.log_start_offset,
        LeaderEpochs(),
        ProducerStates(),
        damage=damage,
        recovery_point=checkpoint,
    )


def _mark_damaged(disk: Disk, directory: str, log_start_offset: Offset, damage: Damage) -> None:
    """Keep known damage from being forgotten with the checkpoint file."""
    if not disk.exists(directory):
        return
    marks, horizon = read_marks(disk, directory), NO_HORIZON
    if isinstance(marks, Marks):
        if marks.damage:
            return
        log_start_offset = max(log_start_offset, marks.log_start_offset)
        horizon = marks.horizon
    elif marks is not None:
        return
    try:
        write_marks(disk, directory, Marks(log_start_offset, damage.reason, horizon))
    except DiskFullError as error:
        logger.warning("%s: its damage is not marked: %s", directory, error)


def _facts(
    files: OpenFiles, directory: str, base_offset: Offset, *, last: bool
) -> tuple[SegmentFacts, Segment]:
    """Facts about a segment known without reading its records."""
    segment = Segment(files, directory, base_offset)
    with files.lease(segment.path) as file:
        segment.size_bytes = file.size
    sealed_end: Offset | None = None
    if not last:
        segment.offset_index.saved = segment.offset_index.count_on_disk()
        segment.time_index.saved = segment.time_index.count_on_disk()
        seal = segment.aborted.load()
        has_proof = seal is None or segment.time_index.take_seal(seal)
        entry = segment.time_index.last_saved() if has_proof else None
        if entry is not None:
            newest = segment.time_entry(entry)
            sealed_end = segment.next_offset = Offset(newest.last_offset + 1)
            segment.max_timestamp_ms = newest.timestamp_ms
    return SegmentFacts(base_offset, segment.size_bytes, sealed_end), segment


class _Recovery:
    """One scan, from the plan to the verdict."""

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        *,
        checkpoint: ReplicaCheckpoint | None,
        start: StartKind,
        segments: list[Segment],
        plan: RecoveryPlan,
        derived: Derived | None,
        older: ProducerStates,
        now_ms: int,
        marked_start: Offset,
    ) -> None:
        self._directory = directory
        self._config = config
        self._checkpoint = checkpoint
        self._start = start
        self._segments = segments
        self._plan = plan
        self._now_ms = now_ms
        self._marked_start = marked_start
        self._derived = derived or Derived(producers=older)
        known = checkpoint is not None and derived is not None
        self._derived_from = checkpoint.recovery_point if checkpoint and known else Offset(0)
        self._recovery_point = checkpoint if known else None
        self._scanned_bytes = 0
        self._tracks_transactions = derived is None
        """Whether the producers do not show where the scanned transactions start."""
        self._tracker: TransactionTracker | None = None
        """Tracker made at the first marker, if needed."""
        self._damage: Damage | None = None
        """Reason why the transactions before the first scanned marker are unknown."""
        if checkpoint is not None:
            self._gaps_below = checkpoint.gaps_below
        else:
            # The extent of compaction is unknown, as is whether the topic was compacted once. But
            # compaction never touches the active segment. Missing records are noticed all the same,
            # since each segment must end where the next segment starts, and offsets must not go
            # back.
            self._gaps_below = segments[-1].base_offset

    def run(self) -> Opened:
        """Scan and judge. Where the log is whole up to a torn end, cut, index and sync."""
        segments = self._segments
        torn_bytes = 0
        for number in range(self._plan.scan_from, len(segments)):
            segment = segments[number]
            position = self._prepare(segment, first=number == self._plan.scan_from)
            with segment.files.lease(segment.path) as file:
                if self._plan.trusted and position == file.size:
                    break
                end = self._scan(segment, file, position)
                following = (
                    segments[number + 1].base_offset if segment is not segments[-1] else None
                )
                verdict = self._damage or self._judge(file, end, following)
                if isinstance(verdict, Damage):
                    logger.error(
                        "%s: damaged: %s. The files are kept as they are.",
                        self._directory,
                        verdict.reason,
                    )
                    start = (
                        Offset(0)
                        if self._checkpoint is None
                        else (self._checkpoint.log_start_offset)
                    )
                    _mark_damaged(segment.files.disk, self._directory, start, verdict)
                    return self._opened(verdict, 0)
                if verdict is Verdict.TORN:
                    torn_bytes = file.size - end.position
                    file.truncate(end.position)
                file.sync()
            if following is not None:
                tails = segment.index_tails(is_finished=True)
                segment.save_indexes(tails)
                segment.confirm_indexes(tails)
        return self._opened(None, torn_bytes)

    def _prepare(self, segment: Segment, *, first: bool) -> int:
        """Set the segment to its known state, and return the position to scan from."""
        position, offset = 0, segment.base_offset
        offset_entries = time_entries = aborted_entries = 0
        checkpoint = self._checkpoint
        newest: tuple[int, int] | None = None
        if first and self._plan.scan_position and checkpoint is not None:
            times = segment.time_index
            times.saved = checkpoint.time_index_entries
            newest = times.last_saved() if times.saved <= times.count_on_disk() else None
            if (
                segment.offset_index.count_on_disk() >= checkpoint.offset_index_entries
                and newest is not None
                and segment.aborted.load_counted(checkpoint.aborted_entries)
            ):
                position, offset = self._plan.scan_position, self._plan.scan_offset
                offset_entries = checkpoint.offset_index_entries
                time_entries = checkpoint.time_index_entries
                aborted_entries = checkpoint.aborted_entries
            else:
                # The checkpoint's counts of index entries will not hold for the new indexes.
                newest, self._recovery_point = None, None
                logger.warning(
                    "%s: an index is cut off or damaged. It is rebuilt by a scan.", segment.path
                )
        segment.size_bytes = position
        segment.next_offset = offset
        segment.max_timestamp_ms = NO_TIMESTAMP if newest is None else newest[0]
        segment.offset_index.saved = offset_entries
        segment.time_index.saved = time_entries
        if not aborted_entries:
            segment.aborted.load_counted(0)
        if segment.next_offset < self._derived_from:
            self._tracks_transactions = True
        return position

    def _scan(self, segment: Segment, file: File, position: int) -> ScanEnd:
        epochs, producers = self._derived.leader_epochs, self._derived.producers
        derived_from, now_ms = self._derived_from, self._now_ms
        interval = self._config.index_interval_bytes

        def visit(position: int, header: BatchHeader) -> None:
            segment.note(header, position, header.base_offset, interval)
            marker = read_marker(file, position, header)
            aborted = None
            if header.base_offset >= derived_from:
                epochs.assign(header.partition_leader_epoch, header.base_offset)
                aborted = producers.update(header, now_ms=now_ms, marker=marker)
            if self._tracks_transactions:
                if header.is_control and self._tracker is None:
                    self._tracker = self._tracker_up_to(segment, position)
                aborted = None if self._tracker is None else self._tracker.take(header, marker)
            if aborted is not None:
                segment.aborted.add(aborted)

        latest = epochs.latest
        epoch = NO_EPOCH
        if latest is not None and segment.next_offset >= max(latest.start_offset, derived_from):
            epoch = latest.epoch
        expected = Expectation(segment.next_offset, epoch, self._gaps_below)
        end = scan(file, position, file.size, expected, visit)
        self._scanned_bytes += end.position - position
        return end

    def _tracker_up_to(self, segment: Segment, position: int) -> TransactionTracker:
        """Read the transactions that are open at a position. Blocks."""
        tracker = TransactionTracker()
        try:
            for earlier in self._segments:
                if earlier is segment:
                    break
                tracker.walk(earlier, earlier.size_bytes)
            tracker.walk(segment, position)
        except DiskError as error:
            self._damage = Damage(f"the aborted transactions cannot be rebuilt: {error}")
        return tracker

    def _judge(self, file: File, end: ScanEnd, following: Offset | None) -> Verdict | Damage:
        later_batch = None
        if end.stop is not Stop.END and following is None:
            later_batch = find_later_batch(file, end.position, file.size, end.next_offset)
        flushed_offset = None if self._checkpoint is None else self._checkpoint.flushed_offset
        return judge(
            end.stop,
            end.reason,
            end.next_offset,
            next_base_offset=following,
            start=self._start,
            flushed_offset=flushed_offset,
            later_batch=later_batch,
        )

    def _opened(self, damage: Damage | None, torn_bytes: int) -> Opened:
        segments = self._segments
        end_offset = segments[-1].next_offset
        possible_loss = None
        if damage is None:
            self._derived.leader_epochs.truncate_from_end(end_offset)
            if _may_have_lost(self._checkpoint, self._start, self._config):
                possible_loss = _possible_loss(self._directory, end_offset, torn_bytes)
            elif torn_bytes:
                logger.warning(
                    "%s: cut %d bytes of an unfinished write at offset %d. Nothing acknowledged "
                    "was there.",
                    self._directory,
                    torn_bytes,
                    end_offset,
                )
        log_start_offset = max(segments[0].base_offset, self._marked_start)
        if self._checkpoint is not None:
            log_start_offset = max(log_start_offset, self._checkpoint.log_start_offset)
        if damage is None:
            # The stored history may end before records deleted since. Such records would count as
            # the last epoch's, and followers would truncate far too much.
            self._derived.leader_epochs.truncate_from_start(log_start_offset)
        return Opened(
            segments=segments,
            log_start_offset=log_start_offset,
            leader_epochs=self._derived.leader_epochs,
            producers=self._derived.producers,
            scanned_bytes=self._scanned_bytes,
            damage=damage,
            possible_loss=possible_loss,
            recovery_point=self._checkpoint if damage is not None else self._recovery_point,
            gaps_below=self._gaps_below,
        )


def _may_have_lost(
    checkpoint: ReplicaCheckpoint | None, start: StartKind, config: LogConfig
) -> bool:
    # Without a checkpoint the start counts as a start after a power cut, which may be true.
    if start is not StartKind.POWER_LOSS:
        return False
    known = None if checkpoint is None else checkpoint.flush
    return (known or config.flush) is FlushMode.ASYNC


def _possible_loss(directory: str, end_offset: Offset, torn_bytes: int) -> PossibleLoss:
    logger.warning(
        "%s: power was lost with flush=async: records from offset %d on, if there "
        "were any, are gone, even if they had been acknowledged.",
        directory,
        end_offset,
    )
    return PossibleLoss(end_offset, torn_bytes)
