"""Waits that end with the listeners, or with the client: results, errors, and nothing left."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from raftlog.broker.closing import until_closing


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
    assert await until_closing(give(3), asyncio.Event()) == 3
    with pytest.raises(ZeroDivisionError):
        await until_closing(fail(), asyncio.Event())


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
async def test_the_work_ends_when_the_listeners_close(error: Exception | None) -> None:
    closing, end = asyncio.Event(), asyncio.Event()
    waiting = asyncio.ensure_future(until_closing(endless(end, error), closing))
    await asyncio.sleep(0)
    closing.set()
    assert await waiting is None
    assert end.is_set()


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
async def test_the_work_ends_when_the_client_leaves(error: Exception | None) -> None:
    end = asyncio.Event()
    waiting = asyncio.ensure_future(until_closing(endless(end, error), asyncio.Event()))
    for _ in range(3):
        await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    assert waiting.cancelled()
    assert end.is_set()
