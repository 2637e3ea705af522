"""Directories that are put aside: deleted ones, which go later, and damaged ones, which stay.

    deleted/<topic id>/<partition>/             topics on their way out
    deleted/<topic id>-<partition>-<n>/<partition>/   single replicas on their way out
    damaged/<topic id>/<partition>-<n>/         what repair left behind, for the operator

A rename is whole or not at all; so is what is put aside. All of it blocks, and raises DiskError.
"""

from __future__ import annotations

from typing import Final

from raftlog.record.types import PartitionId, TopicId
from raftlog.world import Disk, DiskError

REPLICAS: Final = "replicas"
DELETED: Final = "deleted"
DAMAGED: Final = "damaged"

DAMAGED_KEPT_MAX: Final = 10
"""Damaged copies of one replica. Nothing removes them but the operator."""
DELETED_WAITING_MAX: Final = 1000
"""Deleted copies of one replica whose removal waits."""


def replica_name(topic_id: TopicId, partition: PartitionId) -> str:
    """The directory of a replica, below REPLICAS."""
    return f"{topic_id}/{partition}"


def trash_topic(disk: Disk, topic_id: TopicId) -> None:
    """Take a topic's directory away, if it is there."""
    if disk.exists(f"{REPLICAS}/{topic_id}"):
        _move(disk, f"{REPLICAS}/{topic_id}", f"{DELETED}/{topic_id}")


def trash_replica(disk: Disk, topic_id: TopicId, partition: PartitionId) -> str | None:
    """Take one replica's directory away; return where what is left is to be removed."""
    directory = f"{REPLICAS}/{replica_name(topic_id, partition)}"
    if not disk.exists(directory):
        return None
    for number in range(DELETED_WAITING_MAX):
        # Never the name of a topic, nor that of one deleted before and not gone yet.
        aside = f"{DELETED}/{topic_id}-{partition}-{number}"
        if not disk.exists(aside):
            disk.make_directory(aside)
            disk.sync_directory(DELETED)
            _move(disk, directory, f"{aside}/{partition}")
            return aside
    raise DiskError(f"{directory}: {DELETED_WAITING_MAX} deleted copies of it wait already")


def quarantine_replica(disk: Disk, topic_id: TopicId, partition: PartitionId, number: int) -> None:
    """Keep a replica's directory as a damaged one; a missing one is no error."""
    directory = f"{REPLICAS}/{replica_name(topic_id, partition)}"
    if not disk.exists(directory):
        return
    topic_directory = f"{DAMAGED}/{topic_id}"
    if not disk.exists(topic_directory):
        disk.make_directory(topic_directory)
    # Also where they exist: a crash may have come between their making and these.
    disk.sync_directory(DAMAGED)
    disk.sync_directory("")
    _move(disk, directory, f"{topic_directory}/{partition}-{number}")


def free_number(names: list[str], topic_id: TopicId, partition: PartitionId) -> int | None:
    """The first free number for a damaged copy; None if there are as many as are kept."""
    prefix = f"{replica_name(topic_id, partition)}-"
    taken = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    if len(taken) >= DAMAGED_KEPT_MAX:
        return None
    return next(number for number in range(DAMAGED_KEPT_MAX) if str(number) not in taken)


def names_below(disk: Disk, directory: str) -> list[str]:
    """`<topic id>/<replica>` for all that is in it."""
    return [
        f"{topic_id}/{name}"
        for topic_id in disk.list_directory(directory)
        for name in disk.list_directory(f"{directory}/{topic_id}")
    ]


def _move(disk: Disk, old: str, new: str) -> None:
    disk.rename(old, new)
    disk.sync_directory(new.rpartition("/")[0])
    disk.sync_directory(old.rpartition("/")[0])
