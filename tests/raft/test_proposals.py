"""Wishes against a simple model: each settles exactly once, and says only what is true."""

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

from raftlog.raft import proposals as module
from raftlog.raft.interface import Applied, Outcome, Refused, Unknown
from raftlog.raft.messages import READ, RequestKind
from raftlog.raft.proposals import PendingProposals, Waiting
from raftlog.record.errors import NO_CONTROLLER, NOT_READY, OVERLOADED

PATIENCE_S = 10.0
LEADER = (2, 5)
"""Node 2 leads term 5."""


class OnceFuture(asyncio.Future[Any]):
    """Counts its settling."""

    settled = 0

    def set_result(self, result: Any) -> None:
        self.settled += 1
        super().set_result(result)


class Office:
    """Wishes with a clock by hand."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.wishes: PendingProposals[str] = PendingProposals(1000)
        self.now = 0.0

    def wish(self, argument: bytes = b"x", wish: RequestKind = RequestKind.COMMAND) -> Waiting[str]:
        future = OnceFuture(loop=self.loop)
        waiting: Waiting[str] = Waiting(wish, argument, self.now + PATIENCE_S, future)
        self.wishes.add(waiting)
        return waiting

    def wait(self, seconds: float = PATIENCE_S) -> None:
        self.now += seconds
        self.wishes.expire(self.now)

    def in_log(self, index: int, term: int) -> Waiting[str]:
        waiting = self.wish()
        self.wishes.ask(waiting, LEADER)
        assert waiting.request_id is not None
        assert self.wishes.answered(waiting.request_id) is waiting
        self.wishes.logged(waiting, index, term, applied_index=index - 1)
        return waiting


@pytest.fixture
def office() -> Iterator[Office]:
    office = Office()
    yield office
    office.loop.close()


def outcome(waiting: Waiting[str]) -> Outcome[str | None] | None:
    return waiting.outcome.result() if waiting.outcome.done() else None


def is_empty(wishes: PendingProposals[str]) -> bool:
    held = wishes._all or wishes._parked or wishes._asked or wishes._in_log
    return not held and wishes._bytes == 0


def test_an_entry_that_is_applied_answers_with_its_result(office: Office) -> None:
    waiting = office.in_log(5, 2)
    office.wishes.applied(4, 2, "other")
    assert outcome(waiting) is None
    office.wishes.applied(5, 2, "result")
    assert outcome(waiting) == Applied(5, "result")
    assert is_empty(office.wishes)


def test_an_entry_that_was_replaced_never_happened(office: Office) -> None:
    waiting = office.in_log(5, 2)
    office.wishes.applied(5, 3, "of somebody else")
    said = outcome(waiting)
    assert isinstance(said, Refused)
    assert said.entry is NO_CONTROLLER
    assert "not carried out" in said.message


def test_of_two_at_one_index_only_the_one_of_that_term_happened(office: Office) -> None:
    replaced, kept = office.in_log(5, 2), office.in_log(5, 3)
    office.wishes.applied(5, 3, "result")
    assert isinstance(outcome(replaced), Refused)
    assert outcome(kept) == Applied(5, "result")


def test_what_a_snapshot_jumps_over_is_unknown(office: Office) -> None:
    covered, after = office.in_log(5, 2), office.in_log(7, 2)
    office.wishes.jumped_to(6)
    assert isinstance(outcome(covered), Unknown)
    assert outcome(after) is None
    office.wishes.applied(7, 2, "result")
    assert outcome(after) == Applied(7, "result")


def test_an_answer_that_comes_after_the_entry_was_applied_is_unknown(office: Office) -> None:
    waiting = office.wish()
    office.wishes.ask(waiting, LEADER)
    office.wishes.logged(waiting, 5, 2, applied_index=5)
    assert isinstance(outcome(waiting), Unknown)


def test_what_never_left_is_refused_at_its_deadline(office: Office) -> None:
    waiting = office.wish()
    office.wishes.park(waiting)
    office.wait(PATIENCE_S - 0.1)
    assert outcome(waiting) is None
    office.wait(0.1)
    said = outcome(waiting)
    assert isinstance(said, Refused)
    assert said.entry is NO_CONTROLLER
    assert "nothing was changed" in said.message


def test_a_read_is_done_once_all_up_to_its_index_is_applied(office: Office) -> None:
    read, behind, covered = (office.wish(READ, RequestKind.BARRIER) for _ in range(3))
    office.wishes.committed(read, 6, applied_index=5)
    office.wishes.committed(behind, 5, applied_index=5)
    office.wishes.committed(covered, 8, applied_index=5)
    assert outcome(behind) == Applied(5, None)
    assert outcome(read) is None
    office.wishes.applied(6, 9, "somebody's")
    assert outcome(read) == Applied(6, None)
    office.wishes.jumped_to(7)
    assert outcome(covered) is None
    office.wishes.jumped_to(9)
    assert outcome(covered) == Applied(9, None)
    assert is_empty(office.wishes)


def test_of_a_read_nothing_may_have_happened_however_far_it_came(office: Office) -> None:
    asked, known = (office.wish(READ, RequestKind.BARRIER) for _ in range(2))
    office.wishes.ask(asked, LEADER)
    office.wishes.committed(known, 6, applied_index=5)
    office.wait()
    assert isinstance(outcome(asked), Refused)
    assert isinstance(outcome(known), Refused)
    office.wishes.applied(6, 9, "late")
    office.wishes.leader_lost(None)
    assert is_empty(office.wishes)


def test_what_was_asked_or_is_in_the_log_is_unknown_at_its_deadline(office: Office) -> None:
    asked, logged = office.wish(), office.in_log(5, 2)
    number = office.wishes.ask(asked, LEADER)
    office.wait()
    assert isinstance(outcome(asked), Unknown)
    assert isinstance(outcome(logged), Unknown)
    assert office.wishes.answered(number) is None, "a late answer is for nobody"
    office.wishes.applied(5, 2, "late")
    assert is_empty(office.wishes)


def test_a_lost_leader_leaves_commands_unknown_and_barriers_to_be_tried_again(
    office: Office,
) -> None:
    command, barrier = office.wish(), office.wish(b"", RequestKind.BARRIER)
    number = office.wishes.ask(command, LEADER)
    earlier = office.wishes.ask(barrier, LEADER)
    office.wishes.leader_lost(None)
    assert isinstance(outcome(command), Unknown)
    assert outcome(barrier) is None
    assert office.wishes.answered(number) is None
    assert office.wishes.answered(earlier) is None
    assert office.wishes.unpark() == [barrier]
    assert office.wishes.ask(barrier, LEADER) not in (number, earlier)


def test_what_the_present_leader_was_asked_is_not_lost_with_the_one_before(office: Office) -> None:
    before, now = office.wish(), office.wish()
    office.wishes.ask(before, LEADER)
    number = office.wishes.ask(now, (3, 6))
    office.wishes.leader_lost((3, 6))
    assert isinstance(outcome(before), Unknown)
    assert outcome(now) is None
    assert office.wishes.answered(number) is now


def test_what_is_in_a_leaders_log_outlives_the_leader(office: Office) -> None:
    waiting = office.in_log(5, 2)
    office.wishes.leader_lost(None)
    office.wishes.applied(5, 2, "result")
    assert outcome(waiting) == Applied(5, "result")


def test_who_has_left_is_not_tried_again(office: Office) -> None:
    waiting = office.wish()
    office.wishes.park(waiting)
    waiting.outcome.cancel()
    assert office.wishes.unpark() == []
    office.wait(0.0)
    assert is_empty(office.wishes)


def test_the_end_refuses_what_never_left_and_leaves_the_rest_unknown(office: Office) -> None:
    parked, asked, logged = office.wish(), office.wish(), office.in_log(9, 2)
    office.wishes.park(parked)
    office.wishes.ask(asked, LEADER)
    office.wishes.end(NOT_READY, "stopping")
    assert outcome(parked) == Refused(NOT_READY, "stopping")
    assert outcome(asked) == Unknown("stopping")
    assert outcome(logged) == Unknown("stopping")
    assert is_empty(office.wishes)


def test_the_number_of_wishes_is_bounded(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WISHES_MAX", 3)
    for _ in range(3):
        assert office.wishes.refusal(b"") is None
        office.wish(b"")
    refused = office.wishes.refusal(b"")
    assert refused is not None
    assert refused.entry is OVERLOADED
    office.wait()
    assert office.wishes.refusal(b"") is None, "room again"


def test_their_bytes_are_bounded(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WISH_BYTES_MAX", 10)
    office.wish(bytes(6))
    assert office.wishes.refusal(bytes(4)) is None
    assert office.wishes.refusal(bytes(5)) is not None
    office.wait()
    assert office.wishes.refusal(bytes(10)) is None


def test_without_a_leader_for_long_nothing_gathers(office: Office) -> None:
    for _ in range(50):
        office.wishes.park(office.wish(bytes(100)))
        office.wait(1.0)
    alive = int(PATIENCE_S)
    assert len(office.wishes._parked) <= alive, "what has expired is held on to"


class WishesModel(RuleBasedStateMachine):
    """Everything that can happen to wishes, in any order. An entry is (index, term)."""

    unasked: Bundle[Waiting[str]] = Bundle("unasked")
    asked: Bundle[int] = Bundle("asked")

    @initialize()
    def begin(self) -> None:
        self.office = Office()
        self.all: list[Waiting[str]] = []
        self.owner: dict[int, Waiting[str]] = {}
        self.entries: dict[int, tuple[int, Waiting[str]]] = {}
        """By wish: the entry that it was last told to be."""
        self.reads: dict[int, int] = {}
        """By wish: the index up to which it must know all."""
        self.applied_index = 0
        self.applied: dict[int, int] = {}
        self.may_have_happened: set[int] = set()

    def teardown(self) -> None:
        with contextlib.suppress(AttributeError):
            self.office.wait(10 * PATIENCE_S)
            assert all(waiting.outcome.done() for waiting in self.all), "somebody waits for ever"
            assert is_empty(self.office.wishes)
            self.office.loop.close()

    def take(self, wish: RequestKind, size: int) -> Waiting[str]:
        assert self.office.wishes.refusal(bytes(size)) is None
        waiting = self.office.wish(bytes(size), wish)
        self.all.append(waiting)
        return waiting

    @rule(target=unasked, wish=st.sampled_from(RequestKind), size=st.integers(0, 9))
    def parked(self, wish: RequestKind, size: int) -> Waiting[str]:
        waiting = self.take(wish, size)
        self.office.wishes.park(waiting)
        return waiting

    @rule(target=asked, wish=st.sampled_from(RequestKind), size=st.integers(0, 9))
    def asked_at_once(self, wish: RequestKind, size: int) -> int:
        return self.ask(self.take(wish, size))

    def ask(self, waiting: Waiting[str]) -> int:
        number = self.office.wishes.ask(waiting, LEADER)
        assert number not in self.owner, "a number is used once"
        self.owner[number] = waiting
        self.may_have_happened.add(id(waiting))
        return number

    @rule()
    def a_leader_is_found(self) -> None:
        for waiting in self.office.wishes.unpark():
            assert not waiting.outcome.done()
            self.ask(waiting)

    @rule(number=consumes(asked), ahead=st.integers(-2, 6), term=st.integers(1, 3))
    def is_in_the_log(self, number: int, ahead: int, term: int) -> None:
        waiting = self.office.wishes.answered(number)
        if waiting is not None:
            assert waiting is self.owner[number]
            index = max(1, self.applied_index + ahead)
            self.entries[id(waiting)] = (index, waiting)
            self.office.wishes.logged(waiting, index, term, self.applied_index)

    @rule(number=consumes(asked), ahead=st.integers(-2, 6))
    def may_know_what_is_committed(self, number: int, ahead: int) -> None:
        waiting = self.office.wishes.answered(number)
        if waiting is not None:
            index = max(1, self.applied_index + ahead)
            self.reads[id(waiting)] = index
            self.office.wishes.committed(waiting, index, self.applied_index)

    @rule(number=consumes(asked))
    def has_no_leader_any_more(self, number: int) -> None:
        waiting = self.office.wishes.answered(number)
        if waiting is not None:
            waiting.request_id = None
            self.may_have_happened.discard(id(waiting))
            self.office.wishes.park(waiting)

    @rule(term=st.integers(1, 3))
    def the_next_is_applied(self, term: int) -> None:
        self.applied_index += 1
        self.applied[self.applied_index] = term
        self.office.wishes.applied(self.applied_index, term, f"of {term}")

    @rule(ahead=st.integers(1, 5))
    def a_snapshot_jumps(self, ahead: int) -> None:
        self.applied_index += ahead
        self.office.wishes.jumped_to(self.applied_index)

    @rule()
    def the_leader_is_lost(self) -> None:
        self.office.wishes.leader_lost(None)

    @rule(seconds=st.floats(0.1, 6.0))
    def time_passes(self, seconds: float) -> None:
        self.office.wait(seconds)

    @rule(at=st.integers(0, 100))
    @precondition(lambda self: self.all)
    def somebody_leaves(self, at: int) -> None:
        self.all[at % len(self.all)].outcome.cancel()

    @invariant()
    def what_is_said_is_true_and_nothing_is_forgotten(self) -> None:
        if not hasattr(self, "office"):
            return
        wishes = self.office.wishes
        for waiting in self.all:
            future = waiting.outcome
            assert isinstance(future, OnceFuture)
            assert future.settled <= 1
            if not future.done():
                assert waiting in wishes._all
                assert waiting.deadline > self.office.now
            elif not future.cancelled():
                self.check(waiting, future.result())
        assert wishes._bytes == sum(len(waiting.argument) for waiting in wishes._all)
        assert set(wishes._parked) <= set(wishes._all)
        held = [waiting for pairs in wishes._in_log.values() for _, waiting in pairs]
        assert set(held) <= set(wishes._all)
        assert set(wishes._asked.values()) <= set(wishes._all)

    def check(self, waiting: Waiting[str], said: Outcome[str | None]) -> None:
        if isinstance(said, Applied) and id(waiting) in self.reads:
            assert self.reads[id(waiting)] <= said.index <= self.applied_index
            assert said.result is None
        elif isinstance(said, Applied):
            index, _ = self.entries[id(waiting)]
            assert said.index == index
            assert said.result == f"of {self.applied[index]}"
        elif isinstance(said, Refused) and "not carried out" not in said.message:
            # A barrier changes nothing, however often it happens.
            assert waiting.wish is RequestKind.BARRIER or id(waiting) not in self.may_have_happened


TestWishesModel = WishesModel.TestCase
TestWishesModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
