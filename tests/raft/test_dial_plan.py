from __future__ import annotations

import pytest

from raftlog.raft.dial_plan import dial_targets, keeps_old, redial_delay_s
from tests.raft.peers_world import voter_set


def test_a_voter_calls_the_voters_of_lower_id_and_all_others_every_voter() -> None:
    voters = voter_set(1, 2, 3)

    def targets(me: int, me_is_voter: bool) -> list[int]:
        return [each.node_id for each in dial_targets(me, me_is_voter, voters)]

    assert [targets(me, True) for me in (1, 2, 3)] == [[], [1], [1, 2]]
    assert targets(9, False) == [1, 2, 3]
    assert targets(2, False) == [1, 3]


def test_every_pair_with_a_voter_in_it_has_exactly_one_side_that_calls() -> None:
    voters = voter_set(2, 4, 6)
    nodes = range(1, 8)
    calls = [
        (me, each.node_id) for me in nodes for each in dial_targets(me, me in voters.ids, voters)
    ]
    pairs = [frozenset(call) for call in calls]
    assert len(set(pairs)) == len(pairs)
    assert set(pairs) == {
        frozenset((one, other))
        for one in nodes
        for other in nodes
        if one != other and {one, other} & voters.ids
    }


def test_calls_come_at_once_first_and_then_ever_less_often() -> None:
    def delay(failures: int, jitter: float = 0.0) -> float:
        return redial_delay_s(failures, jitter, delay_s_min=0.05, delay_s_max=1.0)

    assert [delay(n) for n in range(8)] == [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert delay(1, 1.0) == 0.025
    assert delay(10**9) == 1.0


@pytest.mark.parametrize("high_first", [True, False])
def test_of_two_calls_at_once_both_sides_keep_that_of_the_higher_id(high_first: bool) -> None:
    # Each side meets both connections, in either order: what is left must be the same.
    for me, other in ((1, 2), (2, 1)):
        high_is_mine = me > other
        first_is_mine = high_is_mine == high_first
        keeps_first = keeps_old(
            me, other, old_dialled=first_is_mine, new_dialled=not first_is_mine, old_is_young=True
        )
        assert keeps_first == high_first


def test_a_second_call_of_the_same_side_takes_the_place_of_the_first() -> None:
    for me, other, mine in ((1, 2, True), (1, 2, False), (2, 1, True), (2, 1, False)):
        assert not keeps_old(me, other, old_dialled=mine, new_dialled=mine, old_is_young=True)


def test_an_old_connection_gives_way_whoever_called() -> None:
    for me, other, mine in ((1, 2, True), (1, 2, False), (2, 1, True), (2, 1, False)):
        assert not keeps_old(me, other, old_dialled=mine, new_dialled=not mine, old_is_young=False)
