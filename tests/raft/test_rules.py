"""Each safety rule by itself. Their absence in a cluster: test_defects_*.

Pre-votes: pure rules (Ongaro 2014, section 9.6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.raft.log.log import NO_OP, REGULAR, VOTERS
from raftlog.raft.messages import Append, AppendAnswer
from raftlog.raft.rules import APPENDS_MAX, Confirmations, Guards, PreVoteRounds, would_vote

INDEXES = st.integers(0, 50)
COMMANDS = st.binary(max_size=3)


@dataclass
class Log:
    """Terms of entries, the first of them of the base."""

    first_index: int
    terms: list[int]

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.terms) - 1

    def term_at(self, index: int) -> int:
        assert self.first_index <= index <= self.last_index
        return self.terms[index - self.first_index]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    steps = draw(st.lists(st.integers(0, 2), min_size=1, max_size=12))
    terms = [sum(steps[: at + 1]) for at in range(len(steps))]
    return Log(draw(st.integers(1, 20)), terms)


def append(
    *commands: bytes, previous: int = 0, commit: int = 0, term: int = 1, sequence: int = 1
) -> Append:
    return Append(term, previous, 1, commit, sequence, [(1, command) for command in commands])


def answer(sequence: int = 1, *, term: int = 1, next_index: int = 1) -> AppendAnswer:
    return AppendAnswer(term, next_index, False, True, sequence)


@given(st.integers(0, 9), st.integers(0, 9))
def test_only_an_answer_of_the_leaders_own_term_counts(term: int, answered: int) -> None:
    assert Guards().answer_counts(answer(term=answered), term) == (term == answered)


@given(INDEXES, INDEXES, st.integers(0, 5))
def test_an_append_commits_only_what_it_compares_or_brings(
    previous: int, commit: int, count: int
) -> None:
    message = append(*[b"\x00"] * count, previous=previous, commit=commit)
    allowed = Guards().commit_index(message)
    assert allowed <= commit
    assert allowed <= previous + count
    assert allowed in (commit, previous + count)


@given(st.lists(COMMANDS))
def test_entries_of_a_kind_that_is_not_known_are_not_taken(commands: list[bytes]) -> None:
    known = all(command and command[0] in (REGULAR, NO_OP, VOTERS) for command in commands)
    assert Guards().entries_known(append(*commands)) == known


@pytest.mark.parametrize("command", [b"", b"\x03", b"\xff rest"])
def test_a_strange_entry_among_good_ones_is_seen(command: bytes) -> None:
    assert Guards().entries_known(append(b"\x00a", b"\x01", b"\x02{}"))
    assert not Guards().entries_known(append(b"\x00a", command, b"\x01"))


def test_a_vote_counts_once() -> None:
    guards = Guards()
    assert guards.counts_vote(3, 2)
    assert not guards.counts_vote(3, 2)
    assert guards.counts_vote(3, 4)
    assert guards.counts_vote(4, 2)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3))))
def test_each_voter_counts_once_in_each_term_and_memory_is_bounded(
    votes: list[tuple[int, int]],
) -> None:
    guards, newest = Guards(), 0
    counted: list[tuple[int, int]] = []
    for term, peer in votes:
        # A member's term never falls, and no vote of an earlier one counts.
        if term < newest:
            continue
        newest = term
        if guards.counts_vote(term, peer):
            counted.append((term, peer))
    assert len(counted) == len(set(counted))
    assert {term for term, _ in guards._votes} <= {newest}, "earlier terms are forgotten"


def test_failures_of_what_was_sent_before_a_reset_do_not_count_again() -> None:
    guards = Guards()
    assert guards.counts_reset(2, answer(5), newest_sequence=8)
    assert not guards.counts_reset(2, answer(6), newest_sequence=9)
    assert not guards.counts_reset(2, answer(8), newest_sequence=9)
    assert guards.counts_reset(2, answer(9), newest_sequence=9)


def test_resets_of_one_peer_do_not_concern_another() -> None:
    guards = Guards()
    assert guards.counts_reset(2, answer(5), newest_sequence=8)
    assert guards.counts_reset(3, answer(5), newest_sequence=8)


def test_on_a_new_connection_a_reset_counts() -> None:
    guards = Guards()
    assert guards.counts_reset(2, answer(5), newest_sequence=8)
    guards.forget(2)
    guards.forget(2)
    assert guards.counts_reset(2, answer(6), newest_sequence=9)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5)), max_size=30))
def test_every_accepted_reset_is_of_something_sent_after_the_one_before(
    answers: list[tuple[int, int]],
) -> None:
    guards, newest, accepted_at = Guards(), 0, 0
    for sequence, sent in answers:
        newest = max(newest, sequence) + sent
        if guards.counts_reset(2, answer(sequence), newest):
            assert sequence > accepted_at
            accepted_at = newest


@given(INDEXES, INDEXES)
def test_a_success_never_sends_the_leader_back(before: int, after: int) -> None:
    assert Guards().next_index(before, after) == max(before, after)


@given(logs(), INDEXES, st.integers(0, 100))
def test_a_hint_skips_no_entry_that_may_match(log: Log, next_index: int, share: int) -> None:
    commit = log.first_index + share * (log.last_index - log.first_index) // 100
    hint = Guards().hint(next_index, log, commit)
    assert hint > commit, "what is committed matches"
    if commit < next_index:
        assert hint <= next_index, "forward is no way out of a conflict"
    if log.first_index < next_index <= log.last_index:
        skipped = range(max(hint, log.first_index), next_index)
        term = log.term_at(next_index)
        assert all(log.term_at(index) == term for index in skipped), "of one term only"


def test_a_hint_goes_back_a_whole_term_at_once() -> None:
    log = Log(1, [0, 1, 1, 2, 2, 2, 2])
    assert Guards().hint(7, log, 1) == 4
    assert Guards().hint(6, log, 1) == 4
    assert Guards().hint(3, log, 1) == 2


def test_a_hint_is_never_below_what_is_committed() -> None:
    log = Log(1, [0, 2, 2, 2, 2, 2, 2])
    assert Guards().hint(7, log, 4) == 5


def test_a_hint_from_beyond_the_log_stays() -> None:
    log = Log(3, [1, 1, 1])
    assert Guards().hint(6, log, 3) == 6
    assert Guards().hint(40, log, 3) == 40


ROUND_S = 0.15
NODES = st.integers(1, 9)


def test_a_majority_with_oneself_is_needed() -> None:
    rounds = PreVoteRounds(ROUND_S)
    number = rounds.begin(0.0)
    others = {2, 3, 4, 5}
    assert not rounds.won(others)
    rounds.granted(2, number)
    assert not rounds.won(others), "two of five"
    rounds.granted(3, number)
    assert rounds.won(others), "three of five"


def test_of_an_even_number_half_is_no_majority() -> None:
    rounds = PreVoteRounds(ROUND_S)
    number = rounds.begin(0.0)
    rounds.granted(2, number)
    assert not rounds.won({2, 3, 4}), "two of four"
    rounds.granted(3, number)
    assert rounds.won({2, 3, 4})


def test_the_only_voter_has_won() -> None:
    rounds = PreVoteRounds(ROUND_S)
    rounds.begin(0.0)
    assert rounds.won(set())


def test_answer_to_an_earlier_round_does_not_count() -> None:
    rounds = PreVoteRounds(ROUND_S)
    earlier = rounds.begin(0.0)
    number = rounds.begin(1.0)
    assert number != earlier
    rounds.granted(2, earlier)
    assert not rounds.won({2, 3})
    rounds.granted(2, number)
    assert rounds.won({2, 3})


def test_new_round_begins_without_grants() -> None:
    rounds = PreVoteRounds(ROUND_S)
    rounds.granted(2, rounds.begin(0.0))
    rounds.begin(1.0)
    assert not rounds.won({2, 3})


def test_a_round_is_open_for_its_time() -> None:
    rounds = PreVoteRounds(ROUND_S)
    assert not rounds.is_open(0.0)
    rounds.begin(10.0)
    assert rounds.is_open(10.0 + ROUND_S * 0.9)
    assert not rounds.is_open(10.0 + ROUND_S * 1.1)


def test_an_ended_round_is_over_at_once() -> None:
    rounds = PreVoteRounds(ROUND_S)
    rounds.granted(2, rounds.begin(10.0))
    rounds.end()
    assert not rounds.is_open(10.0)
    assert not rounds.won({2, 3})


@given(st.sets(NODES), st.lists(NODES))
def test_only_voters_count_and_each_once(others: set[int], granting: list[int]) -> None:
    rounds = PreVoteRounds(ROUND_S)
    number = rounds.begin(0.0)
    for peer in granting:
        rounds.granted(peer, number)
    votes = len({0, *granting} & {0, *others})
    assert rounds.won(others) == (2 * votes > len({0, *others}))


def vote(candidate: tuple[int, int], own: tuple[int, int], ago_s: float) -> bool:
    return would_vote(
        candidate_log=candidate, own_log=own, leader_heard_ago_s=ago_s, election_min_s=0.3
    )


@pytest.mark.parametrize(
    ("candidate", "own", "expected"),
    [
        ((2, 5), (2, 5), True),
        ((2, 6), (2, 5), True),
        ((2, 4), (2, 5), False),
        ((3, 1), (2, 9), True),
        ((1, 9), (2, 1), False),
    ],
)
def test_an_older_log_gets_no_vote(
    candidate: tuple[int, int], own: tuple[int, int], *, expected: bool
) -> None:
    assert vote(candidate, own, math.inf) is expected


@pytest.mark.parametrize(
    ("ago_s", "expected"), [(0.0, False), (0.29, False), (0.3, True), (math.inf, True)]
)
def test_candidate_does_not_depose_a_leader_that_is_heard(ago_s: float, *, expected: bool) -> None:
    assert vote((9, 9), (1, 1), ago_s) is expected


PEERS = (2, 3)
Step = tuple[str, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(("send", "answer", "forget")), st.sampled_from(PEERS), st.integers(0, 8)
    ),
    max_size=60,
)


def test_nothing_is_known_before_the_first_answer() -> None:
    confirmations = Confirmations()
    confirmations.sent(2, 1, now=10.0)
    assert confirmations.age_s(2, now=11.0) == math.inf


def test_counts_from_when_the_append_left() -> None:
    confirmations = Confirmations()
    confirmations.sent(2, 1, now=10.0)
    confirmations.sent(2, 2, now=11.0)
    confirmations.answered(2, 1)
    assert confirmations.age_s(2, now=13.0) == 3.0


def test_an_older_answer_that_comes_later_takes_nothing_back() -> None:
    confirmations = Confirmations()
    confirmations.sent(2, 1, now=10.0)
    confirmations.sent(2, 2, now=11.0)
    confirmations.answered(2, 2)
    confirmations.answered(2, 1)
    assert confirmations.age_s(2, now=13.0) == 2.0


def test_the_oldest_are_given_up() -> None:
    confirmations = Confirmations()
    for sequence in range(APPENDS_MAX + 1):
        confirmations.sent(2, sequence, now=float(sequence))
    confirmations.answered(2, 0)
    assert confirmations.age_s(2, now=9.0) == math.inf
    confirmations.answered(2, 1)
    assert confirmations.age_s(2, now=9.0) == 8.0


@given(steps)
def test_never_younger_than_an_append_that_this_peer_was_sent_and_answered(
    history: list[Step],
) -> None:
    confirmations = Confirmations()
    sent: list[tuple[int, float]] = []
    best = dict.fromkeys(PEERS, -math.inf)
    forgotten: dict[int, int] = dict.fromkeys(PEERS, 0)
    for now, (what, peer, back) in enumerate(history):
        if what == "send":
            confirmations.sent(peer, len(sent), float(now))
            sent.append((peer, float(now)))
        elif what == "forget":
            confirmations.forget(peer)
            forgotten[peer] = len(sent)
        else:
            sequence = len(sent) - 1 - back
            confirmations.answered(peer, sequence)
            if sequence >= forgotten[peer] and sent[sequence][0] == peer:
                best[peer] = max(best[peer], sent[sequence][1])
        for each in PEERS:
            assert confirmations.age_s(each, float(now)) == now - best[each]
