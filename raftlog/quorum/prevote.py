"""Pre-vote: may this member begin an election at all? Pure.

A member that was cut off must not depose a working leader when it comes back, nor burn terms while
it is away (Ongaro 2014, section 9.6). So before it raises its term it asks the voters in rounds,
and goes on only if a majority, itself included, would vote for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


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
