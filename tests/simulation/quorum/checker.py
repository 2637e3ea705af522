"""Raft's invariants over all members, checked after every event.

The names are those of figure 3.2 of Ongaro's dissertation. "Durable" is the content to which a
member's journal would be recovered; the checker follows the members' own value
(`RaftLog.durable_index`), and compares it with the content of a restarted member.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from raftlog.raft.core import RaftCore
from raftlog.raft.log.log import RaftLog
from raftlog.raft.messages import Message, RequestVote, Vote

Entry = tuple[bytes, int, int]


@dataclass
class MemberView:
    """The checker's knowledge of one node, over all its lives."""

    durable: dict[int, int] = field(default_factory=dict)
    """Index to term of the durable entries in its journal; older ones fall away."""
    durable_base: int = 1
    durable_last: int = 1
    term: int = 0
    votes: dict[int, int] = field(default_factory=dict)
    """Term to the node of its vote, as its messages showed."""
    seen: dict[int, Entry] = field(default_factory=dict)
    committed: int = 1
    applied: int = 1
    led_term: int = 0
    stamp: tuple[Any, ...] = ()


class InvariantError(AssertionError):
    """An invariant of Raft was violated."""


class Checker:
    """Watches members. Raises InvariantError."""

    def __init__(self) -> None:
        self.views: dict[int, MemberView] = {}
        self.committed: dict[int, tuple[int, bytes]] = {}
        """Index to term and command, of every entry taken for committed by any member."""
        self.committed_in: dict[int, int] = {}
        self.last_committed = 1
        self.leaders: dict[int, int] = {}
        self.entries: dict[tuple[int, int], tuple[bytes, int | None]] = {}
        """Index and term to command and the term of the entry before."""
        self.states: dict[int, str] = {}
        self.applied: dict[int, bytes] = {}
        self.applied_at: dict[bytes, int] = {}
        self.acknowledged: dict[bytes, int] = {}
        self.refused: set[bytes] = set()
        self.unchecked: list[tuple[int, bytes]] = []
        """Entries applied in the present event: their commitment is checked after it."""
        self.elections = 0

    def view(self, node_id: int) -> MemberView:
        return self.views.setdefault(node_id, MemberView())

    # Events

    def recovered(self, node_id: int, log: RaftLog) -> None:
        """A member was opened: its log must have the durable entries."""
        view = self.view(node_id)
        if log.getCurrentTerm() < view.term:
            self._fail(f"node {node_id} recovered term {log.getCurrentTerm()} after {view.term}")
        voted = view.votes.get(log.getCurrentTerm())
        if voted is not None and log.getVotedForNodeId() != voted:
            self._fail(
                f"node {node_id} voted for {voted} in term {log.getCurrentTerm()}, and recovered "
                f"a vote for {log.getVotedForNodeId()}"
            )
        for index, term in sorted(view.durable.items()):
            if index < log.first_index:
                continue
            if index > log.last_index:
                self._fail(f"node {node_id} lost durable entry {index} of term {term}")
            recovered = log.term_at(index)
            if recovered < term:
                self._fail(f"node {node_id} had durable {index} of {term}, recovered {recovered}")
            if recovered > term:
                # A conflicting append became durable just before the end. The entries behind are
                # gone.
                break
        self._forget_what_never_left(view, log)
        view.seen.clear()
        view.stamp = ()
        view.committed = view.applied = log.first_index
        view.led_term = 0

    def sent(self, node_id: int, peer: int, message: Message) -> None:
        """A message leaves a node: it must agree with all earlier ones."""
        view = self.view(node_id)
        if message.term < view.term and not isinstance(message, Vote):
            self._fail(f"node {node_id} speaks of term {message.term} after {view.term}")
        view.term = max(view.term, message.term)
        if isinstance(message, RequestVote | Vote):
            candidate = node_id if isinstance(message, RequestVote) else peer
            if view.votes.setdefault(message.term, candidate) != candidate:
                self._fail(
                    f"node {node_id} votes for {view.votes[message.term]} and {candidate} in "
                    f"term {message.term}"
                )

    def was_applied(self, index: int, command: bytes, state: str) -> None:
        """A state machine has applied a command."""
        if self.applied.setdefault(index, command) != command:
            self._fail(f"{command!r} at {index}, where another applied {self.applied[index]!r}")
        if self.states.setdefault(index, state) != state:
            self._fail(f"different states after entry {index}")
        if self.applied_at.setdefault(command, index) != index:
            self._fail(f"{command!r} at {self.applied_at[command]} and at {index}")
        self.unchecked.append((index, command))

    def was_acknowledged(self, command: bytes, index: int) -> None:
        """A client's command was acknowledged as applied."""
        if self.applied.get(index) != command:
            self._fail(f"{command!r} was acknowledged at {index}, where it was not applied")
        self.acknowledged[command] = index

    def was_refused(self, command: bytes) -> None:
        """A client's command was refused: it must never be applied."""
        self.refused.add(command)

    def after_event(self, node_id: int, core: RaftCore) -> None:
        """Something has happened in a member."""
        log, view = core.log, self.view(node_id)
        stamp = (log.lsn, log.durable_lsn, log.first_index, core.commit_index, core.term,
                 core.is_leader)  # fmt: skip
        if stamp == view.stamp and not self.unchecked:
            return
        view.stamp = stamp
        if core.term < view.term:
            self._fail(f"node {node_id} goes back from term {view.term} to {core.term}")
        self._check_log(node_id, view, log)
        self._note_durable(view, log)
        self._check_commits(node_id, view, core)
        self._check_leader(node_id, view, core)
        for index, command in self.unchecked:
            if self.committed.get(index, (0, b""))[1][1:] != command:
                self._fail(f"{command!r} was applied at {index} before it was committed")
        self.unchecked.clear()

    # At the end

    def check_outcomes(self) -> None:
        """Acknowledgements to clients must hold, once all has been applied everywhere."""
        for command, index in self.acknowledged.items():
            if self.committed[index][1][1:] != command:
                self._fail(f"acknowledged {command!r} is not the committed entry {index}")
        for command in self.refused:
            if command in self.applied_at:
                self._fail(f"{command!r} was refused, and applied at {self.applied_at[command]}")

    # Inside

    def _forget_what_never_left(self, view: MemberView, log: RaftLog) -> None:
        """Entries in this member's memory alone have never been: a new one may differ."""
        for index, (_, _, term) in sorted(view.seen.items()):
            is_there = index <= log.last_index and (
                index < log.first_index or log.term_at(index) == term
            )
            others = [other.seen.get(index) for other in self.views.values() if other is not view]
            if not is_there and not any(entry and entry[2] == term for entry in others):
                self.entries.pop((index, term), None)

    def _check_log(self, node_id: int, view: MemberView, log: RaftLog) -> None:
        """Log Matching: entries of the same index and term are the same, and so are all before."""
        seen = view.seen
        index = log.last_index
        while index > log.first_index:
            entry = log.entry(index)
            if seen.get(index) is entry:
                break
            seen[index] = entry
            before = log.term_at(index - 1)
            key = (index, entry[2])
            known = self.entries.get(key)
            if known is None or known[1] is None:
                if known is not None and known[0] != entry[0]:
                    self._fail(f"node {node_id} has another entry {key}")
                self.entries[key] = (entry[0], before)
            elif known != (entry[0], before):
                self._fail(f"node {node_id} has another entry {key}, or before it")
            index -= 1

    def _note_durable(self, view: MemberView, log: RaftLog) -> None:
        base, last = log.first_index, log.durable_index
        for index in range(view.durable_base, base):
            view.durable.pop(index, None)
        for index in range(last + 1, view.durable_last + 1):
            view.durable.pop(index, None)
        index = last
        while index >= base and view.durable.get(index) != log.term_at(index):
            view.durable[index] = log.term_at(index)
            index -= 1
        view.durable_base, view.durable_last = base, last

    def _check_commits(self, node_id: int, view: MemberView, core: RaftCore) -> None:
        log = core.log
        # A member acts on durable entries only; see `RaftCore`.
        end = min(core.commit_index, log.durable_index)
        for index in range(max(view.committed, log.first_index) + 1, end + 1):
            command, _, term = log.entry(index)
            known = self.committed.get(index)
            if known is None:
                self.committed[index] = (term, command)
                self.committed_in[index] = core.term
                self.last_committed = max(self.last_committed, index)
                self._check_durable(node_id, index, term, core)
            elif known != (term, command):
                self._fail(f"node {node_id} commits {index} of {term}, others of {known[0]}")
        view.committed = max(view.committed, end)

    def _check_durable(self, node_id: int, index: int, term: int, core: RaftCore) -> None:
        """Committed entries are durable on a majority of the voters, by the log up to there."""
        voters = core.log.voters_at(max(index, core.log.first_index))
        newest = core.log.voters
        if voters != newest and core.log.voters_index > index:
            # A later set was appended meanwhile: the leader counts by that one (section 4.1).
            voters = newest
        holders = [
            voter
            for voter in sorted(voters.ids)
            if index < self.view(voter).durable_base
            or self.view(voter).durable.get(index, -1) == term
        ]
        if len(holders) < voters.majority:
            self._fail(
                f"node {node_id} commits {index} of term {term}, durable on {holders} of "
                f"{sorted(voters.ids)}"
            )

    def _check_leader(self, node_id: int, view: MemberView, core: RaftCore) -> None:
        """Election Safety and Leader Completeness."""
        if not core.is_leader or view.led_term == core.term:
            return
        view.led_term = core.term
        self.elections += 1
        if self.leaders.setdefault(core.term, node_id) != node_id:
            self._fail(f"term {core.term} has leaders {self.leaders[core.term]} and {node_id}")
        log = core.log
        for index in range(log.first_index + 1, self.last_committed + 1):
            term = self.committed[index][0]
            if self.committed_in[index] < core.term and (
                index > log.last_index or log.term_at(index) != term
            ):
                self._fail(f"leader {node_id} of term {core.term} lacks committed {index}")

    def _fail(self, what: str) -> None:
        raise InvariantError(what)
