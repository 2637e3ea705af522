"""Divergent logs converge to their common prefix, and no common record is truncated."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.record.errors import ILLEGAL_STATE, LogError
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.replication.follower.divergence import (
    NO_EPOCH,
    BelowStart,
    Diverging,
    FetchPosition,
    compare,
    truncation_point,
)
from raftlog.storage.compaction.plan import NO_HORIZON
from raftlog.storage.leader_epochs import LeaderEpochs


@dataclass
class Model:
    """A log of which only the epoch of each record matters."""

    epochs: list[int] = field(default_factory=list)
    start: int = 0

    @property
    def end(self) -> Offset:
        return Offset(self.start + len(self.epochs))

    @property
    def history(self) -> LeaderEpochs:
        history = LeaderEpochs()
        for position, epoch in enumerate(self.epochs):
            history.assign(LeaderEpoch(epoch), Offset(self.start + position))
        return history

    def position(self, leader_epoch: int = 99) -> FetchPosition:
        return FetchPosition(
            LeaderEpoch(leader_epoch),
            self.end,
            LeaderEpoch(self.epochs[-1]) if self.epochs else NO_EPOCH,
            self.end,
            Offset(self.start),
        )

    def answer(self, follower: Model) -> Diverging | BelowStart | None:
        return compare(
            self.history,
            log_start=Offset(self.start),
            log_end=self.end,
            horizon=NO_HORIZON,
            position=follower.position(),
        )


def settle(leader: Model, follower: Model) -> int:
    """Truncate the follower until the leader accepts it; return the number of rounds."""
    for rounds in range(len(follower.epochs) + 2):
        answer = leader.answer(follower)
        if answer is None:
            return rounds
        assert isinstance(answer, Diverging)
        point = truncation_point(
            follower.history,
            log_start=Offset(follower.start),
            log_end=follower.end,
            diverging=answer,
        )
        assert point < follower.end, "nothing would come of it"
        del follower.epochs[point - follower.start :]
    raise AssertionError("they never agree")


@st.composite
def forks(draw: st.DrawFn) -> tuple[Model, Model, int]:
    """A leader, a follower, and the length of their common prefix: Raft's log matching.

    Behind the prefix their epochs differ: one epoch has one leader, which writes an offset once.
    The leader's newest epoch is above all others.
    """
    common = draw(st.lists(st.integers(0, 5), max_size=8).map(sorted))
    base = common[-1] if common else 0
    rest = draw(st.lists(st.integers(base, 12), max_size=8).map(sorted))
    other = draw(st.lists(st.integers(base, 12), max_size=8).map(sorted))
    # A common epoch must agree from its first record on, as far as both logs reach.
    owner = draw(st.lists(st.booleans(), min_size=13, max_size=13))
    mine = [epoch for epoch in rest if owner[epoch]]
    theirs = [epoch for epoch in other if not owner[epoch]]
    return Model(common + mine + [13]), Model(common + theirs), len(common)


@given(forks())
def test_follower_keeps_what_is_shared_and_cuts_the_rest(fork: tuple[Model, Model, int]) -> None:
    leader, follower, shared = fork
    rounds = settle(leader, follower)
    assert follower.epochs == leader.epochs[: len(follower.epochs)]
    assert len(follower.epochs) >= shared
    assert rounds <= 14


def test_several_fast_failovers_lead_to_the_last_common_record() -> None:
    # KIP-279: between common epochs the follower has epochs unknown to the leader.
    leader, follower = Model([0, 0, 2, 4]), Model([0, 0, 1, 1, 3, 3])
    assert leader.answer(follower) == Diverging(LeaderEpoch(2), Offset(3))
    settle(leader, follower)
    assert follower.epochs == [0, 0]


def test_follower_of_the_same_epoch_that_is_longer_cuts_its_end() -> None:
    leader, follower = Model([0, 0, 1]), Model([0, 0, 0, 0])
    settle(leader, follower)
    assert follower.epochs == [0, 0]


def test_follower_below_the_start_is_told_where_the_log_begins() -> None:
    assert Model([1, 1], start=5).answer(Model([0, 0])) == BelowStart(Offset(5))


def test_empty_follower_agrees_unless_it_begins_behind_the_end() -> None:
    leader = Model([0, 0], start=3)
    assert leader.answer(Model([], start=4)) is None
    assert Model([], start=4).position().last_epoch == NO_EPOCH
    assert leader.answer(Model([], start=6)) == BelowStart(Offset(3))


def test_records_of_an_epoch_that_the_leader_does_not_know_are_not_cut() -> None:
    with pytest.raises(LogError) as raised:
        Model([0, 0]).answer(Model([0, 7]))
    assert raised.value.entry is ILLEGAL_STATE


def test_a_log_that_parted_below_the_start_is_begun_anew() -> None:
    """Record 2 was written by epoch 1 and deleted since; the follower's is another one."""
    leader = Model([0, 0, 1, 1, 1])
    history = leader.history
    history.truncate_from_start(Offset(3))
    for end in (3, 4):
        follower = Model([0] * end)
        answer = compare(
            history,
            log_start=Offset(3),
            log_end=leader.end,
            horizon=NO_HORIZON,
            position=follower.position(),
        )
        assert answer == BelowStart(Offset(3))
    position = Model([0, 0, 1]).position()
    answer = compare(
        history,
        log_start=Offset(3),
        log_end=leader.end,
        horizon=NO_HORIZON,
        position=position,
    )
    assert answer is None
