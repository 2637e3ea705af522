"""The event loop of the simulator: order, virtual time, lives, limits."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import warnings
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from tests.simulation.life import Life, LifeEndedError, SimulationError, current_life
from tests.simulation.loop import START_S, SimulatedLoop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], loop: SimulatedLoop | None = None) -> T:
    loop = loop or SimulatedLoop()
    try:
        result = loop.run(main)
        loop.check()
        return result
    finally:
        loop.close()


def spawn(life: Life, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return life.context.copy().run(asyncio.get_running_loop().create_task, coroutine)


def test_time_is_virtual() -> None:
    async def main() -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(1800)
        return asyncio.get_running_loop().time() - began

    assert run(main()) == pytest.approx(1800, abs=0.001)


def test_time_moves_without_a_sleeper() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + 0.01
        while loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(0)

    run(main())


def test_callbacks_run_in_order_and_equal_deadlines_in_the_order_of_their_making() -> None:
    async def main() -> list[object]:
        loop = asyncio.get_running_loop()
        seen: list[object] = []
        now = loop.time()
        for number in range(100):
            loop.call_at(now + 1, seen.append, number)
        loop.call_at(now + 0.5, seen.append, "earlier")
        loop.call_soon(seen.append, "first")
        loop.call_soon(seen.append, "second")
        await asyncio.sleep(2)
        return seen

    assert run(main()) == ["first", "second", "earlier", *range(100)]


def test_cancelled_timers_do_not_run_and_do_not_pile_up() -> None:
    loop = SimulatedLoop()

    async def main() -> None:
        for _ in range(10_000):
            async with asyncio.timeout(1000):
                await asyncio.sleep(0)
        assert len(loop._timers) < 3000
        kept: list[int] = []
        handles = [loop.call_later(1 + number, kept.append, number) for number in range(3000)]
        for handle in handles[:-1]:
            handle.cancel()
        await asyncio.sleep(3100)
        assert kept == [2999]

    run(main(), loop)


def test_what_asyncio_offers_works() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 1)
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(3, event.set)
        await asyncio.wait_for(event.wait(), 5)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(1, number)) for number in range(3)]
        assert [task.result() for task in tasks] == [0, 1, 2]
        done, pending = await asyncio.wait(
            [asyncio.create_task(asyncio.sleep(number)) for number in (1, 100)],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert (len(done), len(pending)) == (1, 1)
        queue: asyncio.Queue[int] = asyncio.Queue()
        queue.put_nowait(1)
        assert await queue.get() == 1
        for task in pending:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending.pop()

    run(main())


def test_tasks_and_futures_have_the_same_place_in_sets_every_time() -> None:
    async def main() -> list[str]:
        async def named(name: str) -> str:
            await asyncio.sleep(1)
            return name

        tasks = {asyncio.create_task(named(str(number))) for number in range(50)}
        return [await task for task in tasks]

    assert run(main()) == run(main())


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda loop: loop.run_in_executor(None, print),
        lambda loop: loop.add_signal_handler(15, print),
        lambda loop: loop.create_connection(None, "127.0.0.1", 1),
        lambda loop: loop.getaddrinfo("localhost", 1),
        lambda loop: loop.add_reader(0, print),
    ],
)
def test_the_real_world_is_refused_even_if_the_code_swallows_it(forbidden: Any) -> None:
    async def main() -> None:
        try:
            forbidden(asyncio.get_running_loop())
        except Exception:
            logging.getLogger(__name__).debug("swallowed")
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="no real I/O"):
        run(main())


def test_an_exception_in_a_callback_fails_the_run() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, int, "x")
        await asyncio.sleep(2)

    with pytest.raises(ValueError, match="invalid literal"):
        run(main())


@pytest.mark.parametrize("kept", [False, True])
def test_an_exception_of_an_unawaited_task_fails_the_run(kept: bool) -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    async def main() -> asyncio.Task[None] | None:
        task = asyncio.create_task(broken())
        await asyncio.sleep(1)
        return task if kept else None

    with pytest.raises(SimulationError, match="ZeroDivisionError"):
        run(main())


def test_a_livelock_ends_at_the_limit_of_steps() -> None:
    async def spin() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(SimulationError, match=r"no end after 1000 callbacks(.|\n)*spin"):
        run(spin(), SimulatedLoop(steps_max=1000))


def test_waiting_for_ever_ends_at_the_limit_of_time() -> None:
    async def poll() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(1)

    with pytest.raises(SimulationError, match=r"no end after 60 virtual seconds(.|\n)*poll"):
        run(poll(), SimulatedLoop(time_s_max=60))


def test_a_deadlock_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationError, match="nothing will ever happen again"):
        run(main())


def test_everything_that_code_of_a_life_starts_belongs_to_it() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        life = Life(1, 1)
        seen: list[Life | None] = []

        async def nested() -> None:
            await asyncio.sleep(1)
            seen.append(current_life())
            loop.call_soon(lambda: seen.append(current_life()))
            loop.call_later(1, lambda: seen.append(current_life()))

        async def code() -> None:
            await asyncio.wait_for(asyncio.create_task(nested()), 5)

        await spawn(life, code())
        await asyncio.sleep(2)
        assert seen == [life, life, life]
        assert current_life() is None
        assert life.callbacks > 3

    run(main())


def test_nothing_of_a_dead_life_ever_runs_again(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    ended = False

    async def stubborn() -> None:
        try:
            await asyncio.sleep(5)
            ran.append("sleep returned")
        except BaseException:
            ran.append("except" if not ended else "disposed")
            raise
        finally:
            ran.append("finally" if not ended else "disposed")

    async def refusing() -> None:
        while True:
            try:
                await asyncio.sleep(1)
            except BaseException:
                logging.getLogger(__name__).exception("noise")

    async def code() -> None:
        loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(stubborn()), asyncio.create_task(refusing())]
        loop.call_later(5, ran.append, "timer")
        loop.call_soon(loop.call_soon, loop.call_soon, ran.append, "soon")
        async with asyncio.TaskGroup() as group:
            group.create_task(stubborn())
            await asyncio.wait(tasks)

    async def main() -> None:
        nonlocal ended
        life = Life(1, 1)
        spawn(life, code())
        await asyncio.sleep(0)
        spawn(life, stubborn())  # never gets its first step
        life.kill()
        life.context.copy().run(asyncio.get_running_loop().call_soon, ran.append, "after")
        await asyncio.sleep(10)
        gc.collect()
        await asyncio.sleep(10)
        assert ran == []
        ended = True

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(main())
        gc.collect()
    assert set(ran) <= {"disposed"}
    assert capsys.readouterr() == ("", "")
    assert caplog.text == ""


def test_failures_of_the_dead_do_not_count() -> None:
    async def main() -> None:
        life = Life(1, 1)

        async def code() -> None:
            asyncio.create_task(failing())  # noqa: RUF006
            await asyncio.sleep(5)

        async def failing() -> None:
            # In the middle of its own code, which is unwound, whatever it catches.
            try:
                life.kill()
            finally:
                raise ZeroDivisionError

        spawn(life, code())
        await asyncio.sleep(2)
        assert not life.alive

    run(main())


def test_code_that_ends_its_own_life_does_not_go_on() -> None:
    async def main() -> None:
        life = Life(1, 1)
        went_on: list[int] = []

        async def code() -> None:
            try:
                life.kill()
            except Exception:
                went_on.append(1)
            went_on.append(2)

        task = spawn(life, code())
        await asyncio.sleep(1)
        assert went_on == []
        assert isinstance(task.exception(), LifeEndedError)

    run(main())


def test_a_paused_life_is_held_back_and_goes_on_in_order() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        life, other = Life(1, 1), Life(2, 1)
        seen: list[object] = []

        def inside(owner: Life, delay: float, word: object) -> None:
            owner.context.copy().run(loop.call_later, delay, seen.append, word)

        life.context.copy().run(loop.call_soon, seen.append, "queued")
        life.paused = True
        for number in range(20):
            inside(life, 1 + number / 10, number)
        inside(other, 1, "other")
        inside(life, 9, "later")
        await asyncio.sleep(5)
        assert seen == ["other"]
        # Due timers not yet ready run after the callbacks held back.
        life.context.copy().run(loop.call_soon, seen.append, "newest")
        loop.resume(life)
        await asyncio.sleep(1)
        assert seen == ["other", "queued", *range(20), "newest"]
        await asyncio.sleep(5)
        assert seen[-1] == "later"

    run(main())


def test_timers_of_a_suspended_life_stand_still() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        life, other = Life(1, 1), Life(2, 1)
        ran: dict[str, float] = {}
        began = loop.time()

        def inside(owner: Life, delay: float, word: str) -> asyncio.TimerHandle:
            return owner.context.copy().run(
                loop.call_later, delay, lambda: ran.setdefault(word, loop.time() - began)
            )

        for word, delay in (("short", 2), ("long", 7)):
            inside(life, delay, word)
            inside(other, delay, f"other {word}")
        cancelled = inside(life, 2, "cancelled")
        await asyncio.sleep(1)
        loop.suspend(life)
        life.context.copy().run(loop.call_soon, lambda: ran.setdefault("packet", loop.time()))
        await asyncio.sleep(4)
        cancelled.cancel()
        assert set(ran) == {"other short"}
        loop.resume(life)
        await asyncio.sleep(7)
        assert ran.pop("packet") == pytest.approx(began + 5, abs=0.001)
        expected = {"other short": 2, "short": 6, "other long": 7, "long": 11}
        assert ran == pytest.approx(expected, abs=0.001)

    run(main())


def test_a_life_can_be_ended_while_it_is_paused() -> None:
    async def main() -> None:
        life = Life(1, 1)
        seen: list[int] = []
        life.context.copy().run(asyncio.get_running_loop().call_soon, seen.append, 1)
        life.paused = True
        await asyncio.sleep(1)
        life.kill()
        await asyncio.sleep(1)
        assert seen == []

    run(main())


@pytest.mark.parametrize("callbacks", [1, 2, 7])
def test_a_life_ends_after_so_many_of_its_callbacks(callbacks: int) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        life = Life(1, 1)
        ends: list[float] = []
        life.on_end(lambda: ends.append(loop.time()))
        seen: list[int] = []

        async def code() -> None:
            for number in range(20):
                seen.append(number)
                await asyncio.sleep(0)

        spawn(life, code())
        life.crash_after(callbacks)
        await asyncio.sleep(1)
        assert seen == list(range(callbacks))
        assert not life.alive
        assert len(ends) == 1

    run(main())


def test_the_hook_is_called_after_every_callback_of_a_living_life() -> None:
    loop = SimulatedLoop()
    checked: list[int] = []

    async def main() -> None:
        one, two = Life(1, 1), Life(2, 1)
        await spawn(one, asyncio.sleep(1))
        await spawn(two, asyncio.sleep(1))
        two.kill()
        await asyncio.sleep(1)

    loop.after_event = lambda life: checked.append(life.node_id)
    run(main(), loop)
    assert checked == [1, 1, 1, 2, 2, 2]  # first step, timer, second step


def test_what_the_hook_raises_ends_the_run_at_once() -> None:
    loop = SimulatedLoop()

    def check(life: Life) -> None:
        raise AssertionError("broken invariant")

    async def main() -> None:
        spawn(Life(1, 1), asyncio.sleep(1))
        await asyncio.sleep(100)

    loop.after_event = check
    with pytest.raises(AssertionError, match="broken invariant"):
        run(main(), loop)
    assert loop.now < START_S + 1


def test_an_abandoned_generator_is_closed_while_its_life_goes_on() -> None:
    closed: list[str] = []

    async def numbers(name: str) -> Any:
        try:
            yield 1
        finally:
            closed.append(name)

    async def begin(name: str) -> None:
        async for _ in numbers(name):
            break

    async def main() -> None:
        life = Life(1, 1)
        await spawn(life, begin("living"))
        await asyncio.sleep(1)
        assert closed == ["living"]

    run(main())
    assert sys.get_asyncgen_hooks().finalizer is None
