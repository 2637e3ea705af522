"""KIP-98's producer state: new batches, repetitions, refusals, and restarts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.record.control import Marker
from raftlog.record.errors import (
    DUPLICATE_SEQUENCE,
    OUT_OF_ORDER_SEQUENCE,
    PRODUCER_FENCED,
    QUOTA_EXCEEDED,
    UNKNOWN_PRODUCER_ID,
    ErrorEntry,
    LogError,
)
from raftlog.record.header import CONTROL_BIT, LOG_APPEND_TIME_BIT, BatchHeader
from raftlog.record.types import LEADER_EPOCH_MAX, Offset
from raftlog.storage.checksummed import Damaged
from raftlog.storage.producers.entry import SEQUENCES, Append, Duplicate, Terms
from raftlog.storage.producers.state import (
    NEW_PRODUCERS_MAX,
    NEW_PRODUCERS_PER_S,
    ProducerStates,
    Truncation,
)
from tests.examples import examples
from tests.storage.producer_headers import header

COMMIT = Marker(True, 0)


class Partition:
    """A minimal log: an end offset, and the batches."""

    def __init__(self, **settings_: int) -> None:
        self.states = ProducerStates(**settings_)
        self.end_offset = 0
        self.now_ms = 0

    def send(self, *headers: BatchHeader, fails: bool = False) -> list[Append | Duplicate]:
        plan = self.states.prepare(headers, Offset(self.end_offset), now_ms=self.now_ms)
        if not fails:
            self.states.apply(plan)
            for sent, outcome in zip(headers, plan.outcomes, strict=True):
                self.end_offset += sent.last_offset_delta + 1 if isinstance(outcome, Append) else 0
        return list(plan.outcomes)

    def end(self, sent: BatchHeader, marker: Marker = COMMIT) -> list[Append | Duplicate]:
        plan = self.states.prepare_marker(
            sent,
            marker,
            Offset(self.end_offset),
            newest_coordinator=LEADER_EPOCH_MAX,
            now_ms=self.now_ms,
        )
        self.states.apply(plan)
        self.end_offset += len(plan.updates)
        return list(plan.outcomes)

    def refusal(self, *headers: BatchHeader) -> ErrorEntry:
        with pytest.raises(LogError) as caught:
            self.send(*headers)
        return caught.value.entry


@pytest.fixture
def partition() -> Partition:
    return Partition()


def test_batches_in_sequence_are_new(partition: Partition) -> None:
    assert partition.send(header(1, 0, 3)) == [Append()]
    assert partition.send(header(1, 3, 2)) == [Append()]


def test_batches_without_a_producer_id_are_always_new_and_leave_nothing(
    partition: Partition,
) -> None:
    assert partition.send(header(-1, -1), header(-1, 0)) == [Append(), Append()]
    assert len(partition.states) == 0


def test_a_duplicate_gets_the_offsets_of_the_first_append(partition: Partition) -> None:
    partition.send(header(-1, -1, 10))
    partition.send(header(1, 0, 3))
    partition.send(header(1, 3, 2))
    assert partition.send(header(1, 0, 3)) == [Duplicate(Offset(10), Offset(12), -1)]
    assert partition.end_offset == 15


def test_each_of_the_last_five_batches_can_be_repeated_and_older_ones_are_known_as_written(
    partition: Partition,
) -> None:
    for sequence in range(7):
        partition.send(header(1, sequence))
    for sequence in range(2, 7):
        assert partition.send(header(1, sequence)) == [
            Duplicate(Offset(sequence), Offset(sequence), -1)
        ]
    for sequence in range(2):
        assert partition.refusal(header(1, sequence)) is DUPLICATE_SEQUENCE


def test_a_gap_is_refused(partition: Partition) -> None:
    partition.send(header(1, 0, 3))
    assert partition.refusal(header(1, 4)) is OUT_OF_ORDER_SEQUENCE


@pytest.mark.parametrize(("sequence", "count"), [(0, 1), (0, 5), (1, 3), (2, 4)])
def test_a_batch_cut_otherwise_than_the_one_written_is_refused(
    partition: Partition, sequence: int, count: int
) -> None:
    partition.send(header(1, 0, 3))
    partition.send(header(1, 3, 2))
    assert partition.refusal(header(1, sequence, count)) is OUT_OF_ORDER_SEQUENCE


def test_unwritten_sequences_are_never_duplicates(partition: Partition) -> None:
    partition.send(header(1, 0))
    assert partition.refusal(header(1, SEQUENCES - 5)) is OUT_OF_ORDER_SEQUENCE


def test_an_older_epoch_is_fenced_even_if_it_repeats(partition: Partition) -> None:
    partition.send(header(1, 0, epoch=3))
    partition.send(header(1, 0, epoch=4))
    assert partition.refusal(header(1, 0, epoch=3)) is PRODUCER_FENCED
    assert partition.refusal(header(1, 1, epoch=3)) is PRODUCER_FENCED


def test_a_new_epoch_begins_at_sequence_0(partition: Partition) -> None:
    partition.send(header(1, 0, 5))
    assert partition.refusal(header(1, 5, epoch=1)) is OUT_OF_ORDER_SEQUENCE
    assert partition.send(header(1, 0, epoch=1)) == [Append()]
    assert partition.send(header(1, 1, epoch=1)) == [Append()]


def test_an_unknown_producer_begins_at_sequence_0(partition: Partition) -> None:
    """KAFKA-15591: taken as a beginning, the second of two batches in flight bars the first."""
    assert partition.refusal(header(1, 17, 5)) is UNKNOWN_PRODUCER_ID
    assert partition.send(header(1, 0, 17)) == [Append()]
    assert partition.send(header(1, 17, 5)) == [Append()]


def test_an_unknown_producer_of_an_append_that_may_start_anywhere_continues_its_sequence() -> None:
    states = ProducerStates()

    def send(*headers: BatchHeader) -> list[Append | Duplicate]:
        plan = states.prepare(headers, Offset(0), now_ms=0, terms=Terms(may_start_anywhere=True))
        states.apply(plan)
        return list(plan.outcomes)

    assert send(header(1, 17, 5), header(1, 22)) == [Append(), Append()]
    assert send(header(1, 17, 5)) == [Duplicate(Offset(0), Offset(4), -1)]
    # What was before the start was never written here.
    for sent in (header(1, 0, 17), header(1, 16), header(1, 30), header(1, 5, epoch=1)):
        with pytest.raises(LogError) as caught:
            send(sent)
        assert caught.value.entry is OUT_OF_ORDER_SEQUENCE


def test_sequences_begin_again_at_0_after_the_largest(partition: Partition) -> None:
    partition.states.update(header(1, SEQUENCES - 3, 2), now_ms=0)
    partition.end_offset = 2
    assert partition.send(header(1, SEQUENCES - 1, 3)) == [Append()]
    assert partition.send(header(1, 2)) == [Append()]
    assert partition.send(header(1, SEQUENCES - 1, 3)) == [Duplicate(Offset(2), Offset(4), -1)]
    for sequence in range(3, 8):
        partition.send(header(1, sequence))
    assert partition.refusal(header(1, SEQUENCES - 1, 3)) is DUPLICATE_SEQUENCE
    assert partition.refusal(header(1, 9)) is OUT_OF_ORDER_SEQUENCE


def test_batches_of_one_request_are_judged_one_after_the_other(partition: Partition) -> None:
    outcomes = partition.send(
        header(1, 0, 2), header(2, 0), header(1, 2), header(1, 0, 2), header(1, 3)
    )
    assert outcomes == [
        Append(),
        Append(),
        Append(),
        Duplicate(Offset(0), Offset(1), -1),
        Append(),
    ]
    assert partition.send(header(1, 3)) == [Duplicate(Offset(4), Offset(4), -1)]


def test_a_refused_batch_refuses_the_request_and_leaves_no_trace(partition: Partition) -> None:
    assert partition.refusal(header(1, 0), header(1, 2)) is OUT_OF_ORDER_SEQUENCE
    assert len(partition.states) == 0


def test_a_write_that_failed_leaves_no_trace(partition: Partition) -> None:
    partition.send(header(1, 0))
    partition.send(header(1, 1), header(2, 0), fails=True)
    assert len(partition.states) == 1
    assert partition.send(header(1, 1), header(2, 0)) == [Append(), Append()]


def test_a_plan_that_others_have_overtaken_is_not_applied(partition: Partition) -> None:
    plan = partition.states.prepare([header(1, 0)], Offset(0), now_ms=0)
    partition.send(header(2, 0))
    with pytest.raises(AssertionError):
        partition.states.apply(plan)
    plan = partition.states.prepare([header(1, 0)], Offset(1), now_ms=0)
    partition.states.truncate_to(Offset(0))
    with pytest.raises(AssertionError):
        partition.states.apply(plan)


def test_forgotten_and_new_batches_in_one_request_are_not_called_duplicates(
    partition: Partition,
) -> None:
    """The client takes DUPLICATE_SEQUENCE for success, which the new batch would not be."""
    for sequence in range(6):
        partition.send(header(1, sequence))
    assert partition.refusal(header(1, 0), header(1, 6)) is OUT_OF_ORDER_SEQUENCE
    assert partition.refusal(header(1, 0), header(1, 1)) is DUPLICATE_SEQUENCE
    assert partition.send(header(1, 6)) == [Append()]


def test_a_duplicate_gets_the_time_stamped_by_the_broker(partition: Partition) -> None:
    plan = partition.states.prepare(
        [header(1, 0)], Offset(0), now_ms=5, log_append_time_ms=1_700_000_000_000
    )
    partition.states.apply(plan)
    partition.states.update(
        header(1, 1, base_offset=1, attributes=LOG_APPEND_TIME_BIT, max_timestamp_ms=77), now_ms=5
    )
    assert partition.send(header(1, 0), header(1, 1)) == [
        Duplicate(Offset(0), Offset(0), 1_700_000_000_000),
        Duplicate(Offset(1), Offset(1), 77),
    ]


def test_markers_have_no_sequence_but_an_epoch(partition: Partition) -> None:
    marker = header(1, -1, epoch=1, attributes=CONTROL_BIT)
    newer = header(1, -1, epoch=2, attributes=CONTROL_BIT)
    partition.send(header(1, 0, 3, epoch=1))
    assert partition.end(marker) == [Append()]
    assert partition.send(header(1, 3, epoch=1)) == [Append()]
    assert partition.end(newer) == [Append()]
    with pytest.raises(LogError) as caught:
        partition.end(marker)
    assert caught.value.entry is PRODUCER_FENCED
    assert partition.refusal(header(1, 4, epoch=1)) is PRODUCER_FENCED
    assert partition.refusal(header(1, 4, epoch=2)) is OUT_OF_ORDER_SEQUENCE
    assert partition.send(header(1, 0, epoch=2)) == [Append()]


def test_a_silent_producer_is_forgotten_after_the_expiry_time() -> None:
    partition = Partition(expiration_ms=1000)
    partition.send(header(1, 0))
    partition.now_ms = 600
    partition.send(header(2, 0))
    assert partition.states.expire(999) == 0
    assert partition.states.expire(1000) == 1
    assert partition.refusal(header(1, 1)) is UNKNOWN_PRODUCER_ID
    assert partition.send(header(1, 0, epoch=1)) == [Append()]
    assert partition.send(header(2, 1)) == [Append()]


def test_no_active_producer_makes_room_for_a_new_one() -> None:
    partition = Partition(producers_max=2, expiration_ms=1000)
    partition.send(header(1, 0))
    partition.send(header(2, 0))
    partition.now_ms = 500
    partition.send(header(1, 1))
    partition.now_ms = 999
    assert partition.refusal(header(3, 0)) is QUOTA_EXCEEDED
    assert partition.refusal(header(1, 2), header(3, 0)) is QUOTA_EXCEEDED
    assert partition.send(header(2, 0)) == [Duplicate(Offset(1), Offset(1), -1)]
    partition.now_ms = 1000
    assert partition.refusal(header(3, 0), header(4, 0)) is QUOTA_EXCEEDED
    assert partition.send(header(3, 0)) == [Append()]
    assert len(partition.states) == 2
    assert partition.send(header(1, 2)) == [Append()]
    assert partition.refusal(header(2, 1)) is UNKNOWN_PRODUCER_ID


def test_a_flood_of_new_producers_is_refused_and_none_is_forgotten() -> None:
    partition = Partition()
    partition.send(header(7, 0))
    flood = [header(1_000_000 + number, 0) for number in range(100_000)]
    assert partition.refusal(*flood) is QUOTA_EXCEEDED
    partition.send(*flood[: NEW_PRODUCERS_MAX - 1])
    assert partition.refusal(header(8, 0)) is QUOTA_EXCEEDED
    assert partition.send(header(7, 1)) == [Append()]
    assert partition.send(header(7, 0)) == [Duplicate(Offset(0), Offset(0), -1)]
    partition.now_ms = 1000
    partition.send(*flood[NEW_PRODUCERS_MAX : NEW_PRODUCERS_MAX + NEW_PRODUCERS_PER_S])
    assert partition.refusal(header(8, 0)) is QUOTA_EXCEEDED


def test_a_refused_or_failed_append_admits_no_producer() -> None:
    partition = Partition()
    for _ in range(3):
        partition.send(*[header(number, 0) for number in range(NEW_PRODUCERS_MAX)], fails=True)
    assert partition.send(header(1, 0)) == [Append()]


def test_a_replay_keeps_the_newest_producers() -> None:
    """Among them all that the leader remembers, which has judged already."""
    states = ProducerStates(producers_max=2)
    for number in range(4):
        states.update(header(number, 0, base_offset=number), now_ms=0)
    assert [number in states for number in range(4)] == [False, False, True, True]


def test_replaying_what_is_known_changes_nothing(partition: Partition) -> None:
    for sequence in range(3):
        partition.send(header(1, sequence))
    before = partition.states.to_bytes(Offset(3), now_ms=0)
    for sequence in range(3):
        partition.states.update(header(1, sequence, base_offset=sequence), now_ms=0)
    assert partition.states.to_bytes(Offset(3), now_ms=0) == before


def test_a_replay_takes_the_gaps_that_compaction_left(partition: Partition) -> None:
    partition.states.update(header(1, 0, 5, base_offset=0), now_ms=0)
    partition.states.update(header(1, 40, 2, base_offset=90), now_ms=0)
    partition.end_offset = 92
    assert partition.send(header(1, 40, 2)) == [Duplicate(Offset(90), Offset(91), -1)]
    assert partition.send(header(1, 42)) == [Append()]


def test_truncation_above_all_that_is_known_leaves_it_exact(partition: Partition) -> None:
    partition.send(header(1, 0, 4))
    partition.send(header(-1, -1, 4))
    assert partition.states.truncate_to(Offset(4)) is Truncation.EXACT
    assert partition.send(header(1, 0, 4)) == [Duplicate(Offset(0), Offset(3), -1)]


def test_truncation_of_a_remembered_batch_asks_for_a_rebuild(partition: Partition) -> None:
    partition.send(header(1, 0, 4))
    partition.send(header(2, 0, 4))
    assert partition.states.truncate_to(Offset(7)) is Truncation.REBUILD
    assert len(partition.states) == 0


def test_truncation_of_a_new_epoch_cannot_be_exact(partition: Partition) -> None:
    """Dropping the batch would leave nothing, while the log then ends with epoch 0."""
    partition.send(header(1, 0, 4))
    partition.send(header(1, 0, epoch=1))
    assert partition.states.truncate_to(Offset(4)) is Truncation.REBUILD
    partition.states.update(header(1, 0, 4), now_ms=0)
    partition.end_offset = 4
    assert partition.send(header(1, 4)) == [Append()]


def test_last_offsets_name_the_batches_that_compaction_must_leave(partition: Partition) -> None:
    partition.send(header(1, 0, 4))
    partition.end(header(1, -1, attributes=CONTROL_BIT))
    partition.send(header(2, 0, 2))
    partition.end(header(3, -1, epoch=1, attributes=CONTROL_BIT))
    assert partition.states.last_offsets() == {1: 3, 2: 6, 3: 7}


def test_a_snapshot_keeps_answers_and_ages() -> None:
    partition = Partition(expiration_ms=1000)
    for sequence in range(7):
        partition.send(header(1, sequence))
    partition.now_ms = 300
    partition.send(header(2, 0))
    data = partition.states.to_bytes(Offset(8), now_ms=500)

    restored = ProducerStates.from_bytes(data, Offset(8), now_ms=9000, expiration_ms=1000)
    assert isinstance(restored, ProducerStates)
    assert restored.expire(9499) == 0
    partition.states = restored
    assert partition.send(header(1, 6)) == [Duplicate(Offset(6), Offset(6), -1)]
    assert partition.refusal(header(1, 0)) is DUPLICATE_SEQUENCE
    assert restored.expire(9500) == 1
    assert restored.expire(9799) == 0
    assert restored.expire(9800) == 1


def test_a_snapshot_of_another_offset_is_not_taken(partition: Partition) -> None:
    data = partition.states.to_bytes(Offset(8), now_ms=0)
    assert isinstance(ProducerStates.from_bytes(data, Offset(9), now_ms=0), Damaged)


def test_a_snapshot_tells_of_nothing_from_its_offset_on(partition: Partition) -> None:
    partition.send(header(1, 0, 4))
    data = partition.states.to_bytes(Offset(3), now_ms=0)
    assert isinstance(ProducerStates.from_bytes(data, Offset(3), now_ms=0), Damaged)


def test_what_is_below_an_offset_counts_nothing_from_there_on(partition: Partition) -> None:
    partition.send(header(1, 0, 2))
    partition.send(header(2, 0))
    partition.send(header(1, 2, 3))
    partition.send(header(3, 0))
    partition.now_ms = 5
    below = partition.states.below(Offset(5))
    assert below.last_offsets() == {1: 1, 2: 2}
    partition.states, partition.end_offset = below, 5
    assert partition.refusal(header(1, 5)) is OUT_OF_ORDER_SEQUENCE
    assert partition.send(header(1, 0, 2)) == [Duplicate(Offset(0), Offset(1), -1)]
    assert partition.send(header(1, 2, 3)) == [Append()]


def test_a_producer_with_all_that_is_remembered_on_its_way_goes_on_where_it_was(
    partition: Partition,
) -> None:
    for sequence in range(8):
        partition.send(header(1, sequence))
    partition.states = partition.states.below(Offset(3))
    assert partition.refusal(header(1, 4)) is OUT_OF_ORDER_SEQUENCE
    assert partition.send(header(1, 3)) == [Append()]


def test_a_producer_that_began_later_is_not_known_below(partition: Partition) -> None:
    partition.send(header(9, 0, 3))
    partition.send(header(1, 0))
    partition.end(header(2, -1, attributes=CONTROL_BIT))
    assert partition.states.below(Offset(3)).last_offsets() == {9: 2}
    assert len(partition.states.below(Offset(0))) == 0


def test_a_marker_takes_nothing_from_what_is_known_below(partition: Partition) -> None:
    partition.send(header(1, 0, 3))
    partition.end(header(1, -1, attributes=CONTROL_BIT))
    partition.states = partition.states.below(Offset(3))
    assert partition.send(header(1, 0, 3)) == [Duplicate(Offset(0), Offset(2), -1)]
    assert partition.send(header(1, 3)) == [Append()]


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_any_change_of_a_snapshot_is_noticed(data: st.DataObject) -> None:
    partition = Partition()
    for producer in range(3):
        partition.send(header(producer, 0))
    encoded = partition.states.to_bytes(Offset(3), now_ms=0)
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    flipped = bytearray(encoded)
    flipped[bit // 8] ^= 1 << bit % 8
    assert isinstance(ProducerStates.from_bytes(bytes(flipped), Offset(3), now_ms=0), Damaged)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    assert isinstance(ProducerStates.from_bytes(encoded[:cut], Offset(3), now_ms=0), Damaged)


def test_descriptions_begin_with_the_newest_and_are_bounded(partition: Partition) -> None:
    partition.send(header(1, 0, 3))
    partition.now_ms = 10
    partition.send(header(2, 0))
    partition.now_ms = 15
    newest, oldest = partition.states.described(5, partition.now_ms)
    assert newest == (2, 0, 0, 5, -1, None)
    assert oldest == (1, 0, 2, 15, -1, None)
    assert partition.states.described(1, partition.now_ms) == [newest]
