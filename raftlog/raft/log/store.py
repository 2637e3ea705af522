"""The journal and the snapshot on the disk. Calls block unless noted.

Two jobs may run at once, on two threads. One works on the journal (`write`, `rewrite`), the other
on a snapshot (`save_snapshot`, or the received snapshot). A snapshot only ever gives way to a newer
snapshot, whichever of two jobs finishes first, because the journal may already have been trimmed by
the newer snapshot.

Any DiskError but DiskFullError is final: only a new start knows the disk's content then.
"""

from __future__ import annotations

import logging
import posixpath
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from raftlog.raft.log.journal import (
    FIRST_INDEX,
    FIRST_TERM,
    JournalContent,
    PendingRecord,
    VoteRecord,
    damaged,
    encode_journal,
    encode_mark,
    encode_pending,
    recover,
)
from raftlog.raft.snapshots.format import (
    ORIGIN_BYTES,
    SnapshotDamagedError,
    SnapshotMeta,
    decode_snapshot,
    encode_origin,
    encode_snapshot,
)
from raftlog.raft.voters import VoterSet
from raftlog.record.errors import STORAGE_FAILED, LogError
from raftlog.world import Disk, DiskError, DiskFullError, File

JOURNAL_NAME: Final = "journal"
SNAPSHOT_NAME: Final = "snapshot"
TEMPORARY_SUFFIX: Final = ".tmp"
RECEIVED_SUFFIX: Final = ".received"
BATCH_BYTES: Final = 1024 * 1024
"""Bytes copied into one buffer and written at once. Few system calls, and no large copies."""
RECEIVED_BYTES_MAX: Final = 1024**3
"""Most bytes of a received snapshot. No image is so large, and a defect must not fill the disk."""

logger = logging.getLogger(__name__)


class ReceivedSnapshotError(Exception):
    """The received bytes are not a whole, undamaged snapshot. They were dropped.

    Request them again.
    """


class SnapshotReader:
    """A snapshot to send, which is the file without its origin. A replaced snapshot stays readable.

    The reader does not verify the file, since the receiver does.
    """

    def __init__(self, file: File, meta: SnapshotMeta) -> None:
        self.meta = meta
        self._file = file

    @property
    def size(self) -> int:
        """Bytes to send."""
        return self._file.size - ORIGIN_BYTES

    def read(self, position: int, length: int) -> bytes:
        """Read up to `length` bytes from `position`. Fewer only at the end. Raises DiskError."""
        return self._file.read(ORIGIN_BYTES + position, length)

    def close(self) -> None:
        """Release the file. Does not block."""
        self._file.close()


class SnapshotStore:
    """The snapshot in place, the snapshot being saved, and the snapshot being received.

    Each may be used from a separate thread, by one caller at a time.
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

    # This member's own snapshot

    def save_snapshot(self, meta: SnapshotMeta, pieces: Iterable[bytes]) -> bool:
        """Put a snapshot of applied entries durably in place of the last snapshot.

        Returns False if there is a snapshot of the same or a newer entry by now, which stays.
        Raises DiskFullError (nothing changed), DiskError, and the errors of `pieces`.
        """
        assert not meta.received
        temporary = self._snapshot + TEMPORARY_SUFFIX
        write_temporary(self._disk, temporary, encode_snapshot(meta, pieces))
        return self._place_snapshot(temporary, meta)

    def read_snapshot(self) -> tuple[SnapshotMeta, Iterator[bytes]] | None:
        """The snapshot in place, if any, and its pieces as saved, each verified.

        Only once the pieces are exhausted is it certain that no piece is missing. Raises, at once
        or from the iterator, LogError(STORAGE_FAILED) for damage, or DiskError.
        """
        opened = self._open_snapshot()
        if opened is None:
            return None
        file, meta, pieces = opened
        return meta, _pieces_of(file, pieces)

    # To and from other nodes

    def open_snapshot(self) -> SnapshotReader | None:
        """Open the snapshot in place, if any, to send it. Raises LogError(STORAGE_FAILED),
        DiskError."""
        opened = self._open_snapshot()
        if opened is None:
            return None
        file, meta, _ = opened
        return SnapshotReader(file, meta)

    @property
    def received_bytes(self) -> int:
        """Bytes of a snapshot received so far. Does not block."""
        return 0 if self._received is None else self._received.size - ORIGIN_BYTES

    def begin_received(self) -> None:
        """Start to receive a snapshot in parts. Drop an unfinished snapshot.

        Raises DiskFullError (then nothing is started), DiskError.
        """
        self.cancel_received()
        self._received = self._disk.open(self._snapshot + RECEIVED_SUFFIX, create=True)
        try:
            self._received.append([encode_origin(received=True)])
        except DiskFullError:
            self.cancel_received()
            raise

    def append_received(self, data: bytes) -> None:
        """Append the next bytes of the sender's SnapshotReader. They are durable only in the end.

        Raises ReceivedSnapshotError above RECEIVED_BYTES_MAX. Raises DiskFullError with earlier
        bytes kept, so the same bytes may come again. Raises DiskError.
        """
        assert self._received is not None, "not begun"
        if self.received_bytes + len(data) > RECEIVED_BYTES_MAX:
            self.cancel_received()
            raise ReceivedSnapshotError(f"it is longer than {RECEIVED_BYTES_MAX} bytes")
        self._received.append([data])

    def finish_received(self) -> SnapshotMeta | None:
        """Verify the received snapshot and put it in place durably.

        Returns None if there is a snapshot of the same or a newer entry, which stays. Raises
        ReceivedSnapshotError, DiskFullError (start again), DiskError.
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
        """Drop the bytes received so far, if any."""
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
        """Verify the whole snapshot in place, if any, before a start changes anything."""
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


def in_batches(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Group the same bytes into parts of about BATCH_BYTES."""
    chosen: list[bytes] = []
    size = 0
    for part in parts:
        chosen.append(part)
        size += len(part)
        if size >= BATCH_BYTES:
            yield b"".join(chosen)
            chosen, size = [], 0
    if chosen:
        yield b"".join(chosen)


def write_temporary(disk: Disk, path: str, parts: Iterable[bytes]) -> int:
    """Write a file, synced, under a temporary name. Return its size."""
    disk.remove(path)
    file = disk.open(path, create=True)
    try:
        for part in in_batches(parts):
            file.append([part])
        file.sync()
    except BaseException:
        # Best effort, since the error that matters is being raised, and the next write or start
        # removes the leftover.
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


@dataclass(frozen=True, slots=True)
class Loaded:
    """The newest snapshot, if there is one, and the journal, which fits it.

    The journal's base is not after the snapshot's entry, its last entry not before it.
    """

    snapshot: SnapshotMeta | None
    journal: JournalContent


class QuorumStore(SnapshotStore):
    """The files of one member. `journal` has the rules of recovery."""

    def __init__(self, disk: Disk, directory: str) -> None:
        super().__init__(disk, directory)
        self._journal = posixpath.join(directory, JOURNAL_NAME)
        self._file: File | None = None
        self._synced_bytes = 0
        self._last_index = FIRST_INDEX
        self._not_rewritten: JournalContent | None = None
        self._failed = False

    @property
    def journal_bytes(self) -> int:
        """Length of the journal. Does not block."""
        return 0 if self._file is None else self._file.size

    def free_bytes(self) -> int:
        """Free bytes of the disk. Reads the file system, but waits for no device."""
        return self._disk.free_bytes()

    def load(self, initial: VoterSet) -> Loaded:
        """Recover, once. Everything returned is durable.

        In an empty directory, a journal is made with `initial` as the voters. The journal is
        replaced by its recovered content, if the disk has room for that. Without room, a node must
        still be able to start and serve reads. Raises LogError(STORAGE_FAILED) for damage (then
        nothing was changed), DiskError.
        """
        assert self._file is None
        try:
            content = self._recover(initial)
            self._remove_unfinished()
            self._open_with(content)
        except BaseException:
            self.close()
            raise
        return Loaded(self.snapshot, content)

    def write(self, records: Sequence[PendingRecord]) -> None:
        """Add records, durably. Raises DiskFullError (nothing was written) or DiskError."""
        if not records:
            return
        if self._not_rewritten is not None:
            # Bytes behind the last valid record would cut off all records written after it.
            self.rewrite(self._not_rewritten)
        assert self._file is not None
        position, last_index = self._file.size, self._last_index
        encoded = []
        for record in records:
            encoded.append(
                encode_pending(
                    record, position=position, synced=self._synced_bytes, last_index=last_index
                )
            )
            position += len(encoded[-1])
            if not isinstance(record, VoteRecord):
                assert record[1] <= last_index + 1, "a gap in the journal"
                last_index = record[1]
        with self._final_unless_full():
            self._file.append(list(in_batches(encoded)))
        with self._final():
            self._file.sync()
        self._synced_bytes, self._last_index = position, last_index
        self._mark()

    def rewrite(self, content: JournalContent) -> None:
        """Replace the journal, durably. Raises DiskFullError (it is as before) or DiskError."""
        snapshot = self.snapshot
        assert content.base_index <= (FIRST_INDEX if snapshot is None else snapshot.index), (
            "entries would be lost"
        )
        # A received snapshot may be ahead until the log is reset to it.
        assert snapshot is None or snapshot.received or snapshot.index <= content.last_index
        with self._final_unless_full():
            self._replace_journal(content)

    def save_snapshot(self, meta: SnapshotMeta, pieces: Iterable[bytes]) -> bool:
        """Save a snapshot as SnapshotStore does.

        Entries up to its entry must be durable in the journal.
        """
        assert meta.index <= self._last_index, "a snapshot of what is not durable"
        return super().save_snapshot(meta, pieces)

    def close(self) -> None:
        """Release the files. Syncs nothing, does not block."""
        super().close()
        if self._file is not None:
            self._file.close()

    # Inside

    def _recover(self, initial: VoterSet) -> JournalContent:
        """The content of the disk, checked whole. Changes nothing, but may make the directory."""
        if self._disk.exists(self._directory):
            # A crash may have left a file whose new name is not durable. Later files that build on
            # it would be durable, so after losing power the node would find only those.
            self._disk.sync_directory(self._directory)
        self._load_snapshot()
        if not self._disk.exists(self._journal):
            if self.snapshot is not None:
                raise damaged("is missing, though there is a snapshot")
            self._make_directory()
            return JournalContent(
                base_index=FIRST_INDEX,
                base_term=FIRST_TERM,
                voters_at_base=initial,
                term=FIRST_TERM,
                vote=None,
                entries=(),
            )
        self._file = self._disk.open(self._journal)
        recovered = recover(self._file.read(0, self._file.size))
        content = reconciled(recovered.content, self.snapshot)
        torn = self._file.size - recovered.valid_bytes
        if torn:
            logger.warning(
                "%s: left out the last %d bytes, a torn write, never synced or acknowledged",
                self._journal,
                torn,
            )
        return content

    def _open_with(self, content: JournalContent) -> None:
        try:
            self._replace_journal(content)
        except DiskFullError:
            if self._file is None:
                raise
            logger.warning("%s: disk full, starting without rewriting the journal", self._journal)
            # A crash may have left records that were written and not synced. Peers are about to
            # receive these, so they must not be lost any more.
            self._file.sync()
            self._last_index = content.last_index
            self._not_rewritten = content

    def _replace_journal(self, content: JournalContent) -> None:
        """Put a journal of that content in place of the present journal.

        At a start this also makes durable the records that a failed sync may have left in the page
        cache only, where neither reading nor another sync would reveal the loss.
        """
        temporary = self._journal + TEMPORARY_SUFFIX
        size = write_temporary(self._disk, temporary, encode_journal(content))
        put_in_place(self._disk, temporary, self._journal)
        old, self._file = self._file, self._disk.open(self._journal)
        assert self._file.size == size
        if old is not None:
            old.close()
        self._synced_bytes = size
        self._last_index = content.last_index
        self._not_rewritten = None

    def _mark(self) -> None:
        """Append a mark that the last records are durable. The mark itself is not synced.

        Should the end of the journal be damaged later, the mark shows that this was no crash.
        """
        assert self._file is not None
        mark = encode_mark(
            position=self._file.size, synced=self._synced_bytes, last_index=self._last_index
        )
        try:
            with self._final_unless_full():
                self._file.append([mark])
        except DiskFullError:
            # Only the mark is missing. The records are durable all the same, and the next write
            # meets the full disk and reports it.
            logger.warning("%s: disk full, journal written without its sync mark", self._journal)

    @contextmanager
    def _final(self) -> Iterator[None]:
        """Never use the journal again after a failure, since its content is unknown then."""
        if self._failed:
            raise DiskError(f"{self._journal} is not used any more after a failure")
        try:
            yield
        except BaseException:
            self._failed = True
            raise

    @contextmanager
    def _final_unless_full(self) -> Iterator[None]:
        """Do the same as `_final`, but a full disk has changed nothing."""
        full: DiskFullError | None = None
        with self._final():
            try:
                yield
            except DiskFullError as error:
                full = error
        if full is not None:
            raise full

    def _make_directory(self) -> None:
        self._disk.make_directory(self._directory)
        above = self._directory
        while above:
            above = posixpath.dirname(above)
            self._disk.sync_directory(above)


def reconciled(journal: JournalContent, snapshot: SnapshotMeta | None) -> JournalContent:
    """The journal's content, if no entry is missing between it and the snapshot.

    A received snapshot may be ahead of the journal, or contradict entries that were never
    committed, because the machine stopped before the journal was rewritten. Then the log is only
    the snapshot's entry. The vote stands, as far as the term does. This member's own snapshot has
    only entries that were durable in the journal first.
    """
    index = FIRST_INDEX if snapshot is None else snapshot.index
    if journal.base_index > index:
        raise damaged(
            f"begins after entry {journal.base_index}, but the snapshot ends with entry {index}"
        )
    if snapshot is None:
        return journal
    if index <= journal.last_index and journal.term_at(index) == snapshot.term:
        return journal
    if not snapshot.received and index > journal.last_index:
        raise damaged(f"ends with entry {journal.last_index}, but the snapshot has entry {index}")
    if not snapshot.received or index == journal.base_index:
        raise damaged(f"has another entry {index} than the snapshot")
    logger.info("%s: continuing from the received snapshot of entry %d", JOURNAL_NAME, index)
    return JournalContent(
        base_index=index,
        base_term=snapshot.term,
        voters_at_base=snapshot.voters,
        term=max(journal.term, snapshot.term),
        vote=journal.vote if journal.term >= snapshot.term else None,
        entries=(),
    )
