"""Waits of held heartbeats and of fetches, which end when the listeners close."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Closing(asyncio.Event):
    """Set once, when the listeners begin to close."""

    def __init__(self) -> None:
        super().__init__()
        self._scopes: set[asyncio.Timeout] = set()
        """Scopes of all waits. A wait needs no separate task, because a node holds thousands."""

    def set(self) -> None:
        """End all waits, the first time."""
        if self.is_set():
            # A wait that is ending takes no second end.
            return
        super().set()
        now = asyncio.get_running_loop().time()
        while self._scopes:
            self._scopes.pop().reschedule(now)

    async def unless_set(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`, or None if the listeners close first. Raises as `work` does.

        The work has ended at the return. An error of its last step then goes nowhere, also if the
        client has left and this very wait is cancelled.
        """
        scope = asyncio.timeout(0 if self.is_set() else None)
        try:
            async with scope:
                self._scopes.add(scope)
                return await work
        except Exception:
            if scope.expired():
                return None
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from None
            raise
        finally:
            self._scopes.discard(scope)
