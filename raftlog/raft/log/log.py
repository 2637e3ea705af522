# ruff: noqa: N802 - pysyncobj's names, which it calls
"""The log, term and vote of one member, in memory. Pure.

It replaces pysyncobj's journal. The copy in memory is current at once, and the disk follows. Each
change adds a pending record, and each record has a number, the lsn. Each message rests on the log
as of some lsn, and leaves the node when that record is durable.

Entries in conflict with a leader's are replaced (Raft's rule, figure 2 of the paper,
"AppendEntries"). This log decides about them in `add`. An entry with the same index and term is the
same entry, and is kept with all entries after it, so that a delayed repeat of an old append removes
no entry acknowledged since.

The newest voter set in the log is in force as soon as it is added, and goes when its entry goes
(Ongaro 2014, section 4.1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, overload

from raftlog.raft.log.journal import (
    FIRST_INDEX,
    JournalContent,
    LogEntry,
    PendingRecord,
    VoteRecord,
)
from raftlog.raft.log.store import Loaded
from raftlog.raft.voters import VoterSet, decode_voters, encode_voters

REGULAR: Final = 0
NO_OP: Final = 1
VOTERS: Final = 2
ENTRY_KINDS: Final = frozenset({REGULAR, NO_OP, VOTERS})
"""The first byte of each entry's command."""

BASE_COMMAND: Final = bytes((NO_OP,))
"""The base's command, which is only in the snapshot. Never sent or applied."""
_VOTERS: Final = bytes((VOTERS,))


def voters_command(voters: VoterSet) -> bytes:
    """The command of an entry that changes the voters."""
    return _VOTERS + encode_voters(voters)


class RaftLog:
    """The entries from the base to the newest entry. The base itself is only in the snapshot.

    The log touches no disk. One store job runs at a time: `take_pending` or `content`, then the
    store's write or rewrite in a thread, then `written`. After a full disk the same records are
    taken again.

    `lsn` counts the records so far. All records up to `durable_lsn` are durable. Entries up to
    `durable_index` are durable as they stand in the log now.
    """

    def __init__(self, loaded: Loaded) -> None:
        journal = loaded.journal
        self.lsn = 0
        self.durable_lsn = 0
        self.term_lsn = 0
        """The record of the present term. It is durable before any message of the term leaves."""
        self.durable_index = journal.last_index
        self._base = journal.base_index
        self._log: list[LogEntry] = [(BASE_COMMAND, journal.base_index, journal.base_term)]
        self._log += journal.entries
        self._term, self._vote = journal.term, journal.vote
        self._commit_index = self._base if loaded.snapshot is None else loaded.snapshot.index
        self._pending: list[PendingRecord] = []
        self._rewrite_lsn = 0
        self._voter_listeners: list[Callable[[], None]] = []
        self._voter_sets = [(journal.base_index, journal.voters_at_base)]
        self._voter_sets += [
            (index, decode_voters(command[1:]))
            for command, index, _ in journal.entries
            if command[:1] == _VOTERS
        ]

    def on_voters_changed(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of the newest voter set. It must not raise."""
        self._voter_listeners.append(listener)

    # pysyncobj's interface of a journal

    def add(self, command: bytes, index: int, term: int) -> None:
        """Put an entry in the log as a known entry, a replacement, or the newest.

        The snapshot covers entries below the base, with committed entries only. Raises
        LogError(STORAGE_FAILED) for a voter set of a newer release.
        """
        log = self._log
        position = index - self._base
        if position < len(log):
            if position < 0:
                return
            known_command, _, known_term = log[position]
            if known_term == term:
                assert position == 0 or known_command == command, f"two entries {index} of {term}"
                return
        else:
            assert position == len(log), f"entry {index} after {self.last_index}"
        voters_before = self.voters
        voters = decode_voters(command[1:]) if command[:1] == _VOTERS else None
        if position < len(log):
            self._truncate(index)
        assert term >= log[-1][2], f"entry {index} of {term} after one of {log[-1][2]}"
        entry = (command, index, term)
        log.append(entry)
        self._pending.append(entry)
        self.lsn += 1
        if term > self._term:
            # Its leader's term has begun, without a vote of this member (recovery decides the
            # same).
            self._term, self._vote = term, None
        if voters is not None:
            self._voter_sets.append((index, voters))
        self._notify_if_changed(voters_before)

    @overload
    def __getitem__(self, item: int) -> LogEntry: ...
    @overload
    def __getitem__(self, item: slice) -> list[LogEntry]: ...
    def __getitem__(self, item: int | slice) -> LogEntry | list[LogEntry]:
        return self._log[item]

    def __len__(self) -> int:
        return len(self._log)

    def setCurrentTerm(self, term: int, vote: int | None) -> None:
        """Enter a term, or vote in the present term. Neither is ever taken back."""
        if (term, vote) == (self._term, self._vote):
            return
        assert term >= self._term, f"term {term} after {self._term}"
        assert term > self._term or self._vote is None, f"a second vote in term {term}"
        self._term, self._vote = term, vote
        self._pending.append(VoteRecord(term, vote))
        self.lsn += 1
        self.term_lsn = self.lsn

    def getCurrentTerm(self) -> int:
        """The newest term known."""
        return self._term

    def getVotedForNodeId(self) -> int | None:
        """The vote of this member in the newest term."""
        return self._vote

    def setRaftCommitIndex(self, index: int) -> None:
        """Remember the commit index. Entries up to this index are never replaced.

        The index is not written. After a start, a leader sends it.
        """
        self._commit_index = max(self._commit_index, index)

    def getRaftCommitIndex(self) -> int:
        """The commit index for pysyncobj's start. A leader sends the newer index."""
        return FIRST_INDEX

    def deleteEntriesFrom(self, _number: int) -> None:
        """Do nothing, since `add` replaces entries in conflict with a leader's, and no others."""

    def deleteEntriesTo(self, _number: int) -> None:
        """Never: `trim` does this."""
        raise AssertionError("pysyncobj trims the log")

    def clear(self) -> None:
        """Never: `reset` does this."""
        raise AssertionError("pysyncobj clears the log")

    def onOneSecondTimer(self) -> None:
        """Do nothing."""

    def _destroy(self) -> None:
        """Do nothing."""

    # Content

    @property
    def first_index(self) -> int:
        """Index of the base."""
        return self._base

    @property
    def last_index(self) -> int:
        """Index of the newest entry."""
        return self._log[-1][1]

    @property
    def last_term(self) -> int:
        """Term of the newest entry."""
        return self._log[-1][2]

    def entry(self, index: int) -> LogEntry:
        """The entry at `index`, above the base."""
        assert index > self._base, f"entry {index} is only in the snapshot"
        return self._log[index - self._base]

    def term_at(self, index: int) -> int:
        """Term of an entry from the base to the newest."""
        assert index >= self._base, f"entry {index} is only in the snapshot"
        return self._log[index - self._base][2]

    def entries_from(
        self, index: int, *, count_max: int, bytes_max: int
    ) -> list[tuple[int, bytes]]:
        """Term and command of the entries from `index` on, in order.

        Returns at most `count_max` entries of at most `bytes_max` in all, or a single longer entry.
        """
        assert index > self._base, f"entry {index} is only in the snapshot"
        start = index - self._base
        chosen: list[tuple[int, bytes]] = []
        size = 0
        for command, _, term in self._log[start : start + count_max]:
            size += len(command)
            if chosen and size > bytes_max:
                break
            chosen.append((term, command))
        return chosen

    @property
    def voters(self) -> VoterSet:
        """The newest voter set in the log."""
        return self._voter_sets[-1][1]

    @property
    def voters_index(self) -> int:
        """Index of the newest voter set's entry, at least the base's."""
        return self._voter_sets[-1][0]

    def voters_at(self, index: int) -> VoterSet:
        """The newest voter set at or below `index`, which is not below the base."""
        assert index >= self._base, f"entry {index} is only in the snapshot"
        return next(voters for at, voters in reversed(self._voter_sets) if at <= index)

    # Durability

    @property
    def rewrite_due(self) -> bool:
        """Whether the journal no longer fits and must be rewritten from `content`."""
        return self.durable_lsn < self._rewrite_lsn

    def take_pending(self) -> tuple[list[PendingRecord], int]:
        """The pending records, for the store's write, and the lsn they reach.

        The log keeps the records until `written`, so after a full disk the next call returns the
        same records.
        """
        assert not self.rewrite_due, "a gap in the journal"
        return self._pending.copy(), self.lsn

    def content(self) -> tuple[JournalContent, int]:
        """The whole log, for the store's rewrite, and its lsn."""
        content = JournalContent(
            base_index=self._base,
            base_term=self._log[0][2],
            voters_at_base=self._voter_sets[0][1],
            term=self._term,
            vote=self._vote,
            entries=self._log[1:],
        )
        return content, self.lsn

    def written(self, lsn: int) -> None:
        """Take note of durable records up to `lsn`, written or covered by a rewrite."""
        assert self.durable_lsn <= lsn <= self.lsn
        done = self._pending[: lsn - self.durable_lsn]
        del self._pending[: lsn - self.durable_lsn]
        self.durable_lsn = lsn
        for record in reversed(done):
            # Entries still in the log were added in order, so the last of these has all before it.
            # A replaced entry is a different object, and proves nothing.
            if not isinstance(record, VoteRecord) and self._has(record):
                self.durable_index = max(self.durable_index, record[1])
                break

    def trim(self, index: int) -> None:
        """Move the base up to `index`, which a snapshot in place covers durably."""
        assert self._base <= index <= self.durable_index
        self._set_base(index, self.term_at(index), self.voters_at(index))

    def reset(self, index: int, term: int, voters: VoterSet) -> None:
        """Continue from another node's snapshot, in place durably, with `index` as the base.

        Entries after an entry of that index and term stay. Without such an entry, none stay. The
        reset counts as a record. The journal must be rewritten, and messages from now on wait for
        the rewrite.
        """
        assert index >= self._base
        voters_before = self.voters
        if index <= self.last_index and self.term_at(index) == term:
            self.durable_index = max(self.durable_index, index)
        else:
            assert index > self._commit_index, f"committed entry {index} is not the snapshot's"
            self._log = [(BASE_COMMAND, index, term)]
            self._base = index
            self._voter_sets.clear()
            self.durable_index = index
        self._set_base(index, term, voters)
        self._commit_index = max(self._commit_index, index)
        if term > self._term:
            self._term, self._vote = term, None
        self._pending.append(VoteRecord(self._term, self._vote))
        self.lsn += 1
        self.term_lsn = self.lsn
        self._rewrite_lsn = self.lsn
        self._notify_if_changed(voters_before)

    # Inside

    def _has(self, entry: LogEntry) -> bool:
        position = entry[1] - self._base
        return 0 < position < len(self._log) and self._log[position] is entry

    def _truncate(self, index: int) -> None:
        """Drop the entries from `index` on."""
        assert index > self._commit_index, f"entry {index} is committed"
        assert index > self._base
        del self._log[index - self._base :]
        self.durable_index = min(self.durable_index, index - 1)
        while self._voter_sets[-1][0] >= index:
            self._voter_sets.pop()

    def _set_base(self, index: int, term: int, voters: VoterSet) -> None:
        self._voter_sets = [(index, voters)] + [
            each for each in self._voter_sets if each[0] > index
        ]
        self._log = [(BASE_COMMAND, index, term), *self._log[index - self._base + 1 :]]
        self._base = index

    def _notify_if_changed(self, before: VoterSet) -> None:
        if self.voters != before:
            for listener in self._voter_listeners:
                listener()
