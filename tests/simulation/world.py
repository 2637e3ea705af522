"""A simulated world: everything outside the nodes, from one seed.

The world has the loop, the network, and each node's machine: disk, clocks, randomness, which
outlive the node's processes. Every event is traced, one line each; the digest of all lines is the
same for the same seed, in every process and under every PYTHONHASHSEED, or the run is not
deterministic.

`RAFTLOG_SIMULATION_TRACE=file` writes all lines to a file: compare two files to find the first
difference.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import os
import random
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO, TypeVar

from tests.simulation.clock import SimulatedClock
from tests.simulation.connection import End
from tests.simulation.disk import SimulatedDisk
from tests.simulation.disk_times import DiskTimes
from tests.simulation.life import Life, NodeDiedError, SimulationError, current_life
from tests.simulation.loop import START_S, STEPS_MAX, TIME_S_MAX, SimulatedLoop, still
from tests.simulation.network import NodeNetwork, SimulatedNetwork

T = TypeVar("T")

LINES_KEPT: Final = 400
"""Of the trace, in memory."""
LINES_SHOWN: Final = 40
"""Lines of the trace shown with the error of a run."""
HASHED_LINES: Final = 256
"""Lines gathered before an update of the digest."""
TRACE_VARIABLE: Final = "RAFTLOG_SIMULATION_TRACE"


class SeededRandomness:
    """Seeded `Randomness`."""

    def __init__(self, chance: random.Random) -> None:
        self._random = chance

    def token(self, length: int) -> bytes:
        return self._random.randbytes(length)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


class Process(Life):
    """A node's process: a life, and the world of its code."""

    def __init__(self, world: World, node_id: int, incarnation: int) -> None:
        super().__init__(node_id, incarnation)
        self.world = world
        self.disk = world.disk(node_id)
        self.clock = world.clock(node_id)
        self.randomness = world.randomness(node_id)
        self.machine = world.network.machine(node_id)
        self.address = self.machine.address
        """`host:port`, the same in all lives of the node."""
        self.network = NodeNetwork(world.network, self)
        self.ends: dict[End, None] = {}
        """Its open connections. The network's."""
        self.power = False
        """Whether unsynced data is lost at the end of this life."""

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """From outside: run a coroutine as code of this process; return its result or raise its
        error.

        Raises NodeDiedError if the process has ended or ends first.
        """
        assert current_life() is not self, "await it"
        loop = self.world.loop
        outcome: asyncio.Future[T] = loop.create_future()

        def died() -> None:
            if not outcome.done():
                outcome.set_exception(NodeDiedError(repr(self)))

        async def inside() -> None:
            try:
                result = await coroutine
            except Exception as error:
                if not outcome.done():
                    outcome.set_exception(error)
            else:
                if not outcome.done():
                    outcome.set_result(result)
            finally:
                self.forget_on_end(died)

        if not self.alive:
            coroutine.close()
            raise NodeDiedError(repr(self))
        self.on_end(died)
        task = self.context.copy().run(loop.create_task, inside())
        try:
            return await outcome
        except asyncio.CancelledError:
            task.cancel()
            raise


class World:
    """Everything outside the nodes. For one `run`."""

    def __init__(
        self, seed: int, *, steps_max: int = STEPS_MAX, time_s_max: float = TIME_S_MAX
    ) -> None:
        self.seed = seed
        # The loop leaves out what no simulated node may call: sockets, signals, subprocesses.
        self.loop = SimulatedLoop(  # type: ignore[abstract]
            steps_max=steps_max, time_s_max=time_s_max
        )
        self.processes: dict[int, Process] = {}
        """The newest of each node, dead or alive."""
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        """The last lines of the trace."""
        self.network = SimulatedNetwork(self)
        self._disks: dict[int, SimulatedDisk] = {}
        self._clocks: dict[int, SimulatedClock] = {}
        self._randomness: dict[int, SeededRandomness] = {}
        self._hash = hashlib.sha256()
        self._unhashed: list[str] = []
        self._sealed = False
        self._file: TextIO | None = None

    # A node's machine

    def random(self, name: str) -> random.Random:
        """A stream of chance of its own: drawing from one does not change the others."""
        return random.Random(f"{self.seed}/{name}")

    def address(self, node_id: int) -> str:
        """The node's `host:port`."""
        return self.network.machine(node_id).address

    def disk(self, node_id: int) -> SimulatedDisk:
        """The node's disk."""
        disk = self._disks.get(node_id)
        if disk is None:
            chance = self.random(f"disk {node_id}")
            disk = self._disks[node_id] = SimulatedDisk(chance.getrandbits(64))
            disk.times = DiskTimes(self.loop, chance)
            disk.on_stop = partial(self._stopped, node_id)
        return disk

    def wipe(self, node_id: int) -> None:
        """Give a node without a running process a new, empty disk."""
        assert not self.is_up(node_id)
        self.trace(f"disk {node_id} wiped")
        del self._disks[node_id]

    def times(self, node_id: int) -> DiskTimes:
        """How fast the node's disk is."""
        times = self.disk(node_id).times
        assert times is not None
        return times

    def clock(self, node_id: int) -> SimulatedClock:
        """The node's clocks."""
        if node_id not in self._clocks:
            self._clocks[node_id] = SimulatedClock(self.loop)
        return self._clocks[node_id]

    def randomness(self, node_id: int) -> SeededRandomness:
        """The node's randomness."""
        if node_id not in self._randomness:
            self._randomness[node_id] = SeededRandomness(self.random(f"node {node_id}"))
        return self._randomness[node_id]

    # Life of a node

    def is_up(self, node_id: int) -> bool:
        """Whether the node's process lives, even if paused."""
        return node_id in self.processes and self.processes[node_id].alive

    def start(self, node_id: int, main: Callable[[Process], Coroutine[Any, Any, None]]) -> Process:
        """Start the node's process: `main(process)`. Its return ends the process; its error, the
        run."""
        assert not self.is_up(node_id), f"node {node_id} runs already"
        old = self.processes.get(node_id)
        process = Process(self, node_id, 1 if old is None else old.incarnation + 1)
        self.processes[node_id] = process
        process.machine.process = process
        self.network.machine_up(process.machine)
        process.on_end(lambda: self._ended(process))
        self.trace(f"{process} started")

        async def whole() -> None:
            await main(process)

        task = process.context.copy().run(self.loop.create_task, whole())
        task.add_done_callback(
            lambda task: self._returned(process, task), context=contextvars.Context()
        )
        return process

    def crash(self, node_id: int, *, power: bool = False) -> None:
        """Kill the node's process, or cut its machine's power. Harmless on a dead process.

        Without power, its address does not answer until the next start.
        """
        process = self.processes[node_id]
        if process.alive:
            process.power = power
            process.kill()
        elif power:
            # A killed process leaves its unsynced writes with the kernel, which may still lose
            # these.
            self.trace(f"{process} power cut")
            process.machine.up = False
            process.disk.crash(power=True)

    def crash_after(self, node_id: int, callbacks: int, *, power: bool = False) -> None:
        """Crash after so many more callbacks (1 or more) of the process."""
        self.processes[node_id].power = power
        self.processes[node_id].crash_after(callbacks)

    def crash_in(self, node_id: int, steps: int, *, power: bool = False) -> None:
        """Crash in the middle of the `steps`-th change of its disk from now."""
        self.processes[node_id].power = power
        self.disk(node_id).crash_in(steps)

    def pause(self, node_id: int) -> None:
        """Stop the process like SIGSTOP; messages to it wait."""
        process = self.processes[node_id]
        if process.alive and not process.paused:
            self.trace(f"{process} paused")
            process.paused = True

    def suspend(self, node_id: int) -> None:
        """Let the node's machine sleep: like `pause`, and its timers stand still.

        Time itself goes on, as the machine's CLOCK_BOOTTIME shows after `resume`.
        """
        process = self.processes[node_id]
        if process.alive and not process.paused:
            self.trace(f"{process} suspended")
            self.loop.suspend(process)

    def resume(self, node_id: int) -> None:
        """Resume the process."""
        process = self.processes[node_id]
        if process.alive and process.paused:
            self.trace(f"{process} resumed")
            if process.suspended_at is not None:
                self.clock(node_id).suspended_s += self.loop.now - process.suspended_at
            self.loop.resume(process)

    def _stopped(self, node_id: int) -> None:
        self.processes[node_id].kill()

    def _returned(self, process: Process, task: asyncio.Task[None]) -> None:
        if process.alive:
            error = task.exception() if not task.cancelled() else asyncio.CancelledError()
            if error is not None:
                self.loop.fail(SimulationError(f"{process}: {error!r}"), error)
            process.kill()

    def _ended(self, process: Process) -> None:
        self.trace(f"{process} ended{', power cut' if process.power else ''}", *_counts(process))
        process.disk.crash(power=process.power)
        self.network.process_ended(process, power=process.power)

    # The trace

    def trace(self, *parts: object) -> None:
        """Add a line to the trace and its digest, except from dead code."""
        life = current_life()
        if self._sealed or (life is not None and not life.alive):
            return
        line = f"{int((self.loop.now - START_S) * 1e6)} {' '.join(map(str, parts))}"
        self.lines.append(line)
        self._unhashed.append(line)
        if len(self._unhashed) >= HASHED_LINES:
            self._flush()
        if self._file is not None:
            self._file.write(line + "\n")

    def digest(self) -> str:
        """Of all lines so far."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update("".join(line + "\n" for line in self._unhashed).encode())
        self._unhashed.clear()

    # The run

    def run(self, main: Callable[[World], Coroutine[Any, Any, T]]) -> T:
        """Run `main(world)`, the test's own code, to its end; return its result or raise its error.

        Raises SimulationError for unhandled exceptions and for limits, with the trace's end.
        """
        assert not self._sealed, "a world is for one run"
        # Libraries draw from the module's own generator.
        state = random.getstate()
        random.seed(f"{self.seed}/global")
        path = Path(os.environ.get(TRACE_VARIABLE) or os.devnull)
        try:
            with still(), path.open("w", encoding="utf-8") as file:
                self._file = file if TRACE_VARIABLE in os.environ else None
                return self._run(main)
        finally:
            random.setstate(state)
            self._file = None

    def _run(self, main: Callable[[World], Coroutine[Any, Any, T]]) -> T:
        try:
            result = self.loop.run(main(self))
            self.loop.check()
            for process in self.processes.values():
                if process.alive:
                    self.trace(f"{process} lives", *_counts(process))
            self.trace(f"end after {self.loop.steps} callbacks")
        except BaseException as error:
            lines = "\n  ".join(list(self.lines)[-LINES_SHOWN:])
            error.add_note(f"seed {self.seed}, at {self.loop.now - START_S:.6f} s:\n  {lines}")
            raise
        else:
            return result
        finally:
            self._sealed = True
            for process in self.processes.values():
                process.kill()
            self.loop.close()


def run(
    seed: int,
    main: Callable[[World], Coroutine[Any, Any, T]],
    *,
    steps_max: int = STEPS_MAX,
    time_s_max: float = TIME_S_MAX,
) -> T:
    """Run `main(world)` in a new world of a seed. See `World.run`."""
    return World(seed, steps_max=steps_max, time_s_max=time_s_max).run(main)


def _counts(process: Process) -> list[str]:
    operations = process.disk.operations
    return [f"{name}={operations[name]}" for name in sorted(operations)]
