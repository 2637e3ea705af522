"""The safety rules of messages, elections and leases, each in one place. Pure.

`Guards`: pysyncobj trusts its peers' messages, and some of these cannot be trusted, such as late
responses, commit indexes beyond the entries compared, and repeated votes. Each method here stops
one such defect (tests/simulation/quorum/DEFECTS.md names its test, which fails without it).

`PreVoteRounds`: a member that was cut off must not depose a working leader when it comes back, nor
burn terms while it is away (Ongaro 2014, section 9.6). So before it raises its term it requests
pre-votes in rounds, and continues only if a majority, itself included, would vote for it.

`Confirmations`: a response proves its sender's state when it was *sent*, and that time is not known
here. A message may have been under way for long, for example in a stopped process's buffers. But a
response is sent after its append. So a leader's lease counts from when the newest append left that
the voter has responded to, not from when the response came (Ongaro 2014, section 6.4.1, does the
same with its rounds of heartbeats). The number of that append proves the same without a clock, so
reads wait for it (proposals/read_index.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from raftlog.raft.log.log import ENTRY_KINDS, RaftLog
from raftlog.raft.messages import Append, AppendAnswer
from raftlog.raft.voters import VoterSet


@dataclass(frozen=True, slots=True)
class Timing:
    """Election and heartbeat times. A message takes far less than `heartbeat_s`."""

    election_min_s: float = 0.3
    """Least seconds without a leader's message after which a voter requests an election."""
    election_max_s: float = 0.6
    heartbeat_s: float = 0.08
    """Seconds between a leader's messages to each other member, without other traffic."""
    fallback_s: float = 0.6
    """Seconds without responses of a majority after which a leader steps down."""
    tick_s: float = 0.05
    """Interval of ticks, which only let time pass. Messages are handled at once."""

    def election_timeout_s(self, before: int, others: int, chance: float) -> float:
        """Time without a message of a leader after which a voter requests an election.

        The possible successors of a leader, `others` in number, each have a part of the range
        between the two election times, in the order of their ids (`before` is the number of lower
        ids). Each draws (`chance` from 0 to 1) from the first half of its part, because two
        voters that start together split the votes, and lose a whole election time.
        """
        step_s = (self.election_max_s - self.election_min_s) / max(others, 1)
        return self.election_min_s + step_s * (before + chance / 2)


AFTER_DEATH_STEP_S: Final = 0.08
AFTER_DEATH_STEPS_MAX: Final = 3


def after_death_s(before: int) -> float:
    """Seconds that a voter waits before its campaign after its leader's process has died.

    All voters see the death at the same moment, so each gives the voters of lower ids (`before` in
    number) a start. An election takes some milliseconds. Deadlines are checked once in a tick.
    """
    return min(before, AFTER_DEATH_STEPS_MAX) * AFTER_DEATH_STEP_S


class Guards:
    """The rules for messages, with their memory of earlier messages."""

    def __init__(self) -> None:
        self._votes: set[tuple[int, int]] = set()
        self._reset_at: dict[int, int] = {}

    def answer_counts(self, answer: AppendAnswer, term: int) -> bool:
        """Whether an answer belongs to this term's appends.

        A response from an earlier term acknowledges entries which may have been replaced since.
        With it, entries on no majority would be committed.
        """
        return answer.term == term

    def commit_index(self, append: Append) -> int:
        """The commit index that an append's receiver may take.

        Only entries compared or brought by the append are known to be the leader's. Entries behind
        these may be a stale tail.
        """
        return min(append.commit_index, append.previous_index + len(append.entries))

    def entries_known(self, append: Append) -> bool:
        """Whether this version can apply all entries' kinds."""
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
        """Whether the leader goes back to an answer's index.

        Several appends are under way at once. After the first failed and the leader went back, the
        failures of the others, sent before that, would send it back again and again.
        """
        if answer.sequence <= self._reset_at.get(peer, 0):
            return False
        self._reset_at[peer] = newest_sequence
        return True

    def next_index(self, before: int, after: int) -> int:
        """The index to send from after a success. Never a lower index, as appends are pipelined."""
        return max(before, after)

    def hint(self, next_index: int, log: RaftLog, commit_index: int) -> int:
        """The index to which a receiver without a match sends the leader back.

        The whole conflicting term is skipped at once (section 5.3 of the Raft paper), but never a
        committed entry, which matches.
        """
        if log.first_index < next_index <= log.last_index:
            term = log.term_at(next_index)
            while next_index - 1 > log.first_index and log.term_at(next_index - 1) == term:
                next_index -= 1
        return max(next_index, commit_index + 1)

    def forget(self, peer: int) -> None:
        """Forget a peer after its connection's end. No append on it gets a response any more."""
        self._reset_at.pop(peer, None)


@dataclass(slots=True)
class PreVoteRounds:
    """The pre-vote rounds of one member."""

    round_s: float
    """Seconds that a round waits for responses before the next round."""
    _round: int = 0
    _begun_at: float = -math.inf
    _granted: set[int] = field(default_factory=set)

    def is_open(self, now: float) -> bool:
        """Whether a round is under way."""
        return now - self._begun_at < self.round_s

    def begin(self, now: float) -> int:
        """Start a round. Return its number, to be sent along."""
        self._round += 1
        self._begun_at = now
        self._granted.clear()
        return self._round

    def granted(self, peer: int, round_number: int) -> None:
        """Count a peer that would vote for this member. Responses to earlier rounds are ignored."""
        if round_number == self._round:
            self._granted.add(peer)

    def won(self, others: set[int]) -> bool:
        """Whether a majority of the voters, this member and `others`, would vote for it."""
        return len(self._granted & others) + 1 > (len(others) + 1) / 2

    def end(self) -> None:
        """End the round, as the election starts or there is no reason for an election.

        Responses that are still under way must not open the next election without a new round.
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
    """Whether a member grants a pre-vote.

    Logs are (last term, last index). `leader_heard_ago_s` is 0 for a leader itself, infinite where
    none is known.
    """
    return leader_heard_ago_s >= election_min_s and candidate_log >= own_log


APPENDS_MAX: Final = 4096
"""Appends without a response yet. The oldest are dropped first. A dropped append can only make a
voter look longer unheard than it is."""


class Confirmations:
    """Appends of a leader that got responses, and when each had left."""

    def __init__(self) -> None:
        self._sent: dict[int, tuple[int, float]] = {}
        """The voter, and when the append was sent, by sequence number, ascending."""
        self._confirmed_at: dict[int, float] = {}
        self._newest: dict[int, int] = {}
        """The highest number of an append that the peer has responded to."""

    def sent(self, peer: int, sequence: int, now: float) -> None:
        """Take note of an append about to leave. `sequence` ascends over all peers."""
        self._sent[sequence] = (peer, now)
        if len(self._sent) > APPENDS_MAX:
            del self._sent[next(iter(self._sent))]

    def answered(self, peer: int, sequence: int) -> None:
        """Take note of the response to an append, in no higher term than this member's."""
        receiver, sent_at = self._sent.get(sequence, (None, 0.0))
        if receiver != peer:
            return
        del self._sent[sequence]
        self._confirmed_at[peer] = max(sent_at, self._confirmed_at.get(peer, -math.inf))
        self._newest[peer] = max(sequence, self._newest.get(peer, 0))

    def forget(self, peer: int) -> None:
        """Forget unanswered appends of an ended connection, as no response will come."""
        self._sent = {key: value for key, value in self._sent.items() if value[0] != peer}

    def age_s(self, peer: int, now: float) -> float:
        """Upper bound on how long the peer may have followed another leader. inf when unknown."""
        return now - self._confirmed_at.get(peer, -math.inf)

    def by_majority(self, voters: VoterSet, me: int, after: int) -> bool:
        """Whether a majority, this member counted if a voter, knows of no later leader.

        A voter counts once it has responded to an append of a higher number than `after`.
        """
        known = sum(peer == me or self._newest.get(peer, 0) > after for peer in voters.ids)
        return known >= voters.majority
