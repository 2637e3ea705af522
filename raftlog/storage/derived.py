"""What follows from the records below an offset, as it stands on the disk: epochs and producers.

A start can find all of it again in the log, but for the producers of records that are deleted: only
a snapshot tells of them. So one that is older than the recovery point is still better than none.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from raftlog.record.types import Offset
from raftlog.storage.checkpoints import ReplicaCheckpoint
from raftlog.storage.checksummed import Damaged
from raftlog.storage.leader_epochs import LeaderEpochs
from raftlog.storage.producer_state import ProducerStates
from raftlog.storage.segment import base_offset_of, segment_name
from raftlog.world import Disk, read_small_file

EPOCHS_NAME: Final = "leader-epoch-checkpoint"
SNAPSHOT_SUFFIX: Final = ".snapshot"
RESTART_NAME: Final = "producers.restart"
"""Those that a log which is being emptied is to know of: a snapshot of where it begins again. It
counts as long as the checkpoint says that the log is being emptied."""
SMALL_FILE_BYTES_MAX: Final = 256 << 20

logger = logging.getLogger(__name__)


@dataclass
class Derived:
    """State that follows from the records below an offset."""

    leader_epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    producers: ProducerStates = field(default_factory=ProducerStates)


def snapshot_name(offset: Offset) -> str:
    """The name of the producer snapshot of an offset."""
    return segment_name(offset, SNAPSHOT_SUFFIX)


def snapshot_offsets(names: list[str]) -> list[Offset]:
    """The offsets of the producer snapshots among a directory's names, rising."""
    return sorted(
        offset for name in names if (offset := base_offset_of(name, SNAPSHOT_SUFFIX)) is not None
    )


def remove_snapshots(disk: Disk, directory: str, above: Offset) -> None:
    """Remove the producer snapshots of offsets above one, for good. Blocks. Raises DiskError."""
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


def load_told(disk: Disk, directory: str, offset: Offset, now_ms: int) -> ProducerStates:
    """The producers that a log which begins again at `offset` was told of. Blocks."""
    data = read_small_file(disk, f"{directory}/{RESTART_NAME}", SMALL_FILE_BYTES_MAX) or b""
    producers = ProducerStates.from_bytes(data, offset, now_ms=now_ms)
    if isinstance(producers, Damaged):
        logger.warning("%s: producers of deleted records: %s", directory, producers.reason)
        return ProducerStates()
    return producers


def write_beginning(disk: Disk, directory: str, offset: Offset, snapshot: bytes) -> None:
    """Write what follows from records below `offset` for a log that has none. Blocks."""
    disk.replace(f"{directory}/{EPOCHS_NAME}", LeaderEpochs().to_bytes())
    disk.replace(f"{directory}/{snapshot_name(offset)}", snapshot)


def load_derived(
    disk: Disk,
    directory: str,
    names: list[str],
    checkpoint: ReplicaCheckpoint | None,
    now_ms: int,
) -> Derived | None:
    """Leader epochs and producers as of the recovery point; None if they must be rebuilt."""
    if checkpoint is None or checkpoint.recovery_point == 0:
        return Derived()
    recovery_point = checkpoint.recovery_point
    data = read_small_file(disk, f"{directory}/{EPOCHS_NAME}", SMALL_FILE_BYTES_MAX)
    epochs = Damaged("missing") if data is None else LeaderEpochs.from_bytes(data)
    if isinstance(epochs, Damaged):
        logger.warning("%s: leader epochs: %s; scanning the log.", directory, epochs.reason)
        return None
    epochs.truncate_from_end(recovery_point)
    if recovery_point not in snapshot_offsets(names):
        logger.warning("%s: no producer snapshot of %d; scanning.", directory, recovery_point)
        return None
    producers = load_snapshot(disk, directory, recovery_point, now_ms)
    if isinstance(producers, Damaged):
        logger.warning("%s: producer snapshot: %s; scanning.", directory, producers.reason)
        return None
    return Derived(epochs, producers)


def older_producers(
    disk: Disk,
    directory: str,
    names: list[str],
    checkpoint: ReplicaCheckpoint | None,
    now_ms: int,
) -> ProducerStates:
    """Of the newest snapshot that can be read, for a scan of the whole log to go on from.

    It may tell of records that are deleted. A batch that it knows changes nothing. What was synced
    when the checkpoint was written is there, and was when the snapshot was taken.
    """
    if checkpoint is not None:
        for offset in reversed(snapshot_offsets(names)):
            if offset <= checkpoint.flushed_offset:
                loaded = load_snapshot(disk, directory, offset, now_ms)
                if not isinstance(loaded, Damaged):
                    return loaded
    return ProducerStates()
