"""The running processes of the exactly-once chain, by number: killed, paused, started again."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.soak.chain_clients import GROUP, ChainOrder
from raftlog.coordinator import group_kind, transaction_kind
from raftlog.coordinator.service import partition_of
from raftlog.coordinator.transaction_messages import shard_key

COORDINATOR_PARTITIONS: Final = 16
"""Of the coordinators' topics, as a new cluster creates them."""
STOP_TIMEOUT_S: Final = 30.0


class ChainProcesses:
    """Processes of these orders. Logs go to `directory`, one file for each process."""

    def __init__(self, orders: Sequence[ChainOrder], directory: Path) -> None:
        self._orders = orders
        self._directory = directory
        self._running: dict[int, asyncio.subprocess.Process] = {}

    @property
    def numbers(self) -> list[int]:
        """All processes, running or not."""
        return list(range(len(self._orders)))

    def coordinated(self) -> set[tuple[str, int]]:
        """Topics and partitions whose leaders coordinate the chain."""
        ids = [shard_key(order.name) for order in self._orders]
        return {
            (group_kind.TOPIC, partition_of(GROUP, COORDINATOR_PARTITIONS)),
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
                    "bench.soak.chain_clients",
                    stdin=asyncio.subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                )
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            await process.stdin.drain()
            self._running[number] = process

    async def kill(self, numbers: Iterable[int]) -> None:
        """Kill those of these that run (SIGKILL)."""
        for number in numbers:
            process = self._running.pop(number, None)
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()

    def pause(self, numbers: Iterable[int]) -> None:
        """Pause these (SIGSTOP)."""
        for number in numbers:
            self._running[number].send_signal(signal.SIGSTOP)

    def resume(self, numbers: Iterable[int]) -> None:
        """Let these go on."""
        for number in numbers:
            self._running[number].send_signal(signal.SIGCONT)

    async def stop(self, numbers: Iterable[int]) -> None:
        """Let these end by themselves; kill those that do not."""
        for number in numbers:
            process = self._running[number]
            assert process.stdin is not None
            process.stdin.close()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                pass
            await self.kill([number])
