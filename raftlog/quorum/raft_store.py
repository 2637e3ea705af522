"""The journal and the snapshot on the disk. Calls block unless they say otherwise.

Two jobs may run at once, on two threads: one on the journal (`write`, `rewrite`), one on a snapshot
(`save_snapshot`, or the received one).

Any DiskError but DiskFullError is final: what the disk holds is then known to a new start only.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from raftlog.quorum.raft_journal import (
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
from raftlog.quorum.raft_snapshot import SnapshotMeta
from raftlog.quorum.raft_snapshot_store import (
    TEMPORARY_SUFFIX,
    ReceivedSnapshotError,
    SnapshotReader,
    SnapshotStore,
    gathered,
    put_in_place,
    write_aside,
)
from raftlog.quorum.voters import VoterSet
from raftlog.world import Disk, DiskError, DiskFullError, File

__all__ = ["Loaded", "QuorumStore", "ReceivedSnapshotError", "SnapshotReader"]

JOURNAL_NAME: Final = "journal"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a start finds: the newest snapshot, if there is one, and the journal, which fits it.

    The journal's base is not after the snapshot's entry, its last entry not before it.
    """

    snapshot: SnapshotMeta | None
    journal: JournalContent


class QuorumStore(SnapshotStore):
    """What a member of the quorum keeps. `raft_journal` has the rules of recovery."""

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
        """Room left on the disk. Asks the file system, but waits for no device."""
        return self._disk.free_bytes()

    def load(self, initial: VoterSet) -> Loaded:
        """Recover, once: everything returned is durable.

        Where there is nothing yet, a journal is made, which says that `initial` are the voters. The
        journal is replaced by what was read from it, if the disk has room for that; without room, a
        node must still be able to start and serve reads. Raises LogError(STORAGE_FAILED) for
        damage (then nothing was changed), DiskError.
        """
        assert self._file is None
        try:
            content = self._recover(initial)
            self._remove_unfinished()
            self._begin_with(content)
        except BaseException:
            self.close()
            raise
        return Loaded(self.snapshot, content)

    def write(self, records: Sequence[PendingRecord]) -> None:
        """Add records, durably. Raises DiskFullError (nothing was written) or DiskError."""
        if not records:
            return
        if self._not_rewritten is not None:
            # What is behind the last valid record would cut off all that is written after it.
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
            self._file.append(list(gathered(encoded)))
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
        # One that was received may be ahead until the log is reset to it.
        assert snapshot is None or snapshot.received or snapshot.index <= content.last_index
        with self._final_unless_full():
            self._replace_journal(content)

    def save_snapshot(self, meta: SnapshotMeta, pieces: Iterable[bytes]) -> bool:
        """As SnapshotStore has it. What it covers must be durable in the journal."""
        assert meta.index <= self._last_index, "a snapshot of what is not durable"
        return super().save_snapshot(meta, pieces)

    def close(self) -> None:
        """Release the files. Syncs nothing, does not block."""
        super().close()
        if self._file is not None:
            self._file.close()

    # Inside

    def _recover(self, initial: VoterSet) -> JournalContent:
        """What is on the disk, checked whole. Only the directory may have been made."""
        if self._disk.exists(self._directory):
            # A crash may have left a file whose new name is not durable. What is built on it later
            # would be: after losing power the node would find the one without the other.
            self._disk.sync_directory(self._directory)
        self._load_snapshot()
        if not self._disk.exists(self._journal):
            if self.snapshot is not None:
                raise damaged("is missing, though there is a snapshot")
            self._make_directory()
            return JournalContent(FIRST_INDEX, FIRST_TERM, initial, FIRST_TERM, None, ())
        self._file = self._disk.open(self._journal)
        recovered = recover(self._file.read(0, self._file.size))
        content = fitted(recovered.content, self.snapshot)
        torn = self._file.size - recovered.valid_bytes
        if torn:
            logger.warning(
                "%s: left out the last %d bytes, which a crash cut short before anybody was told "
                "of them",
                self._journal,
                torn,
            )
        return content

    def _begin_with(self, content: JournalContent) -> None:
        try:
            self._replace_journal(content)
        except DiskFullError:
            if self._file is None:
                raise
            logger.warning("%s: no room to rewrite it; starting without", self._journal)
            # A crash may have left records that were written and not synced. They are about to be
            # shown to others, so they must not be lost any more.
            self._file.sync()
            self._last_index = content.last_index
            self._not_rewritten = content

    def _replace_journal(self, content: JournalContent) -> None:
        """Put a journal of that content in place of the present one.

        At a start this also makes durable what a failed sync may have left in the page cache only,
        where reading it, and even syncing it once more, would not tell.
        """
        temporary = self._journal + TEMPORARY_SUFFIX
        size = write_aside(self._disk, temporary, encode_journal(content))
        put_in_place(self._disk, temporary, self._journal)
        old, self._file = self._file, self._disk.open(self._journal)
        assert self._file.size == size
        if old is not None:
            old.close()
        self._synced_bytes = size
        self._last_index = content.last_index
        self._not_rewritten = None

    def _mark(self) -> None:
        """Note behind the last records that they are durable; nobody waits for the note itself.

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
            # Only the witness is missing: what it would have said is true all the same, and the
            # next write meets the full disk and is told.
            logger.warning("%s: no room for a mark", self._journal)

    @contextmanager
    def _final(self) -> Iterator[None]:
        """Never use the journal again after a failure: nothing is known of it any more."""
        if self._failed:
            raise DiskError(f"{self._journal} is not used any more after a failure")
        try:
            yield
        except BaseException:
            self._failed = True
            raise

    @contextmanager
    def _final_unless_full(self) -> Iterator[None]:
        """The same, but a full disk has changed nothing."""
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


def fitted(journal: JournalContent, snapshot: SnapshotMeta | None) -> JournalContent:
    """The journal's content, if no entry is missing between it and the snapshot.

    A received snapshot may be ahead of the journal, or contradict entries that were never
    committed: the machine stopped before the journal was rewritten. Then the log is the snapshot's
    entry and nothing else; the vote stands, as far as the term does. A snapshot of one's own has
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
    logger.info("%s: going on from the received snapshot of entry %d", JOURNAL_NAME, index)
    return JournalContent(
        base_index=index,
        base_term=snapshot.term,
        voters_at_base=snapshot.voters,
        term=max(journal.term, snapshot.term),
        vote=journal.vote if journal.term >= snapshot.term else None,
        entries=(),
    )
