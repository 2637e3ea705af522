"""KIP-98's producer state against a model with all batches ever written."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raftlog.record.errors import (
    DUPLICATE_SEQUENCE,
    OUT_OF_ORDER_SEQUENCE,
    PRODUCER_FENCED,
    UNKNOWN_PRODUCER_ID,
    ErrorEntry,
    LogError,
)
from raftlog.record.header import BatchHeader
from raftlog.record.types import Offset
from raftlog.storage.producers.entry import BATCHES_REMEMBERED_MAX, SEQUENCES, Append, Duplicate
from raftlog.storage.producers.state import ProducerStates, Truncation
from tests.examples import examples
from tests.storage.producer_headers import header


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
    """The naive result: search all batches ever written."""
    mine = [batch for batch in log if batch.producer == sent.producer_id]
    epoch = max((batch.epoch for batch in mine), default=None)
    if epoch is not None and sent.producer_epoch < epoch:
        return PRODUCER_FENCED, None
    if epoch is None or sent.producer_epoch > epoch:
        refusal = UNKNOWN_PRODUCER_ID if epoch is None else OUT_OF_ORDER_SEQUENCE
        return ("append" if sent.base_sequence == 0 else refusal), None
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
        # From a little below the snapshot, as recovery may have to, without effect.
        for batch in self.log:
            if batch.offset + 5 * batch.count >= newest:
                self.states.update(batch.header, now_ms=0)

    @rule(data=st.data())
    def another_log_begins(self, data: st.DataObject) -> None:
        """A log with the records between two offsets, and the producers of those below."""
        start = data.draw(st.integers(0, self.end), "start")
        snapshot = self.states.below(Offset(start)).to_bytes(Offset(start), now_ms=0)
        states = ProducerStates.from_bytes(snapshot, Offset(start), now_ms=0)
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
                # Not done by any client: a new epoch begins once the outcome of the last is known.
                continue
            for batch in recent:
                assert answer(states, batch) == answer(exact, batch)

    @invariant()
    def compaction_gets_the_last_batches(self) -> None:
        last: dict[int, int] = {}
        for batch in self.log:
            last[batch.producer] = batch.offset + batch.count - 1
        assert self.states.last_offsets() == last


TestProducerModel = ProducerModel.TestCase
TestProducerModel.settings = settings(
    max_examples=examples(100), stateful_step_count=30, deadline=None
)
