"""Clients in processes of their own: `python -m bench.soak.worker`, told what to do on stdin.

The first line says it (`Orders`); the end of stdin, which the end of the soak is, too, says stop.
What they have to say of themselves is one line on stdout (`Account`).
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from bench.soak.clients import CLIENTS, Task
from bench.soak.recording import Recorder

LINE_BYTES_MAX: Final = 1 << 20
STOP_TIMEOUT_S: Final = 150.0


class Orders(msgspec.Struct, frozen=True):
    """Which clients, and for what cluster."""

    name: str
    clients: dict[str, float]
    """By name of the part, with a rate for writers."""
    addresses: dict[int, str]
    topics: dict[str, int]
    history: str


class Account(msgspec.Struct, frozen=True):
    """What the clients have to say."""

    acknowledged: int = 0
    errors: dict[str, int] = {}

    def __add__(self, other: Account) -> Account:
        return Account(
            self.acknowledged + other.acknowledged,
            dict(Counter(self.errors) + Counter(other.errors)),
        )


async def work(orders: Orders, stop: asyncio.Event, tasks: list[Task] | None = None) -> Account:
    """Be these clients until told to stop. They are added to `tasks`, to be watched."""
    tasks = [] if tasks is None else tasks
    recorders: list[Recorder] = []
    try:
        async with asyncio.TaskGroup() as group:
            for part, rate in orders.clients.items():
                name = f"{orders.name}{part}"
                recorder = Recorder(Path(orders.history), name)
                recorders.append(recorder)
                task = Task(name, orders.addresses, orders.topics, recorder, stop, rate)
                tasks.append(task)
                group.create_task(CLIENTS[part](task))  # type: ignore[arg-type]
    finally:
        for recorder in recorders:
            recorder.close()
    account = Account()
    for task in tasks:
        errors = {f"{task.name}: {error}": count for error, count in task.errors.items()}
        account += Account(task.acknowledged, errors)
    return account


class Worker:
    """A process with clients in it."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Let it begin."""
        with (Path(self.orders.history) / f"{self.orders.name}.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "bench.soak.worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=LINE_BYTES_MAX,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self.orders) + b"\n")
        await self._process.stdin.drain()

    async def ended(self) -> None:
        """Return when it has ended, though nobody has told it to."""
        assert self._process is not None, "it was never started"
        await self._process.wait()

    async def stop(self) -> Account:
        """Let it end; what it has to say. Raises RuntimeError: it failed."""
        process = self._process
        assert process is not None, "it was never started"
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise RuntimeError(f"the clients {self.orders.name} did not end") from None
        if process.returncode:
            raise RuntimeError(
                f"the clients {self.orders.name} ended with {process.returncode}; see their log"
            )
        return msgspec.json.decode(output, type=Account)

    async def kill(self) -> None:
        """End it if it still runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


async def _main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    orders = msgspec.json.decode(await reader.readline(), type=Orders)
    stop = asyncio.Event()
    working = asyncio.create_task(work(orders, stop))
    ended = asyncio.create_task(reader.read())
    await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    sys.stdout.write(msgspec.json.encode(await working).decode() + "\n")
    ended.cancel()


if __name__ == "__main__":
    uvloop.run(_main())
