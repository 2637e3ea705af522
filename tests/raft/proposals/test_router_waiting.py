"""Shared barriers of pending requests, and outcomes of changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftlog.raft.interface import JOURNAL_BYTES_MAX, Applied, Refused, Unknown
from raftlog.raft.log.log import NO_OP
from raftlog.raft.messages import READ, Forward, Forwarded, RequestKind
from raftlog.record.errors import ILLEGAL_STATE, NO_CONTROLLER, NOT_READY, RETRIABLE, LogError
from tests.raft.proposal_harness import OTHER, SETTINGS, ProposalHarness


@pytest.fixture
async def harness() -> ProposalHarness:
    return ProposalHarness()


# Barriers


async def turns(count: int = 2) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def asked(harness: ProposalHarness, number: int = 7) -> list[Forwarded]:
    """Forward another member's barrier; return the list of answers to it."""
    harness.sent.clear()
    harness.router.handle_forwarded(OTHER, Forward(4, number, RequestKind.BARRIER, READ))
    return [message for _, message in harness.sent]


async def test_barriers_of_one_turn_share_one_question(harness: ProposalHarness) -> None:
    harness.follow(OTHER)
    waiting = [asyncio.create_task(harness.router.barrier()) for _ in range(100)]
    await turns()
    ((_, question),) = harness.sent
    assert (question.kind, question.argument) == (RequestKind.BARRIER, READ)
    harness.router.answered(Forwarded(4, question.request_id, 10, 0, 0, ""))
    assert set(await asyncio.gather(*waiting)) == {Applied(10, None)}


async def test_a_barrier_of_the_leader_writes_nothing_and_waits_for_a_round(
    harness: ProposalHarness,
) -> None:
    waiting = asyncio.create_task(harness.router.barrier())
    await turns()
    harness.router.advance()
    await turns()
    assert harness.core.rounds == 1
    assert not waiting.done()
    harness.confirm()
    assert await waiting == Applied(10, None)
    assert not harness.core.appended


async def test_a_barrier_waits_until_what_is_committed_is_applied_here(
    harness: ProposalHarness,
) -> None:
    harness.follow(OTHER)
    waiting = asyncio.create_task(harness.router.barrier())
    await turns()
    harness.router.answered(Forwarded(4, harness.sent[0][1].request_id, 12, 0, 0, ""))
    harness.core.applied_index = 11
    harness.router.applied(11, 4, "another's")
    await turns()
    assert not waiting.done()
    harness.core.applied_index = 12
    harness.router.applied(12, 5, "of whatever term")
    assert await waiting == Applied(12, None)


async def test_an_older_leader_answers_a_barrier_with_an_entry_that_may_be_replaced(
    harness: ProposalHarness,
) -> None:
    harness.follow(OTHER)
    waiting = asyncio.create_task(harness.router.barrier())
    await turns()
    harness.router.answered(Forwarded(4, harness.sent[0][1].request_id, 11, 4, 0, ""))
    harness.core.applied_index = 11
    harness.router.applied(11, 5, None)
    assert isinstance(await waiting, Refused)


async def test_an_older_member_gets_its_no_op(harness: ProposalHarness) -> None:
    harness.router.handle_forwarded(OTHER, Forward(4, 7, RequestKind.BARRIER, b""))
    assert harness.core.appended == [(NO_OP, b"")]
    assert harness.sent == [(OTHER, Forwarded(4, 7, 11, 4, 0, ""))]


async def test_a_full_disk_and_a_full_log_refuse_no_barrier(harness: ProposalHarness) -> None:
    harness.store.free = 0
    harness.store.journal_bytes = JOURNAL_BYTES_MAX + 1
    harness.core.log.last_index += SETTINGS.uncommitted_entries_max
    assert not asked(harness)
    harness.router.advance()
    harness.confirm()
    assert harness.sent == [(OTHER, Forwarded(4, 7, 10, 0, 0, ""))]


async def test_deposed_leader_refuses_a_read(harness: ProposalHarness) -> None:
    assert not asked(harness)
    harness.router.advance()
    harness.follow(None)
    harness.confirm()
    ((_, answer),) = harness.sent
    assert (answer.index, answer.error_code) == (0, NO_CONTROLLER.code)
    assert asked(harness)[0].error_code == NO_CONTROLLER.code


async def test_the_leaders_own_barrier_is_tried_again_with_the_next_one(
    harness: ProposalHarness,
) -> None:
    waiting = asyncio.create_task(harness.router.barrier())
    await turns()
    harness.router.advance()
    harness.follow(OTHER)
    harness.confirm()
    harness.router.leader_changed()
    harness.router.tick()
    ((_, question),) = harness.sent
    harness.router.answered(Forwarded(5, question.request_id, 10, 0, 0, ""))
    assert await waiting == Applied(10, None)


async def test_unconfirmed_barriers_expire_and_leave_nothing(
    harness: ProposalHarness,
) -> None:
    waiting = asyncio.create_task(harness.router.barrier())
    await turns()
    assert not asked(harness)
    harness.router.advance()
    harness.clock.advance(SETTINGS.proposal_s)
    harness.router.tick()
    said = await waiting
    assert isinstance(said, Refused)
    assert "nothing was changed" in said.message
    assert len(harness.router._reads) == 0


async def test_the_end_answers_barriers_of_others(harness: ProposalHarness) -> None:
    assert not asked(harness)
    harness.router.end(NOT_READY, "stopping")
    assert [answer.error_code for _, answer in harness.sent] == [NO_CONTROLLER.code]


async def test_one_that_leaves_does_not_take_the_others_barrier_along(
    harness: ProposalHarness,
) -> None:
    leaving, staying = (asyncio.create_task(harness.router.barrier()) for _ in range(2))
    await turns(1)
    leaving.cancel()
    await turns()
    harness.router.advance()
    harness.confirm()
    assert isinstance(await staying, Applied)


# Changes of voters and leader, from the caller's side


async def changed(
    harness: ProposalHarness, outcome: Any, barrier: Any, *, done: bool = False
) -> LogError:
    async def barrier_outcome() -> Any:
        return barrier

    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answer.set_result(outcome)
    harness.router.submit = lambda *_: answer  # type: ignore[method-assign]
    harness.router._barrier_through_log = barrier_outcome  # type: ignore[method-assign]
    with pytest.raises(LogError) as raised:
        await harness.router.change(RequestKind.ADD_VOTER, 5, lambda: done)
    return raised.value


NOBODY = Refused(NO_CONTROLLER, "nothing was changed")


async def test_refused_change_raises_its_reason(harness: ProposalHarness) -> None:
    error = await changed(harness, Refused(ILLEGAL_STATE, "no"), Applied(1, None))
    assert (error.entry, error.message) == (ILLEGAL_STATE, "no")


@pytest.mark.parametrize("outcome", [Applied(11, None), Unknown("?")])
async def test_change_with_unknown_outcome_is_not_reported_as_refused(
    harness: ProposalHarness, outcome: Any
) -> None:
    error = await changed(harness, outcome, NOBODY)
    assert error.entry is RETRIABLE


async def test_change_without_a_leader_was_not_made(harness: ProposalHarness) -> None:
    error = await changed(harness, NOBODY, NOBODY)
    assert error.entry is NO_CONTROLLER


async def test_a_change_looks_again_once_its_leaders_log_has_passed_here(
    harness: ProposalHarness,
) -> None:
    """Voters in that log, not committed yet, would be proposed for a second time."""
    changing = asyncio.create_task(harness.router.change(RequestKind.TRANSFER, 2, lambda: True))
    harness.changes.go_on.set()
    await turns(8)
    assert harness.core.appended == [(NO_OP, b"")]
    harness.apply_all()
    await changing
