"""All logs of a node: open, create, delete, check on them, close.

    replicas/<topic id>/<partition>/   one log each
    deleted/, damaged/                 put aside: see `aside`
    checkpoints.json                   what is durable of each log, and how the node stopped

Directories that nobody asks for are strays: they are kept, reported, and never deleted, since
metadata that is missing is no proof that the data is not wanted (mistake 9 of replication.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from raftlog.record.errors import ILLEGAL_STATE, STORAGE_FAILED, UNKNOWN_TOPIC, LogError
from raftlog.record.types import PartitionId, TopicId
from raftlog.storage.checkpoint_file import CheckpointFile, read_checkpoint, take_marker_away
from raftlog.storage.checkpoints import (
    NodeCheckpoint,
    ReplicaCheckpoint,
    StartKind,
    start_kind,
)
from raftlog.storage.config import LogConfig, StorageSettings
from raftlog.storage.files import OpenFiles
from raftlog.storage.log import Log
from raftlog.storage.log_core import LogShared, disk_full
from raftlog.storage.maintenance import Maintenance
from raftlog.storage.quarantine import (
    DAMAGED,
    DAMAGED_KEPT_MAX,
    DELETED,
    REPLICAS,
    free_number,
    names_below,
    quarantine_replica,
    replica_name,
    trash_replica,
    trash_topic,
)
from raftlog.storage.results import LogState
from raftlog.world import Clock, Disk, DiskError, DiskFullError

__all__ = ["LogManager", "StorageSettings", "StorageTotals"]

OPEN_FILES_MAX: Final = 512
"""Open files of old segments and indexes without a present user."""
OPENS_AT_ONCE_MAX: Final = 4
"""Logs that are opened, or closed, at the same time."""

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
    """Read again by the scrubber since the start."""
    scrub_damage: int
    """Segments in which it found damage."""


class LogManager:
    """Owns the data directory's logs. Made by `open`; lives in the event loop."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        settings: StorageSettings,
        *,
        found: NodeCheckpoint | None,
        names: list[str],
        set_aside: list[str],
    ) -> None:
        self._disk = disk
        self._shared = LogShared(disk, clock, OpenFiles(disk, OPEN_FILES_MAX))
        self._found = found
        self._boot_id = disk.boot_id()
        self._stray_names = dict.fromkeys(names)
        self._set_aside = set_aside
        self._checkpoints = _as_found(found)
        self._logs: dict[tuple[TopicId, PartitionId], Log] = {}
        self._opening: dict[str, asyncio.Task[Log]] = {}
        self._opens = asyncio.Semaphore(OPENS_AT_ONCE_MAX)
        self._unfinished: set[str] = set()
        """Replicas that were begun and not written down: the disk was full. Nothing is in them."""
        self._closed_clean: set[str] = set()
        self._clean_shutdown = False
        self._closing = False
        self._file = CheckpointFile(disk, clock, self._collect, self._published)
        self._maintenance = Maintenance(self._shared, settings, self._logs, self._file)

    @classmethod
    async def open(
        cls, disk: Disk, clock: Clock, settings: StorageSettings | None = None
    ) -> LogManager:
        """Read what the last run left, and take its clean-shutdown marker away, durably.

        Opens no log: that is `open_replica`'s. Raises DiskError.
        """
        found, names, set_aside = await disk.run(partial(_look, disk))
        manager = cls(
            disk,
            clock,
            settings or StorageSettings(),
            found=found,
            names=names,
            set_aside=set_aside,
        )
        try:
            await manager._file.write()
        except DiskFullError:
            logger.warning("The disk is full: starting with the checkpoint file as it is.")
            await disk.run(partial(take_marker_away, disk))
        return manager

    @property
    def failure(self) -> str | None:
        """Why the node's storage as a whole is failing, if it is."""
        return self._maintenance.failure

    @property
    def room_bytes(self) -> int:
        """Room on the disk for appends: what is beyond the reserve, as of the last look."""
        return self._shared.room_bytes

    @property
    def oldest_sync_at(self) -> float | None:
        """The monotonic time since which the oldest of the present syncs is waited for, if any."""
        return self._shared.flusher.oldest_sync_at

    def limit(self, *, reserve_bytes: int, scrub_bytes_per_s: int) -> None:
        """Change the room that appends leave, and the scrubber's rate. Takes effect at once."""
        self._maintenance.limit(reserve_bytes=reserve_bytes, scrub_bytes_per_s=scrub_bytes_per_s)

    def logs(self) -> dict[tuple[TopicId, PartitionId], Log]:
        """All open logs, damaged and failed ones included."""
        return dict(self._logs)

    def strays(self) -> list[str]:
        """Replica directories, `<topic id>/<partition>`, that nobody has opened."""
        return sorted(self._stray_names)

    def set_aside(self) -> list[str]:
        """Damaged replicas that repair left behind, `<topic id>/<partition>-<n>`, all kept."""
        return sorted(self._set_aside)

    async def open_replica(
        self, topic_id: TopicId, partition: PartitionId, config: LogConfig, *, create: bool
    ) -> Log:
        """Open a replica's log, or with `create` begin one. Opening an open one returns it.

        Many may be opened at once; so many at a time are worked on as the settings say. Durable
        when it returns. A damaged log is returned too; its `state` tells. A replica that is known
        and has no directory is damaged: it is not begun anew here. Raises LogError.
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
        """Return when nobody opens or renews the replica."""
        while (task := self._opening.get(name)) is not None:
            await asyncio.wait([task])

    async def _open(
        self, topic_id: TopicId, partition: PartitionId, config: LogConfig, *, create: bool
    ) -> Log:
        name = replica_name(topic_id, partition)
        checkpoint = self._checkpoints.get(name)
        start = start_kind(self._found, name, self._boot_id)
        try:
            async with self._opens:
                log = await self._disk.run(
                    partial(self._open_blocking, name, config, checkpoint, start, create=create)
                )
        except DiskFullError as error:
            raise disk_full(name) from error
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{name} cannot be opened: {error}") from error
        try:
            self._logs[topic_id, partition] = log
            self._stray_names.pop(name, None)
            self._maintenance.opened(log)
            # Before the first append: a crash from here on must be known for one of this boot.
            await self._file.write()
        except DiskFullError as error:
            if checkpoint is None or checkpoint.restart_at is not None:
                # The file does not know the log, or would empty it again at the next start.
                del self._logs[topic_id, partition]
                self._maintenance.closed(log)
                self._checkpoints.pop(name, None)
                if checkpoint is not None:
                    self._checkpoints[name] = checkpoint
                full = disk_full(name)
                log.discard(full)
                raise full from error
            # Without it, a crash is taken for a power cut: less is known, nothing is lost.
            logger.warning("%s: the disk is full: %s", name, error)
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{name} cannot be opened: {error}") from error
        self._unfinished.discard(name)
        return log

    def _open_blocking(
        self,
        name: str,
        config: LogConfig,
        checkpoint: ReplicaCheckpoint | None,
        start: StartKind,
        *,
        create: bool,
    ) -> Log:
        directory = f"{REPLICAS}/{name}"
        topic_directory = directory.rpartition("/")[0]
        if name in self._unfinished:
            # Begun before, and given up: found as it is, it would count as one after a power cut.
            self._disk.remove_tree(directory)
        if checkpoint is None and not self._disk.exists(directory):
            if not create:
                raise DiskError(f"{directory} is missing; it is not made anew without being asked")
            self._unfinished.add(name)
            self._disk.make_directory(directory)
            start = StartKind.PROCESS_CRASH if start is StartKind.CLEAN else start
        if start is not StartKind.CLEAN and self._disk.exists(directory):
            # Also where it exists: a crash may have come between its making and these.
            self._disk.sync_directory(topic_directory)
            self._disk.sync_directory(REPLICAS)
        return Log.open(
            self._disk,
            self._shared.clock,
            directory,
            config,
            checkpoint=checkpoint,
            start=start,
            shared=self._shared,
            publish=self._file.write,
        )

    async def delete_topic(self, topic_id: TopicId) -> None:
        """Close the topic's logs and put its directory aside, durably; the rest is done later.

        Deleting what is not there is no error. Raises LogError.
        """
        gone = LogError(UNKNOWN_TOPIC, "The topic has been deleted.")
        for key in [key for key in self._logs if key[0] == topic_id]:
            log = self._logs.pop(key)
            log.discard(gone)
            self._maintenance.closed(log)
            self._checkpoints.pop(replica_name(*key), None)
        for name in [name for name in self._stray_names if name.startswith(f"{topic_id}/")]:
            del self._stray_names[name]
            self._checkpoints.pop(name, None)
        try:
            await self._disk.run(partial(trash_topic, self._disk, topic_id))
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{topic_id} cannot be deleted: {error}") from error
        try:
            await self._file.write()
        except DiskFullError as error:
            # The directory is gone, durably. What is removed below makes room for the file.
            self._shared.file_is_behind = True
            logger.warning("%s: deleted, with the disk full: %s", topic_id, error)
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{topic_id} cannot be deleted: {error}") from error
        self._maintenance.remove_later(f"{DELETED}/{topic_id}")

    async def release_topic(self, topic_id: TopicId) -> None:
        """Close the topic's logs, and keep their files as strays. Raises LogError.

        Nothing reads, ages or compacts them then, until somebody opens them again.
        """
        for key in [key for key in self._logs if key[0] == topic_id]:
            name = replica_name(*key)
            await self._opened(name)
            log = self._logs.get(key)
            if log is None:
                continue
            self._maintenance.closed(log)
            try:
                await self._close_one(key)
            finally:
                log.discard(LogError(UNKNOWN_TOPIC, "The topic is not known here any more."))
                del self._logs[key]
                checkpoint = msgspec.structs.replace(
                    log.current_checkpoint(), boot_id=self._boot_id, clean=False
                )
                self._closed_clean.discard(name)
                self._stray_names[name] = None
                self._checkpoints[name] = checkpoint
                if self._found is not None:
                    # Opened again in this run, it is one that this run has left.
                    self._found.replicas[name] = checkpoint
        try:
            await self._file.write()
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{topic_id} is not closed: {error}") from error

    async def delete_replica(self, topic_id: TopicId, partition: PartitionId) -> None:
        """Close one log and put its directory aside, durably; the rest is done later.

        Deleting what is not there is no error. A crash before it returns can leave a stray.
        Raises LogError.
        """
        name = replica_name(topic_id, partition)
        await self._opened(name)
        log = self._logs.pop((topic_id, partition), None)
        if log is not None:
            self._maintenance.closed(log)
            await log.retire(LogError(ILLEGAL_STATE, f"Replica {name} has been deleted here."))
        self._checkpoints.pop(name, None)
        self._stray_names.pop(name, None)
        try:
            # First: a replica that the file knows and that has no directory counts as damaged.
            await self._file.write()
        except DiskFullError as error:
            logger.warning("%s: deleted, with the disk full: %s", name, error)
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{name} cannot be deleted: {error}") from error
        try:
            aside = await self._disk.run(partial(trash_replica, self._disk, topic_id, partition))
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{name} cannot be deleted: {error}") from error
        if aside is not None:
            self._maintenance.remove_later(aside)

    async def renew_replica(
        self, topic_id: TopicId, partition: PartitionId, config: LogConfig
    ) -> Log:
        """Put the files of a replica that is out of service under damaged/, and begin an empty one.

        To be called when the metadata no longer counts on the replica's records: from here on they
        are gone as far as this node is concerned. Nothing is deleted. Durable when it returns; a
        crash before leaves the old files, a damaged replica, or the new one. Raises LogError:
        ILLEGAL_STATE if the log is in service, or if too many copies are kept already.
        """
        if self._closing:
            raise LogError(ILLEGAL_STATE, "The node is stopping.")
        name = replica_name(topic_id, partition)
        await self._opened(name)
        return await asyncio.shield(
            self._begin_opening(name, self._renew(topic_id, partition, config))
        )

    async def _renew(self, topic_id: TopicId, partition: PartitionId, config: LogConfig) -> Log:
        name = replica_name(topic_id, partition)
        log = self._logs.get((topic_id, partition))
        if log is not None and log.state is LogState.ONLINE:
            raise LogError(ILLEGAL_STATE, f"{name} is in service: it needs no renewal.")
        try:
            self._set_aside = await self._disk.run(partial(names_below, self._disk, DAMAGED))
            number = free_number(self._set_aside, topic_id, partition)
            if number is None:
                raise LogError(
                    ILLEGAL_STATE,
                    f"{name} was damaged {DAMAGED_KEPT_MAX} times before; look at {DAMAGED}/ and "
                    "remove what is not needed.",
                )
            if log is not None:
                self._checkpoints[name] = log.current_checkpoint()
                del self._logs[topic_id, partition]
                self._maintenance.closed(log)
                await log.retire(LogError(ILLEGAL_STATE, f"{name} has been renewed."))
            if name not in self._unfinished:
                await self._disk.run(
                    partial(quarantine_replica, self._disk, topic_id, partition, number)
                )
            self._set_aside = await self._disk.run(partial(names_below, self._disk, DAMAGED))
        except DiskFullError as error:
            raise disk_full(name) from error
        except DiskError as error:
            raise LogError(STORAGE_FAILED, f"{name} cannot be renewed: {error}") from error
        # Until the next write of the file a start finds it known, and its directory missing or
        # empty: damaged again.
        self._checkpoints.pop(name, None)
        self._stray_names.pop(name, None)
        return await self._open(topic_id, partition, config, create=True)

    def totals(self) -> StorageTotals:
        """Sums for metrics."""
        logs = self._logs.values()
        return StorageTotals(
            replicas=len(logs),
            failed=sum(log.state is LogState.FAILED for log in logs),
            damaged=sum(log.state is LogState.DAMAGED for log in logs),
            size_bytes=sum(log.size_bytes for log in logs),
            segments=sum(log.segment_count for log in logs),
            open_files=len(self._shared.files),
            syncs=self._shared.flusher.syncs,
            free_bytes=self._maintenance.free_bytes,
            scrubbed_bytes=self._maintenance.scrubber.scrubbed_bytes,
            scrub_damage=self._maintenance.scrubber.damage_found,
        )

    async def start(self) -> None:
        """Start the background maintenance, and remove what deleted topics left behind."""
        left_over = await self._disk.run(partial(self._disk.list_directory, DELETED))
        for name in left_over:
            self._maintenance.remove_later(f"{DELETED}/{name}")
        await self._maintenance.look_for_room()
        self._maintenance.start()

    async def tick(self) -> None:
        """One round of maintenance, for tests and simulations that keep their own time."""
        await self._maintenance.tick()

    async def close(self) -> None:
        """Flush and checkpoint all logs; then, if that held for all, write the clean marker.

        Logs that fail now are reported and scanned at the next start. Raises DiskError if the
        marker could not be written: the next start is then an unclean one, and nothing is lost.
        """
        self._closing = True
        await self._maintenance.stop()
        if self._opening:
            await asyncio.wait(list(self._opening.values()))
        await asyncio.gather(*(self._close_one(key) for key in list(self._logs)))
        self._clean_shutdown = True
        await self._file.write()
        self._shared.files.close()

    async def _close_one(self, key: tuple[TopicId, PartitionId]) -> None:
        name = replica_name(*key)
        log = self._logs[key]
        async with self._opens:
            was_damaged = log.state is LogState.DAMAGED
            try:
                await log.close()
            except LogError as error:
                logger.warning("%s: not closed cleanly: %s", name, error.message)
                return
            if log.state is LogState.CLOSED or was_damaged:
                self._closed_clean.add(name)

    def _collect(self) -> NodeCheckpoint:
        """What the checkpoint file should say now."""
        for key, log in self._logs.items():
            name = replica_name(*key)
            self._checkpoints[name] = msgspec.structs.replace(
                log.current_checkpoint(), boot_id=self._boot_id, clean=False
            )
        replicas = self._checkpoints
        if self._clean_shutdown:
            # Replicas that nobody opened are as they were found.
            replicas = {
                name: msgspec.structs.replace(
                    checkpoint,
                    clean=name in self._closed_clean
                    or (name in self._stray_names and checkpoint.clean),
                )
                for name, checkpoint in replicas.items()
            }
        return NodeCheckpoint(self._clean_shutdown, dict(replicas))

    def _published(self, checkpoint: NodeCheckpoint) -> None:
        """Tell each log what the checkpoint file says of it now."""
        for key, log in self._logs.items():
            replica = checkpoint.replicas.get(replica_name(*key))
            if replica is not None:
                log.core.published(replica)


def _as_found(found: NodeCheckpoint | None) -> dict[str, ReplicaCheckpoint]:
    """What is known of each replica. After an unclean stop no one vouches for the clean marks."""
    if found is None:
        return {}
    if found.clean_shutdown:
        return dict(found.replicas)
    return {
        name: msgspec.structs.replace(checkpoint, clean=False)
        for name, checkpoint in found.replicas.items()
    }


def _look(disk: Disk) -> tuple[NodeCheckpoint | None, list[str], list[str]]:
    """The checkpoint file, all replica directories, and the damaged ones put aside."""
    found = read_checkpoint(disk)
    disk.make_directory(REPLICAS)
    disk.make_directory(DELETED)
    disk.sync_directory("")
    return found, names_below(disk, REPLICAS), names_below(disk, DAMAGED)
