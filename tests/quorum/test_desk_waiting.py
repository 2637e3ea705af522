"""What those who wait at the desk share, and what they are told of changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftlog.quorum.interface import Applied, Refused, Unknown
from raftlog.quorum.messages import Wish
from raftlog.record.errors import ILLEGAL_STATE, NO_CONTROLLER, RETRIABLE, LogError
from tests.quorum.desk_office import Office


@pytest.fixture
async def office() -> Office:
    return Office()


# Barriers


async def test_barriers_of_one_turn_share_one_entry(office: Office) -> None:
    waiting = [asyncio.create_task(office.desk.barrier()) for _ in range(100)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert office.core.appended == [(1, b"")]
    office.apply_all()
    assert set(await asyncio.gather(*waiting)) == {Applied(11, "result 11")}


async def test_a_barrier_rests_on_an_entry_made_after_it_was_asked_for(office: Office) -> None:
    first = asyncio.create_task(office.desk.barrier())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = asyncio.create_task(office.desk.barrier())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(office.core.appended) == 2
    office.core.applied_index = 11
    office.desk.applied(11, 4, None)
    assert isinstance(await first, Applied)
    assert not second.done()
    second.cancel()


async def test_one_that_leaves_does_not_take_the_others_barrier_along(office: Office) -> None:
    leaving, staying = (asyncio.create_task(office.desk.barrier()) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    office.apply_all()
    assert isinstance(await staying, Applied)


# Changes of voters and leader, as one who asks sees them


async def changed(office: Office, outcome: Any, barrier: Any, *, done: bool = False) -> LogError:
    async def begin() -> Any:
        return barrier

    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answer.set_result(outcome)
    office.desk.begin = lambda *_: answer  # type: ignore[method-assign]
    office.desk.barrier = begin  # type: ignore[method-assign]
    with pytest.raises(LogError) as raised:
        await office.desk.change(Wish.ADD_VOTER, 5, lambda: done)
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
