"""Clients in processes of their own: `python -m tests.soak.worker`.

The first line on stdin is a `WorkerOrder`. The end of stdin stops the clients; so does the end of
the soak's process. Then the worker prints its `Account`, one line on stdout.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from tests.soak.clients import CLIENTS, Task
from tests.soak.orders import order_from_stdin
from tests.soak.recording import Recorder

LINE_BYTES_MAX: Final = 1 << 20
STOP_TIMEOUT_S: Final = 150.0


class WorkerOrder(msgspec.Struct, frozen=True):
    """The clients to run, and the cluster."""

    name: str
    clients: dict[str, float]
    """By name in CLIENTS; the value is the rate of a writer, records a second."""
    addresses: dict[int, str]
    topics: dict[str, int]
    history: str


class Account(msgspec.Struct, frozen=True):
    """Acknowledged records and errors of clients."""

    acknowledged: int = 0
    errors: dict[str, int] = {}

    def __add__(self, other: Account) -> Account:
        return Account(
            self.acknowledged + other.acknowledged,
            dict(Counter(self.errors) + Counter(other.errors)),
        )


async def work(order: WorkerOrder, stop: asyncio.Event, tasks: list[Task] | None = None) -> Account:
    """Run the clients until `stop` is set. The caller may watch them in `tasks`."""
    tasks = [] if tasks is None else tasks
    recorders: list[Recorder] = []
    try:
        async with asyncio.TaskGroup() as group:
            for part, rate in order.clients.items():
                name = f"{order.name}{part}"
                recorder = Recorder(Path(order.history), name)
                recorders.append(recorder)
                task = Task(name, order.addresses, order.topics, recorder, stop, rate)
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
    """A worker process."""

    def __init__(self, order: WorkerOrder) -> None:
        self.order = order
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process and its clients."""
        with (Path(self.order.history) / f"{self.order.name}.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.soak.worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=LINE_BYTES_MAX,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self.order) + b"\n")
        await self._process.stdin.drain()

    async def ended(self) -> None:
        """Wait for the end of the process."""
        assert self._process is not None, "the worker was not started"
        await self._process.wait()

    async def stop(self) -> Account:
        """Stop the clients; return their account. Raises RuntimeError: the worker failed."""
        process = self._process
        assert process is not None, "the worker was not started"
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise RuntimeError(f"the clients {self.order.name} did not end") from None
        if process.returncode:
            raise RuntimeError(
                f"the clients {self.order.name} ended with {process.returncode}; see their log"
            )
        return msgspec.json.decode(output, type=Account)

    async def kill(self) -> None:
        """Kill the process if it still runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


async def _main() -> None:
    order, reader = await order_from_stdin(WorkerOrder, LINE_BYTES_MAX)
    stop = asyncio.Event()
    working = asyncio.create_task(work(order, stop))
    ended = asyncio.create_task(reader.read())
    await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    sys.stdout.write(msgspec.json.encode(await working).decode() + "\n")
    ended.cancel()


if __name__ == "__main__":
    uvloop.run(_main())
