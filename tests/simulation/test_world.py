"""The simulated world: processes, crashes, disks in virtual time, and one seed, one history."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.world import Clock, DiskError, Randomness
from tests.simulation.disk_times import SYNC_S
from tests.simulation.life import NodeDiedError, SimulationError
from tests.simulation.sample import digest, history
from tests.simulation.world import LINES_KEPT, TRACE_VARIABLE, Process, World, run

ROOT = Path(__file__).parents[2]


async def idle(process: Process) -> None:
    await asyncio.Event().wait()


def test_one_seed_gives_one_history_in_one_process() -> None:
    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_one_seed_gives_one_history_under_every_hash_seed() -> None:
    digests = set()
    for hash_seed in ("1", "2", "random"):
        output = subprocess.run(
            [sys.executable, "-m", "tests.simulation.sample", "3", "4", "5"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        digests.add(tuple(output.split()))
    assert digests == {(digest(3), digest(4), digest(5))}


def test_the_digest_is_of_what_is_traced() -> None:
    def with_line(line: str) -> str:
        world = World(1)

        async def main(world: World) -> None:
            world.trace("a line", line)

        world.run(main)
        return world.digest()

    assert with_line("x") == with_line("x")
    assert with_line("x") != with_line("y")


def test_the_trace_is_bounded_in_memory_and_whole_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(world: World) -> None:
        for number in range(1000):
            world.trace("line", number)

    world = World(1)
    monkeypatch.setenv(TRACE_VARIABLE, str(tmp_path / "trace"))
    world.run(main)
    assert len(world.lines) == LINES_KEPT
    assert len((tmp_path / "trace").read_text().splitlines()) == 1001


def test_a_failure_names_its_seed_and_shows_the_end_of_the_trace() -> None:
    async def main(world: World) -> None:
        world.trace("last words")
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as caught:
        run(17, main)
    (note,) = caught.value.__notes__
    assert "seed 17" in note
    assert "last words" in note


def test_a_node_has_clocks_and_randomness() -> None:
    async def main(world: World) -> None:
        process = world.start(1, idle)
        clock: Clock = process.clock
        randomness: Randomness = process.randomness
        began, began_ms = clock.monotonic(), clock.time_ms()
        await clock.sleep(10)
        assert clock.monotonic() - began == pytest.approx(10, abs=0.001)
        assert clock.time_ms() - began_ms == pytest.approx(10_000, abs=1)
        process.clock.jump(-3600)
        assert clock.time_ms() - began_ms == pytest.approx(10_000 - 3_600_000, abs=1)
        process.clock.drift(2.0)
        before_ms = clock.time_ms()
        await clock.sleep(10)
        assert clock.time_ms() - before_ms == pytest.approx(20_000, abs=2)
        assert clock.monotonic() - began == pytest.approx(20, abs=0.001)
        assert len(randomness.token(16)) == 16
        assert 1 <= randomness.uniform(1, 2) <= 2

    run(1, main)


def test_a_node_draws_on_where_its_last_process_stopped() -> None:
    async def main(world: World) -> list[bytes]:
        tokens = []
        for _ in range(3):
            tokens.append(world.start(1, idle).randomness.token(8))
            world.crash(1)
        tokens.append(world.start(2, idle).randomness.token(8))
        return tokens

    assert len(set(run(1, main))) == 4
    assert run(1, main) == run(1, main)


def test_the_return_of_main_ends_the_process_and_its_error_the_run() -> None:
    async def short(process: Process) -> None:
        await asyncio.sleep(1)

    async def broken(process: Process) -> None:
        await asyncio.sleep(1)
        raise ValueError("no config")

    async def main(world: World) -> None:
        first = world.start(1, short)
        await asyncio.sleep(2)
        assert not first.alive
        assert not world.is_up(1)
        assert world.start(1, idle).incarnation == 2
        world.start(2, broken)
        await asyncio.sleep(2)

    with pytest.raises(SimulationError, match="no config"):
        run(1, main)


def test_code_asked_from_outside_belongs_to_the_process() -> None:
    async def main(world: World) -> None:
        process = world.start(1, idle)

        async def answer(delay: float) -> int:
            await asyncio.sleep(delay)
            return 42

        async def fail() -> None:
            raise DiskError("bad")

        assert await process.run(answer(1)) == 42
        with pytest.raises(DiskError, match="bad"):
            await process.run(fail())
        asking = asyncio.create_task(process.run(answer(10)))
        await asyncio.sleep(1)
        world.crash(1)
        with pytest.raises(NodeDiedError):
            await asking
        with pytest.raises(NodeDiedError):
            await process.run(answer(1))

    run(1, main)


def test_a_paused_process_answers_later() -> None:
    async def main(world: World) -> None:
        process = world.start(1, idle)
        world.pause(1)
        asking = asyncio.create_task(process.run(asyncio.sleep(1, "result")))
        await asyncio.sleep(100)
        assert not asking.done()
        world.resume(1)
        assert await asking == "result"

    run(1, main)


def test_a_power_cut_takes_what_was_not_synced_and_a_kill_does_not() -> None:
    outcomes: dict[bool, set[int]] = {False: set(), True: set()}

    async def write(process: Process) -> None:
        file = process.disk.open("f", create=True)
        await process.disk.run(lambda: process.disk.sync_directory(""))
        file.append([b"synced"])
        await process.disk.run(file.sync)
        file.append([b"unsynced"])
        await asyncio.Event().wait()

    for seed in range(40):
        for power in (False, True):

            async def main(world: World, power: bool = power) -> None:
                world.start(1, write)
                await asyncio.sleep(5)
                world.crash(1, power=power)
                outcomes[power].add(len(world.disk(1).contents("f")))

            run(seed, main)
    assert outcomes[False] == {14}
    assert min(outcomes[True]) == 6
    assert len(outcomes[True]) > 2


def test_power_can_be_cut_after_the_process_was_killed() -> None:
    async def write(process: Process) -> None:
        process.disk.open("f", create=True)
        await asyncio.Event().wait()

    async def main(world: World) -> bool:
        world.start(1, write)
        await asyncio.sleep(1)
        world.crash(1)
        assert world.disk(1).exists("f")
        world.crash(1, power=True)
        return world.disk(1).exists("f")

    assert {run(seed, main) for seed in range(20)} == {True, False}


@pytest.mark.parametrize("step", range(1, 6))
def test_a_crash_in_the_middle_of_a_change_of_the_disk_ends_the_process(step: int) -> None:
    async def main(world: World) -> None:
        went_on: list[str] = []

        async def write(process: Process) -> None:
            world.crash_in(1, step)
            try:
                file = process.disk.open("f", create=True)
                file.append([b"1234"])
                await process.disk.run(file.sync)
                file.truncate(0)
                await process.disk.run(lambda: process.disk.replace("g", b"new"))
                went_on.append("after")
            except Exception:
                went_on.append("except")
            finally:
                if process.alive:
                    went_on.append("finally")
                else:
                    # Unwinding: the dead must not reach the disk any more.
                    process.disk.remove("f")

        process = world.start(1, write)
        await asyncio.sleep(5)
        assert not process.alive
        assert went_on == []
        assert world.disk(1).exists("f") == (step > 1)
        # The disk itself works for the next process.
        other = world.start(1, idle)
        await other.run(other.disk.run(lambda: other.disk.replace("h", b"x")))
        assert world.disk(1).contents("h") == b"x"

    run(1, main)


def test_a_crash_comes_before_or_after_work_that_was_given_to_the_disk() -> None:
    outcomes: set[tuple[bool, bool]] = set()

    async def main(world: World) -> None:
        returned: list[bool] = []

        async def write(process: Process) -> None:
            file = process.disk.open("f", create=True)
            file.append([b"x"])
            await process.disk.run(file.sync)
            returned.append(True)
            await asyncio.Event().wait()

        world.start(1, write)
        world.loop.call_later(world.random("crash").uniform(0, 0.002), world.crash, 1)
        await asyncio.sleep(1)
        outcomes.add((bool(world.disk(1).syncs["f"]), bool(returned)))

    for seed in range(60):
        run(seed, main)
    assert outcomes == {(False, False), (True, False), (True, True)}


def test_other_nodes_run_while_one_waits_for_its_disk() -> None:
    async def main(world: World) -> None:
        order: list[str] = []

        async def write(process: Process) -> None:
            file = process.disk.open("f", create=True)
            order.append("begun")

            def work() -> None:
                order.append("executed")
                file.sync()

            await process.disk.run(work)
            order.append("returned")

        async def other(process: Process) -> None:
            while True:
                await asyncio.sleep(0.00001)
                if order and order[-1] != "other":
                    order.append("other")

        world.start(1, write)
        world.start(2, other)
        await asyncio.sleep(0.1)
        assert order == ["begun", "other", "executed", "other", "returned", "other"]

    run(1, main)


def test_cancelling_the_wait_does_not_stop_the_work() -> None:
    async def main(world: World) -> None:
        done: list[bool] = []
        process = world.start(1, idle)

        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await process.disk.run(lambda: done.append(True))

        world.times(1).stick(1)
        await process.run(give_up())
        assert done == []
        await asyncio.sleep(1)
        assert done == [True]

    run(1, main)


def test_a_disk_that_gets_stuck_holds_up_what_was_given_to_it_before() -> None:
    async def main(world: World) -> None:
        done: list[float] = []
        process = world.start(1, idle)

        async def submit() -> None:
            waiting = asyncio.create_task(
                process.disk.run(lambda: done.append(world.loop.now - began))
            )
            await asyncio.sleep(0)
            world.times(1).stick(1)
            await waiting

        began = world.loop.now
        await process.run(submit())
        assert done[0] > 1

    for seed in range(5):
        run(seed, main)


def test_a_slow_disk_is_slow_and_a_failing_one_fails() -> None:
    async def main(world: World) -> None:
        process = world.start(1, idle)
        disk = process.disk
        file = disk.open("f", create=True)

        async def sync_s() -> float:
            file.append([b"x"])
            began = world.loop.now
            await process.run(disk.run(file.sync))
            return world.loop.now - began

        assert await sync_s() < 0.05
        world.times(1).slow = 1000.0
        assert await sync_s() > SYNC_S * 500
        world.times(1).heal()
        disk.fail_next("sync")
        with pytest.raises(DiskError):
            await sync_s()
        disk.capacity_bytes = disk.used_bytes()
        with pytest.raises(DiskError):
            await sync_s()

    run(1, main)


def test_the_hook_sees_each_event_of_each_process() -> None:
    async def main(world: World) -> None:
        seen: set[int] = set()
        world.loop.after_event = lambda life: seen.add(life.node_id)
        for node_id in (1, 2):
            world.start(node_id, idle)
        await asyncio.sleep(1)
        assert seen == {1, 2}

    run(1, main)


def test_a_world_without_end_ends_at_its_limits() -> None:
    with pytest.raises(SimulationError, match="no end after 2 virtual seconds"):
        run(1, history, time_s_max=2)
    with pytest.raises(SimulationError, match="no end after 100 callbacks"):
        run(1, history, steps_max=100)
