"""Waits that end when the listeners close: held heartbeats, and fetches that wait for records."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def until_closing(work: Coroutine[Any, Any, T], closing: asyncio.Event) -> T | None:
    """The result of `work`; None if the listeners close first. Raises as `work` does.

    The work has ended at the return, also if the client has left and this very wait is cancelled.
    """
    task = asyncio.ensure_future(work)
    closed = asyncio.ensure_future(closing.wait())
    try:
        await asyncio.wait((task, closed), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        closed.cancel()
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            # An error of the last step, as the work ended: no caller waits for it any more.
            task.exception()
