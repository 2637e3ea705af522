"""Directories out of service. Deleted directories are removed later, damaged directories are kept.

    deleted/<topic id>/<partition>/             topics on their way out
    deleted/<topic id>-<partition>-<n>/<partition>/   single replicas on their way out
    damaged/<topic id>/<partition>-<n>/         damaged replicas kept by repairs
    damaged/<topic id>/<partition>-batches/     damaged bytes of replicas repaired in service

A rename is atomic, so each move is. All functions block, and raise DiskError.

The intact batches of a damaged replica may be the only good copies of batches that rot elsewhere.
Repairs of other replicas read them here (`read_copy`).
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from raftlog.record.types import Offset, PartitionId, TopicId
from raftlog.storage.segments.index import RELATIVE_OFFSET_MAX, OffsetEntry
from raftlog.storage.segments.scan import Expectation, scan
from raftlog.storage.segments.segments import base_offset_of, header_at, segment_name, walk
from raftlog.storage.types import NO_EPOCH
from raftlog.world import Disk, DiskError

REPLICAS: Final = "replicas"
DELETED: Final = "deleted"
DAMAGED: Final = "damaged"

BATCHES: Final = "batches"
BATCHES_KEPT_MAX: Final = 64
"""Most damaged stretches of one replica's files. Only the operator removes these."""
DAMAGED_KEPT_MAX: Final = 10
"""Most damaged copies of one replica. Only the operator removes damaged copies."""
DELETED_WAITING_MAX: Final = 1000
"""Most deleted copies of one replica waiting for removal."""


def replica_name(topic_id: TopicId, partition: PartitionId) -> str:
    """The directory of a replica, below REPLICAS."""
    return f"{topic_id}/{partition}"


def replica_key(name: str) -> tuple[TopicId, PartitionId]:
    """Topic id and partition of a `replica_name`."""
    topic_id, _, partition = name.partition("/")
    return TopicId(topic_id), PartitionId(int(partition))


def trash_topic(disk: Disk, topic_id: TopicId) -> None:
    """Move a topic's directory to deleted/, if present."""
    if disk.exists(f"{REPLICAS}/{topic_id}"):
        _move(disk, f"{REPLICAS}/{topic_id}", f"{DELETED}/{topic_id}")


def trash_replica(disk: Disk, topic_id: TopicId, partition: PartitionId) -> str | None:
    """Move one replica's directory to deleted/. Returns the directory to remove, if any."""
    directory = f"{REPLICAS}/{replica_name(topic_id, partition)}"
    if not disk.exists(directory):
        return None
    for number in range(DELETED_WAITING_MAX):
        # Never the name of a topic, nor of a deleted copy not yet removed.
        trash = f"{DELETED}/{topic_id}-{partition}-{number}"
        if not disk.exists(trash):
            disk.make_directory(trash)
            disk.sync_directory(DELETED)
            _move(disk, directory, f"{trash}/{partition}")
            return trash
    raise DiskError(f"{directory}: {DELETED_WAITING_MAX} deleted copies wait for removal already")


def quarantine_replica(disk: Disk, topic_id: TopicId, partition: PartitionId, number: int) -> None:
    """Keep a replica's directory as damaged. A missing directory is no error."""
    directory = f"{REPLICAS}/{replica_name(topic_id, partition)}"
    if not disk.exists(directory):
        return
    topic_directory = f"{DAMAGED}/{topic_id}"
    if not disk.exists(topic_directory):
        disk.make_directory(topic_directory)
    # Existing directories are synced as well, since a crash may have come between their creation
    # and these syncs.
    disk.sync_directory(DAMAGED)
    disk.sync_directory("")
    _move(disk, directory, f"{topic_directory}/{partition}-{number}")


def keep_bytes(disk: Disk, directory: str, name: str, content: bytes) -> bool:
    """Keep damaged bytes of a replica's file. False if too many are kept already."""
    kept = f"{DAMAGED}/{directory.removeprefix(f'{REPLICAS}/')}-{BATCHES}"
    # The same place may be damaged again, in another way.
    name = f"{name}-{crc32c(content):08x}"
    names = disk.list_directory(kept)
    if name in names:
        # An earlier attempt was cut short by a crash.
        return True
    if len(names) >= BATCHES_KEPT_MAX:
        return False
    if not disk.exists(kept):
        disk.make_directory(kept)
    parent = kept.rpartition("/")[0]
    for path in (parent, parent.rpartition("/")[0], ""):
        disk.sync_directory(path)
    disk.replace(f"{kept}/{name}", content)
    return True


def copies_of(names: list[str], topic_id: TopicId, partition: PartitionId) -> list[str]:
    """The directories of a replica's damaged copies among `names`, the newest first."""
    prefix = f"{replica_name(topic_id, partition)}-"
    numbers = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    # At most DAMAGED_KEPT_MAX, so one digit each.
    return [
        f"{DAMAGED}/{prefix}{each}" for each in sorted(numbers, reverse=True) if each != BATCHES
    ]


def read_copy(disk: Disk, directory: str, offset: Offset, max_bytes: int) -> bytes:
    """Intact batches in a directory out of service, from the batch that holds `offset`.

    Empty if there is none, or if a damaged header before hides where it starts. The batches are not
    known to be committed, so the caller compares leader epochs.
    """
    names = disk.list_directory(directory)
    bases = [base for name in names if (base := base_offset_of(name)) is not None]
    base = max((each for each in bases if each <= offset), default=None)
    if base is None:
        return b""
    file = disk.open(f"{directory}/{segment_name(base)}")
    try:
        # The walk reads headers only, so a damaged batch before is no obstacle.
        at = walk(file, OffsetEntry(base, 0), file.size, offset)
        first = header_at(file, at, file.size)
        if first is None:
            return b""
        end = min(file.size, at.position + max(max_bytes, first.size_bytes))
        expected = Expectation(
            first.base_offset, NO_EPOCH, gaps_below=Offset(base + RELATIVE_OFFSET_MAX)
        )
        found = scan(file, at.position, end, expected, lambda _position, _header: None)
        return file.read(at.position, found.position - at.position)
    finally:
        file.close()


def free_number(names: list[str], topic_id: TopicId, partition: PartitionId) -> int | None:
    """First free number for a damaged copy, or None if the maximum is kept."""
    prefix = f"{replica_name(topic_id, partition)}-"
    taken = {name.removeprefix(prefix) for name in names if name.startswith(prefix)} - {BATCHES}
    if len(taken) >= DAMAGED_KEPT_MAX:
        return None
    return next(number for number in range(DAMAGED_KEPT_MAX) if str(number) not in taken)


def names_below(disk: Disk, directory: str) -> list[str]:
    """`<topic id>/<replica>` for every entry of `directory`."""
    return [
        f"{topic_id}/{name}"
        for topic_id in disk.list_directory(directory)
        for name in disk.list_directory(f"{directory}/{topic_id}")
    ]


def _move(disk: Disk, old: str, new: str) -> None:
    disk.rename(old, new)
    disk.sync_directory(new.rpartition("/")[0])
    disk.sync_directory(old.rpartition("/")[0])
