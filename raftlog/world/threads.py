"""Threads for blocking work, with the shortest way there and back.

`loop.run_in_executor` makes a future of each kind, links them, and takes several locks for every
call. A sync of a small write takes 0.2 ms. This overhead would be a third of the sync, on the event
loop's thread. Here a call is one queue entry and one wake-up of the loop.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Threads:
    """A pool of at most `threads_max` daemon threads, started when first needed."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._idle = 0
        """Idle threads minus waiting jobs. Changed in the event loop only."""
        self._closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on a thread, and return its result or raise its error.

        Cancelling the wait does not stop the work. Call from one event loop only.
        """
        assert not self._closed, "the threads have been closed"
        # A job counts until its work ends, even if its waiter gave up long before.
        self._idle -= 1
        if self._idle < 0 and len(self._threads) < self._threads_max:
            self._start_thread()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((work, loop, future))
        return await future

    def _start_thread(self) -> None:
        """Start a thread. If the system refuses it, the running threads do its work later.

        Raises OSError if none is running.
        """
        thread = Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._threads:
                self._idle += 1  # the job is taken back
                raise OSError(errno.EAGAIN, "the system starts no thread") from error
        else:
            self._threads.append(thread)
            self._idle += 1

    def close(self) -> None:
        """End all threads after their queued jobs, and wait for their end."""
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._jobs.put(None)
            for thread in self._threads:
                thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, loop, future = job
            result: Any = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as caught:  # the waiter handles every error
                error = caught
            # A loop closed since then has no waiter left.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._settle, future, result, error)
            # Release the last job while waiting for the next job.
            del job, work, future, result, error

    def _settle(
        self, future: asyncio.Future[Any], result: Any, error: BaseException | None
    ) -> None:
        self._idle += 1
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
