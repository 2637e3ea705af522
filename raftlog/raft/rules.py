"""What a message may do to pysyncobj: its safety rules, each in one place. Pure.

pysyncobj trusts what its peers send, and some of it cannot be trusted: answers that are late,
commit indexes that speak of entries not yet compared, votes counted twice. Each method here stops
one such defect (raftlog/quorum/DESIGN.md names its test, which fails with the method taken out).

Pre-vote: may this member begin an election at all? Pure.

A member that was cut off must not depose a working leader when it comes back, nor burn terms while
it is away (Ongaro 2014, section 9.6). So before it raises its term it asks the voters in rounds,
and goes on only if a majority, itself included, would vote for it.

Since when, at least, each voter has known of no leader after this one. Pure.

An answer says what its sender knew when it was *sent*, and that time is not ours to know: a message
may have been on its way for long, in a stopped process's buffers for one. But an answer is sent
after what it answers. So what counts for a leader's lease is when the newest append left that the
voter has answered, not when the answer came (Ongaro 2014, section 6.4.1, makes the same of its
rounds of heartbeats).

The number of that append says the same without a clock: what a read waits for (read_index.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from raftlog.raft.log import ENTRY_KINDS, RaftLog
from raftlog.raft.messages import Append, AppendAnswer
from raftlog.raft.voters import VoterSet


@dataclass(frozen=True, slots=True)
class Timing:
    """Election and heartbeat times. A message takes far less than `heartbeat_s`."""

    election_min_s: float = 0.3
    """A voter that has heard no leader for this long, at least, requests an election."""
    election_max_s: float = 0.6
    heartbeat_s: float = 0.08
    """From a leader to each other member, if there is nothing else to send."""
    fallback_s: float = 0.6
    """A leader that has not heard a majority for this long steps down."""
    tick_s: float = 0.05
    """Interval of ticks, which only let time pass. Messages are handled at once."""

    def election_timeout_s(self, before: int, others: int, chance: float) -> float:
        """Time without a message of a leader after which a voter requests an election.

        Possible successors of a leader, `others` in number, each have a part of the range between
        the two election times, in the order of their ids (`before`: those of lower ones), and draw
        (`chance`: 0 to 1) from the first half of it: two that begin together split the votes, and
        lose a whole election time.
        """
        step_s = (self.election_max_s - self.election_min_s) / max(others, 1)
        return self.election_min_s + step_s * (before + chance / 2)


AFTER_DEATH_STEP_S: Final = 0.08
AFTER_DEATH_STEPS_MAX: Final = 3


def after_death_s(before: int) -> float:
    """How long a voter waits before its campaign once its leader's process is known to be gone.

    All voters learn of it at the same moment, so each gives those of lower ids (`before` in number)
    a start. An election takes some milliseconds; deadlines are checked once in a tick.
    """
    return min(before, AFTER_DEATH_STEPS_MAX) * AFTER_DEATH_STEP_S


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

    def hint(self, next_index: int, log: RaftLog, commit_index: int) -> int:
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


@dataclass(slots=True)
class PreVoteRounds:
    """The rounds of one member that asks."""

    round_s: float
    """How long answers to a round are waited for, before the next one."""
    _round: int = 0
    _begun_at: float = -math.inf
    _granted: set[int] = field(default_factory=set)

    def is_open(self, now: float) -> bool:
        """Whether a round is under way."""
        return now - self._begun_at < self.round_s

    def begin(self, now: float) -> int:
        """Begin a round; return its number, to be sent along."""
        self._round += 1
        self._begun_at = now
        self._granted.clear()
        return self._round

    def granted(self, peer: int, round_number: int) -> None:
        """A peer would vote for this member; answers to earlier rounds say nothing any more."""
        if round_number == self._round:
            self._granted.add(peer)

    def won(self, others: set[int]) -> bool:
        """Whether a majority of the voters, this member and `others`, would vote for it."""
        return len(self._granted & others) + 1 > (len(others) + 1) / 2

    def end(self) -> None:
        """The election begins, or there is no reason for one: the next question is a new round.

        Answers that are still on their way must not open the one after this, without a question.
        """
        self._round += 1
        self._begun_at = -math.inf
        self._granted.clear()


def would_vote(
    *,
    candidate_log: tuple[int, int],
    own_log: tuple[int, int],
    leader_heard_ago_s: float,
    election_min_s: float,
) -> bool:
    """Whether a member tells an asker to go ahead.

    Logs are (last term, last index). `leader_heard_ago_s` is 0 for a leader itself, infinite where
    none is known.
    """
    return leader_heard_ago_s >= election_min_s and candidate_log >= own_log


APPENDS_MAX: Final = 4096
"""Appends whose answers are waited for; the oldest are given up first. Giving one up can only make
a voter look longer unheard than it is."""


class Confirmations:
    """What a leader's appends were answered with, and when those had left."""

    def __init__(self) -> None:
        self._sent: dict[int, tuple[int, float]] = {}
        """By sequence number, ascending: the voter, and when the append was given to be sent."""
        self._confirmed_at: dict[int, float] = {}
        self._newest: dict[int, int] = {}
        """The highest number of an append that the peer has answered."""

    def sent(self, peer: int, sequence: int, now: float) -> None:
        """An append is about to leave. `sequence` ascends over all peers."""
        self._sent[sequence] = (peer, now)
        if len(self._sent) > APPENDS_MAX:
            del self._sent[next(iter(self._sent))]

    def answered(self, peer: int, sequence: int) -> None:
        """The peer has answered that append, in no higher term than this member's."""
        receiver, sent_at = self._sent.get(sequence, (None, 0.0))
        if receiver != peer:
            return
        del self._sent[sequence]
        self._confirmed_at[peer] = max(sent_at, self._confirmed_at.get(peer, -math.inf))
        self._newest[peer] = max(sequence, self._newest.get(peer, 0))

    def forget(self, peer: int) -> None:
        """The connection to the peer has ended: what it has not answered it never will."""
        self._sent = {key: value for key, value in self._sent.items() if value[0] != peer}

    def age_s(self, peer: int, now: float) -> float:
        """For how long, at most, the peer can have followed another leader; inf if nobody knows."""
        return now - self._confirmed_at.get(peer, -math.inf)

    def by_majority(self, voters: VoterSet, me: int, after: int) -> bool:
        """Whether most of the voters, of whom this member may be one, know of no later leader.

        What counts is an answer to an append of a higher number than `after`.
        """
        known = sum(peer == me or self._newest.get(peer, 0) > after for peer in voters.ids)
        return known >= voters.majority
