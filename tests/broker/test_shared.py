"""Waits that end with the listeners, or with the client: results, errors, and nothing left."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from raftlog.broker.shared import Closing


@pytest.fixture(autouse=True)
async def unseen() -> AsyncIterator[list[dict[str, Any]]]:
    """Errors without a taker: there are none in any test."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    yield found
    gc.collect()
    assert found == []


async def endless(end: asyncio.Event, error: Exception | None = None) -> None:
    """Sets `end` when cancelled; may fail then."""
    try:
        await asyncio.Event().wait()
    finally:
        end.set()
        if error is not None:
            raise error


async def give(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def fail() -> None:
    await asyncio.sleep(0)
    raise ZeroDivisionError


async def test_a_result_and_an_error_go_to_the_caller() -> None:
    assert await Closing().unless_set(give(3)) == 3
    with pytest.raises(ZeroDivisionError):
        await Closing().unless_set(fail())


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
async def test_the_work_ends_when_the_listeners_close(error: Exception | None) -> None:
    closing, end = Closing(), asyncio.Event()
    waiting = asyncio.ensure_future(closing.unless_set(endless(end, error)))
    await asyncio.sleep(0)
    closing.set()
    assert await waiting is None
    assert end.is_set()


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
async def test_the_work_ends_when_the_client_leaves(error: Exception | None) -> None:
    end = asyncio.Event()
    waiting = asyncio.ensure_future(Closing().unless_set(endless(end, error)))
    for _ in range(3):
        await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    assert waiting.cancelled()
    assert end.is_set()


async def test_no_wait_begins_once_they_close() -> None:
    closing, end = Closing(), asyncio.Event()
    closing.set()
    closing.set()
    assert await closing.unless_set(endless(end)) is None
    assert end.is_set()


async def test_a_second_end_of_a_wait_that_is_ending_changes_nothing() -> None:
    closing, end, may_end = Closing(), asyncio.Event(), asyncio.Event()

    async def end_slowly() -> None:
        try:
            await endless(end)
        finally:
            await may_end.wait()

    closing.set()
    waiting = asyncio.ensure_future(closing.unless_set(end_slowly()))
    await end.wait()
    closing.set()
    may_end.set()
    assert await waiting is None
