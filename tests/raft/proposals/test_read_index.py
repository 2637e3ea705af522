"""Reads waiting for the leader's confirmation, against all events meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.raft.proposals import read_index as module
from raftlog.raft.proposals.read_index import ReadRounds
from raftlog.raft.rules import Confirmations
from raftlog.raft.voters import Voter, VoterSet
from raftlog.record.errors import OVERLOADED, LogError

ME = 1
FOREVER = 10.0**9


def voters(*node_ids: int) -> VoterSet:
    return VoterSet(tuple(Voter(node_id, "host", 80) for node_id in node_ids))


@dataclass
class Core:
    """A leader with rounds and answers driven by the test."""

    voters: VoterSet
    is_leader: bool = True
    is_active: bool = True
    term: int = 3
    commit_index: int = 20
    sequence: int = 0
    rounds: int = 0
    confirmations: Confirmations = field(default_factory=Confirmations)
    under_way: list[tuple[int, int]] = field(default_factory=list)
    """Unanswered appends: receivers and numbers."""

    def send_round(self) -> int:
        before = self.sequence
        self.rounds += 1
        for peer in sorted(self.voters.ids - {ME}):
            self.send(peer)
        return before

    def send(self, peer: int) -> None:
        self.sequence += 1
        # All at one instant: times tell nothing here.
        self.confirmations.sent(peer, self.sequence, 0.0)
        self.under_way.append((peer, self.sequence))

    def answer(self, peer: int) -> None:
        """The peer answers all appends sent so far."""
        for receiver, sequence in self.under_way:
            if receiver == peer:
                self.confirmations.answered(peer, sequence)
        self.under_way = [each for each in self.under_way if each[0] != peer]

    def is_confirmed(self, after: int) -> bool:
        return self.confirmations.by_majority(self.voters, ME, after)


class Harness:
    def __init__(self, *node_ids: int) -> None:
        self.core = Core(voters(*node_ids))
        self.rounds = ReadRounds(self.core)
        self.answers: list[tuple[int, int | None]] = []

    def submit(self, number: int, deadline: float = FOREVER) -> None:
        self.rounds.submit(deadline, lambda index: self.answers.append((number, index)))


def test_a_single_voter_is_sure_at_once() -> None:
    harness = Harness(ME)
    harness.submit(1)
    assert not harness.answers, "not from within the question"
    harness.rounds.advance()
    assert harness.answers == [(1, 20)]


def test_a_majority_must_answer_what_was_sent_after_the_question() -> None:
    harness = Harness(1, 2, 3, 4, 5)
    for peer in (2, 3, 4, 5):
        harness.core.send(peer)
    harness.submit(1)
    for peer in (2, 3, 4, 5):
        harness.core.answer(peer)
    harness.rounds.advance()
    assert not harness.answers, "all of these appends left before"
    harness.core.answer(2)
    harness.rounds.advance()
    assert not harness.answers
    harness.core.answer(3)
    harness.rounds.advance()
    assert harness.answers == [(1, 20)]


def test_observer_confirms_nothing() -> None:
    harness = Harness(1, 2, 3)
    harness.submit(1)
    harness.rounds.advance()
    harness.core.send(9)
    harness.core.answer(9)
    harness.rounds.advance()
    assert not harness.answers


def test_the_voters_are_those_of_the_newest_set() -> None:
    harness = Harness(1, 2)
    harness.submit(1)
    harness.rounds.advance()
    harness.core.voters = voters(1, 2, 3, 4)
    harness.core.answer(2)
    harness.rounds.advance()
    assert not harness.answers, "two of four are no majority"
    harness.core.send(4)
    harness.core.answer(4)
    harness.rounds.advance()
    assert harness.answers == [(1, 20)]


def test_reads_during_a_round_share_the_next() -> None:
    harness = Harness(1, 2, 3)
    for number in range(100):
        harness.submit(number)
    harness.rounds.advance()
    for number in range(100, 200):
        harness.submit(number)
        harness.rounds.advance()
    assert harness.core.rounds == 1
    harness.core.commit_index = 25
    harness.core.answer(2)
    harness.rounds.advance()
    assert harness.answers == [(number, 20) for number in range(100)]
    assert harness.core.rounds == 2
    harness.core.answer(3)
    harness.rounds.advance()
    assert harness.answers[100:] == [(number, 25) for number in range(100, 200)]
    assert harness.core.rounds == 2


def test_a_leader_that_has_committed_nothing_of_its_term_waits_until_it_has() -> None:
    harness = Harness(1, 2, 3)
    harness.core.is_active = False
    harness.submit(1)
    harness.rounds.advance()
    assert harness.core.rounds == 0
    harness.core.is_active, harness.core.commit_index = True, 21
    harness.rounds.advance()
    harness.core.answer(2)
    harness.rounds.advance()
    assert harness.answers == [(1, 21)]


@pytest.mark.parametrize("returns", [True, False])
def test_deposed_or_reelected_leader_confirms_no_read(returns: bool) -> None:
    harness = Harness(1, 2, 3)
    harness.submit(1)
    harness.rounds.advance()
    harness.submit(2)
    harness.core.is_leader, harness.core.term = returns, 5
    harness.core.answer(2)
    harness.rounds.advance()
    assert harness.answers == [(1, None), (2, None)]
    assert len(harness.rounds) == 0


def test_late_reads_expire_and_the_round_goes_on() -> None:
    harness = Harness(1, 2, 3)
    harness.submit(1, deadline=5.0)
    harness.rounds.advance()
    harness.submit(2, deadline=6.0)
    harness.submit(3, deadline=7.0)
    harness.rounds.expire(6.0)
    assert harness.answers == [(1, None), (2, None)]
    assert len(harness.rounds) == 1
    harness.core.answer(2)
    harness.rounds.advance()
    harness.core.answer(2)
    harness.rounds.advance()
    assert harness.answers[2:] == [(3, 20)]


def test_no_more_wait_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READS_MAX", 2)
    harness = Harness(1, 2, 3)
    harness.submit(1)
    harness.rounds.advance()
    harness.submit(2)
    with pytest.raises(LogError) as raised:
        harness.submit(3)
    assert raised.value.entry is OVERLOADED
    harness.core.answer(2)
    harness.rounds.advance()
    harness.submit(4)


STEPS = st.lists(
    st.tuples(st.sampled_from(("ask", "advance", "send", "answer", "commit")), st.integers(2, 5)),
    max_size=80,
)


@given(STEPS)
def test_no_read_is_answered_before_a_majority_answered_later_appends(
    steps: list[tuple[str, int]],
) -> None:
    harness = Harness(1, 2, 3, 4, 5)
    core = harness.core
    asked: dict[int, tuple[int, int]] = {}
    """By read: the number of the last append before it, and the commit index then."""
    answered = dict.fromkeys((2, 3, 4, 5), 0)

    def check() -> None:
        for number, index in harness.answers:
            before, committed = asked[number]
            assert index is not None
            assert index >= committed
            assert sum(newest > before for newest in answered.values()) >= 2
        harness.answers.clear()

    for number, (what, peer) in enumerate(steps):
        if what == "ask":
            asked[number] = core.sequence, core.commit_index
            harness.submit(number)
        elif what == "advance":
            harness.rounds.advance()
        elif what == "send":
            core.send(peer)
        elif what == "answer":
            numbers = [sequence for receiver, sequence in core.under_way if receiver == peer]
            answered[peer] = max([answered[peer], *numbers])
            core.answer(peer)
        else:
            core.commit_index += 1
        check()
    for _ in range(2):
        harness.rounds.advance()
        for peer in answered:
            answered[peer] = core.sequence
            core.answer(peer)
    harness.rounds.advance()
    check()
    assert len(harness.rounds) == 0, "somebody waits for ever"
