"""The client processes of a soak, by number: killed, paused, doubled, started again.

An order is one JSON line on the stdin of `python -m MODULE`; the end of stdin ends the process.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from raftlog.coordinator.groups import kind as group_kind
from raftlog.coordinator.transactions import kind as transaction_kind
from raftlog.coordinator.transactions.messages import shard_key
from raftlog.record.coordinators import partition_of

COORDINATOR_PARTITIONS: Final = 16
"""Of the coordinators' topics, as a new cluster creates them."""
STOP_TIMEOUT_S: Final = 30.0
FENCED_EXIT: Final = 3
"""Exit code of a client that was fenced: a later process has its transactional id."""


class ClientProcesses:
    """Processes of these orders. Logs go to `directory`, one file for each order."""

    def __init__(
        self,
        orders: Sequence[Any],
        directory: Path,
        *,
        module: str,
        groups: Sequence[str] = (),
        transactional: Sequence[int] = (),
    ) -> None:
        """`orders` are Structs with a name. `transactional`: numbers of the orders whose names are
        transactional ids. `groups`: the consumer groups of the processes."""
        self._orders = orders
        self._directory = directory
        self._module = module
        self._groups = groups
        self.transactional = list(transactional)
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._doubled: dict[int, asyncio.subprocess.Process] = {}
        self.zombies: list[int] = []
        """Ids of processes that were paused while a double took their transactional id."""

    @property
    def numbers(self) -> list[int]:
        """All processes, running or not."""
        return list(range(len(self._orders)))

    def coordinated(self) -> set[tuple[str, int]]:
        """Topics and partitions whose leaders coordinate these processes."""
        ids = [shard_key(self._orders[number].name) for number in self.transactional]
        return {
            *(
                (group_kind.TOPIC, partition_of(one, COORDINATOR_PARTITIONS))
                for one in self._groups
            ),
            *((transaction_kind.TOPIC, partition_of(one, COORDINATOR_PARTITIONS)) for one in ids),
        }

    def ended(self) -> list[str]:
        """Processes that ended by themselves."""
        return [
            f"{self._orders[number].name} ended with {process.returncode}; see its log"
            for number, process in self._running.items()
            if process.returncode is not None
        ]

    async def start(self, numbers: Iterable[int]) -> None:
        """Start these."""
        for number in numbers:
            order = self._orders[number]
            with (self._directory / f"{order.name}.log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    self._module,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                )
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            await process.stdin.drain()
            self._running[number] = process

    async def kill(self, numbers: Iterable[int]) -> None:
        """Kill those of these that run (SIGKILL), and their paused doubles."""
        for number in numbers:
            for processes in (self._running, self._doubled):
                process = processes.pop(number, None)
                if process is not None and process.returncode is None:
                    process.kill()
                    await process.wait()

    def pause(self, numbers: Iterable[int]) -> None:
        """Pause these (SIGSTOP). Raises RuntimeError: one ended by itself."""
        for number in numbers:
            self._alive(number).send_signal(signal.SIGSTOP)

    def resume(self, numbers: Iterable[int]) -> None:
        """Let these go on. Raises RuntimeError: one ended by itself."""
        for number in numbers:
            self._alive(number).send_signal(signal.SIGCONT)

    async def double(self, number: int) -> None:
        """Pause a process, and start another of the same order: the paused one is a zombie."""
        self.pause([number])
        zombie = self._running.pop(number)
        self._doubled[number] = zombie
        self.zombies.append(zombie.pid)
        await self.start([number])

    async def resume_zombie(self, number: int, timeout_s: float) -> str | None:
        """Let the zombie of `double` go on until it is fenced; return the anomaly, if any."""
        zombie = self._doubled[number]
        zombie.send_signal(signal.SIGCONT)
        name = self._orders[number].name
        try:
            async with asyncio.timeout(timeout_s):
                code = await zombie.wait()
        except TimeoutError:
            zombie.kill()
            await zombie.wait()
            return f"the zombie of {name} was not fenced within {timeout_s:g} s"
        finally:
            self._doubled.pop(number, None)
        return None if code == FENCED_EXIT else f"the zombie of {name} ended with {code}"

    async def stop(self, numbers: Iterable[int]) -> list[str]:
        """Let these end by themselves, and kill those that do not; return the anomalies."""
        late = []
        for number in numbers:
            process = self._running[number]
            assert process.stdin is not None
            process.stdin.close()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                late.append(f"{self._orders[number].name} did not end; see its log")
            await self.kill([number])
        return late

    def _alive(self, number: int) -> asyncio.subprocess.Process:
        process = self._running[number]
        if process.returncode is not None:
            raise RuntimeError(f"{self._orders[number].name} ended with {process.returncode}")
        return process
