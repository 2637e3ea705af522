"""Rules of a transactional producer's state, under random calls and answers."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from raftlog_client.errors import (
    ConnectionLostError,
    FencedError,
    IllegalStateError,
    RaftlogClientError,
    TransactionAbortableError,
    server_error,
)
from raftlog_client.produce.batches import ProducerIdentity
from raftlog_client.transactions.state import EndError, State, TransactionState, judge_end

from raftlog.record.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_BODY,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
    RETRIABLE,
    ErrorEntry,
)
from raftlog.record.types import ProducerEpoch, ProducerId
from tests.examples import examples

LOST = ConnectionLostError("lost", outcome_unknown=True)


def identity(epoch: int) -> ProducerIdentity:
    return ProducerIdentity(ProducerId(7), ProducerEpoch(epoch))


@pytest.mark.parametrize(
    ("entry", "meaning"),
    [
        (PRODUCER_FENCED, EndError.FENCED),
        (CONCURRENT_TRANSACTIONS, EndError.RETRY),
        (RETRIABLE, EndError.RETRY),
        (INVALID_TXN_STATE, EndError.REFUSED),
        (INVALID_BODY, EndError.REFUSED),
    ],
)
def test_errors_of_an_end(entry: ErrorEntry, meaning: EndError) -> None:
    assert judge_end(server_error(entry.code)) is meaning
    assert judge_end(LOST) is EndError.RETRY
    assert judge_end(RaftlogClientError("malformed")) is EndError.REFUSED


class States(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = TransactionState("x")
        self.state.started(identity(0), is_prepared=False)
        self.epoch = 0
        self.has_failed = False
        """Whether a write of the open transaction failed."""
        self.is_fenced = False
        self.may_be_committed = False

    def end(self) -> None:
        self.epoch += 1
        self.state.ended(identity(self.epoch))
        self.has_failed = self.may_be_committed = False

    @rule()
    def begin(self) -> None:
        with suppress(IllegalStateError, FencedError):
            self.state.begin()
            assert not self.is_fenced
            self.has_failed = False

    @rule()
    def write(self) -> None:
        with suppress(IllegalStateError, FencedError, TransactionAbortableError):
            self.state.check_write()
            assert not (self.is_fenced or self.has_failed or self.may_be_committed)

    @rule()
    def write_fails(self) -> None:
        self.has_failed = self.state.fail(LOST) or self.has_failed

    @rule(answer=st.sampled_from(["ok", "lost", "refused", "fenced"]))
    def commit(self, answer: str) -> None:
        try:
            self.state.begin_commit()
        except (IllegalStateError, FencedError, TransactionAbortableError):
            return
        assert not (self.is_fenced or self.has_failed)
        match answer:
            case "ok":
                self.end()
            case "lost":
                self.state.outcome_unknown()
                self.may_be_committed = True
            case "refused":
                # The coordinator has aborted it: known not to be committed.
                self.state.broken(LOST)
                self.has_failed, self.may_be_committed = True, False
            case _:
                self.state.fence(LOST, outcome_unknown=self.may_be_committed)
                self.is_fenced = True

    @rule(is_answered=st.booleans())
    def abort(self, is_answered: bool) -> None:
        try:
            self.state.check_abort()
        except (IllegalStateError, FencedError):
            return
        assert not self.is_fenced
        # Never while the commit may have been decided.
        assert not self.may_be_committed
        if is_answered:
            self.end()
        else:
            self.state.broken(LOST)
            self.has_failed = True

    @precondition(lambda self: self.state.state is State.OPEN)
    @rule()
    def prepare(self) -> None:
        self.state.prepared()

    @invariant()
    def a_fenced_producer_does_nothing_any_more(self) -> None:
        if self.is_fenced:
            for call in (self.state.begin, self.state.check_write, self.state.begin_commit):
                with pytest.raises(FencedError):
                    call()

    @invariant()
    def the_identity_is_the_newest_one(self) -> None:
        assert self.state.identity == identity(self.epoch)


States.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=25, deadline=None
)
TestStates = States.TestCase
