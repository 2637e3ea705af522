"""Background tasks of one owner. An unexpected failure of any of them ends the node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class TaskGroup:
    """The background tasks of one owner, from `spawn` to their ends."""

    def __init__(self, on_fatal: Callable[[str], None]) -> None:
        """`on_fatal` gets the reason when a task fails. The node must then stop serving and end."""
        self._on_fatal = on_fatal
        # Not a set, because the order of cancelling must not depend on the tasks' addresses.
        self._tasks: dict[asyncio.Task[None], None] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task. An exception that it does not catch is a broken invariant."""
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    def cancel(self) -> None:
        """Cancel all tasks, without waiting for their ends."""
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Cancel all tasks and wait for their ends. Harmless if done already."""
        self.cancel()
        # `_on_done` reports failures.
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait(self) -> None:
        """Wait for the ends of all present tasks, without cancelling any."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("%s failed", task.get_name(), exc_info=error)
            self._on_fatal(f"{task.get_name()} failed: {error!r}")
