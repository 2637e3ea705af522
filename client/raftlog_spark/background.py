"""An event loop in a thread of its own: how synchronous code uses the asyncio client.

Spark calls us from threads that have no loop, that have one running already (a notebook), and in
processes forked from one that had threads: so the loop never runs in the caller's thread, and is
made when it is first needed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

CLOSE_TIMEOUT_S: Final = 10.0
"""How long what is under way may take to notice that it is cancelled."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Background:
    """A running loop. `close` ends it, and all that runs in it."""

    def __init__(self) -> None:
        # Not the policy's loop: measured, this one takes less of the CPU for large answers, and it
        # keeps nothing for the whole process that a fork would copy.
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._main, name="raftlog-spark", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin `work`, and tell what becomes of it. Cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` and return its result. Interrupted, it is cancelled."""
        return result_of(self.submit(work))

    def close(self) -> None:
        """Cancel what is under way, end the loop, and wait for the thread."""
        if self._thread is threading.current_thread() or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            logger.warning("what runs in the background did not end within %s s", CLOSE_TIMEOUT_S)

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


def result_of(future: Future[T]) -> T:
    """The future's result. Whoever is interrupted while waiting wants it no more."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
