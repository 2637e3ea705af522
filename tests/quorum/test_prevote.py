"""May a member begin an election? Pure rules (Ongaro 2014, section 9.6)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.quorum.prevote import PreVoteRounds, would_vote

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


def test_an_answer_to_an_earlier_round_says_nothing() -> None:
    rounds = PreVoteRounds(ROUND_S)
    earlier = rounds.begin(0.0)
    number = rounds.begin(1.0)
    assert number != earlier
    rounds.granted(2, earlier)
    assert not rounds.won({2, 3})
    rounds.granted(2, number)
    assert rounds.won({2, 3})


def test_a_new_round_begins_with_nobody() -> None:
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
def test_nobody_deposes_a_leader_that_is_heard(ago_s: float, *, expected: bool) -> None:
    assert vote((9, 9), (1, 1), ago_s) is expected
