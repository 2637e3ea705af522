"""Keep the node's checkpoint file: read it at the start, replace it when something changed.

Replacements never overlap, and callers that ask during one share the next: a thousand logs that
want to be written down at once cost two writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from raftlog.storage.checkpoints import (
    CHECKPOINT_BYTES_MAX,
    CheckpointUnreadable,
    NodeCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from raftlog.world import Clock, Disk, DiskError, DiskFullError, read_small_file

CHECKPOINT_NAME: Final = "checkpoints.json"
STARTED_NAME: Final = "checkpoints.json.started"
"""What a start on a full disk makes of the file: only a change of names needs no room."""
UNREADABLE_NAME: Final = "checkpoints.json.unreadable"

PAUSE_RATIO: Final = 2
"""Pause between two writes, by how long the first took: opening a thousand logs must not spend its
time on writing down each of them."""
PAUSE_S_MAX: Final = 1.0
"""The longest pause. A write that took longer had to wait for a disk that hung; that is over, and
until the next write no replica is opened or removed. Once a second the file is written anyway."""

logger = logging.getLogger(__name__)


def read_checkpoint(disk: Disk) -> NodeCheckpoint | None:
    """What the last run wrote down; None if there is nothing to be trusted.

    A file that cannot be read is set aside for the operator: every log is then scanned from its
    start, and nothing in it is cut that a later record proves to have been whole. Blocks. Raises
    DiskError.
    """
    name = CHECKPOINT_NAME if disk.exists(CHECKPOINT_NAME) else STARTED_NAME
    data = read_small_file(disk, name, CHECKPOINT_BYTES_MAX)
    if data is None:
        return None
    checkpoint = decode_checkpoint(data)
    if isinstance(checkpoint, CheckpointUnreadable):
        logger.error("%s: %s; all logs are scanned.", name, checkpoint.reason)
        disk.rename(name, UNREADABLE_NAME)
        disk.sync_directory("")
        return None
    if name == STARTED_NAME:
        return NodeCheckpoint(clean_shutdown=False, replicas=checkpoint.replicas)
    return checkpoint


def take_marker_away(disk: Disk) -> None:
    """Make the next start an unclean one without writing a byte. Blocks. Raises DiskError."""
    if disk.exists(CHECKPOINT_NAME):
        disk.rename(CHECKPOINT_NAME, STARTED_NAME)
        disk.sync_directory("")


class CheckpointFile:
    """The file, for the run that owns it now. Lives in the event loop."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        collect: Callable[[], NodeCheckpoint],
        written: Callable[[NodeCheckpoint], None] | None = None,
    ) -> None:
        """`collect` says what to write, and `written` is told once that is durable."""
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
        """Return once the file holds what `collect` says now, or later.

        Raises DiskFullError, after which the old content stands and a later call may succeed, or
        DiskError, after which none will.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._write(self._running))
        await asyncio.shield(self._next)

    async def _write(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            # Its callers get its error, if it has one.
            await asyncio.wait([before])
        began = self._clock.monotonic()
        if began < self._pause_until:
            await self._clock.sleep(self._pause_until - began)
            began = self._clock.monotonic()
        self._running, self._next = self._next, None
        if self.failure is not None:
            raise DiskError(str(self.failure)) from self.failure
        checkpoint = self._collect()
        data = encode_checkpoint(checkpoint)
        try:
            await self._disk.run(partial(_replace, self._disk, data))
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


def _replace(disk: Disk, data: bytes) -> None:
    disk.replace(CHECKPOINT_NAME, data)
    # It has nothing to say any more, and must not be read should the file itself get lost.
    disk.remove(STARTED_NAME)
