"""Threads for blocking work: every call gets its own answer, and no more threads than allowed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from raftlog.world.threads import Threads

DEADLINE_S = 10.0


async def test_each_call_gets_what_its_work_returned() -> None:
    threads = Threads(4, "test")
    results = await asyncio.gather(*(threads.run(lambda n=n: n * n) for n in range(100)))
    assert results == [n * n for n in range(100)]
    threads.close()


async def test_what_the_work_raises_is_raised_to_its_caller_alone() -> None:
    threads = Threads(1, "test")

    def fail() -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        await threads.run(fail)
    assert await threads.run(lambda: "still at work") == "still at work"
    threads.close()


async def test_no_more_threads_than_allowed_and_work_runs_side_by_side() -> None:
    threads = Threads(3, "test")
    together = threading.Barrier(3)

    def meet() -> str:
        together.wait(DEADLINE_S)
        return threading.current_thread().name

    names = await asyncio.gather(*(threads.run(meet) for _ in range(9)))
    assert len(set(names)) == 3
    threads.close()


async def test_one_caller_after_the_other_needs_one_thread() -> None:
    threads = Threads(8, "test")
    names = {await threads.run(lambda: threading.current_thread().name) for _ in range(5)}
    assert len(names) == 1
    threads.close()


async def test_a_cancelled_caller_disturbs_no_other() -> None:
    threads = Threads(1, "test")
    release = threading.Event()
    waiting = asyncio.create_task(threads.run(lambda: release.wait(DEADLINE_S)))
    await asyncio.sleep(0)
    waiting.cancel()
    behind = asyncio.create_task(threads.run(lambda: "next"))
    release.set()
    assert await behind == "next"
    assert waiting.cancelled()
    threads.close()


async def test_work_without_a_waiter_still_counts_as_work() -> None:
    threads = Threads(2, "test")
    release = threading.Event()
    abandoned = asyncio.create_task(threads.run(lambda: release.wait(DEADLINE_S)))
    await asyncio.sleep(0)
    abandoned.cancel()
    await asyncio.gather(abandoned, return_exceptions=True)
    async with asyncio.timeout(DEADLINE_S / 2):
        assert await threads.run(lambda: "on a second thread") == "on a second thread"
    release.set()
    threads.close()


async def test_closing_waits_for_what_was_begun() -> None:
    threads = Threads(1, "test")
    done: list[str] = []
    begun = threading.Event()
    release = threading.Event()

    def work() -> None:
        begun.set()
        release.wait(DEADLINE_S)
        done.append("work")

    running = asyncio.create_task(threads.run(work))
    await asyncio.sleep(0)
    assert begun.wait(DEADLINE_S)
    release.set()
    threads.close()
    assert done == ["work"]
    await running


async def test_work_goes_on_with_the_threads_that_the_system_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads, none = Threads(4, "test"), Threads(4, "test")
    assert await threads.run(lambda: 1) == 1
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        results = await asyncio.gather(*(threads.run(lambda n=n: n * n) for n in range(9)))
        assert results == [n * n for n in range(9)]
        with pytest.raises(OSError, match="no thread"):
            await none.run(lambda: 1)
    together = threading.Barrier(4)
    await asyncio.gather(*(threads.run(lambda: together.wait(DEADLINE_S)) for _ in range(8)))
    assert await none.run(lambda: 2) == 2
    threads.close()
    none.close()
