"""The journal and the snapshot on the disk. Every call but `append` and `mark` blocks.

Not for two callers at once, with one exception: `save_snapshot` may run beside the others, because
it touches a file of its own.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Sequence
from typing import Final

from raftlog.quorum.journal import (
    Entry,
    Kind,
    Recovered,
    damaged,
    encode_journal,
    encode_record,
    recover,
)
from raftlog.quorum.snapshot import Snapshot, decode_snapshot, encode_snapshot
from raftlog.world import Disk, DiskFullError, File

JOURNAL_NAME: Final = "journal"
SNAPSHOT_NAME: Final = "snapshot"

logger = logging.getLogger(__name__)


class QuorumStore:
    """What a single voter keeps. See `raftlog.quorum.journal` for the rules of recovery."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._journal = posixpath.join(directory, JOURNAL_NAME)
        self._snapshot = posixpath.join(directory, SNAPSHOT_NAME)
        self._file: File | None = None
        self._synced_bytes = 0
        self._term_begun = False
        self.term = 0
        self.last_index = 0
        self.snapshot_index = 0

    @property
    def journal_bytes(self) -> int:
        """Length of the journal."""
        return 0 if self._file is None else self._file.size

    @property
    def term_begun(self) -> bool:
        """Whether this start's term is durable; until then nothing may be appended."""
        return self._term_begun

    def load(self) -> tuple[Snapshot | None, list[Entry]]:
        """Recover: the snapshot, if there is one, and all entries after it, durable.

        Begins a new term if the disk has room for it; without room, a node must still be able to
        start and serve reads. Raises LogError(STORAGE_FAILED) for damage, DiskError.
        """
        if self._disk.exists(self._directory):
            # A crash may have left a file whose new name is not durable. What is built on it below
            # would be: after losing power the node would find the one without the other.
            self._disk.sync_directory(self._directory)
        snapshot = self._load_snapshot()
        if self._disk.exists(self._journal):
            self._file = self._disk.open(self._journal)
            recovered = self._read()
            self._check_fits_snapshot(recovered)
            self.term = recovered.term
        else:
            if snapshot is not None:
                raise damaged("is missing, though there is a snapshot")
            self._make_directory()
            recovered = Recovered(base_index=0, term=0, entries=(), valid_bytes=0)
        entries = self._after_snapshot(recovered)
        self.last_index = self.snapshot_index + len(entries)
        torn = self.journal_bytes - recovered.valid_bytes
        if torn:
            logger.warning(
                "%s: left out the last %d bytes, which a crash cut short before anybody was told "
                "of them",
                self._journal,
                torn,
            )
        try:
            self.begin_term()
        except DiskFullError:
            if self._file is None:
                raise
            logger.warning("%s: no room for a new term; starting without", self._journal)
            # A crash may have left entries that were written and not synced. They are about to be
            # applied and shown, so they must not be lost any more.
            self._file.sync()
        return snapshot, entries

    def begin_term(self) -> None:
        """Write the next term, durably. Raises DiskFullError (nothing changed) or DiskError."""
        self._rewrite(self.term + 1)
        self.term += 1
        self._term_begun = True

    def append(self, commands: Sequence[bytes]) -> None:
        """Write entries after the last one; durable only after `sync`.

        Raises DiskFullError (nothing was written) or DiskError.
        """
        assert self._file is not None and self._term_begun
        records = []
        index, position = self.last_index, self._file.size
        for command in commands:
            index += 1
            record = self._record(Kind.ENTRY, position, index, command)
            records.append(record)
            position += len(record)
        self._file.append(records)
        self.last_index = index

    def sync(self) -> None:
        """Return once all that was appended is durable. Raises DiskError, which is final."""
        assert self._file is not None
        self._file.sync()
        self._synced_bytes = self._file.size

    def mark(self) -> None:
        """Note behind the last entries that they are durable; nobody waits for the note itself.

        Should the end of the journal be damaged later, the mark shows that this was no crash.
        """
        assert self._file is not None and self._term_begun
        try:
            self._file.append([self._record(Kind.MARK, self._file.size, self.last_index)])
        except DiskFullError:
            # Only the witness is missing: what it would have said is true all the same, and the
            # next proposal meets the full disk and is told.
            logger.warning("%s: no room for a mark", self._journal)

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Put a snapshot in place of the last one, durably. Raises DiskFullError, DiskError."""
        self._disk.replace(self._snapshot, encode_snapshot(snapshot))
        self.snapshot_index = snapshot.index

    def trim(self) -> None:
        """Drop the entries that the snapshot covers. Raises DiskFullError (nothing changed)."""
        self._rewrite(self.term)

    def close(self) -> None:
        """Release the journal. Syncs nothing."""
        if self._file is not None:
            self._file.close()

    def _record(self, kind: Kind, position: int, index: int, command: bytes = b"") -> bytes:
        return encode_record(
            kind,
            position=position,
            synced=self._synced_bytes,
            index=index,
            term=self.term,
            payload=command,
        )

    def _rewrite(self, term: int) -> None:
        """Replace the journal by one of the same entries, without what is in the snapshot.

        At a start this also makes durable what a failed sync may have left in the page cache only,
        where reading it, and even syncing it once more, would not tell.
        """
        # Once only: a snapshot that is saved meanwhile must not cut what this rewrite keeps.
        base_index = self.snapshot_index
        entries = [entry for entry in self._read().entries if entry.index > base_index]
        assert base_index + len(entries) == self.last_index, "the journal lost entries"
        content = encode_journal(base_index=base_index, term=term, entries=entries)
        self._disk.replace(self._journal, content)
        old, self._file = self._file, self._disk.open(self._journal)
        assert self._file.size == len(content)
        if old is not None:
            old.close()
        self._synced_bytes = len(content)

    def _read(self) -> Recovered:
        if self._file is None:
            return Recovered(base_index=0, term=0, entries=(), valid_bytes=0)
        return recover(self._file.read(0, self._file.size))

    def _after_snapshot(self, recovered: Recovered) -> list[Entry]:
        return [entry for entry in recovered.entries if entry.index > self.snapshot_index]

    def _load_snapshot(self) -> Snapshot | None:
        if not self._disk.exists(self._snapshot):
            return None
        file = self._disk.open(self._snapshot)
        try:
            snapshot = decode_snapshot(file.read(0, file.size))
        finally:
            file.close()
        self.snapshot_index = snapshot.index
        return snapshot

    def _check_fits_snapshot(self, recovered: Recovered) -> None:
        """Between the snapshot and the journal no entry may be missing."""
        last_index = recovered.base_index + len(recovered.entries)
        if recovered.base_index > self.snapshot_index:
            raise damaged(
                f"begins after entry {recovered.base_index}, but the snapshot ends with entry "
                f"{self.snapshot_index}"
            )
        if last_index < self.snapshot_index:
            raise damaged(
                f"ends with entry {last_index}, but the snapshot has entry {self.snapshot_index}"
            )

    def _make_directory(self) -> None:
        self._disk.make_directory(self._directory)
        above = self._directory
        while above:
            above = posixpath.dirname(above)
            self._disk.sync_directory(above)
