"""The hostile clients: one process for one attack.

`python -m bench.attack.attacks NAME HOST:PORT SECONDS SEED` attacks for so long. Its exit code says
nothing about the node: see `verdict`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import uvloop

from bench.attack.inputs import (
    MIB,
    TOPIC,
    Mutator,
    Request,
    batch_bombs,
    garbage,
    gzip_bombs,
    json_bombs,
    opening,
)

NICENESS: Final = 15
"""The processor is for the node and for the other clients first."""
ANSWER_TIMEOUT_S: Final = 20.0
ADDRESSES: Final = 4
"""Most addresses of one attack: 127.0.0.2 and following."""
CHANNELS: Final = ("quorum", "join", "replication", "data")


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack on one node."""

    host: str
    port: int
    deadline: float
    rng: random.Random

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self.deadline

    @asynccontextmanager
    async def connection(
        self, address: int = 0
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection from one of the attackers' addresses. Raises OSError, TimeoutError."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                self.host, self.port, local_addr=(f"127.0.0.{2 + address}", 0)
            )
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def send(self, request: Request, address: int = 0) -> None:
        """Send one request on a connection of its own; read and drop the answer."""
        with suppress(OSError, TimeoutError):
            async with self.connection(address) as (reader, writer):
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    writer.write(request.head() + request.body)
                    head = await reader.readuntil(b"\r\n\r\n")
                    with suppress(asyncio.IncompleteReadError):
                        await _drop(reader, head)

    async def repeat(self, work: Callable[[int], Awaitable[None]], count: int) -> None:
        """Run `count` loops of `work`, each with its number, until the time is over."""

        async def loop(number: int) -> None:
            while not self.is_over:
                with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                    await work(number)
                await asyncio.sleep(0.001)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(loop(number)) for number in range(count)]
            await asyncio.sleep(max(0.0, self.deadline - time.monotonic()))
            for task in tasks:
                task.cancel()


async def _drop(reader: asyncio.StreamReader, head: bytes) -> None:
    """Read an answer to its end and drop the bytes."""
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    if b"transfer-encoding" in head.lower():
        while b"\r\n0\r\n\r\n" not in (chunk := await reader.read(MIB)) and chunk:
            pass
        return
    while length > 0 and (chunk := await reader.read(min(length, MIB))):
        length -= len(chunk)


async def slow_heads(attack: Attack) -> None:
    """Request heads, a byte at a time."""

    async def work(_number: int) -> None:
        async with attack.connection() as (_, writer):
            writer.write(b"GET /topics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            while not writer.transport.is_closing():
                writer.write(b"a")
                await asyncio.sleep(0.5)

    await attack.repeat(work, 400)


async def slow_bodies(attack: Attack) -> None:
    """Large bodies, a byte at a time."""

    async def work(number: int) -> None:
        path = (f"/topics/{TOPIC}", "/v1/produce", f"/v3/clusters/-/topics/{TOPIC}/records")
        headers = {"Content-Type": "application/json", "Content-Length": str(32 * MIB)}
        if number % 3 == 2:
            headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        request = Request("POST", path[number % 3], b"", headers)
        head = request.head()
        if number % 3 == 2:
            head = head.replace(b"Content-Length: 0\r\n", b"")
        async with attack.connection() as (_, writer):
            writer.write(head)
            while not writer.transport.is_closing():
                writer.write(b"1\r\n{\r\n" if number % 3 == 2 else b"{")
                await asyncio.sleep(0.5)

    await attack.repeat(work, 120)


async def slow_readers(attack: Attack) -> None:
    """Requests for large answers, without reading."""
    for request in islice(batch_bombs(), 6):
        await attack.send(request)

    async def work(_number: int) -> None:
        request = Request(
            "GET", f"/topics/{TOPIC}/partitions/0/records?offset=0&max_bytes={32 * MIB}"
        )
        async with attack.connection() as (reader, writer):
            writer.write(request.head())
            await reader.read(1)
            writer.transport.pause_reading()  # type: ignore[attr-defined] # of a socket, both ways
            await asyncio.sleep(10)

    await attack.repeat(work, 60)


async def half_open(attack: Attack) -> None:
    """Thousands of connections: silent, cut in the first line, or reset."""

    async def work(number: int) -> None:
        async with attack.connection(number % ADDRESSES) as (_, writer):
            if number % 3 == 1:
                writer.write(b"GET /topi")
            elif number % 3 == 2:
                found: socket.socket = writer.get_extra_info("socket")
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            await asyncio.sleep(20)

    await attack.repeat(work, 4_000)


async def json_depth(attack: Attack) -> None:
    """Deep, wide and lying JSON, plain and compressed."""
    requests = [one for size in (4096, MIB, 16 * MIB) for one in json_bombs(size)]
    await _cycle(attack, requests, 4)


async def bombs(attack: Attack) -> None:
    """Inflating content encodings and record batches of every codec, and reads of these."""
    await _cycle(attack, [*gzip_bombs(), *batch_bombs()], 4)


async def _cycle(attack: Attack, requests: Sequence[Request], count: int) -> None:
    async def work(number: int) -> None:
        await attack.send(attack.rng.choice(requests), number % ADDRESSES)

    await attack.repeat(work, count)


async def mutations(attack: Attack) -> None:
    """Valid and mutated requests on every route."""
    mutator = Mutator(await asyncio.to_thread(_document, attack), attack.rng)

    async def work(_number: int) -> None:
        await attack.send(mutator.request())

    await attack.repeat(work, 8)


def _document(attack: Attack) -> Any:
    with urllib.request.urlopen(f"http://{attack.host}:{attack.port}/openapi.json") as answer:
        return json.load(answer)


async def noise(attack: Attack) -> None:
    """Random bytes instead of HTTP."""

    async def work(_number: int) -> None:
        async with attack.connection() as (reader, writer):
            writer.write(garbage(attack.rng))
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await reader.read(4096)

    await attack.repeat(work, 16)


async def node_channels(attack: Attack) -> None:
    """Openings of node channels by strangers: repeated, malformed, silent."""

    async def work(number: int) -> None:
        async with attack.connection(number % ADDRESSES) as (reader, writer):
            head = opening(attack.rng, attack.rng.choice(CHANNELS))
            writer.write(head if number % 4 else head[: attack.rng.randrange(len(head))])
            with suppress(TimeoutError):
                async with asyncio.timeout(6):
                    await reader.read(4096)

    await attack.repeat(work, 200)


ATTACKS: Final[dict[str, Callable[[Attack], Awaitable[None]]]] = {
    "slow-heads": slow_heads,
    "slow-bodies": slow_bodies,
    "slow-readers": slow_readers,
    "half-open": half_open,
    "json-depth": json_depth,
    "bombs": bombs,
    "mutations": mutations,
    "noise": noise,
    "node-channels": node_channels,
}


def main(arguments: Sequence[str]) -> None:
    """Run one attack."""
    name, address, seconds, seed = arguments
    host, _, port = address.rpartition(":")
    os.nice(NICENESS)
    attack = Attack(
        host, int(port), time.monotonic() + float(seconds), random.Random(f"{name} {seed}")
    )

    async def run() -> None:
        await ATTACKS[name](attack)

    uvloop.run(run())


if __name__ == "__main__":
    main(sys.argv[1:])
