"""An event loop in a separate thread runs the asyncio client for synchronous code.

Spark calls from threads without a loop, from threads with a running loop (a notebook), and in
processes forked from a process with threads. So the loop never runs in the caller's thread, and is
created on first use.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from typing import Any, Final, TypeVar

CLOSE_TIMEOUT_S: Final = 10.0
"""Time for cancelled tasks to end."""
WAIT_LOGGED_S: Final = 10.0
"""A caller that waits for so long is logged, and again after each such time."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Background:
    """A running event loop. `close` ends the loop and all its tasks."""

    def __init__(self) -> None:
        # Not the policy's loop. By measurement, a selector loop takes less CPU for large responses,
        # and it keeps no state for the whole process that a fork would copy.
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._main, name="raftlog-spark", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work`, and return its future. Cancelling the future cancels `work`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """Run `work` and return its result. `what` names it in the log. An interrupt cancels it."""
        return result_of(self.submit(work), what)

    def close(self) -> None:
        """Cancel all tasks, end the loop, and wait for the thread."""
        if self._thread is threading.current_thread() or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            logger.warning("background tasks did not end within %s s", CLOSE_TIMEOUT_S)

    def _main(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def result_of(future: Future[T], what: str) -> T:
    """The future's result. A long wait is logged. An interrupt of the caller cancels the future."""
    begun = time.monotonic()
    try:
        while not wait([future], WAIT_LOGGED_S).done:
            logger.warning("waiting for raftlog since %.0f s: %s", time.monotonic() - begun, what)
        return future.result()
    except BaseException:
        future.cancel()
        raise
