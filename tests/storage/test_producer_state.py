"""KIP-98's producer state: what is new, what is a repetition, what is refused, what survives."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raftlog.record.errors import (
    DUPLICATE_SEQUENCE,
    OUT_OF_ORDER_SEQUENCE,
    PRODUCER_FENCED,
    ErrorEntry,
    LogError,
)
from raftlog.record.header import CONTROL_BIT, LOG_APPEND_TIME_BIT, BatchHeader
from raftlog.record.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from raftlog.storage.checksummed import Damaged
from raftlog.storage.producer_state import (
    BATCHES_REMEMBERED_MAX,
    SEQUENCES,
    Append,
    Duplicate,
    ProducerStates,
    Truncation,
)


def header(
    producer: int,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    base_offset: int = 0,
    attributes: int = 0,
    max_timestamp_ms: int = 0,
) -> BatchHeader:
    return BatchHeader(
        Offset(base_offset),
        49,
        LeaderEpoch(0),
        2,
        0,
        attributes,
        count - 1,
        0,
        max_timestamp_ms,
        ProducerId(producer),
        ProducerEpoch(epoch),
        sequence,
        count,
    )


class Partition:
    """The least of a log: an end offset, and what was written."""

    def __init__(self, **settings_: int) -> None:
        self.states = ProducerStates(**settings_)
        self.end = 0
        self.now_ms = 0

    def send(self, *headers: BatchHeader, fails: bool = False) -> list[Append | Duplicate]:
        plan = self.states.prepare(headers, Offset(self.end), now_ms=self.now_ms)
        if not fails:
            self.states.apply(plan)
            for sent, outcome in zip(headers, plan.outcomes, strict=True):
                self.end += sent.last_offset_delta + 1 if isinstance(outcome, Append) else 0
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


def test_a_repetition_is_told_where_it_went_the_first_time(partition: Partition) -> None:
    partition.send(header(-1, -1, 10))
    partition.send(header(1, 0, 3))
    partition.send(header(1, 3, 2))
    assert partition.send(header(1, 0, 3)) == [Duplicate(Offset(10), Offset(12), -1)]
    assert partition.end == 15


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


def test_sequences_that_nobody_wrote_are_never_called_duplicates(partition: Partition) -> None:
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
    assert partition.refusal(header(1, 17, 5)) is OUT_OF_ORDER_SEQUENCE
    assert partition.send(header(1, 0, 17)) == [Append()]
    assert partition.send(header(1, 17, 5)) == [Append()]


def test_sequences_begin_again_at_0_after_the_largest(partition: Partition) -> None:
    partition.states.update(header(1, SEQUENCES - 3, 2), now_ms=0)
    partition.end = 2
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


def test_a_repetition_is_told_the_time_that_the_broker_stamped(partition: Partition) -> None:
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
    partition.send(header(1, 0, 3, epoch=1))
    assert partition.send(marker) == [Append()]
    assert partition.send(header(1, 3, epoch=1)) == [Append()]
    assert partition.send(header(1, -1, epoch=2, attributes=CONTROL_BIT)) == [Append()]
    assert partition.refusal(marker) is PRODUCER_FENCED
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
    assert partition.refusal(header(1, 1)) is OUT_OF_ORDER_SEQUENCE
    assert partition.send(header(1, 0, epoch=1)) == [Append()]
    assert partition.send(header(2, 1)) == [Append()]


def test_the_producer_longest_silent_makes_room_for_a_new_one() -> None:
    partition = Partition(producers_max=2)
    partition.send(header(1, 0))
    partition.send(header(2, 0))
    partition.send(header(1, 1))
    partition.send(header(3, 0))
    assert len(partition.states) == 2
    assert partition.send(header(1, 2)) == [Append()]
    assert partition.refusal(header(2, 1)) is OUT_OF_ORDER_SEQUENCE


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
    partition.end = 92
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
    """Dropping the batch would leave nothing, while epoch 0 is what the log then ends with."""
    partition.send(header(1, 0, 4))
    partition.send(header(1, 0, epoch=1))
    assert partition.states.truncate_to(Offset(4)) is Truncation.REBUILD
    partition.states.update(header(1, 0, 4), now_ms=0)
    partition.end = 4
    assert partition.send(header(1, 4)) == [Append()]


def test_last_offsets_name_the_batches_that_compaction_must_leave(partition: Partition) -> None:
    partition.send(header(1, 0, 4))
    partition.send(header(1, -1, attributes=CONTROL_BIT))
    partition.send(header(2, 0, 2))
    partition.send(header(3, -1, epoch=1, attributes=CONTROL_BIT))
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
    partition.states, partition.end = below, 5
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
    partition.send(header(2, -1, attributes=CONTROL_BIT))
    assert partition.states.below(Offset(3)).last_offsets() == {9: 2}
    assert len(partition.states.below(Offset(0))) == 0


def test_a_marker_takes_nothing_from_what_is_known_below(partition: Partition) -> None:
    partition.send(header(1, 0, 3))
    partition.send(header(1, -1, attributes=CONTROL_BIT))
    partition.states = partition.states.below(Offset(3))
    assert partition.send(header(1, 0, 3)) == [Duplicate(Offset(0), Offset(2), -1)]
    assert partition.send(header(1, 3)) == [Append()]


@given(st.data())
@settings(max_examples=60, deadline=None)
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


@dataclass(frozen=True)
class Written:
    """A batch in the model's log. `begin` counts sequences without ever wrapping."""

    producer: int
    epoch: int
    begin: int
    count: int
    offset: int

    @property
    def end(self) -> int:
        return self.begin + self.count

    @property
    def header(self) -> BatchHeader:
        return header(
            self.producer,
            self.begin % SEQUENCES,
            self.count,
            epoch=self.epoch,
            base_offset=self.offset,
        )


def judged(log: list[Written], sent: BatchHeader) -> tuple[str | ErrorEntry, Written | None]:
    """The naive answer: look through everything that was ever written."""
    mine = [batch for batch in log if batch.producer == sent.producer_id]
    epoch = max((batch.epoch for batch in mine), default=None)
    if epoch is not None and sent.producer_epoch < epoch:
        return PRODUCER_FENCED, None
    if epoch is None or sent.producer_epoch > epoch:
        return ("append" if sent.base_sequence == 0 else OUT_OF_ORDER_SEQUENCE), None
    current = [batch for batch in mine if batch.epoch == epoch]
    count, end = sent.last_offset_delta + 1, current[-1].end
    if end % SEQUENCES == sent.base_sequence:
        return "append", None
    recent = current[-BATCHES_REMEMBERED_MAX:]
    for batch in recent:
        if batch.begin % SEQUENCES == sent.base_sequence and batch.count == count:
            return "duplicate", batch
    begin = end - (end - sent.base_sequence) % SEQUENCES
    was_written = begin >= 0 and end - begin <= SEQUENCES // 2
    if was_written and begin + count <= recent[0].begin:
        return DUPLICATE_SEQUENCE, None
    return OUT_OF_ORDER_SEQUENCE, None


def answer(states: ProducerStates, sent: Written) -> Append | Duplicate | ErrorEntry:
    try:
        plan = states.prepare([sent.header], Offset(1 << 40), now_ms=0)
    except LogError as error:
        return error.entry
    (outcome,) = plan.outcomes
    return outcome


class ProducerModel(RuleBasedStateMachine):
    """Requests of several batches, failed writes, restarts and truncations, against `judged`."""

    def __init__(self) -> None:
        super().__init__()
        self.states = ProducerStates()
        self.log: list[Written] = []
        self.snapshots: dict[int, bytes] = {}

    @property
    def end(self) -> int:
        return self.log[-1].offset + self.log[-1].count if self.log else 0

    @rule(data=st.data(), write_fails=st.booleans())
    def send(self, data: st.DataObject, write_fails: bool) -> None:
        log = list(self.log)
        end = self.end
        headers: list[BatchHeader] = []
        expected: list[Append | Duplicate] = []
        refusals: list[ErrorEntry] = []
        for _ in range(data.draw(st.integers(1, 3))):
            sent = self.drawn(data, log)
            headers.append(sent)
            answer, batch = judged(log, sent)
            if isinstance(answer, ErrorEntry):
                refusals.append(answer)
                if answer is not DUPLICATE_SEQUENCE:
                    break
            elif batch is not None:
                last = batch.offset + batch.count - 1
                expected.append(Duplicate(Offset(batch.offset), Offset(last), -1))
            else:
                expected.append(Append())
                log.append(self.written(log, sent, end))
                end += log[-1].count
        if refusals:
            with pytest.raises(LogError) as caught:
                self.states.prepare(headers, Offset(self.end), now_ms=0)
            if refusals[-1] is DUPLICATE_SEQUENCE and Append() in expected:
                assert caught.value.entry is OUT_OF_ORDER_SEQUENCE
            else:
                assert caught.value.entry is refusals[-1]
            return
        plan = self.states.prepare(headers, Offset(self.end), now_ms=0)
        assert list(plan.outcomes) == expected
        if not write_fails:
            self.states.apply(plan)
            self.log = log

    def drawn(self, data: st.DataObject, log: list[Written]) -> BatchHeader:
        producer = data.draw(st.integers(0, 2))
        mine = [batch for batch in log if batch.producer == producer]
        epoch = max((batch.epoch for batch in mine), default=0)
        epoch = max(0, epoch + data.draw(st.sampled_from([0] * 10 + [-1, 1])))
        current = [batch for batch in mine if batch.epoch == epoch]
        # Five of the largest must not go around: a record takes seven bytes at least.
        count = data.draw(st.sampled_from([1, 2, 3, 2**28]))
        sequence = current[-1].end if current else 0
        kind = data.draw(st.sampled_from(["next"] * 6 + ["repeat", "repeat", "shift"]))
        if kind == "repeat" and current:
            batch = data.draw(st.sampled_from(current[-8:]))
            sequence, count = batch.begin, batch.count
        elif kind == "shift":
            sequence += data.draw(st.sampled_from([-3, -2, -1, 1, 2, 2**29, -(2**29), 2**30]))
        return header(producer, sequence % SEQUENCES, count, epoch=epoch)

    def written(self, log: list[Written], sent: BatchHeader, offset: int) -> Written:
        ends = [
            batch.end
            for batch in log
            if (batch.producer, batch.epoch) == (sent.producer_id, sent.producer_epoch)
        ]
        return Written(
            sent.producer_id,
            sent.producer_epoch,
            ends[-1] if ends else 0,
            sent.last_offset_delta + 1,
            offset,
        )

    @rule()
    def take_snapshot(self) -> None:
        self.snapshots[self.end] = self.states.to_bytes(Offset(self.end), now_ms=0)

    @rule()
    def restart_from_snapshot_and_scan(self) -> None:
        self.rebuild()

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        keep = data.draw(st.integers(max(0, len(self.log) - 4), len(self.log)))
        del self.log[keep:]
        for offset in [offset for offset in self.snapshots if offset > self.end]:
            del self.snapshots[offset]
        if self.states.truncate_to(Offset(self.end)) is Truncation.REBUILD:
            self.rebuild()

    def rebuild(self) -> None:
        self.states = ProducerStates()
        newest = max(self.snapshots, default=0)
        if newest in self.snapshots:
            read = ProducerStates.from_bytes(self.snapshots[newest], Offset(newest), now_ms=0)
            assert isinstance(read, ProducerStates)
            self.states = read
        # From a little below the snapshot: recovery may have to, and it must not matter.
        for batch in self.log:
            if batch.offset + 5 * batch.count >= newest:
                self.states.update(batch.header, now_ms=0)

    @rule(data=st.data())
    def another_begins_anew(self, data: st.DataObject) -> None:
        """It has the records from one offset up to another, and is told of those below."""
        start = data.draw(st.integers(0, self.end), "start")
        told = self.states.below(Offset(start)).to_bytes(Offset(start), now_ms=0)
        states = ProducerStates.from_bytes(told, Offset(start), now_ms=0)
        assert isinstance(states, ProducerStates)
        exact = ProducerStates()
        left = data.draw(st.integers(0, 6), "batches that have not come yet")
        ends = [batch.offset + batch.count for batch in self.log]
        came = max([len(self.log) - left, sum(end <= start for end in ends)], default=len(self.log))
        for batch, end in zip(self.log[:came], ends, strict=False):
            exact.update(batch.header, now_ms=0)
            if end > start:
                states.update(batch.header, now_ms=0)
        for producer in range(3):
            mine = [batch for batch in self.log if batch.producer == producer]
            on_their_way = [batch for batch in self.log[came:] if batch.producer == producer]
            recent = mine[-BATCHES_REMEMBERED_MAX:]
            epochs = {batch.epoch for batch in [*recent, *on_their_way]}
            if len(on_their_way) > BATCHES_REMEMBERED_MAX or len(epochs) != 1:
                # That no client does: it begins an epoch when it knows what became of the last.
                continue
            for batch in recent:
                assert answer(states, batch) == answer(exact, batch)

    @invariant()
    def compaction_is_told_the_last_batches(self) -> None:
        last: dict[int, int] = {}
        for batch in self.log:
            last[batch.producer] = batch.offset + batch.count - 1
        assert self.states.last_offsets() == last


TestProducerModel = ProducerModel.TestCase
TestProducerModel.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
