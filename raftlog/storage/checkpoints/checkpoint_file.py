"""The node's checkpoint file, read with the names of replicas, replaced when logs change.

Replacements never overlap, and callers arriving during a replacement share the next. A thousand
logs changed at once cost two writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from raftlog.storage.checkpoints.checkpoints import (
    CHECKPOINT_BYTES_MAX,
    CheckpointUnreadable,
    NodeCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from raftlog.storage.repair.quarantine import DAMAGED, DELETED, REPLICAS, names_below
from raftlog.storage.segments.segments import LOG_SUFFIX
from raftlog.world import Clock, Disk, DiskError, DiskFullError, read_small_file

CHECKPOINT_NAME: Final = "checkpoints.json"
STARTED_NAME: Final = "checkpoints.json.started"
"""Name of the file after a start on a full disk. Only a rename needs no room."""
UNREADABLE_NAME: Final = "checkpoints.json.unreadable"
MISSING_NAME: Final = "checkpoints.json.missing"
"""Note of a start without the file that is not over, see `note_missing`."""

PAUSE_RATIO: Final = 2
"""Pause between two writes, as a multiple of the first write's duration. Opening a thousand logs
must not spend its time on a write for each."""
PAUSE_S_MAX: Final = 1.0
"""Longest pause. A longer write waited for a stalled disk. The stall is over, and no replica is
opened or removed until the next write. The file is written once a second anyway."""

logger = logging.getLogger(__name__)


def read_checkpoint(disk: Disk) -> NodeCheckpoint | None:
    """Read the checkpoint of the last run, or None without a trustworthy file.

    An unreadable file is renamed for the operator. Every log is then scanned from its start, and
    only an end that no valid batch follows is cut. Blocks. Raises DiskError.
    """
    name = CHECKPOINT_NAME if disk.exists(CHECKPOINT_NAME) else STARTED_NAME
    data = read_small_file(disk, name, CHECKPOINT_BYTES_MAX)
    if data is None:
        return None
    checkpoint = decode_checkpoint(data)
    if isinstance(checkpoint, CheckpointUnreadable):
        logger.error("%s: %s. All logs are scanned.", name, checkpoint.reason)
        disk.rename(name, UNREADABLE_NAME)
        disk.sync_directory("")
        return None
    if name == STARTED_NAME:
        return NodeCheckpoint(clean_shutdown=False, replicas=checkpoint.replicas)
    return checkpoint


def take_marker_away(disk: Disk) -> None:
    """Make the next start unclean without writing a byte. Blocks. Raises DiskError."""
    if disk.exists(CHECKPOINT_NAME):
        disk.rename(CHECKPOINT_NAME, STARTED_NAME)
        disk.sync_directory("")


def note_missing(disk: Disk) -> None:
    """Note that a start without a readable checkpoint file is not over.

    Kept on disk, because the next file is written before all replicas are known. Without the note,
    a later start would mistake a replica without its files for a replica that never had files.
    So no file is written before the note. Blocks. Raises DiskError.
    """
    disk.replace(MISSING_NAME, b"The checkpoint file was missing or unreadable.\n")


def is_missing_noted(disk: Disk) -> bool:
    """Whether an earlier start without a readable checkpoint file is not over. Blocks."""
    return disk.exists(MISSING_NAME)


def forget_missing(disk: Disk) -> None:
    """Note that all replicas are known again. Blocks. Raises DiskError."""
    if disk.exists(MISSING_NAME):
        disk.remove(MISSING_NAME)
        disk.sync_directory("")


@dataclass(frozen=True, slots=True)
class LastRun:
    """The state that the last run left on disk."""

    checkpoint: NodeCheckpoint | None
    names: list[str]
    """All replica directories."""
    empty: list[str]
    """Replica directories without a segment. Empty if the checkpoint file names all replicas."""
    quarantined: list[str]
    is_incomplete: bool
    """Whether the checkpoint file does not name all replicas."""
    is_noted: bool
    """Whether the disk has a note that the file is incomplete, see `note_missing`."""


def read_last_run(disk: Disk) -> LastRun:
    """Read the state of the last run and note a missing checkpoint file.

    Blocks. Raises DiskError.
    """
    found = read_checkpoint(disk)
    if found is None:
        try:
            note_missing(disk)
        except DiskFullError:
            logger.warning("disk full: starting without a checkpoint file")
    is_noted = is_missing_noted(disk)
    is_incomplete = found is None or is_noted
    disk.make_directory(REPLICAS)
    disk.make_directory(DELETED)
    disk.sync_directory("")
    names = names_below(disk, REPLICAS)
    empty = [name for name in names if is_incomplete and not _has_segment(disk, name)]
    return LastRun(
        checkpoint=found,
        names=names,
        empty=empty,
        quarantined=names_below(disk, DAMAGED),
        is_incomplete=is_incomplete,
        is_noted=is_noted,
    )


def _has_segment(disk: Disk, name: str) -> bool:
    return any(file.endswith(LOG_SUFFIX) for file in disk.list_directory(f"{REPLICAS}/{name}"))


class CheckpointFile:
    """The file, written by the present run. Lives in the event loop."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        collect: Callable[[], Awaitable[NodeCheckpoint]],
        written: Callable[[NodeCheckpoint], None] | None = None,
    ) -> None:
        """Make a writer of the file.

        `collect` returns the content to write. `written` is called once the content is durable. The
        content must not change afterwards, because a disk thread encodes it.
        """
        self.failure: DiskError | None = None
        self.writes = 0
        self._disk = disk
        self._clock = clock
        self._pause_until = 0.0
        self._collect = collect
        self._written = written
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def write(self) -> None:
        """Return once the file holds the present result of `collect`, or a later result.

        Raises DiskFullError, after which the old content stands and a later call may succeed, or
        DiskError, after which no call will succeed.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._write(self._running))
        await asyncio.shield(self._next)

    async def _write(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            # An error of the earlier write goes to the callers of that write.
            await asyncio.wait([before])
        began = self._clock.monotonic()
        if began < self._pause_until:
            await self._clock.sleep(self._pause_until - began)
            began = self._clock.monotonic()
        self._running, self._next = self._next, None
        if self.failure is not None:
            raise DiskError(str(self.failure)) from self.failure
        try:
            checkpoint = await self._collect()
            await self._disk.run(partial(_replace, self._disk, checkpoint))
        except DiskFullError:
            raise
        except DiskError as error:
            self.failure = error
            logger.error("%s cannot be written any more", CHECKPOINT_NAME, exc_info=error)
            raise
        finally:
            ended = self._clock.monotonic()
            self._pause_until = ended + min(PAUSE_RATIO * (ended - began), PAUSE_S_MAX)
        self.writes += 1
        if self._written is not None:
            self._written(checkpoint)


def _replace(disk: Disk, checkpoint: NodeCheckpoint) -> None:
    disk.replace(CHECKPOINT_NAME, encode_checkpoint(checkpoint))
    # The renamed file is outdated, and must not be read should the file itself get lost.
    disk.remove(STARTED_NAME)
