"""KIP-101 and KIP-279: a leader's answers about its epochs, and the history's upkeep."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raftlog.record.types import LeaderEpoch, Offset
from raftlog.storage.checksummed import Damaged
from raftlog.storage.leader_epochs import EpochEndOffset, EpochEntry, LeaderEpochs
from tests.examples import examples


def history(*pairs: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(EpochEntry(LeaderEpoch(e), Offset(o)) for e, o in pairs)


def pairs_of(epochs: LeaderEpochs) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in epochs.entries]


def end_of(epochs: LeaderEpochs, epoch: int, log_end: int) -> tuple[int, int] | None:
    answer = epochs.end_offset_for(LeaderEpoch(epoch), Offset(log_end))
    return None if answer is None else (answer.epoch, answer.end_offset)


def test_the_newest_epoch_ends_at_the_log_end() -> None:
    epochs = history((2, 0), (5, 10))
    assert epochs.end_offset_for(LeaderEpoch(5), Offset(17)) == EpochEndOffset(
        LeaderEpoch(5), Offset(17)
    )


def test_an_older_epoch_ends_where_the_next_known_one_begins() -> None:
    assert end_of(history((2, 0), (5, 10), (6, 12)), 5, 20) == (5, 12)


def test_an_unknown_epoch_between_is_answered_for_the_largest_one_below_it() -> None:
    """KIP-279: the follower must learn which epoch the offset belongs to, and ask again."""
    assert end_of(history((2, 0), (5, 10)), 4, 20) == (2, 10)


def test_an_epoch_older_than_all_that_is_known_ends_where_the_first_known_one_begins() -> None:
    assert end_of(history((4, 30), (5, 40)), 3, 50) == (3, 30)


@pytest.mark.parametrize("epoch", [6, 100, -1])
def test_an_epoch_that_this_replica_cannot_know_has_no_answer(epoch: int) -> None:
    assert end_of(history((2, 0), (5, 10)), epoch, 20) is None


def test_an_empty_history_has_no_answer() -> None:
    assert end_of(history(), 0, 0) is None
    assert history().latest is None
    assert history().epoch_for(Offset(0)) is None


def test_fast_double_failover_converges_in_two_questions() -> None:
    """KIP-279's scenario: epochs 1 and 2 were lost on the leader, 1 was written on the follower."""
    leader = history((0, 0), (3, 10))
    follower = history((0, 0), (1, 5))
    answer = leader.end_offset_for(LeaderEpoch(1), Offset(20))
    assert answer == EpochEndOffset(LeaderEpoch(0), Offset(10))
    own = follower.end_offset_for(answer.epoch, Offset(12))
    assert own is not None
    assert min(own.end_offset, answer.end_offset) == 5


def test_an_epoch_that_wrote_nothing_leaves_no_entry() -> None:
    epochs = history((1, 0))
    assert epochs.assign(LeaderEpoch(2), Offset(8))
    assert epochs.assign(LeaderEpoch(3), Offset(8))
    assert pairs_of(epochs) == [(1, 0), (3, 8)]


def test_later_batches_of_an_epoch_change_nothing() -> None:
    epochs = history((1, 0))
    assert not epochs.assign(LeaderEpoch(1), Offset(7))
    assert pairs_of(epochs) == [(1, 0)]


@pytest.mark.parametrize(("epoch", "offset"), [(1, 20), (3, 5), (-1, 20), (3, -1)])
def test_what_goes_back_is_not_accepted(epoch: int, offset: int) -> None:
    epochs = history((1, 0), (2, 10))
    assert not epochs.accepts(LeaderEpoch(epoch), Offset(offset))
    with pytest.raises(AssertionError):
        epochs.assign(LeaderEpoch(epoch), Offset(offset))
    assert pairs_of(epochs) == [(1, 0), (2, 10)]


def test_truncating_the_start_keeps_the_epoch_that_holds_it_and_raises_its_start() -> None:
    epochs = history((1, 0), (2, 10), (3, 20))
    assert epochs.truncate_from_start(Offset(15))
    assert pairs_of(epochs) == [(2, 15), (3, 20)]
    assert not epochs.truncate_from_start(Offset(15))
    assert not epochs.truncate_from_start(Offset(3))


def test_an_emptied_log_still_knows_its_newest_epoch() -> None:
    epochs = history((1, 0), (2, 10))
    assert epochs.truncate_from_start(Offset(50))
    assert pairs_of(epochs) == [(2, 50)]


def test_truncating_the_end_forgets_epochs_that_begin_there() -> None:
    epochs = history((1, 0), (2, 10), (3, 20))
    assert epochs.truncate_from_end(Offset(20))
    assert pairs_of(epochs) == [(1, 0), (2, 10)]
    assert not epochs.truncate_from_end(Offset(20))


@given(
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**62)), max_size=8),
    st.data(),
)
@settings(max_examples=examples(60), deadline=None)
def test_bytes_are_read_back_and_any_change_of_them_is_noticed(
    drawn: list[tuple[int, int]], data: st.DataObject
) -> None:
    epochs = LeaderEpochs()
    for epoch, offset in sorted(drawn):
        if epochs.accepts(LeaderEpoch(epoch), Offset(offset)):
            epochs.assign(LeaderEpoch(epoch), Offset(offset))
    encoded = epochs.to_bytes()
    decoded = LeaderEpochs.from_bytes(encoded)
    assert isinstance(decoded, LeaderEpochs)
    assert decoded.entries == epochs.entries

    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    flipped = bytearray(encoded)
    flipped[bit // 8] ^= 1 << bit % 8
    assert isinstance(LeaderEpochs.from_bytes(bytes(flipped)), Damaged)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    assert isinstance(LeaderEpochs.from_bytes(encoded[:cut]), Damaged)
    assert isinstance(LeaderEpochs.from_bytes(encoded + b"\0"), Damaged)


class EpochModel(RuleBasedStateMachine):
    """Against the plainest model there is: the epoch of every single record, in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = LeaderEpochs()
        self.written: list[int] = []
        self.start = 0
        self.idle: int | None = None  # the newest epoch, still without a record in the log

    @property
    def end(self) -> int:
        return len(self.written)

    def newest(self) -> int:
        known = self.written[self.start :] + ([] if self.idle is None else [self.idle])
        return max(known, default=0)

    @rule(step=st.integers(0, 3), count=st.integers(1, 4))
    def append(self, step: int, count: int) -> None:
        epoch = self.newest() + step
        self.epochs.assign(LeaderEpoch(epoch), Offset(self.end))
        self.written += [epoch] * count
        self.idle = None

    @rule(step=st.integers(1, 3))
    def become_leader(self, step: int) -> None:
        self.idle = self.newest() + step
        self.epochs.assign(LeaderEpoch(self.idle), Offset(self.end))

    @rule(data=st.data())
    def truncate_end(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        self.epochs.truncate_from_end(Offset(offset))
        del self.written[offset:]
        self.idle = None

    @rule(data=st.data())
    def truncate_start(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        if self.idle is None and offset == self.end and offset > self.start:
            self.idle = self.written[-1]
        self.epochs.truncate_from_start(Offset(offset))
        self.start = offset

    @rule()
    def restart(self) -> None:
        decoded = LeaderEpochs.from_bytes(self.epochs.to_bytes())
        assert isinstance(decoded, LeaderEpochs)
        self.epochs = decoded

    @invariant()
    def epochs_of_offsets_agree(self) -> None:
        for offset in range(self.start, self.end):
            assert self.epochs.epoch_for(Offset(offset)) == self.written[offset]
        if self.idle is not None:
            assert self.epochs.epoch_for(Offset(self.end)) == self.idle

    @invariant()
    def end_offsets_agree(self) -> None:
        known = set(self.written[self.start :])
        if self.idle is not None:
            known.add(self.idle)
        for asked in range(self.newest() + 3):
            if not known or asked > max(known):
                expected = None
            elif asked == max(known):
                expected = (asked, self.end)
            else:
                later = [o for o in range(self.start, self.end) if self.written[o] > asked]
                below = [epoch for epoch in known if epoch <= asked]
                expected = (max(below, default=asked), min(later, default=self.end))
            assert end_of(self.epochs, asked, self.end) == expected

    @invariant()
    def entries_grow_strictly(self) -> None:
        pairs = pairs_of(self.epochs)
        for (epoch, offset), (next_epoch, next_offset) in pairwise(pairs):
            assert epoch < next_epoch
            assert offset < next_offset


TestEpochModel = EpochModel.TestCase
TestEpochModel.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
