"""What a message may do to pysyncobj: its safety rules, each in one place. Pure.

pysyncobj trusts what its peers send, and some of it cannot be trusted: answers that are late,
commit indexes that speak of entries not yet compared, votes counted twice. Each method here stops
one such defect (raftlog/quorum/DESIGN.md names its test, which fails with the method taken out).
"""

from __future__ import annotations

from typing import Protocol

from raftlog.quorum.messages import Append, AppendAnswer

REGULAR = 0
NO_OP = 1
VOTERS = 2
ENTRY_KINDS = frozenset({REGULAR, NO_OP, VOTERS})
"""The first byte of each entry's command."""


class Terms(Protocol):
    """The terms of a log's entries."""

    @property
    def first_index(self) -> int:
        """Index of the base entry: the newest that is only in the snapshot."""
        ...

    @property
    def last_index(self) -> int:
        """Index of the newest entry."""
        ...

    def term_at(self, index: int) -> int:
        """Term of the entry at `index`, from `first_index` to `last_index`."""
        ...


class Guards:
    """The rules, with what they must remember."""

    def __init__(self) -> None:
        self._votes: set[tuple[int, int]] = set()
        self._reset_at: dict[int, int] = {}

    def answer_counts(self, answer: AppendAnswer, term: int) -> bool:
        """Whether an answer is to what this term's leader sent.

        An answer from an earlier term acknowledges entries that may have been replaced since: to
        count it commits what is on no majority.
        """
        return answer.term == term

    def commit_index(self, append: Append) -> int:
        """How far an append lets its receiver commit.

        Only what the append compares or brings is known to be the leader's. What the receiver has
        behind it may be a stale tail.
        """
        return min(append.commit_index, append.previous_index + len(append.entries))

    def entries_known(self, append: Append) -> bool:
        """Whether all entries are of kinds that this version carries out."""
        return all(command[:1] and command[0] in ENTRY_KINDS for _, command in append.entries)

    def counts_vote(self, term: int, peer: int) -> bool:
        """Whether a vote is the first of that voter in that term."""
        vote = (term, peer)
        if vote in self._votes:
            return False
        self._votes = {known for known in self._votes if known[0] >= term}
        self._votes.add(vote)
        return True

    def counts_reset(self, peer: int, answer: AppendAnswer, newest_sequence: int) -> bool:
        """Whether the leader goes back as an answer asks.

        Several appends are under way at once. After the first failed and the leader went back, the
        failures of the others, sent before that, would send it back again and again.
        """
        if answer.sequence <= self._reset_at.get(peer, 0):
            return False
        self._reset_at[peer] = newest_sequence
        return True

    def next_index(self, before: int, after: int) -> int:
        """The index to send from after a success: it never goes back, as appends are pipelined."""
        return max(before, after)

    def hint(self, next_index: int, log: Terms, commit_index: int) -> int:
        """Where a receiver that does not match tells the leader to go back to.

        The whole conflicting term is skipped at once (section 5.3 of the Raft paper), but never
        what is committed: that matches.
        """
        if log.first_index < next_index <= log.last_index:
            term = log.term_at(next_index)
            while next_index - 1 > log.first_index and log.term_at(next_index - 1) == term:
                next_index -= 1
        return max(next_index, commit_index + 1)

    def forget(self, peer: int) -> None:
        """The connection ended: appends on it are answered no more."""
        self._reset_at.pop(peer, None)
