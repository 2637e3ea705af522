"""Which node calls which, when again, and which of two connections of a pair stays. Pure.

A voter calls the voters of lower id, everybody else calls every voter: so each pair that needs a
connection has one side that calls. While roles change the two may see them differently, and both
call, or neither for a moment; `keeps_old` settles the former, the next change of view the latter.
"""

from __future__ import annotations

from raftlog.raft.voters import Voter, VoterSet


def dial_targets(me: int, me_is_voter: bool, voters: VoterSet) -> tuple[Voter, ...]:
    """The voters that node `me` calls, ascending by id."""
    return tuple(
        voter
        for voter in voters.voters
        if voter.node_id != me and (not me_is_voter or voter.node_id < me)
    )


def redial_delay_s(
    failures: int, jitter: float, *, delay_s_min: float, delay_s_max: float
) -> float:
    """How long to wait before the next call after so many that failed in a row, none at first.

    Doubles from `delay_s_min` to `delay_s_max`. `jitter` in [0, 1] takes up to half of it away, so
    that nodes that lost each other at once do not call in step.
    """
    assert failures >= 0
    assert 0 <= jitter <= 1
    if failures == 0:
        return 0.0
    # Beyond this power of two any delay is over the maximum, and a float would overflow in time.
    delay_s = delay_s_min * 2.0 ** min(failures - 1, 32)
    return min(delay_s, delay_s_max) * (1 - jitter / 2)


def keeps_old(
    me: int, other: int, *, old_dialled: bool, new_dialled: bool, old_is_young: bool
) -> bool:
    """Whether the open connection to `other` stays when a new one opens, instead of giving way.

    `*_dialled`: this side called. A side calls only while it has no connection. So a new one means
    that its caller has lost the old one, unless both sides called at the same time: then each sees
    an old connection, opened a moment ago by one call, and the new one of the other call. If the
    newest always won, each side would end the one that the other keeps, and both would call again,
    for ever. So the call of the higher id wins, on both sides, whatever the order.
    """
    if old_dialled == new_dialled or not old_is_young:
        return False
    return old_dialled == (me > other)
