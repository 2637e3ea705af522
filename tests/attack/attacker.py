"""One attack on one node: its connections, its counts, and its loops."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from tests.attack.inputs import MIB, Request

ANSWER_TIMEOUT_S: Final = 20.0
ADDRESSES: Final = 4
"""Most addresses of one attack: 127.0.0.2 and following."""
ATTACKERS: Final = tuple(f"127.0.0.{2 + number}" for number in range(ADDRESSES))
READY: Final = "ready"
"""The line that tells the end of the preparations: the time of the attack begins."""
BEGUN_AT_ONCE: Final = 50
"""Loops of an attack that begin in one turn."""


@dataclass(slots=True)
class Attack:
    """One attack on one node."""

    host: str
    port: int
    seconds: float
    rng: random.Random
    deadline: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    """Of requests, connections, answers by status, …: see `Work`."""
    _open: int = 0

    def begin(self) -> None:
        """Say that the inputs are prepared; from now on the time counts."""
        print(READY, flush=True)
        self.deadline = time.monotonic() + self.seconds

    @property
    def is_over(self) -> bool:
        """Whether the attack's time has passed."""
        return time.monotonic() >= self.deadline

    @asynccontextmanager
    async def connection(
        self, address: int = 0
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection from one of the attackers' addresses. Raises OSError, TimeoutError."""
        # Not by `open_connection` alone: it resolves addresses in a thread, thousands of times.
        connected = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            connected.bind((ATTACKERS[address], 0))
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await asyncio.get_running_loop().sock_connect(connected, (self.host, self.port))
                reader, writer = await asyncio.open_connection(sock=connected)
        except BaseException:
            connected.close()
            raise
        self.counts["connections"] += 1
        self._open += 1
        self.counts["open"] = max(self.counts["open"], self._open)
        try:
            yield reader, writer
        finally:
            self._open -= 1
            writer.transport.abort()

    async def send(self, request: Request, address: int = 0) -> int | None:
        """Send one request on a connection of its own; read and drop the answer, count its status.

        Returns the status; None without an answer.
        """
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with self.connection(address) as (reader, writer):
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    self.counts["requests"] += 1
                    writer.write(request.head() + request.body)
                    return await self.answer(reader)
        return None

    async def answer(self, reader: asyncio.StreamReader) -> int:
        """Read one answer, drop it and count its status. Raises OSError, IncompleteReadError."""
        head = await self.answer_head(reader)
        with suppress(asyncio.IncompleteReadError):
            await drop(reader, head)
        return status_of(head)

    async def answer_head(self, reader: asyncio.StreamReader) -> bytes:
        """Read the head of one answer and count its status. Raises as `answer`."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.counts[str(status_of(head))] += 1
        return head

    async def until_cut(self, reader: asyncio.StreamReader, seconds: float) -> None:
        """Read until the node ends the connection, or for so long; count an answer's status."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                try:
                    await self.answer_head(reader)
                    while await reader.read(MIB):
                        pass
                except (OSError, asyncio.IncompleteReadError):
                    pass
                self.counts["cut"] += 1

    def breach(self) -> None:
        """Count an answer that a bound of the node must have prevented."""
        self.counts["breaches"] += 1

    async def repeat(self, work: Callable[[int], Awaitable[None]], count: int) -> None:
        """Run `count` loops of `work`, each with its number, for the attack's time.

        After the deadline no loop and no step starts, and running steps are cancelled.
        """
        self.begin()

        async def loop(number: int) -> None:
            while not self.is_over:
                try:
                    await work(number)
                except (OSError, TimeoutError, asyncio.IncompleteReadError):
                    self.counts["broken"] += 1
                except asyncio.LimitOverrunError:
                    self.counts["overlong"] += 1
                await asyncio.sleep(0.001)

        async with asyncio.TaskGroup() as group:
            tasks = []
            for number in range(count):
                if self.is_over:
                    break
                tasks.append(group.create_task(loop(number)))
                if number % BEGUN_AT_ONCE == BEGUN_AT_ONCE - 1:
                    # All at once, thousands would be half begun for the whole attack.
                    await asyncio.sleep(0.001)
            await asyncio.sleep(max(0.0, self.deadline - time.monotonic()))
            running = set(tasks)
            while running:
                # A connect that ends at this moment takes the cancellation with it.
                for task in running:
                    task.cancel()
                _, running = await asyncio.wait(running, timeout=1.0)


def status_of(head: bytes) -> int:
    return int(head[9:12]) if head[9:12].isdigit() else 0


async def drop(reader: asyncio.StreamReader, head: bytes) -> None:
    """Read an answer to its end and drop the bytes."""
    head = head.lower()
    if b"transfer-encoding" in head:
        last = b""
        while not last.endswith(b"\r\n0\r\n\r\n") and (chunk := await reader.read(MIB)):
            last = last[-16:] + chunk[-16:]
        return
    length = 0
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    while length > 0 and (chunk := await reader.read(min(length, MIB))):
        length -= len(chunk)


@dataclass(frozen=True, slots=True)
class Kind:
    """An attack, and the least of its work: counts without which the attack attacked nothing."""

    run: Callable[[Attack], Awaitable[None]]
    least: Mapping[str, int]
    is_kafka: bool = False
    """Whether it attacks the Kafka listener, not the HTTP port."""
