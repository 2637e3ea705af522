"""The snapshot on the disk: saved, read, sent, received. Calls block unless they say otherwise.

A snapshot only ever gives way to a newer one, whichever of two jobs finishes first: the journal may
have been cut by the newer one already.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from raftlog.quorum.raft_snapshot import (
    ORIGIN_BYTES,
    SnapshotDamagedError,
    SnapshotMeta,
    decode_snapshot,
    encode_origin,
    encode_snapshot,
)
from raftlog.record.errors import STORAGE_FAILED, LogError
from raftlog.world import Disk, DiskError, DiskFullError, File

SNAPSHOT_NAME: Final = "snapshot"
TEMPORARY_SUFFIX: Final = ".tmp"
RECEIVED_SUFFIX: Final = ".received"
GATHER_BYTES: Final = 1024 * 1024
"""Copied together and written at once: few system calls, and nothing large is ever copied whole."""
RECEIVED_BYTES_MAX: Final = 1024**3
"""Of a received snapshot: no image comes near it, and a defect must not fill the disk."""


class ReceivedSnapshotError(Exception):
    """What arrived is not a whole, undamaged snapshot. It was dropped; it can be sent again."""


class SnapshotReader:
    """A snapshot as it is sent: the file without its origin. A replaced one stays readable.

    Not verified: the receiver does that.
    """

    def __init__(self, file: File, meta: SnapshotMeta) -> None:
        self.meta = meta
        self._file = file

    @property
    def size(self) -> int:
        """Bytes to send."""
        return self._file.size - ORIGIN_BYTES

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end. Raises DiskError."""
        return self._file.read(ORIGIN_BYTES + position, length)

    def close(self) -> None:
        """Release the file. Does not block."""
        self._file.close()


class SnapshotStore:
    """The snapshot in place, one that is being saved, and one that is being received.

    The three may be used from different threads; each by one at a time.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._snapshot = posixpath.join(directory, SNAPSHOT_NAME)
        self._snapshot_meta: SnapshotMeta | None = None
        self._placing = threading.Lock()
        self._received: File | None = None

    @property
    def snapshot(self) -> SnapshotMeta | None:
        """The snapshot in place. Does not block."""
        return self._snapshot_meta

    # One's own

    def save_snapshot(self, meta: SnapshotMeta, pieces: Iterable[bytes]) -> bool:
        """Put a snapshot of applied entries in place of the last one, durably.

        False if there is one of the same or a newer entry by now: that one stays. Raises
        DiskFullError (nothing changed), DiskError, and what `pieces` raises.
        """
        assert not meta.received
        temporary = self._snapshot + TEMPORARY_SUFFIX
        write_aside(self._disk, temporary, encode_snapshot(meta, pieces))
        return self._place_snapshot(temporary, meta)

    def read_snapshot(self) -> tuple[SnapshotMeta, Iterator[bytes]] | None:
        """The snapshot in place, if any, and its pieces as they were saved, each verified.

        Only when the pieces are exhausted they are known to be all. Raises, at once or when a piece
        is asked for, LogError(STORAGE_FAILED) for damage, or DiskError.
        """
        opened = self._open_snapshot()
        if opened is None:
            return None
        file, meta, pieces = opened
        return meta, _pieces_of(file, pieces)

    # To and from other nodes

    def open_snapshot(self) -> SnapshotReader | None:
        """The snapshot in place, if any, to be sent. Raises LogError(STORAGE_FAILED), DiskError."""
        opened = self._open_snapshot()
        if opened is None:
            return None
        file, meta, _ = opened
        return SnapshotReader(file, meta)

    @property
    def received_bytes(self) -> int:
        """How much of a snapshot has arrived so far. Does not block."""
        return 0 if self._received is None else self._received.size - ORIGIN_BYTES

    def begin_received(self) -> None:
        """Begin with a snapshot that arrives in parts; drop one that never ended.

        Raises DiskFullError (then nothing is begun), DiskError.
        """
        self.cancel_received()
        self._received = self._disk.open(self._snapshot + RECEIVED_SUFFIX, create=True)
        try:
            self._received.append([encode_origin(received=True)])
        except DiskFullError:
            self.cancel_received()
            raise

    def append_received(self, data: bytes) -> None:
        """The next bytes of what the sender's SnapshotReader gives; durable only in the end.

        Raises ReceivedSnapshotError above RECEIVED_BYTES_MAX, DiskFullError (what came before
        stays: the same bytes may come again), DiskError.
        """
        assert self._received is not None, "not begun"
        if self.received_bytes + len(data) > RECEIVED_BYTES_MAX:
            self.cancel_received()
            raise ReceivedSnapshotError(f"it is longer than {RECEIVED_BYTES_MAX} bytes")
        self._received.append([data])

    def finish_received(self) -> SnapshotMeta | None:
        """Verify what arrived and put it in place durably.

        None: there is one of the same or a newer entry, which stays. Raises ReceivedSnapshotError,
        DiskFullError (begin again), DiskError.
        """
        file = self._received
        assert file is not None, "not begun"
        file.sync()
        try:
            meta = verify_snapshot(file)
        except SnapshotDamagedError as error:
            self.cancel_received()
            raise ReceivedSnapshotError(str(error)) from error
        assert meta.received
        file.close()
        self._received = None
        return meta if self._place_snapshot(self._snapshot + RECEIVED_SUFFIX, meta) else None

    def cancel_received(self) -> None:
        """Drop what has arrived; nothing if nothing has."""
        if self._received is not None:
            self._received.close()
            self._received = None
        self._disk.remove(self._snapshot + RECEIVED_SUFFIX)

    def close(self) -> None:
        """Release the files. Syncs nothing, does not block."""
        if self._received is not None:
            self._received.close()

    # Inside

    def _load_snapshot(self) -> None:
        """Look at the whole snapshot in place, if any, before a start changes anything."""
        if not self._disk.exists(self._snapshot):
            return
        file = self._disk.open(self._snapshot)
        try:
            self._snapshot_meta = verify_snapshot(file)
        except SnapshotDamagedError as error:
            raise _damaged(error) from error
        finally:
            file.close()

    def _remove_unfinished(self) -> None:
        self._disk.remove(self._snapshot + TEMPORARY_SUFFIX)
        self._disk.remove(self._snapshot + RECEIVED_SUFFIX)

    def _open_snapshot(self) -> tuple[File, SnapshotMeta, Iterator[bytes]] | None:
        if self._snapshot_meta is None:
            return None
        file = self._disk.open(self._snapshot)
        try:
            return file, *decode_snapshot(file.read, file.size)
        except SnapshotDamagedError as error:
            file.close()
            raise _damaged(error) from error
        except BaseException:
            file.close()
            raise

    def _place_snapshot(self, temporary: str, meta: SnapshotMeta) -> bool:
        with self._placing:
            if self._snapshot_meta is not None and meta.index <= self._snapshot_meta.index:
                self._disk.remove(temporary)
                return False
            put_in_place(self._disk, temporary, self._snapshot)
            self._snapshot_meta = meta
            return True


def gathered(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, in parts of about GATHER_BYTES."""
    chosen: list[bytes] = []
    size = 0
    for part in parts:
        chosen.append(part)
        size += len(part)
        if size >= GATHER_BYTES:
            yield b"".join(chosen)
            chosen, size = [], 0
    if chosen:
        yield b"".join(chosen)


def write_aside(disk: Disk, path: str, parts: Iterable[bytes]) -> int:
    """Write a file, synced, under a name that means nothing yet; return its size."""
    disk.remove(path)
    file = disk.open(path, create=True)
    try:
        for part in gathered(parts):
            file.append([part])
        file.sync()
    except BaseException:
        # Best effort: the error that matters is on its way up, and what is left over is removed by
        # the next writing or start.
        with suppress(DiskError):
            disk.remove(path)
        raise
    finally:
        file.close()
    return file.size


def put_in_place(disk: Disk, temporary: str, path: str) -> None:
    """Give a file that is durable its name, durably. Raises DiskFullError (nothing changed)."""
    try:
        disk.rename(temporary, path)
    except DiskFullError:
        with suppress(DiskError):
            disk.remove(temporary)
        raise
    disk.sync_directory(posixpath.dirname(path))


def verify_snapshot(file: File) -> SnapshotMeta:
    """Read all of a snapshot. Raises SnapshotDamagedError, DiskError."""
    meta, pieces = decode_snapshot(file.read, file.size)
    for _ in pieces:
        pass
    return meta


def _pieces_of(file: File, pieces: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from pieces
    except SnapshotDamagedError as error:
        raise _damaged(error) from error
    finally:
        file.close()


def _damaged(error: SnapshotDamagedError) -> LogError:
    return LogError(
        STORAGE_FAILED,
        f"The metadata snapshot is damaged: {error}. This node does not start, and nothing was "
        "changed. Restore the metadata directory from a copy; if other nodes of the cluster are "
        "well, start this one as a new node with an empty directory instead.",
    )
