"""Transactions in the producer state, against a model that searches the whole log each time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raftlog.record.control import Marker
from raftlog.record.errors import (
    COORDINATOR_FENCED,
    INVALID_TXN_STATE,
    OUT_OF_ORDER_SEQUENCE,
    PRODUCER_FENCED,
    TRANSACTION_NOT_VERIFIED,
    UNKNOWN_PRODUCER_ID,
    ErrorEntry,
    LogError,
)
from raftlog.record.header import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from raftlog.record.types import Offset, ProducerEpoch, ProducerId
from raftlog.storage.producers.entry import Append, Terms
from raftlog.storage.producers.state import AppendPlan, ProducerStates, Truncation
from raftlog.storage.transactions.transactions import AbortedEntry
from tests.examples import examples
from tests.storage.producer_headers import header

EXPIRATION_MS = 1000
PRODUCERS = 3


@dataclass(frozen=True)
class Written:
    """A batch or a marker in the model's log."""

    header: BatchHeader
    marker: Marker | None = None

    @property
    def producer(self) -> int:
        return self.header.producer_id

    @property
    def offset(self) -> int:
        return self.header.base_offset


@dataclass(frozen=True)
class Transaction:
    producer: int
    epoch: int
    first: int
    marker: Written | None


def transactions(log: list[Written], start: int = 0) -> list[Transaction]:
    """All transactions of the batches from `start` on, in the order of their first offsets."""
    found: list[Transaction] = []
    for number, one in enumerate(log):
        before = log[:number]
        if (
            one.header.next_offset <= start
            or one.marker is not None
            or not one.header.is_transactional
        ):
            continue
        since = [other for other in before if other.producer == one.producer]
        while since and since[-1].marker is None and not since[-1].header.is_transactional:
            since.pop()
        if since and since[-1].marker is None and since[-1].header.next_offset > start:
            continue
        later = (other for other in log[number:] if other.producer == one.producer)
        marker = next((other for other in later if other.marker is not None), None)
        found.append(Transaction(one.producer, one.header.producer_epoch, one.offset, marker))
    return found


def open_of(log: list[Written], producer: int) -> Transaction | None:
    return next(
        (one for one in transactions(log) if one.producer == producer and one.marker is None), None
    )


def unstable(log: list[Written], high_watermark: int, start: int = 0) -> int | None:
    return min(
        (
            one.first
            for one in transactions(log, start)
            if one.marker is None or one.marker.offset >= high_watermark
        ),
        default=None,
    )


class TransactionModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.states = ProducerStates(expiration_ms=EXPIRATION_MS)
        self.log: list[Written] = []
        self.high_watermark = 0
        self.stable = 0
        self.snapshots: dict[int, bytes] = {}

    @property
    def end(self) -> int:
        return self.log[-1].header.next_offset if self.log else 0

    def mine(self, producer: int) -> list[Written]:
        return [one for one in self.log if one.producer == producer]

    def epoch(self, producer: int) -> int:
        return max((one.header.producer_epoch for one in self.mine(producer)), default=0)

    def judged(self, sent: BatchHeader, *, verified: bool) -> ErrorEntry | None:
        epoch = self.epoch(sent.producer_id)
        if sent.producer_epoch < epoch:
            return PRODUCER_FENCED
        opened = open_of(self.log, sent.producer_id)
        if opened is None:
            return None if verified or not sent.is_transactional else TRANSACTION_NOT_VERIFIED
        if not sent.is_transactional:
            return INVALID_TXN_STATE
        return None if opened.epoch == sent.producer_epoch else TRANSACTION_NOT_VERIFIED

    @rule(
        producer=st.integers(0, PRODUCERS - 1),
        bump=st.sampled_from([0] * 6 + [1, -1]),
        count=st.integers(1, 3),
        transactional=st.sampled_from([True, True, True, False]),
        verified=st.sampled_from([True, True, True, False]),
        coordinator=st.booleans(),
        fails=st.sampled_from([False, False, False, True]),
    )
    def send(
        self,
        *,
        producer: int,
        bump: int,
        count: int,
        transactional: bool,
        verified: bool,
        coordinator: bool,
        fails: bool,
    ) -> None:
        epoch = max(self.epoch(producer) + bump, 0)
        sequence = sum(
            one.header.last_offset_delta + 1
            for one in self.mine(producer)
            if one.marker is None
            and one.header.producer_epoch == epoch
            and one.header.base_sequence >= 0
        )
        sent = header(
            producer,
            -1 if coordinator else sequence,
            count,
            epoch=epoch,
            base_offset=self.end,
            attributes=TRANSACTIONAL_BIT if transactional else 0,
        )
        asked: list[tuple[int, int]] = []

        def may_begin(producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
            asked.append((producer_id, producer_epoch))
            return verified

        expected = self.judged(sent, verified=verified)
        if expected is not None:
            with pytest.raises(LogError) as caught:
                self.prepare(sent, may_begin, coordinator=coordinator)
            assert caught.value.entry is expected
            return
        if coordinator:
            with pytest.raises(LogError) as caught:
                self.prepare(sent, may_begin, coordinator=False)
            is_known = len(self.mine(producer)) > 0
            entry = OUT_OF_ORDER_SEQUENCE if is_known else UNKNOWN_PRODUCER_ID
            assert caught.value.entry is entry
        plan = self.prepare(sent, may_begin, coordinator=coordinator)
        opens = transactional and open_of(self.log, producer) is None
        assert asked == ([(producer, epoch)] if opens else [])
        assert plan.outcomes == [Append()]
        if not fails:
            assert self.states.apply(plan) is None
            self.log.append(Written(sent))

    def prepare(self, sent: BatchHeader, may_begin: object, *, coordinator: bool):  # type: ignore[no-untyped-def]
        return self.states.prepare(
            [sent],
            Offset(self.end),
            now_ms=0,
            terms=Terms(may_begin, is_coordinator=coordinator),  # type: ignore[arg-type]
        )

    @rule(
        producer=st.integers(0, PRODUCERS - 1),
        bump=st.sampled_from([0, 0, 0, 1, 1, 2, -1]),
        coordinator_epoch=st.integers(0, 3),
        newest=st.sampled_from([0, 1, 1, 2, 2, 2]),
        commit=st.booleans(),
    )
    def end_transaction(
        self, producer: int, bump: int, coordinator_epoch: int, newest: int, commit: bool
    ) -> None:
        """`newest` is the coordinator's epoch, below that of an operator's or other's marker."""
        epoch = max(self.epoch(producer) + bump, 0)
        marker = Marker(commit, coordinator_epoch)
        sent = header(
            producer,
            -1,
            epoch=epoch,
            base_offset=self.end,
            attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        )
        mine = self.mine(producer)
        known = next(
            (one.marker.coordinator_epoch for one in reversed(mine) if one.marker is not None), -1
        )
        opened = open_of(self.log, producer)
        expected: ErrorEntry | None = None
        if not min(newest, known) <= coordinator_epoch <= max(newest, known):
            expected = COORDINATOR_FENCED
        elif mine and epoch < self.epoch(producer):
            expected = PRODUCER_FENCED
        if expected is not None:
            with pytest.raises(LogError) as caught:
                self.prepare_marker(sent, marker, newest)
            assert caught.value.entry is expected
            return
        plan = self.prepare_marker(sent, marker, newest)
        aborted = self.states.apply(plan)
        is_repeated = (
            mine and opened is None and epoch == self.epoch(producer) and coordinator_epoch == known
        )
        assert (list(plan.outcomes) != [Append()]) == bool(is_repeated)
        if is_repeated:
            assert aborted is None
            return
        end = self.end
        self.log.append(Written(sent, marker))
        if opened is None or commit:
            assert aborted is None
            return
        left = [one.first for one in transactions(self.log) if one.marker is None]
        assert aborted == AbortedEntry(
            ProducerId(producer),
            Offset(opened.first),
            Offset(end),
            Offset(min(left, default=end + 1)),
        )

    def prepare_marker(self, sent: BatchHeader, marker: Marker, newest: int) -> AppendPlan:
        return self.states.prepare_marker(
            sent, marker, Offset(self.end), newest_coordinator=newest, now_ms=0
        )

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.high_watermark = data.draw(st.integers(self.high_watermark, self.end))

    @rule()
    def expire(self) -> None:
        """Silent producers go, those with an open transaction excepted."""
        self.states.expire(EXPIRATION_MS)
        opened = {one.producer for one in transactions(self.log) if one.marker is None}
        assert {number for number in range(PRODUCERS) if number in self.states} == opened
        self.rebuild()

    @rule()
    def take_snapshot(self) -> None:
        self.states.first_unstable(Offset(self.high_watermark))
        self.snapshots[self.end] = self.states.to_bytes(Offset(self.end), now_ms=0)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        keep = data.draw(st.integers(0, len(self.log)))
        if keep < len(self.log) and self.log[keep].offset < self.high_watermark:
            return
        del self.log[keep:]
        for offset in [offset for offset in self.snapshots if offset > self.end]:
            del self.snapshots[offset]
        if self.states.truncate_to(Offset(self.end)) is Truncation.REBUILD:
            self.rebuild()

    @rule()
    def rebuild(self) -> None:
        """Restart from a snapshot, and scan."""
        self.states = ProducerStates(expiration_ms=EXPIRATION_MS)
        newest = max(self.snapshots, default=0)
        if newest in self.snapshots:
            read = ProducerStates.from_bytes(
                self.snapshots[newest], Offset(newest), now_ms=0, expiration_ms=EXPIRATION_MS
            )
            assert isinstance(read, ProducerStates)
            self.states = read
        for one in self.log:
            if one.offset + 5 >= newest:
                self.states.update(one.header, now_ms=0, marker=one.marker)

    @rule(data=st.data())
    def another_log_begins(self, data: st.DataObject) -> None:
        """A log from the present log start on, and the producers of the records below."""
        start = data.draw(st.integers(0, self.high_watermark))
        snapshot = self.states.below(Offset(start)).to_bytes(Offset(start), now_ms=0)
        states = ProducerStates.from_bytes(snapshot, Offset(start), now_ms=0)
        assert isinstance(states, ProducerStates)
        for one in self.log:
            if one.header.next_offset > start:
                states.update(one.header, now_ms=0, marker=one.marker)
            seen = [other for other in self.log if other.offset <= one.offset]
            end = one.header.next_offset
            if end > start:
                # Of a transaction that ended since, only the records from `start` on count.
                still_open = open_firsts(self.log) & open_firsts(seen)
                later = open_firsts(seen, start)
                first = states.first_unstable(Offset(end))
                assert (first is None) == (not still_open | later)
                assert first is None or first <= min(still_open | later)
        assert states.first_unstable(Offset(self.end)) == min(open_firsts(self.log), default=None)

    @invariant()
    def readers_stop_at_the_earliest_unstable_transaction(self) -> None:
        first = self.states.first_unstable(Offset(self.high_watermark))
        assert first == unstable(self.log, self.high_watermark)
        stable = min(self.high_watermark, self.end if first is None else first)
        assert stable >= self.stable, "the last stable offset went back"
        self.stable = stable

    @invariant()
    def open_transactions_are_known(self) -> None:
        for producer in range(PRODUCERS):
            opened = open_of(self.log, producer)
            for epoch in range(self.epoch(producer) + 2):
                assert self.states.is_in_transaction(
                    ProducerId(producer), ProducerEpoch(epoch)
                ) == (opened is not None and opened.epoch == epoch)


def open_firsts(log: list[Written], start: int = 0) -> set[int]:
    return {one.first for one in transactions(log, start) if one.marker is None}


TestTransactionModel = TransactionModel.TestCase
TestTransactionModel.settings = settings(
    max_examples=examples(150), stateful_step_count=30, deadline=None
)
