"""Pending requests against a simple model: each settles exactly once, and truly."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from raftlog.raft.interface import Applied, Outcome, Refused, Unknown
from raftlog.raft.messages import READ, RequestKind
from raftlog.raft.proposals import proposals as module
from raftlog.raft.proposals.proposals import PendingProposals, PendingRequest
from raftlog.record.errors import NO_CONTROLLER, NOT_READY, OVERLOADED
from tests.examples import examples

PATIENCE_S = 10.0
LEADER = (2, 5)
"""Node 2 leads term 5."""


class OnceFuture(asyncio.Future[Any]):
    """Counts its settling."""

    settled = 0

    def set_result(self, result: Any) -> None:
        self.settled += 1
        super().set_result(result)


class ProposalHarness:
    """Pending requests with a clock by hand."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pending: PendingProposals[str] = PendingProposals(1000)
        self.now = 0.0

    def submit(
        self, argument: bytes = b"x", kind: RequestKind = RequestKind.COMMAND
    ) -> PendingRequest[str]:
        future = OnceFuture(loop=self.loop)
        waiting: PendingRequest[str] = PendingRequest(kind, argument, self.now + PATIENCE_S, future)
        self.pending.add(waiting)
        return waiting

    def wait(self, seconds: float = PATIENCE_S) -> None:
        self.now += seconds
        self.pending.expire(self.now)

    def in_log(self, index: int, term: int) -> PendingRequest[str]:
        waiting = self.submit()
        self.pending.forward(waiting, LEADER)
        assert waiting.request_id is not None
        assert self.pending.answered(waiting.request_id) is waiting
        self.pending.logged(waiting, index, term, applied_index=index - 1)
        return waiting


@pytest.fixture
def harness() -> Iterator[ProposalHarness]:
    harness = ProposalHarness()
    yield harness
    harness.loop.close()


def outcome(waiting: PendingRequest[str]) -> Outcome[str | None] | None:
    return waiting.outcome.result() if waiting.outcome.done() else None


def is_empty(pending: PendingProposals[str]) -> bool:
    held = pending._all or pending._parked or pending._forwarded or pending._in_log
    return not held and pending._bytes == 0


def test_an_entry_that_is_applied_answers_with_its_result(harness: ProposalHarness) -> None:
    waiting = harness.in_log(5, 2)
    harness.pending.applied(4, 2, "other")
    assert outcome(waiting) is None
    harness.pending.applied(5, 2, "result")
    assert outcome(waiting) == Applied(5, "result")
    assert is_empty(harness.pending)


def test_an_entry_that_was_replaced_never_happened(harness: ProposalHarness) -> None:
    waiting = harness.in_log(5, 2)
    harness.pending.applied(5, 3, "of somebody else")
    said = outcome(waiting)
    assert isinstance(said, Refused)
    assert said.entry is NO_CONTROLLER
    assert "not carried out" in said.message


def test_of_two_at_one_index_only_the_one_of_that_term_happened(harness: ProposalHarness) -> None:
    replaced, kept = harness.in_log(5, 2), harness.in_log(5, 3)
    harness.pending.applied(5, 3, "result")
    assert isinstance(outcome(replaced), Refused)
    assert outcome(kept) == Applied(5, "result")


def test_what_a_snapshot_jumps_over_is_unknown(harness: ProposalHarness) -> None:
    covered, after = harness.in_log(5, 2), harness.in_log(7, 2)
    harness.pending.snapshot_installed(6)
    assert isinstance(outcome(covered), Unknown)
    assert outcome(after) is None
    harness.pending.applied(7, 2, "result")
    assert outcome(after) == Applied(7, "result")


def test_an_answer_that_comes_after_the_entry_was_applied_is_unknown(
    harness: ProposalHarness,
) -> None:
    waiting = harness.submit()
    harness.pending.forward(waiting, LEADER)
    harness.pending.logged(waiting, 5, 2, applied_index=5)
    assert isinstance(outcome(waiting), Unknown)


def test_what_never_left_is_refused_at_its_deadline(harness: ProposalHarness) -> None:
    waiting = harness.submit()
    harness.pending.park(waiting)
    harness.wait(PATIENCE_S - 0.1)
    assert outcome(waiting) is None
    harness.wait(0.1)
    said = outcome(waiting)
    assert isinstance(said, Refused)
    assert said.entry is NO_CONTROLLER
    assert "nothing was changed" in said.message


def test_a_read_is_done_once_all_up_to_its_index_is_applied(harness: ProposalHarness) -> None:
    read, behind, covered = (harness.submit(READ, RequestKind.BARRIER) for _ in range(3))
    harness.pending.committed(read, 6, applied_index=5)
    harness.pending.committed(behind, 5, applied_index=5)
    harness.pending.committed(covered, 8, applied_index=5)
    assert outcome(behind) == Applied(5, None)
    assert outcome(read) is None
    harness.pending.applied(6, 9, "somebody's")
    assert outcome(read) == Applied(6, None)
    harness.pending.snapshot_installed(7)
    assert outcome(covered) is None
    harness.pending.snapshot_installed(9)
    assert outcome(covered) == Applied(9, None)
    assert is_empty(harness.pending)


def test_of_a_read_nothing_may_have_happened_however_far_it_came(harness: ProposalHarness) -> None:
    asked, known = (harness.submit(READ, RequestKind.BARRIER) for _ in range(2))
    harness.pending.forward(asked, LEADER)
    harness.pending.committed(known, 6, applied_index=5)
    harness.wait()
    assert isinstance(outcome(asked), Refused)
    assert isinstance(outcome(known), Refused)
    harness.pending.applied(6, 9, "late")
    harness.pending.leader_lost(None)
    assert is_empty(harness.pending)


def test_what_was_asked_or_is_in_the_log_is_unknown_at_its_deadline(
    harness: ProposalHarness,
) -> None:
    asked, logged = harness.submit(), harness.in_log(5, 2)
    number = harness.pending.forward(asked, LEADER)
    harness.wait()
    assert isinstance(outcome(asked), Unknown)
    assert isinstance(outcome(logged), Unknown)
    assert harness.pending.answered(number) is None, "a late answer is for nobody"
    harness.pending.applied(5, 2, "late")
    assert is_empty(harness.pending)


def test_a_lost_leader_leaves_commands_unknown_and_barriers_to_be_tried_again(
    harness: ProposalHarness,
) -> None:
    command, barrier = harness.submit(), harness.submit(b"", RequestKind.BARRIER)
    number = harness.pending.forward(command, LEADER)
    earlier = harness.pending.forward(barrier, LEADER)
    harness.pending.leader_lost(None)
    assert isinstance(outcome(command), Unknown)
    assert outcome(barrier) is None
    assert harness.pending.answered(number) is None
    assert harness.pending.answered(earlier) is None
    assert harness.pending.unpark() == [barrier]
    assert harness.pending.forward(barrier, LEADER) not in (number, earlier)


def test_what_the_present_leader_was_asked_is_not_lost_with_the_one_before(
    harness: ProposalHarness,
) -> None:
    before, now = harness.submit(), harness.submit()
    harness.pending.forward(before, LEADER)
    number = harness.pending.forward(now, (3, 6))
    harness.pending.leader_lost((3, 6))
    assert isinstance(outcome(before), Unknown)
    assert outcome(now) is None
    assert harness.pending.answered(number) is now


def test_what_is_in_a_leaders_log_outlives_the_leader(harness: ProposalHarness) -> None:
    waiting = harness.in_log(5, 2)
    harness.pending.leader_lost(None)
    harness.pending.applied(5, 2, "result")
    assert outcome(waiting) == Applied(5, "result")


def test_cancelled_request_is_not_retried(harness: ProposalHarness) -> None:
    waiting = harness.submit()
    harness.pending.park(waiting)
    waiting.outcome.cancel()
    assert harness.pending.unpark() == []
    harness.wait(0.0)
    assert is_empty(harness.pending)


def test_the_end_refuses_what_never_left_and_leaves_the_rest_unknown(
    harness: ProposalHarness,
) -> None:
    parked, asked, logged = harness.submit(), harness.submit(), harness.in_log(9, 2)
    harness.pending.park(parked)
    harness.pending.forward(asked, LEADER)
    harness.pending.end(NOT_READY, "stopping")
    assert outcome(parked) == Refused(NOT_READY, "stopping")
    assert outcome(asked) == Unknown("stopping")
    assert outcome(logged) == Unknown("stopping")
    assert is_empty(harness.pending)


def test_the_number_of_requests_is_bounded(
    harness: ProposalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 3)
    for _ in range(3):
        assert harness.pending.refusal(b"") is None
        harness.submit(b"")
    refused = harness.pending.refusal(b"")
    assert refused is not None
    assert refused.entry is OVERLOADED
    harness.wait()
    assert harness.pending.refusal(b"") is None, "room again"


def test_their_bytes_are_bounded(harness: ProposalHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_BYTES_MAX", 10)
    harness.submit(bytes(6))
    assert harness.pending.refusal(bytes(4)) is None
    assert harness.pending.refusal(bytes(5)) is not None
    harness.wait()
    assert harness.pending.refusal(bytes(10)) is None


def test_without_a_leader_for_long_nothing_gathers(harness: ProposalHarness) -> None:
    for _ in range(50):
        harness.pending.park(harness.submit(bytes(100)))
        harness.wait(1.0)
    alive = int(PATIENCE_S)
    assert len(harness.pending._parked) <= alive, "what has expired is held on to"


class PendingProposalsModel(RuleBasedStateMachine):
    """All events of pending requests, in any order. An entry is (index, term)."""

    unasked: Bundle[PendingRequest[str]] = Bundle("unasked")
    asked: Bundle[int] = Bundle("asked")

    @initialize()
    def begin(self) -> None:
        self.harness = ProposalHarness()
        self.all: list[PendingRequest[str]] = []
        self.owner: dict[int, PendingRequest[str]] = {}
        self.entries: dict[int, tuple[int, PendingRequest[str]]] = {}
        """By request: its entry, by the last answer."""
        self.reads: dict[int, int] = {}
        """By request: the index that its read must reach."""
        self.applied_index = 0
        self.applied: dict[int, int] = {}
        self.may_have_happened: set[int] = set()

    def teardown(self) -> None:
        with contextlib.suppress(AttributeError):
            self.harness.wait(10 * PATIENCE_S)
            assert all(waiting.outcome.done() for waiting in self.all), "somebody waits for ever"
            assert is_empty(self.harness.pending)
            self.harness.loop.close()

    def take(self, kind: RequestKind, size: int) -> PendingRequest[str]:
        assert self.harness.pending.refusal(bytes(size)) is None
        waiting = self.harness.submit(bytes(size), kind)
        self.all.append(waiting)
        return waiting

    @rule(target=unasked, kind=st.sampled_from(RequestKind), size=st.integers(0, 9))
    def parked(self, kind: RequestKind, size: int) -> PendingRequest[str]:
        waiting = self.take(kind, size)
        self.harness.pending.park(waiting)
        return waiting

    @rule(target=asked, kind=st.sampled_from(RequestKind), size=st.integers(0, 9))
    def asked_at_once(self, kind: RequestKind, size: int) -> int:
        return self.forward(self.take(kind, size))

    def forward(self, waiting: PendingRequest[str]) -> int:
        number = self.harness.pending.forward(waiting, LEADER)
        assert number not in self.owner, "a number is used once"
        self.owner[number] = waiting
        self.may_have_happened.add(id(waiting))
        return number

    @rule()
    def a_leader_is_found(self) -> None:
        for waiting in self.harness.pending.unpark():
            assert not waiting.outcome.done()
            self.forward(waiting)

    @rule(number=consumes(asked), ahead=st.integers(-2, 6), term=st.integers(1, 3))
    def is_in_the_log(self, number: int, ahead: int, term: int) -> None:
        waiting = self.harness.pending.answered(number)
        if waiting is not None:
            assert waiting is self.owner[number]
            index = max(1, self.applied_index + ahead)
            self.entries[id(waiting)] = (index, waiting)
            self.harness.pending.logged(waiting, index, term, self.applied_index)

    @rule(number=consumes(asked), ahead=st.integers(-2, 6))
    def may_know_what_is_committed(self, number: int, ahead: int) -> None:
        waiting = self.harness.pending.answered(number)
        if waiting is not None:
            index = max(1, self.applied_index + ahead)
            self.reads[id(waiting)] = index
            self.harness.pending.committed(waiting, index, self.applied_index)

    @rule(number=consumes(asked))
    def has_no_leader_any_more(self, number: int) -> None:
        waiting = self.harness.pending.answered(number)
        if waiting is not None:
            waiting.request_id = None
            self.may_have_happened.discard(id(waiting))
            self.harness.pending.park(waiting)

    @rule(term=st.integers(1, 3))
    def the_next_is_applied(self, term: int) -> None:
        self.applied_index += 1
        self.applied[self.applied_index] = term
        self.harness.pending.applied(self.applied_index, term, f"of {term}")

    @rule(ahead=st.integers(1, 5))
    def a_snapshot_jumps(self, ahead: int) -> None:
        self.applied_index += ahead
        self.harness.pending.snapshot_installed(self.applied_index)

    @rule()
    def the_leader_is_lost(self) -> None:
        self.harness.pending.leader_lost(None)

    @rule(seconds=st.floats(0.1, 6.0))
    def time_passes(self, seconds: float) -> None:
        self.harness.wait(seconds)

    @rule(at=st.integers(0, 100))
    @precondition(lambda self: self.all)
    def somebody_leaves(self, at: int) -> None:
        self.all[at % len(self.all)].outcome.cancel()

    @invariant()
    def what_is_said_is_true_and_nothing_is_forgotten(self) -> None:
        if not hasattr(self, "harness"):
            return
        pending = self.harness.pending
        for waiting in self.all:
            future = waiting.outcome
            assert isinstance(future, OnceFuture)
            assert future.settled <= 1
            if not future.done():
                assert waiting in pending._all
                assert waiting.deadline > self.harness.now
            elif not future.cancelled():
                self.check(waiting, future.result())
        assert pending._bytes == sum(len(waiting.argument) for waiting in pending._all)
        assert set(pending._parked) <= set(pending._all)
        held = [waiting for pairs in pending._in_log.values() for _, waiting in pairs]
        assert set(held) <= set(pending._all)
        assert set(pending._forwarded.values()) <= set(pending._all)

    def check(self, waiting: PendingRequest[str], said: Outcome[str | None]) -> None:
        if isinstance(said, Applied) and id(waiting) in self.reads:
            assert self.reads[id(waiting)] <= said.index <= self.applied_index
            assert said.result is None
        elif isinstance(said, Applied):
            index, _ = self.entries[id(waiting)]
            assert said.index == index
            assert said.result == f"of {self.applied[index]}"
        elif isinstance(said, Refused) and "not carried out" not in said.message:
            # A barrier changes nothing, however often repeated.
            assert waiting.kind is RequestKind.BARRIER or id(waiting) not in self.may_have_happened


TestPendingProposalsModel = PendingProposalsModel.TestCase
TestPendingProposalsModel.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
