"""Requests between members: their handling, refusals, and shared rounds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from raftlog.raft.interface import (
    DISK_RESERVE_BYTES,
    JOURNAL_BYTES_MAX,
    Applied,
    Outcome,
    Refused,
    Unknown,
)
from raftlog.raft.messages import Forward, Forwarded, RequestKind
from raftlog.raft.proposals.router import CHANGES_AT_ONCE_MAX
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
from tests.raft.proposal_harness import ME, OTHER, SETTINGS, ProposalHarness


@pytest.fixture
async def harness() -> ProposalHarness:
    return ProposalHarness()


def refused(outcome: Any, entry: Any) -> str:
    said: Outcome[str] = outcome.result()
    assert isinstance(said, Refused), said
    assert said.entry is entry
    return said.message


async def test_a_leader_puts_a_command_into_its_log_and_answers_once_applied(
    harness: ProposalHarness,
) -> None:
    outcome = await harness.submit()
    assert harness.core.appended == [(0, b"x")]
    assert harness.wakes
    assert not outcome.done()
    harness.apply_all()
    assert outcome.result() == Applied(11, "result 11")


async def test_a_follower_forwards_and_waits_for_its_own_member_to_apply(
    harness: ProposalHarness,
) -> None:
    harness.follow(OTHER)
    outcome = await harness.submit()
    ((peer, forward),) = harness.sent
    assert (peer, forward.kind, forward.argument) == (OTHER, RequestKind.COMMAND, b"x")
    harness.router.answered(Forwarded(4, forward.request_id, 12, 4, 0, ""))
    assert not outcome.done()
    harness.core.log.last_index = 12
    harness.apply_all()
    assert outcome.result() == Applied(12, "result 12")


async def test_without_a_leader_a_request_waits_for_one(harness: ProposalHarness) -> None:
    harness.follow(None)
    outcome = await harness.submit()
    harness.router.tick()
    assert not outcome.done()
    assert not harness.sent
    harness.follow(OTHER)
    harness.router.tick()
    assert len(harness.sent) == 1


async def test_a_leader_that_is_not_connected_is_waited_for(harness: ProposalHarness) -> None:
    harness.follow(OTHER)
    harness.core.connected.clear()
    outcome = await harness.submit()
    assert not harness.sent, "it would be lost, and its outcome unknown"
    harness.core.connected.add(OTHER)
    harness.router.tick()
    assert len(harness.sent) == 1
    assert not outcome.done()


async def test_without_a_leader_until_the_deadline_nothing_was_done(
    harness: ProposalHarness,
) -> None:
    harness.follow(None)
    outcome = await harness.submit()
    harness.clock.advance(SETTINGS.proposal_s)
    harness.router.tick()
    refused(outcome, NO_CONTROLLER)


async def test_a_leader_that_does_not_answer_leaves_the_outcome_unknown(
    harness: ProposalHarness,
) -> None:
    harness.follow(OTHER)
    outcome = await harness.submit()
    harness.clock.advance(SETTINGS.proposal_s)
    harness.router.tick()
    assert isinstance(outcome.result(), Unknown)
    harness.router.answered(Forwarded(4, harness.sent[0][1].request_id, 11, 4, 0, ""))


@pytest.mark.parametrize("kind", [RequestKind.COMMAND, RequestKind.BARRIER])
async def test_request_at_a_deposed_leader_goes_to_the_next(
    harness: ProposalHarness, kind: RequestKind
) -> None:
    harness.follow(OTHER)
    outcome = await harness.submit(kind)
    number = harness.sent[0][1].request_id
    harness.router.answered(Forwarded(4, number, 0, 0, NO_CONTROLLER.code, "not I"))
    assert not outcome.done()
    harness.follow(ME)
    harness.router.tick()
    assert len(harness.core.appended) == 1


async def test_a_change_of_voters_is_not_repeated_by_itself(harness: ProposalHarness) -> None:
    harness.follow(OTHER)
    outcome = await harness.submit(RequestKind.ADD_VOTER, b"5")
    number = harness.sent[0][1].request_id
    harness.router.answered(Forwarded(4, number, 0, 0, NO_CONTROLLER.code, "not I"))
    assert refused(outcome, NO_CONTROLLER) == "not I"


async def test_a_refusal_keeps_its_code_and_words(harness: ProposalHarness) -> None:
    harness.follow(OTHER)
    known, strange = await harness.submit(), await harness.submit()
    first, second = (message.request_id for _, message in harness.sent)
    harness.router.answered(Forwarded(4, first, 0, 0, DISK_FULL.code, "full"))
    harness.router.answered(Forwarded(4, second, 0, 0, -77, "of a newer version"))
    assert refused(known, DISK_FULL) == "full"
    assert refused(strange, INTERNAL) == "of a newer version"


# As the leader


def answers(
    harness: ProposalHarness, *, kind: RequestKind = RequestKind.COMMAND, argument: bytes = b"x"
) -> Forwarded:
    harness.router.handle_forwarded(OTHER, Forward(4, 7, kind, argument))
    peer, answer = harness.sent[-1]
    assert peer == OTHER
    assert isinstance(answer, Forwarded)
    assert answer.request_id == 7
    return answer


async def test_leader_answers_the_entry_of_a_forwarded_request(
    harness: ProposalHarness,
) -> None:
    answer = answers(harness)
    assert (answer.index, answer.entry_term, answer.error_code) == (11, 4, 0)


async def test_follower_refuses_forwarded_requests(harness: ProposalHarness) -> None:
    harness.follow(OTHER)
    assert answers(harness).error_code == NO_CONTROLLER.code
    assert not harness.core.appended


async def test_too_much_that_is_not_committed_is_refused(harness: ProposalHarness) -> None:
    for _ in range(SETTINGS.uncommitted_entries_max):
        assert answers(harness).error_code == 0
    assert answers(harness).error_code == OVERLOADED.code
    refused(await harness.submit(), OVERLOADED)
    harness.apply_all()
    assert answers(harness).error_code == 0


async def test_a_full_disk_refuses_entries_before_they_are_in_the_log(
    harness: ProposalHarness,
) -> None:
    harness.store.free = DISK_RESERVE_BYTES
    assert "the disk is full" in refused(await harness.submit(), DISK_FULL)
    assert answers(harness).error_code == DISK_FULL.code
    assert not harness.core.appended
    harness.store.free += 1
    assert answers(harness).error_code == 0


async def test_a_journal_that_cannot_be_trimmed_refuses_entries(harness: ProposalHarness) -> None:
    harness.store.journal_bytes = JOURNAL_BYTES_MAX + 1
    assert "no room to trim" in refused(await harness.submit(), DISK_FULL)


async def test_changes_at_once_are_bounded_from_the_first_turn_on(harness: ProposalHarness) -> None:
    for number in range(CHANGES_AT_ONCE_MAX + 5):
        harness.router.handle_forwarded(OTHER, Forward(4, number, RequestKind.TRANSFER, b"2"))
    await asyncio.sleep(0)
    assert len(harness.changes.asked) == CHANGES_AT_ONCE_MAX
    assert [answer.error_code for _, answer in harness.sent] == [OVERLOADED.code] * 5
    harness.changes.go_on.set()
    await asyncio.gather(*harness.tasks)
    assert answers(harness, argument=b"y").error_code == 0
    harness.router.handle_forwarded(OTHER, Forward(4, 99, RequestKind.TRANSFER, b"2"))
    await asyncio.gather(*harness.tasks)
    assert harness.sent[-1][1].error_code == 0, "there is room again"


@pytest.mark.parametrize("argument", [b"", b"x", b"-1", b"1.0", b" 1", b"\xb2", b"1" * 5000])
async def test_a_change_that_names_no_node_is_refused(
    harness: ProposalHarness, argument: bytes
) -> None:
    answer = answers(harness, kind=RequestKind.ADD_VOTER, argument=argument)
    assert answer.error_code == BAD_REQUEST.code
    assert not harness.tasks


async def test_each_change_reaches_its_rule_and_its_refusal_the_caller(
    harness: ProposalHarness,
) -> None:
    harness.changes.go_on.set()
    for kind, argument in (
        (RequestKind.ADD_VOTER, b"5"),
        (RequestKind.REMOVE_VOTER, b"6"),
        (RequestKind.TRANSFER, b"7"),
        (RequestKind.TRANSFER, b"0"),
    ):
        harness.router.handle_forwarded(OTHER, Forward(4, 1, kind, argument))
    await asyncio.gather(*harness.tasks)
    assert harness.changes.asked == [
        ("add", 5),
        ("remove", 6),
        ("hand over", 7),
        ("hand over", None),
    ]
    assert [answer.index for _, answer in harness.sent] == [11, 11, 0, 0]
    harness.changes.error = LogError(ILLEGAL_STATE, "no")
    harness.router.handle_forwarded(OTHER, Forward(4, 1, RequestKind.ADD_VOTER, b"5"))
    await asyncio.gather(*harness.tasks)
    answer = harness.sent[-1][1]
    assert (answer.error_code, answer.message) == (ILLEGAL_STATE.code, "no")


# The end


async def test_after_the_end_everything_is_refused(harness: ProposalHarness) -> None:
    harness.follow(OTHER)
    asked = await harness.submit()
    harness.follow(None)
    parked = await harness.submit()
    harness.router.end(NOT_READY, "stopping")
    harness.router.end(replace(INTERNAL), "again")
    assert isinstance(asked.result(), Unknown)
    assert refused(parked, NOT_READY) == "stopping"
    harness.follow(ME)
    assert refused(await harness.submit(), NOT_READY) == "stopping"
    assert answers(harness).error_code == NO_CONTROLLER.code
    assert not harness.core.appended
