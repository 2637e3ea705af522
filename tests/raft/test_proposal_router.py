"""Wishes between members: who carries them out, what refuses them, what they share."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from raftlog.raft.interface import Applied, Outcome, Refused, Unknown
from raftlog.raft.messages import Forward, Forwarded, RequestKind
from raftlog.raft.proposal_router import CHANGES_AT_ONCE_MAX
from raftlog.raft.settings import DISK_RESERVE_BYTES, JOURNAL_BYTES_MAX
from raftlog.record.errors import (
    BAD_REQUEST,
    DISK_FULL,
    ILLEGAL_STATE,
    INTERNAL,
    NO_CONTROLLER,
    NOT_READY,
    OVERLOADED,
    LogError,
)
from tests.raft.proposal_harness import ME, OTHER, SETTINGS, Office


@pytest.fixture
async def office() -> Office:
    return Office()


def refused(outcome: Any, entry: Any) -> str:
    said: Outcome[str] = outcome.result()
    assert isinstance(said, Refused), said
    assert said.entry is entry
    return said.message


async def test_a_leader_puts_a_command_into_its_log_and_answers_once_applied(
    office: Office,
) -> None:
    outcome = await office.wish()
    assert office.core.appended == [(0, b"x")]
    assert office.wakes
    assert not outcome.done()
    office.apply_all()
    assert outcome.result() == Applied(11, "result 11")


async def test_a_follower_forwards_and_waits_for_its_own_member_to_apply(office: Office) -> None:
    office.follow(OTHER)
    outcome = await office.wish()
    ((peer, forward),) = office.sent
    assert (peer, forward.wish, forward.argument) == (OTHER, RequestKind.COMMAND, b"x")
    office.desk.answered(Forwarded(4, forward.request_id, 12, 4, 0, ""))
    assert not outcome.done()
    office.core.log.last_index = 12
    office.apply_all()
    assert outcome.result() == Applied(12, "result 12")


async def test_without_a_leader_a_wish_waits_for_one(office: Office) -> None:
    office.follow(None)
    outcome = await office.wish()
    office.desk.tick()
    assert not outcome.done()
    assert not office.sent
    office.follow(OTHER)
    office.desk.tick()
    assert len(office.sent) == 1


async def test_a_leader_that_is_not_connected_is_waited_for(office: Office) -> None:
    office.follow(OTHER)
    office.core.connected.clear()
    outcome = await office.wish()
    assert not office.sent, "it would be lost, and its outcome unknown"
    office.core.connected.add(OTHER)
    office.desk.tick()
    assert len(office.sent) == 1
    assert not outcome.done()


async def test_without_a_leader_until_the_deadline_nothing_was_done(office: Office) -> None:
    office.follow(None)
    outcome = await office.wish()
    office.clock.advance(SETTINGS.proposal_s)
    office.desk.tick()
    refused(outcome, NO_CONTROLLER)


async def test_a_leader_that_does_not_answer_leaves_the_outcome_unknown(office: Office) -> None:
    office.follow(OTHER)
    outcome = await office.wish()
    office.clock.advance(SETTINGS.proposal_s)
    office.desk.tick()
    assert isinstance(outcome.result(), Unknown)
    office.desk.answered(Forwarded(4, office.sent[0][1].request_id, 11, 4, 0, ""))


@pytest.mark.parametrize("wish", [RequestKind.COMMAND, RequestKind.BARRIER])
async def test_who_leads_no_more_says_so_and_the_next_is_asked(
    office: Office, wish: RequestKind
) -> None:
    office.follow(OTHER)
    outcome = await office.wish(wish)
    number = office.sent[0][1].request_id
    office.desk.answered(Forwarded(4, number, 0, 0, NO_CONTROLLER.code, "not I"))
    assert not outcome.done()
    office.follow(ME)
    office.desk.tick()
    assert len(office.core.appended) == 1


async def test_a_change_of_voters_is_not_repeated_by_itself(office: Office) -> None:
    office.follow(OTHER)
    outcome = await office.wish(RequestKind.ADD_VOTER, b"5")
    number = office.sent[0][1].request_id
    office.desk.answered(Forwarded(4, number, 0, 0, NO_CONTROLLER.code, "not I"))
    assert refused(outcome, NO_CONTROLLER) == "not I"


async def test_a_refusal_keeps_its_code_and_words(office: Office) -> None:
    office.follow(OTHER)
    known, strange = await office.wish(), await office.wish()
    first, second = (message.request_id for _, message in office.sent)
    office.desk.answered(Forwarded(4, first, 0, 0, DISK_FULL.code, "full"))
    office.desk.answered(Forwarded(4, second, 0, 0, -77, "of a newer version"))
    assert refused(known, DISK_FULL) == "full"
    assert refused(strange, INTERNAL) == "of a newer version"


# As the leader


def answers(
    office: Office, *, wish: RequestKind = RequestKind.COMMAND, argument: bytes = b"x"
) -> Forwarded:
    office.desk.carry_out(OTHER, Forward(4, 7, wish, argument))
    peer, answer = office.sent[-1]
    assert peer == OTHER
    assert isinstance(answer, Forwarded)
    assert answer.request_id == 7
    return answer


async def test_a_leader_says_where_in_its_log_a_forwarded_wish_is(office: Office) -> None:
    answer = answers(office)
    assert (answer.index, answer.entry_term, answer.error_code) == (11, 4, 0)


async def test_who_does_not_lead_does_nothing_for_others(office: Office) -> None:
    office.follow(OTHER)
    assert answers(office).error_code == NO_CONTROLLER.code
    assert not office.core.appended


async def test_too_much_that_is_not_committed_is_refused(office: Office) -> None:
    for _ in range(SETTINGS.uncommitted_entries_max):
        assert answers(office).error_code == 0
    assert answers(office).error_code == OVERLOADED.code
    refused(await office.wish(), OVERLOADED)
    office.apply_all()
    assert answers(office).error_code == 0


async def test_a_full_disk_refuses_entries_before_they_are_in_the_log(office: Office) -> None:
    office.store.free = DISK_RESERVE_BYTES
    assert "the disk is full" in refused(await office.wish(), DISK_FULL)
    assert answers(office).error_code == DISK_FULL.code
    assert not office.core.appended
    office.store.free += 1
    assert answers(office).error_code == 0


async def test_a_journal_that_cannot_be_trimmed_refuses_entries(office: Office) -> None:
    office.store.journal_bytes = JOURNAL_BYTES_MAX + 1
    assert "no room to trim" in refused(await office.wish(), DISK_FULL)


async def test_changes_at_once_are_bounded_from_the_first_turn_on(office: Office) -> None:
    for number in range(CHANGES_AT_ONCE_MAX + 5):
        office.desk.carry_out(OTHER, Forward(4, number, RequestKind.TRANSFER, b"2"))
    await asyncio.sleep(0)
    assert len(office.changes.asked) == CHANGES_AT_ONCE_MAX
    assert [answer.error_code for _, answer in office.sent] == [OVERLOADED.code] * 5
    office.changes.go_on.set()
    await asyncio.gather(*office.tasks)
    assert answers(office, argument=b"y").error_code == 0
    office.desk.carry_out(OTHER, Forward(4, 99, RequestKind.TRANSFER, b"2"))
    await asyncio.gather(*office.tasks)
    assert office.sent[-1][1].error_code == 0, "there is room again"


@pytest.mark.parametrize("argument", [b"", b"x", b"-1", b"1.0", b" 1", b"\xb2", b"1" * 5000])
async def test_a_change_that_names_no_node_is_refused(office: Office, argument: bytes) -> None:
    answer = answers(office, wish=RequestKind.ADD_VOTER, argument=argument)
    assert answer.error_code == BAD_REQUEST.code
    assert not office.tasks


async def test_each_change_reaches_its_rule_and_its_refusal_the_one_who_asked(
    office: Office,
) -> None:
    office.changes.go_on.set()
    for wish, argument in (
        (RequestKind.ADD_VOTER, b"5"),
        (RequestKind.REMOVE_VOTER, b"6"),
        (RequestKind.TRANSFER, b"7"),
        (RequestKind.TRANSFER, b"0"),
    ):
        office.desk.carry_out(OTHER, Forward(4, 1, wish, argument))
    await asyncio.gather(*office.tasks)
    assert office.changes.asked == [
        ("add", 5),
        ("remove", 6),
        ("hand over", 7),
        ("hand over", None),
    ]
    assert [answer.index for _, answer in office.sent] == [11, 11, 0, 0]
    office.changes.error = LogError(ILLEGAL_STATE, "no")
    office.desk.carry_out(OTHER, Forward(4, 1, RequestKind.ADD_VOTER, b"5"))
    await asyncio.gather(*office.tasks)
    answer = office.sent[-1][1]
    assert (answer.error_code, answer.message) == (ILLEGAL_STATE.code, "no")


# The end


async def test_after_the_end_everything_is_refused(office: Office) -> None:
    office.follow(OTHER)
    asked = await office.wish()
    office.follow(None)
    parked = await office.wish()
    office.desk.end(NOT_READY, "stopping")
    office.desk.end(replace(INTERNAL), "again")
    assert isinstance(asked.result(), Unknown)
    assert refused(parked, NOT_READY) == "stopping"
    office.follow(ME)
    assert refused(await office.wish(), NOT_READY) == "stopping"
    assert answers(office).error_code == NO_CONTROLLER.code
    assert not office.core.appended
