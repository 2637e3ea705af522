"""Open, create, delete, check and close all logs of a node.

    replicas/<topic id>/<partition>/   one log each
    deleted/, damaged/                 removed or kept: see `quarantine`
    checkpoints.json                   durable state of each log, and how the node stopped

Replica directories without a replica in the metadata are strays. They are kept, reported, and never
deleted, since missing metadata is no proof of unwanted data (mistake 9,
docs/decisions/ten-mistakes.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from raftlog.record.errors import ILLEGAL_STATE, STORAGE_FAILED, UNKNOWN_TOPIC, LogError
from raftlog.record.types import Offset, PartitionId, TopicId
from raftlog.storage.checkpoints.checkpoint_file import (
    CheckpointFile,
    LastRun,
    forget_missing,
    note_missing,
    read_last_run,
    take_marker_away,
)
from raftlog.storage.checkpoints.checkpoints import (
    NodeCheckpoint,
    ReplicaCheckpoint,
    StartKind,
    start_kind,
)
from raftlog.storage.files import OpenFiles
from raftlog.storage.group_open import GroupOpener, OpenRequest
from raftlog.storage.log.core import LogContext, LogCore, disk_full
from raftlog.storage.log.derived_state import clear_damage_mark
from raftlog.storage.log.log import Log
from raftlog.storage.maintenance import Maintenance
from raftlog.storage.repair.quarantine import (
    DAMAGED,
    DAMAGED_KEPT_MAX,
    DELETED,
    REPLICAS,
    copies_of,
    free_number,
    names_below,
    quarantine_replica,
    read_copy,
    replica_key,
    replica_name,
    trash_replica,
    trash_topic,
)
from raftlog.storage.types import LogConfig, LogState, StorageSettings
from raftlog.world import Clock, Disk, DiskError, DiskFullError
from raftlog.world.cluster_clock import ClusterClock

CLOSES_AT_ONCE_MAX: Final = 4
"""Most logs closed at the same time."""
PER_TURN_MAX: Final = 256
"""Most logs examined, discarded or closed in one turn of the event loop, some milliseconds."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StorageTotals:
    """Sums over all logs, for metrics."""

    replicas: int
    failed: int
    damaged: int
    size_bytes: int
    segments: int
    open_files: int
    syncs: int
    free_bytes: int
    scrubbed_bytes: int
    """Bytes read again by the scrubber since the start."""
    scrub_damage: int
    """Segments in which the scrubber found damage."""
    producers: int
    """Idempotent producers that the logs remember."""
    refused_producers: int
    """Appends refused because a log had no room for their new producers."""
    clock_skew_ms: int
    """Lead of the wall clock over the cluster time."""


class LogManager:
    """Owns the data directory's logs. Made by `open`. Lives in the event loop."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        settings: StorageSettings,
        left: LastRun,
        on_failed: Callable[[str], None],
    ) -> None:
        self._disk = disk
        self._is_incomplete = left.is_incomplete
        self._is_noted = left.is_noted
        self._names_all_found: Final = not left.is_incomplete
        """Whether the last run's file names all replicas."""
        self._names_found = frozenset(left.names)
        self._names_empty = frozenset(left.empty)
        self._settings = settings
        self._shared = LogContext(disk, clock, OpenFiles(disk))
        self._found = left.checkpoint
        self._boot_id = disk.boot_id()
        self._strays = dict.fromkeys(left.names)
        self._quarantined = left.quarantined
        self._checkpoints = _as_found(left.checkpoint)
        self._logs: dict[tuple[TopicId, PartitionId], Log] = {}
        self._opening: dict[str, asyncio.Task[Log]] = {}
        self._closes = asyncio.Semaphore(CLOSES_AT_ONCE_MAX)
        self._collected: dict[LogCore, None] = {}
        """Logs in the last content for the checkpoint file, until the file is durable."""
        self._closed_clean: set[str] = set()
        self._clean_shutdown = False
        self._closing = False
        self._file = CheckpointFile(disk, clock, self._collect, self._published)
        self._opener = GroupOpener(self._shared, self._file.write)
        self._maintenance = Maintenance(self._shared, settings, self._logs, self._file, on_failed)

    @classmethod
    async def open(
        cls,
        disk: Disk,
        clock: Clock,
        settings: StorageSettings | None = None,
        *,
        on_failed: Callable[[str], None] = lambda _reason: None,
    ) -> LogManager:
        """Read the state of the last run and remove its clean-shutdown marker, durably.

        Opens no log. Call `open_replica` for each. `on_failed` is called with the reason once
        storage fails as a whole, and the node must end. Raises DiskError.
        """
        left = await disk.run(partial(read_last_run, disk))
        manager = cls(disk, clock, settings or StorageSettings(), left, on_failed)
        try:
            await manager._file.write()
        except DiskFullError:
            logger.warning("disk full: starting with the checkpoint file unchanged")
            await disk.run(partial(take_marker_away, disk))
        return manager

    @property
    def room_bytes(self) -> int:
        """Room on the disk for appends beyond the reserve, when last measured."""
        return self._shared.room_bytes

    @property
    def free_bytes(self) -> int:
        """Free room on the disk, when last measured."""
        return self._maintenance.free_bytes

    @property
    def oldest_sync_at(self) -> float | None:
        """Monotonic start time of the oldest running sync, or None."""
        return self._shared.flusher.oldest_sync_at

    @property
    def cluster_clock(self) -> ClusterClock:
        """The clock of the node's decisions by age."""
        return self._shared.cluster_clock

    @property
    def clock_skew_ms(self) -> int | None:
        """Lead of the wall clock over the cluster time, or None while unknown."""
        clock = self.cluster_clock
        return clock.skew_ms if clock.knows_cluster_time else None

    def limit(self, *, reserve_bytes: int, scrub_bytes_per_s: int) -> None:
        """Change the room that appends leave, and the scrubber's rate. Takes effect at once."""
        self._maintenance.limit(reserve_bytes=reserve_bytes, scrub_bytes_per_s=scrub_bytes_per_s)

    def logs(self) -> dict[tuple[TopicId, PartitionId], Log]:
        """All open logs, including damaged and failed logs."""
        return dict(self._logs)

    def find(self, topic_id: TopicId, partition: PartitionId) -> Log | None:
        """Return the replica's open log, or None."""
        return self._logs.get((topic_id, partition))

    def strays(self) -> list[str]:
        """Replica directories not opened so far, `<topic id>/<partition>`."""
        return sorted(self._strays)

    def quarantined(self) -> list[str]:
        """Damaged replicas kept by repairs, `<topic id>/<partition>-<n>`."""
        return sorted(self._quarantined)

    async def read_copy(
        self, topic_id: TopicId, partition: PartitionId, offset: Offset, max_bytes: int
    ) -> bytes:
        """Intact batches of a replica's damaged files, from the batch that holds `offset`.

        Reads the log that is offline, or the copies in quarantine. Empty if none has the offset.
        The batches are not known to be committed. Raises LogError.
        """
        directories = copies_of(self._quarantined, topic_id, partition)
        log = self._logs.get((topic_id, partition))
        if log is not None and log.state is LogState.DAMAGED:
            directories.insert(0, f"{REPLICAS}/{replica_name(topic_id, partition)}")
        for directory in directories:
            try:
                found = await self._disk.run(
                    partial(read_copy, self._disk, directory, offset, max_bytes)
                )
            except DiskError as error:
                raise LogError(STORAGE_FAILED, f"{directory} cannot be read: {error}") from error
            if found:
                return found
        return b""

    def is_lost(self, topic_id: TopicId, partition: PartitionId) -> bool:
        """Whether the files of a replica assigned before this start are gone.

        A replica enters the checkpoint file before its first acknowledgement. So a replica without
        a directory, or with an empty directory, is new only if a complete checkpoint file does not
        name it. A named replica with an empty directory is damaged if its checkpoint has records.
        """
        name = replica_name(topic_id, partition)
        if self._found is not None and name in self._found.replicas:
            return name not in self._names_found
        has_records = name in self._names_found and name not in self._names_empty
        return self._is_incomplete and not has_records

    async def all_known(self) -> None:
        """Note that the checkpoint file names all replicas of the metadata. Raises DiskError."""
        if self._is_incomplete:
            await self._disk.run(partial(forget_missing, self._disk))
            self._is_incomplete = False

    async def open_replica(
        self, topic_id: TopicId, partition: PartitionId, config: LogConfig, *, create: bool
    ) -> Log:
        """Open a replica's log, or start it with `create`. An open log is returned as is.

        Many may be opened at once, and share their syncs. Durable on return. A damaged log is
        returned too, with `state` DAMAGED. A known replica without a directory is damaged, and not
        created again here. Raises LogError.
        """
        if self._closing:
            raise LogError(ILLEGAL_STATE, "The node is stopping.")
        log = self._logs.get((topic_id, partition))
        name = replica_name(topic_id, partition)
        task = self._opening.get(name)
        if task is None:
            if log is not None:
                return log
            task = self._begin_opening(name, self._open(topic_id, partition, config, create=create))
        return await asyncio.shield(task)

    def _begin_opening(self, name: str, work: Coroutine[Any, Any, Log]) -> asyncio.Task[Log]:
        task = asyncio.get_running_loop().create_task(work)
        self._opening[name] = task
        task.add_done_callback(lambda _: self._opening.pop(name, None))
        return task

    async def _opened(self, name: str) -> None:
        """Return when the replica is neither being opened nor renewed."""
        while (task := self._opening.get(name)) is not None:
            await asyncio.wait([task])

    async def _open(
        self, topic_id: TopicId, partition: PartitionId, config: LogConfig, *, create: bool
    ) -> Log:
        name = replica_name(topic_id, partition)
        request = OpenRequest(
            name=name,
            config=config,
            checkpoint=self._checkpoints.get(name),
            start=start_kind(self._found, name, self._boot_id),
            is_unlisted=(
                self._found is not None
                and self._names_all_found
                and name not in self._found.replicas
            ),
            create=create,
        )
        return await self._open_as(topic_id, partition, request)

    async def _open_as(
        self, topic_id: TopicId, partition: PartitionId, request: OpenRequest
    ) -> Log:
        name, checkpoint = request.name, request.checkpoint
        published = self._checkpoints.get(name)
        try:
            log = await self._opener.open(request)
        except DiskFullError as error:
            raise disk_full(name) from error
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{name} cannot be opened: {error}") from error
        try:
            self._logs[topic_id, partition] = log
            self._strays.pop(name, None)
            self._maintenance.opened(log)
            # This write precedes the first append, so that a crash from here on is known to be of
            # this boot.
            await self._file.write()
        except DiskFullError as error:
            if checkpoint is None or checkpoint.restart_at is not None:
                # The file does not know the log, or would empty it again at the next start.
                del self._logs[topic_id, partition]
                self._checkpoints.pop(name, None)
                if published is not None:
                    self._checkpoints[name] = published
                full = disk_full(name)
                log.discard(full)
                raise full from error
            # Without the file, a crash counts as a power cut. Less is known, nothing is lost.
            logger.warning("%s: the disk is full: %s", name, error)
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{name} cannot be opened: {error}") from error
        self._opener.unfinished.discard(name)
        return log

    async def delete_topic(self, topic_id: TopicId) -> None:
        """Close the topic's logs and trash its directory, durably.

        The files are removed later. Deleting a missing topic is no error. Raises LogError.
        """
        gone = LogError(UNKNOWN_TOPIC, "The topic has been deleted.")
        async for key in _in_slices([key for key in self._logs if key[0] == topic_id]):
            log = self._logs.pop(key, None)
            if log is not None:
                log.discard(gone)
            self._checkpoints.pop(replica_name(*key), None)
        for name in [name for name in self._strays if name.startswith(f"{topic_id}/")]:
            del self._strays[name]
            self._checkpoints.pop(name, None)
        try:
            await self._disk.run(partial(trash_topic, self._disk, topic_id))
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{topic_id} cannot be deleted: {error}") from error
        try:
            await self._file.write()
        except DiskFullError as error:
            # The directory is gone, durably. Removing its files makes room for the checkpoint file.
            self._shared.file_is_behind = True
            logger.warning("%s: deleted while the disk is full: %s", topic_id, error)
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{topic_id} cannot be deleted: {error}") from error
        self._maintenance.schedule_removal(f"{DELETED}/{topic_id}")

    async def release_topic(self, topic_id: TopicId) -> None:
        """Close the topic's logs, and keep their files as strays. Raises LogError.

        The files are neither read, expired nor compacted until opened again.
        """
        for key in [key for key in self._logs if key[0] == topic_id]:
            name = replica_name(*key)
            await self._opened(name)
            log = self._logs.get(key)
            if log is None:
                continue
            try:
                await self._close_one(key)
            finally:
                log.discard(LogError(UNKNOWN_TOPIC, "The topic is not known here any more."))
                del self._logs[key]
                checkpoint = self._checkpoint_of(log)
                self._closed_clean.discard(name)
                self._strays[name] = None
                self._checkpoints[name] = checkpoint
                if self._found is not None:
                    # Opened again in this run, the replica counts as left by this run.
                    self._found.replicas[name] = checkpoint
        try:
            await self._file.write()
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{topic_id} is not closed: {error}") from error

    async def delete_replica(self, topic_id: TopicId, partition: PartitionId) -> None:
        """Close one log and trash its directory, durably.

        The files are removed later. Deleting a missing replica is no error. A crash before return
        can leave a stray. Raises LogError.
        """
        name = replica_name(topic_id, partition)
        await self._opened(name)
        log = self._logs.pop((topic_id, partition), None)
        if log is not None:
            await log.retire(LogError(ILLEGAL_STATE, f"Replica {name} has been deleted here."))
        self._checkpoints.pop(name, None)
        self._strays.pop(name, None)
        try:
            # The file is written first, since a replica in the file without a directory counts as
            # damaged.
            await self._file.write()
        except DiskFullError as error:
            logger.warning("%s: deleted while the disk is full: %s", name, error)
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{name} cannot be deleted: {error}") from error
        try:
            trashed = await self._disk.run(partial(trash_replica, self._disk, topic_id, partition))
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{name} cannot be deleted: {error}") from error
        if trashed is not None:
            self._maintenance.schedule_removal(trashed)

    async def renew_replica(
        self, topic_id: TopicId, partition: PartitionId, config: LogConfig
    ) -> Log:
        """Quarantine the files of a replica out of service, and start an empty log.

        Call it once the metadata no longer counts on the replica's records. From here on the
        records are gone for this node. Nothing is deleted. Durable on return. A crash before leaves
        the old files, a damaged replica, or the new replica. Raises LogError, ILLEGAL_STATE if the
        log is in service or too many copies are kept already.
        """
        return await self._replace(self._renew, topic_id, partition, config)

    async def reopen_replica(
        self, topic_id: TopicId, partition: PartitionId, config: LogConfig
    ) -> Log:
        """Open a damaged log again, as at the start, after `Log.repair_offline` returned True.

        The mark of its damage goes with the first checkpoint of the new log. A crash before leaves
        a log to be repaired again. Raises LogError, ILLEGAL_STATE if the log is not damaged.
        """
        return await self._replace(self._reopen, topic_id, partition, config)

    async def _replace(
        self,
        replacement: Callable[[TopicId, PartitionId, LogConfig], Coroutine[Any, Any, Log]],
        topic_id: TopicId,
        partition: PartitionId,
        config: LogConfig,
    ) -> Log:
        if self._closing:
            raise LogError(ILLEGAL_STATE, "The node is stopping.")
        name = replica_name(topic_id, partition)
        await self._opened(name)
        work = replacement(topic_id, partition, config)
        return await asyncio.shield(self._begin_opening(name, work))

    async def _reopen(self, topic_id: TopicId, partition: PartitionId, config: LogConfig) -> Log:
        name = replica_name(topic_id, partition)
        log = self._logs.get((topic_id, partition))
        if log is None or log.state is not LogState.DAMAGED:
            raise LogError(ILLEGAL_STATE, f"{name} is not damaged.")
        self._checkpoints[name] = self._checkpoint_of(log)
        del self._logs[topic_id, partition]
        await log.retire(LogError(ILLEGAL_STATE, f"{name} has been repaired."))
        try:
            await self._disk.run(partial(clear_damage_mark, self._disk, log.directory))
        except DiskFullError as error:
            raise disk_full(name) from error
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{name} cannot be opened: {error}") from error
        request = OpenRequest(
            name=name,
            config=config,
            checkpoint=log.undamaged_checkpoint,
            start=log.start,
            is_unlisted=False,
            create=False,
        )
        return await self._open_as(topic_id, partition, request)

    async def _renew(self, topic_id: TopicId, partition: PartitionId, config: LogConfig) -> Log:
        name = replica_name(topic_id, partition)
        log = self._logs.get((topic_id, partition))
        if log is not None and log.state is LogState.ONLINE:
            raise LogError(ILLEGAL_STATE, f"{name} is in service and needs no renewal.")
        try:
            self._quarantined = await self._disk.run(partial(names_below, self._disk, DAMAGED))
            number = free_number(self._quarantined, topic_id, partition)
            if number is None:
                raise LogError(
                    ILLEGAL_STATE,
                    f"{name} was damaged {DAMAGED_KEPT_MAX} times before; check {DAMAGED}/ and "
                    "remove unneeded copies.",
                )
            if log is not None:
                self._checkpoints[name] = self._checkpoint_of(log)
                del self._logs[topic_id, partition]
                await log.retire(LogError(ILLEGAL_STATE, f"{name} has been renewed."))
            if name not in self._opener.unfinished:
                await self._disk.run(
                    partial(quarantine_replica, self._disk, topic_id, partition, number)
                )
            self._quarantined = await self._disk.run(partial(names_below, self._disk, DAMAGED))
        except DiskFullError as error:
            raise disk_full(name) from error
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{name} cannot be renewed: {error}") from error
        # Until the next write of the file a start finds a known replica with a missing or empty
        # directory, damaged again.
        self._checkpoints.pop(name, None)
        self._strays.pop(name, None)
        return await self._open(topic_id, partition, config, create=True)

    def totals(self) -> StorageTotals:
        """Sums for metrics."""
        logs = self._logs.values()
        return StorageTotals(
            replicas=len(logs),
            failed=sum(log.state is LogState.FAILED for log in logs),
            damaged=sum(log.state is LogState.DAMAGED for log in logs),
            size_bytes=sum(log.size_bytes for log in logs),
            segments=sum(len(log.segments) for log in logs),
            open_files=len(self._shared.files),
            syncs=self._shared.flusher.syncs,
            free_bytes=self._maintenance.free_bytes,
            scrubbed_bytes=self._maintenance.scrubber.scrubbed_bytes,
            scrub_damage=self._maintenance.scrubber.damage_found,
            producers=sum(len(log.producers) for log in logs),
            refused_producers=self._shared.refused_producers,
            clock_skew_ms=self._shared.cluster_clock.skew_ms,
        )

    async def start(self) -> None:
        """Start the background maintenance, and remove the files of deleted topics."""
        left_over = await self._disk.run(partial(self._disk.list_directory, DELETED))
        for name in left_over:
            self._maintenance.schedule_removal(f"{DELETED}/{name}")
        await self._maintenance.measure_room()
        self._maintenance.start()

    async def tick(self) -> None:
        """Run one round of maintenance, for tests and simulations with their time."""
        await self._maintenance.tick()

    async def close(self) -> None:
        """Flush and checkpoint all logs, then mark the successful logs as clean.

        Logs that fail now are reported and scanned at the next start. Raises DiskError if the
        marker could not be written. The next start is then unclean, and nothing is lost.
        """
        self._closing = True
        await self._maintenance.stop()
        if self._opening:
            await asyncio.wait(list(self._opening.values()))
        keys = list(self._logs)
        for start in range(0, len(keys), PER_TURN_MAX):
            await asyncio.gather(*map(self._close_one, keys[start : start + PER_TURN_MAX]))
        self._clean_shutdown = True
        await self._file.write()
        self._shared.files.close()

    async def _close_one(self, key: tuple[TopicId, PartitionId]) -> None:
        name = replica_name(*key)
        log = self._logs[key]
        async with self._closes:
            was_damaged = log.state is LogState.DAMAGED and log.start is not StartKind.POWER_LOSS
            try:
                await log.close()
            except LogError as error:
                logger.warning("%s: not closed cleanly: %s", name, error.message)
                return
            if log.state is LogState.CLOSED or was_damaged:
                self._closed_clean.add(name)

    async def _collect(self) -> NodeCheckpoint:
        """Collect the content for the checkpoint file. Examines changed logs only."""
        shared = self._shared
        if self._is_incomplete and not self._is_noted:
            # The disk was full at the start. Without the note, this file would hide a loss.
            await self._disk.run(partial(note_missing, self._disk))
            self._is_noted = True
        # The logs of a failed write are still missing in the file.
        changed: Iterable[LogCore] = self._logs.values() if self._clean_shutdown else shared.changed
        due = {**self._collected, **shared.unpublished, **dict.fromkeys(changed)}
        shared.unpublished.clear()
        self._collected = due
        async for log in _in_slices(due):
            name = self._name_in_use(log)
            if name is not None:
                self._checkpoints[name] = self._checkpoint_of(log)
        replicas = dict(self._checkpoints)
        if self._clean_shutdown:
            async for name in _in_slices(self._checkpoints):
                # Replicas not opened in this run are unchanged.
                checkpoint = replicas[name]
                clean = name in self._closed_clean or (name in self._strays and checkpoint.clean)
                replicas[name] = msgspec.structs.replace(checkpoint, clean=clean)
        return NodeCheckpoint(self._clean_shutdown, replicas)

    def _published(self, checkpoint: NodeCheckpoint) -> None:
        """Notify each log of its content in the checkpoint file."""
        collected, self._collected = self._collected, {}
        for log in collected:
            name = self._name_in_use(log)
            if name is not None and name in checkpoint.replicas:
                log.published(checkpoint.replicas[name])

    def _checkpoint_of(self, log: LogCore) -> ReplicaCheckpoint:
        """The log's checkpoint for the file, as of this run."""
        # A log found damaged after a power cut may have lost records. Its repair judges that.
        is_pending = log.state is LogState.DAMAGED and log.start is StartKind.POWER_LOSS
        boot_id = "" if is_pending else self._boot_id
        return msgspec.structs.replace(log.current_checkpoint(), boot_id=boot_id, clean=False)

    def _name_in_use(self, log: LogCore) -> str | None:
        """The replica's name, or None if its log is closed or replaced."""
        name = log.directory.removeprefix(f"{REPLICAS}/")
        return name if self._logs.get(replica_key(name)) is log else None


async def _in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield all items, with a turn for the event loop after some."""
    for number, item in enumerate(list(items), start=1):
        yield item
        if number % PER_TURN_MAX == 0:
            await asyncio.sleep(0)


def _as_found(found: NodeCheckpoint | None) -> dict[str, ReplicaCheckpoint]:
    """The known checkpoints of all replicas, without clean marks after an unclean stop."""
    if found is None:
        return {}
    if found.clean_shutdown:
        return dict(found.replicas)
    return {
        name: msgspec.structs.replace(checkpoint, clean=False)
        for name, checkpoint in found.replicas.items()
    }
