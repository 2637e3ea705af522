"""Takes snapshots, restores them, and deletes the log and the snapshots behind them."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Iterator
from typing import IO, Final, Generic

from raftlog_replicated.applier import Applier
from raftlog_replicated.errors import SnapshotError
from raftlog_replicated.ports import StateLog
from raftlog_replicated.snapshots.snapshots import (
    Catalogue,
    Manifest,
    Sum,
    chunk_key,
    cut,
    encode_manifest,
    join,
)
from raftlog_replicated.types import Command, Result

_logger = logging.getLogger(__name__)

IN_MEMORY_BYTES: Final = 8 << 20
"""Bytes of a snapshot kept in memory before its restore. The rest is in a temporary file."""


class Snapshotter(Generic[Command, Result]):
    """The snapshots of one replica's state."""

    def __init__(
        self, applier: Applier[Command, Result], log: StateLog, replica_id: str, bytes_min: int
    ) -> None:
        self._applier = applier
        self._log = log
        self._replica_id = replica_id
        self._bytes_min = bytes_min
        self._catalogue = Catalogue()
        self.restored: Manifest | None = None
        """The snapshot in which the present state began."""
        self.log_bytes = 0
        """Bytes of the log, applied since the newest snapshot or the start."""

    @property
    def is_due(self) -> bool:
        """Whether the log since the newest snapshot is longer than that, and than the minimum."""
        return self.log_bytes > self._least_bytes

    @property
    def is_long_due(self) -> bool:
        """Whether no other replica takes a snapshot, so a primary does."""
        return self.log_bytes > 4 * self._least_bytes

    @property
    def _least_bytes(self) -> int:
        newest = self._catalogue.newest_first
        return max(self._bytes_min, newest[0].size_bytes if newest else 0)

    async def refresh(self) -> None:
        """Read new manifests. Raises RaftlogClientError."""
        newest = self._catalogue.newest_first[:1]
        while found := await self._log.snapshots.changes():
            for key, value in found:
                self._catalogue.add(key, value)
        if self._catalogue.newest_first[:1] != newest:
            self.log_bytes = 0

    async def restore(self, *, below: int | None = None) -> int | None:
        """Restore the newest undamaged snapshot. Returns the offset where the log continues.

        `below` limits the search to snapshots before a position. None if there is none and the
        state is empty. Raises RaftlogClientError, ApplyError.
        """
        await self.refresh()
        self.restored = None
        for manifest in self._catalogue.newest_first:
            if below is not None and manifest.position >= below:
                continue
            try:
                await self._restore(manifest)
            except SnapshotError as error:
                _logger.warning("a damaged snapshot is passed over: %s", error)
            else:
                self.restored = manifest
                return manifest.offset
        self._applier.reset()
        return None

    async def _restore(self, manifest: Manifest) -> None:
        with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as file:
            total = Sum()
            async for chunk in self._log.snapshots.read(manifest):
                total.add(chunk)
                file.write(len(chunk).to_bytes(4, "big"))
                file.write(chunk)
            total.check(manifest)
            file.seek(0)
            # In a thread, so heartbeats continue. No other call touches the state until the thread
            # ends.
            await self._log.run(lambda: self._applier.restore(join(_pieces(file))))

    async def take(self, offset: int) -> None:
        """Take a snapshot of the present state. `offset` is that of the log's next entry.

        Applying continues during the writes. Then trim the log to the older of the two kept
        snapshots. The snapshot does not count if this raises RaftlogClientError.
        """
        applier, snapshots = self._applier, self._log.snapshots
        position, commands = applier.position, applier.commands
        name = f"{self._replica_id}-{position}-{self._log.now_ms()}"
        total, first = Sum(), 0
        for chunk in cut(applier.snapshot()):
            at = await snapshots.write_chunk(chunk_key(name, total.chunks), chunk)
            first = first if total.chunks else at
            total.add(chunk)
            await asyncio.sleep(0)
        before = self._catalogue.newest_first[:1]
        await self.refresh()
        if self._catalogue.newest_first[:1] != before:
            return  # another replica was faster, and these chunks go with its next snapshots
        manifest = Manifest(
            snapshot_id=name,
            position=position,
            offset=offset,
            commands=commands,
            first_chunk=first,
            chunks=total.chunks,
            size_bytes=total.size_bytes,
            sha256=total.sha256,
        )
        await snapshots.write_manifest(name.encode(), encode_manifest(manifest))
        await self.refresh()
        await self._delete_old()

    async def _delete_old(self) -> None:
        for manifest in self._catalogue.obsolete:
            await self._log.snapshots.write_manifest(manifest.snapshot_id.encode(), None)
        await self.refresh()
        trim_offset = self._catalogue.trim_offset
        if trim_offset is not None:
            kept = self._catalogue.newest_first
            await self._log.snapshots.delete_chunks(min(manifest.first_chunk for manifest in kept))
            await self._log.trim(trim_offset)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while head := file.read(4):
        yield file.read(int.from_bytes(head, "big"))
