"""Derived state on disk, the leader epochs and producers as of an offset.

A start can rebuild all derived state from the log, except the producers of deleted records. Only a
snapshot names these. So a snapshot older than the recovery point is still better than none.

For a truncation, this module finds the cut, and rebuilds the producers below.

`Marks` are not derived, but facts of the node's checkpoint file that no scan finds again. These are
the log start offset, known damage, and how far tombstones may be gone. They count where that file
is unreadable, and only then.

All functions block and run while the log admits no append.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from raftlog.record.batch import check_batch
from raftlog.record.header import BatchHeader
from raftlog.record.types import Offset
from raftlog.storage.checkpoints.checkpoints import ReplicaCheckpoint
from raftlog.storage.checksummed import Damaged, unwrap, wrap
from raftlog.storage.compaction.plan import NO_HORIZON, DeletionHorizon
from raftlog.storage.leader_epochs import LeaderEpochs
from raftlog.storage.producers.state import ProducerStates
from raftlog.storage.segments.index import OffsetEntry, TimeEntry
from raftlog.storage.segments.segments import (
    Segment,
    base_offset_of,
    header_at,
    read_header,
    segment_name,
    walk,
)
from raftlog.storage.transactions.scan import read_marker
from raftlog.storage.types import NO_TIMESTAMP
from raftlog.world import Disk, DiskError, File, read_small_file

EPOCHS_NAME: Final = "leader-epoch-checkpoint"
SNAPSHOT_SUFFIX: Final = ".snapshot"
RESTART_NAME: Final = "producers.restart"
"""Name of the producer snapshot at the next start of a log being emptied. The file counts only
while the checkpoint has `restart_at`."""
MARKS_NAME: Final = "replica-marks"
MARKS_KIND: Final = b"RLRM"
MARKS_VERSION: Final = 1
MARKS_BYTES_MAX: Final = 1 << 20
SMALL_FILE_BYTES_MAX: Final = 256 << 20

logger = logging.getLogger(__name__)


class Marks(msgspec.Struct, frozen=True, array_like=True):
    """Facts of a log that must be known even without the node's checkpoint file."""

    log_start_offset: Offset
    damage: str = ""
    """Reason why the replica is offline, if it is."""
    horizon: DeletionHorizon = NO_HORIZON


def write_marks(disk: Disk, directory: str, marks: Marks) -> None:
    """Make the marks durable. Blocks. Raises DiskError."""
    content = wrap(MARKS_KIND, MARKS_VERSION, msgspec.msgpack.encode(marks))
    disk.replace(f"{directory}/{MARKS_NAME}", content)


def read_marks(disk: Disk, directory: str) -> Marks | Damaged | None:
    """Read the marks, or None if none were ever written. Blocks. Raises DiskError."""
    data = read_small_file(disk, f"{directory}/{MARKS_NAME}", MARKS_BYTES_MAX)
    if data is None:
        return None
    content = unwrap(MARKS_KIND, MARKS_VERSION, data)
    if isinstance(content, Damaged):
        return content
    try:
        return _MARKS.decode(content)
    except msgspec.DecodeError as error:
        return Damaged(f"not the marks of a replica: {error}")


def clear_damage_mark(disk: Disk, directory: str) -> None:
    """Mark the log as whole again, durably. Blocks. Raises DiskError."""
    marks = read_marks(disk, directory)
    if isinstance(marks, Marks) and marks.damage:
        write_marks(disk, directory, Marks(marks.log_start_offset, horizon=marks.horizon))


@dataclass
class Derived:
    """State derived from the records below an offset."""

    leader_epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    producers: ProducerStates = field(default_factory=ProducerStates)


_MARKS: Final = msgspec.msgpack.Decoder(Marks)


def snapshot_name(offset: Offset) -> str:
    """The name of the producer snapshot of an offset."""
    return segment_name(offset, SNAPSHOT_SUFFIX)


def snapshot_offsets(names: list[str]) -> list[Offset]:
    """The offsets of the producer snapshots among a directory's names, rising."""
    return sorted(
        offset for name in names if (offset := base_offset_of(name, SNAPSHOT_SUFFIX)) is not None
    )


def remove_snapshots(disk: Disk, directory: str, above: Offset) -> None:
    """Remove the producer snapshots above an offset, for good. Blocks. Raises DiskError."""
    unwanted = [
        offset for offset in snapshot_offsets(disk.list_directory(directory)) if offset > above
    ]
    for offset in unwanted:
        disk.remove(f"{directory}/{snapshot_name(offset)}")
    if unwanted:
        disk.sync_directory(directory)


def load_snapshot(
    disk: Disk, directory: str, offset: Offset, now_ms: int
) -> ProducerStates | Damaged:
    """The producers as of `offset`. Blocks. Raises DiskError."""
    data = read_small_file(disk, f"{directory}/{snapshot_name(offset)}", SMALL_FILE_BYTES_MAX)
    if data is None:
        return Damaged("missing")
    return ProducerStates.from_bytes(data, offset, now_ms=now_ms)


def load_restart_producers(
    disk: Disk, directory: str, offset: Offset, now_ms: int
) -> ProducerStates:
    """The producers given to a log that restarts at `offset`. Blocks."""
    data = read_small_file(disk, f"{directory}/{RESTART_NAME}", SMALL_FILE_BYTES_MAX) or b""
    producers = ProducerStates.from_bytes(data, offset, now_ms=now_ms)
    if isinstance(producers, Damaged):
        logger.warning("%s: producers of deleted records: %s", directory, producers.reason)
        return ProducerStates()
    return producers


def write_initial_state(disk: Disk, directory: str, offset: Offset, snapshot: bytes) -> None:
    """Write derived state as of `offset` for an empty log. Blocks."""
    disk.replace(f"{directory}/{EPOCHS_NAME}", LeaderEpochs().to_bytes())
    disk.replace(f"{directory}/{snapshot_name(offset)}", snapshot)


def load_derived(
    disk: Disk,
    directory: str,
    names: list[str],
    checkpoint: ReplicaCheckpoint | None,
    now_ms: int,
) -> Derived | None:
    """Leader epochs and producers as of the recovery point, or None for a rebuild."""
    if checkpoint is None or checkpoint.recovery_point == 0:
        return Derived()
    recovery_point = checkpoint.recovery_point
    data = read_small_file(disk, f"{directory}/{EPOCHS_NAME}", SMALL_FILE_BYTES_MAX)
    epochs = Damaged("missing") if data is None else LeaderEpochs.from_bytes(data)
    if isinstance(epochs, Damaged):
        logger.warning("%s: leader epochs: %s. The log is scanned.", directory, epochs.reason)
        return None
    epochs.truncate_from_end(recovery_point)
    if recovery_point not in snapshot_offsets(names):
        logger.warning(
            "%s: no producer snapshot of %d. The log is scanned.", directory, recovery_point
        )
        return None
    producers = load_snapshot(disk, directory, recovery_point, now_ms)
    if isinstance(producers, Damaged):
        logger.warning(
            "%s: producer snapshot: %s. The log is scanned.", directory, producers.reason
        )
        return None
    return Derived(epochs, producers)


def older_producers(
    disk: Disk,
    directory: str,
    names: list[str],
    checkpoint: ReplicaCheckpoint | None,
    now_ms: int,
) -> ProducerStates:
    """Producers of the newest readable snapshot, to start a scan of the whole log.

    The snapshot may include deleted records. A known batch changes nothing. Records synced when the
    checkpoint was written are present, as when the snapshot was taken.
    """
    if checkpoint is not None:
        for offset in reversed(snapshot_offsets(names)):
            if offset <= checkpoint.flushed_offset:
                loaded = load_snapshot(disk, directory, offset, now_ms)
                if not isinstance(loaded, Damaged):
                    return loaded
    return ProducerStates()


TIME_OFFSET_KEY = 1
"""Key to search time index entries by offset. The entries rise both in offset and in time."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The remaining part of a segment."""

    next_offset: Offset
    size_bytes: int
    offset_entries: int
    time_entries: int
    last_time: TimeEntry | None
    aborted_entries: int
    max_timestamp_ms: int


def find_cut(segment: Segment, offset: Offset, gaps_below: Offset) -> Cut:
    """Find the cut that leaves no record at or above `offset`.

    Batches stay whole, so a batch containing `offset` is removed too. Raises DiskError, also for
    damage before `offset`, since a cut at the damage would remove intact batches.
    """
    found = segment.offset_index.search(offset - segment.base_offset)
    with segment.files.lease(segment.path) as file:
        start = OffsetEntry(segment.base_offset, 0)
        if found is not None:
            start = OffsetEntry(Offset(segment.base_offset + found[1][0]), found[1][1])
            header = read_header(file, start.position)
            if header is None or header.base_offset != start.base_offset:
                start = OffsetEntry(segment.base_offset, 0)
        at = walk(file, start, segment.size_bytes, offset)
        if not _is_cut(file, at, segment, offset, gaps_below):
            raise DiskError(f"{segment.path} at {at.position}: damaged in front of {offset}")
        # `at.base_offset` is not enough, since after a gap of compaction the batch may start later.
        next_offset = min(at.base_offset, offset)
        relative = next_offset - segment.base_offset
        last_offset = segment.offset_index.search(relative - 1)
        last_time = segment.time_index.search(relative - 1, key=TIME_OFFSET_KEY)
        entry = None if last_time is None else segment.time_entry(last_time[1])
        newest = _newest(segment, entry, at.position)
    return Cut(
        next_offset=next_offset,
        size_bytes=at.position,
        offset_entries=0 if last_offset is None else last_offset[0] + 1,
        time_entries=0 if last_time is None else last_time[0] + 1,
        last_time=entry,
        aborted_entries=segment.aborted.count_below(next_offset),
        max_timestamp_ms=newest,
    )


def _is_cut(
    file: File, at: OffsetEntry, segment: Segment, offset: Offset, gaps_below: Offset
) -> bool:
    """Whether `header` is the segment's end, or the batch containing `offset` or after it."""
    if at.position >= segment.size_bytes:
        return at.base_offset >= min(offset, segment.next_offset)
    header = header_at(file, at, segment.size_bytes)
    if header is None or header.next_offset <= offset:
        return False
    if at.base_offset < header.base_offset >= gaps_below:
        return False
    return _is_whole(file, at.position, header)


def _is_whole(file: File, position: int, header: BatchHeader) -> bool:
    return check_batch(file.read(position, header.size_bytes), 0, header)


def _newest(segment: Segment, entry: TimeEntry | None, end: int) -> int:
    """The largest timestamp below position `end`, from the last time entry on by headers."""
    newest = NO_TIMESTAMP if entry is None else entry.timestamp_ms
    with segment.files.lease(segment.path) as file:
        at = OffsetEntry(segment.base_offset, 0)
        if entry is not None:
            found = segment.offset_index.search(entry.last_offset - segment.base_offset)
            if found is not None:
                at = OffsetEntry(Offset(segment.base_offset + found[1][0]), found[1][1])
        while at.position < end:
            header = header_at(file, at, segment.size_bytes)
            if header is None:
                break
            newest = max(newest, header.max_timestamp_ms)
            at = OffsetEntry(header.next_offset, at.position + header.size_bytes)
    return newest


def rebuild_producers(
    disk: Disk,
    directory: str,
    segments: Sequence[Segment],
    end_offset: Offset,
    now_ms: int,
    *,
    stops_at_damage: bool = False,
) -> ProducerStates:
    """Producers as of `end_offset`, from the newest snapshot and the batches after it.

    A damaged batch does not count. A damaged sequence would reject its producer, or pass for
    another. Raises DiskError, also for such a batch, unless `stops_at_damage`, which ends the
    rebuild there.
    """
    producers = ProducerStates()
    from_offset = Offset(0)
    for offset in reversed(snapshot_offsets(disk.list_directory(directory))):
        if offset > end_offset:
            continue
        loaded = load_snapshot(disk, directory, offset, now_ms)
        if not isinstance(loaded, Damaged):
            producers, from_offset = loaded, offset
            break
    for segment in segments:
        if segment.next_offset <= from_offset:
            continue
        with segment.files.lease(segment.path) as file:
            at = OffsetEntry(segment.base_offset, 0)
            while at.position < segment.size_bytes:
                header = header_at(file, at, segment.size_bytes)
                if header is not None and header.base_offset >= end_offset:
                    break
                counts = header is not None and header.base_offset >= from_offset
                if header is None or (counts and not _is_whole(file, at.position, header)):
                    if stops_at_damage:
                        return producers
                    raise DiskError(f"{segment.path} at {at.position}: damaged")
                if counts:
                    marker = read_marker(file, at.position, header)
                    producers.update(header, now_ms=now_ms, marker=marker)
                at = OffsetEntry(header.next_offset, at.position + header.size_bytes)
    return producers
