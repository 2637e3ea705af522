"""What those who wait at the desk share, and what they are told of changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftlog.raft.interface import Applied, Refused, Unknown
from raftlog.raft.messages import READ, Forward, Forwarded, RequestKind
from raftlog.raft.rules import NO_OP
from raftlog.raft.settings import JOURNAL_BYTES_MAX
from raftlog.record.errors import ILLEGAL_STATE, NO_CONTROLLER, NOT_READY, RETRIABLE, LogError
from tests.raft.proposal_harness import OTHER, SETTINGS, Office


@pytest.fixture
async def office() -> Office:
    return Office()


# Barriers


async def turns(count: int = 2) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def asked(office: Office, number: int = 7) -> list[Forwarded]:
    """Have another member ask; what it is told from now on, as it comes."""
    office.sent.clear()
    office.desk.carry_out(OTHER, Forward(4, number, RequestKind.BARRIER, READ))
    return [message for _, message in office.sent]


async def test_barriers_of_one_turn_share_one_question(office: Office) -> None:
    office.follow(OTHER)
    waiting = [asyncio.create_task(office.desk.barrier()) for _ in range(100)]
    await turns()
    ((_, question),) = office.sent
    assert (question.wish, question.argument) == (RequestKind.BARRIER, READ)
    office.desk.answered(Forwarded(4, question.request_id, 10, 0, 0, ""))
    assert set(await asyncio.gather(*waiting)) == {Applied(10, None)}


async def test_a_barrier_of_the_leader_writes_nothing_and_waits_for_a_round(office: Office) -> None:
    waiting = asyncio.create_task(office.desk.barrier())
    await turns()
    office.desk.advance()
    await turns()
    assert office.core.rounds == 1
    assert not waiting.done()
    office.confirm()
    assert await waiting == Applied(10, None)
    assert not office.core.appended


async def test_a_barrier_waits_until_what_is_committed_is_applied_here(office: Office) -> None:
    office.follow(OTHER)
    waiting = asyncio.create_task(office.desk.barrier())
    await turns()
    office.desk.answered(Forwarded(4, office.sent[0][1].request_id, 12, 0, 0, ""))
    office.core.applied_index = 11
    office.desk.applied(11, 4, "another's")
    await turns()
    assert not waiting.done()
    office.core.applied_index = 12
    office.desk.applied(12, 5, "of whatever term")
    assert await waiting == Applied(12, None)


async def test_an_older_leader_answers_a_barrier_with_an_entry_that_may_be_replaced(
    office: Office,
) -> None:
    office.follow(OTHER)
    waiting = asyncio.create_task(office.desk.barrier())
    await turns()
    office.desk.answered(Forwarded(4, office.sent[0][1].request_id, 11, 4, 0, ""))
    office.core.applied_index = 11
    office.desk.applied(11, 5, None)
    assert isinstance(await waiting, Refused)


async def test_an_older_member_gets_its_no_op(office: Office) -> None:
    office.desk.carry_out(OTHER, Forward(4, 7, RequestKind.BARRIER, b""))
    assert office.core.appended == [(NO_OP, b"")]
    assert office.sent == [(OTHER, Forwarded(4, 7, 11, 4, 0, ""))]


async def test_a_full_disk_and_a_full_log_refuse_no_barrier(office: Office) -> None:
    office.store.free = 0
    office.store.journal_bytes = JOURNAL_BYTES_MAX + 1
    office.core.log.last_index += SETTINGS.uncommitted_entries_max
    assert not asked(office)
    office.desk.advance()
    office.confirm()
    assert office.sent == [(OTHER, Forwarded(4, 7, 10, 0, 0, ""))]


async def test_a_leader_that_is_none_any_more_says_so(office: Office) -> None:
    assert not asked(office)
    office.desk.advance()
    office.follow(None)
    office.confirm()
    ((_, answer),) = office.sent
    assert (answer.index, answer.error_code) == (0, NO_CONTROLLER.code)
    assert asked(office)[0].error_code == NO_CONTROLLER.code


async def test_the_leaders_own_barrier_is_tried_again_with_the_next_one(office: Office) -> None:
    waiting = asyncio.create_task(office.desk.barrier())
    await turns()
    office.desk.advance()
    office.follow(OTHER)
    office.confirm()
    office.desk.leader_changed()
    office.desk.tick()
    ((_, question),) = office.sent
    office.desk.answered(Forwarded(5, question.request_id, 10, 0, 0, ""))
    assert await waiting == Applied(10, None)


async def test_barriers_that_nobody_confirms_end_and_leave_nothing(office: Office) -> None:
    waiting = asyncio.create_task(office.desk.barrier())
    await turns()
    assert not asked(office)
    office.desk.advance()
    office.clock.advance(SETTINGS.proposal_s)
    office.desk.tick()
    said = await waiting
    assert isinstance(said, Refused)
    assert "nothing was changed" in said.message
    assert len(office.desk._reads) == 0


async def test_the_end_answers_barriers_of_others(office: Office) -> None:
    assert not asked(office)
    office.desk.end(NOT_READY, "stopping")
    assert [answer.error_code for _, answer in office.sent] == [NO_CONTROLLER.code]


async def test_one_that_leaves_does_not_take_the_others_barrier_along(office: Office) -> None:
    leaving, staying = (asyncio.create_task(office.desk.barrier()) for _ in range(2))
    await turns(1)
    leaving.cancel()
    await turns()
    office.desk.advance()
    office.confirm()
    assert isinstance(await staying, Applied)


# Changes of voters and leader, as one who asks sees them


async def changed(office: Office, outcome: Any, barrier: Any, *, done: bool = False) -> LogError:
    async def begin() -> Any:
        return barrier

    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answer.set_result(outcome)
    office.desk.begin = lambda *_: answer  # type: ignore[method-assign]
    office.desk._pass_log = begin  # type: ignore[method-assign]
    with pytest.raises(LogError) as raised:
        await office.desk.change(RequestKind.ADD_VOTER, 5, lambda: done)
    return raised.value


NOBODY = Refused(NO_CONTROLLER, "nothing was changed")


async def test_a_change_that_was_refused_says_why(office: Office) -> None:
    error = await changed(office, Refused(ILLEGAL_STATE, "no"), Applied(1, None))
    assert (error.entry, error.message) == (ILLEGAL_STATE, "no")


@pytest.mark.parametrize("outcome", [Applied(11, None), Unknown("?")])
async def test_nobody_is_told_that_nothing_was_changed_when_something_may_have_been(
    office: Office, outcome: Any
) -> None:
    error = await changed(office, outcome, NOBODY)
    assert error.entry is RETRIABLE


async def test_a_change_that_nobody_took_was_not_made(office: Office) -> None:
    error = await changed(office, NOBODY, NOBODY)
    assert error.entry is NO_CONTROLLER


async def test_a_change_looks_again_once_its_leaders_log_has_passed_here(office: Office) -> None:
    """Voters that are in that log and not committed yet would be asked for a second time."""
    changing = asyncio.create_task(office.desk.change(RequestKind.TRANSFER, 2, lambda: True))
    office.changes.go_on.set()
    await turns(8)
    assert office.core.appended == [(NO_OP, b"")]
    office.apply_all()
    await changing
