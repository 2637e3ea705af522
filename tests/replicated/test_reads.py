"""Waits for a place in the log, and shared questions for its end."""

from __future__ import annotations

import asyncio
import time

import pytest
from raftlog_replicated import reads as reads_module
from raftlog_replicated.reads import Progress, SharedQuestions, TooManyWaitError


async def test_waiting_calls_go_on_in_order_once_the_place_is_reached() -> None:
    progress = Progress()
    progress.advance(2)
    await progress.reach(2)
    tasks = [asyncio.ensure_future(progress.reach(place)) for place in (5, 3, 4)]
    await asyncio.sleep(0)
    assert progress.next_wanted == 3
    progress.advance(4)
    await asyncio.gather(*tasks[1:])
    assert not tasks[0].done()
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    assert progress.next_wanted is None


async def test_waiting_calls_are_bounded_and_those_gone_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads_module, "WAITING_MAX", 2)
    progress = Progress()
    tasks = [asyncio.ensure_future(progress.reach(9)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyWaitError):
        await progress.reach(9)
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    last = asyncio.ensure_future(progress.reach(8))
    await asyncio.sleep(0)
    progress.fail(RuntimeError("ended"))
    for task in (tasks[1], last):
        with pytest.raises(RuntimeError, match="ended"):
            await task


class Log:
    """Its end grows with each question; answers come when they may."""

    def __init__(self) -> None:
        self.end = 0
        self.questions = 0
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None

    async def ask(self) -> int:
        self.questions += 1
        end = self.end
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return end


async def test_calls_share_a_question_that_begins_after_them() -> None:
    log = Log()
    questions = SharedQuestions(log.ask, time.monotonic)
    first = asyncio.ensure_future(questions.ask())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert log.questions == 1
    log.end = 5  # acknowledged after the first question began
    others = [asyncio.ensure_future(questions.ask()) for _ in range(10)]
    await asyncio.sleep(0)
    log.may_answer.set()
    assert (await first)[1] == 0
    assert {(await one)[1] for one in others} == {5}
    assert log.questions == 2
    log.end = 6
    assert (await questions.ask())[1] == 6
    await questions.close()


async def test_an_error_goes_to_all_that_share_it_and_a_call_that_leaves_disturbs_none() -> None:
    log = Log()
    log.error = ConnectionError("lost")
    questions = SharedQuestions(log.ask, time.monotonic)
    calls = [asyncio.ensure_future(questions.ask()) for _ in range(3)]
    await asyncio.sleep(0)
    calls[0].cancel()
    log.may_answer.set()
    for one in calls[1:]:
        with pytest.raises(ConnectionError):
            await one
    log.error = None
    assert (await questions.ask())[1] == 0


async def test_close_ends_the_question_under_way() -> None:
    log = Log()
    questions = SharedQuestions(log.ask, time.monotonic)
    first = asyncio.ensure_future(questions.ask())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = asyncio.ensure_future(questions.ask())
    await asyncio.sleep(0)
    await questions.close()
    found = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(one) for one in found] == [asyncio.CancelledError] * 2
