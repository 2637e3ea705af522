"""Background tasks: an unexpected failure is fatal, a cancellation is not."""

from __future__ import annotations

import asyncio

from raftlog.peer.tasks import TaskGroup


async def fail() -> None:
    raise AssertionError("broken")


async def test_a_failed_task_is_fatal_and_names_itself() -> None:
    fatal: list[str] = []
    tasks = TaskGroup(fatal.append)
    tasks.spawn(fail(), "disk-watch")
    await tasks.wait()
    assert fatal == ["disk-watch failed: AssertionError('broken')"]
    assert not len(tasks)


async def test_closing_cancels_all_tasks_without_a_failure() -> None:
    fatal: list[str] = []
    tasks = TaskGroup(fatal.append)
    forever = [tasks.spawn(asyncio.Event().wait(), str(number)) for number in range(3)]  # type: ignore[arg-type]
    await tasks.close()
    assert all(task.cancelled() for task in forever)
    await tasks.close()
    assert (fatal, len(tasks)) == ([], 0)


async def test_a_failure_while_closing_is_fatal_too() -> None:
    fatal: list[str] = []
    tasks = TaskGroup(fatal.append)

    async def fail_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await fail()

    tasks.spawn(fail_at_the_end(), "keeper")
    await asyncio.sleep(0)
    await tasks.close()
    assert len(fatal) == 1


async def test_waiting_cancels_nothing() -> None:
    tasks = TaskGroup(lambda reason: None)
    gate = asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    task = tasks.spawn(wait(), "gate")
    waiter = asyncio.ensure_future(tasks.wait())
    await asyncio.sleep(0)
    gate.set()
    await waiter
    assert task.done() and not task.cancelled()
