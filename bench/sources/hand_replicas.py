"""Replication by hand: the primary calls each replica over HTTP. No log, no order, no takeover.

python -m bench.sources.hand_replicas PORT FILE    a replica that flushes each write to FILE
python -m bench.sources.hand_replicas PORT         a replica that keeps its state in memory alone

The replica is as small as an aiohttp service can be; writes that arrive together share a flush.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import uvloop
from aiohttp import web

from bench.kept_connection import KeptConnection, request_once
from bench.node import listening

TIMEOUT_S: Final = 30.0
BODY_BYTES_MAX: Final = 64 << 20
KEYS: Final = 1_000
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[bytes]).decode


class Values:
    """The state of a primary or a replica: the last payload of each key, in turn."""

    def __init__(self) -> None:
        self._values: dict[int, bytes] = {}
        self._count = 0

    def apply(self, payloads: Sequence[bytes]) -> None:
        """Set the next keys."""
        for payload in payloads:
            self._values[self._count % KEYS] = payload
            self._count += 1

    def all(self) -> list[bytes]:
        """The payloads in the order of their keys."""
        return [self._values[key] for key in sorted(self._values)]


class ByHand:
    """The primary, in the process of its callers."""

    def __init__(self, addresses: Sequence[str], *, is_side_by_side: bool) -> None:
        self._addresses = addresses
        self._is_side_by_side = is_side_by_side
        self._values = Values()
        self._idle: list[list[KeptConnection]] = []
        """Connections to all replicas, one set for each call at the same time."""

    async def put(self, payloads: Sequence[bytes]) -> None:
        """Apply the commands here and on all replicas.

        Raises RuntimeError for a refused call, and NoAnswerError.
        """
        self._values.apply(payloads)
        body = _encode(payloads)
        connections = self._idle.pop() if self._idle else self._connections()
        try:
            if self._is_side_by_side:
                await asyncio.gather(*(_call(one, body) for one in connections))
            else:
                for one in connections:
                    await _call(one, body)
        except BaseException:
            for one in connections:
                one.close()
            raise
        self._idle.append(connections)

    def close(self) -> None:
        """End all connections."""
        for connections in self._idle:
            for one in connections:
                one.close()
        self._idle.clear()

    def _connections(self) -> list[KeptConnection]:
        return [KeptConnection(address) for address in self._addresses]


async def _call(connection: KeptConnection, body: bytes) -> None:
    answer = await connection.request("PUT", "/", body, timeout_s=TIMEOUT_S)
    if answer.status != 200:
        raise RuntimeError(f"a replica by hand answered {answer.status}")


@dataclass(frozen=True, slots=True)
class HandReplica:
    """A running replica."""

    address: str
    process: subprocess.Popen[bytes]

    async def values(self) -> list[bytes]:
        """The payloads of the replica, in the order of their keys."""
        return _decode((await request_once(self.address, "GET", "/", timeout_s=TIMEOUT_S)).body)


@contextmanager
def running_replicas(
    directory: Path, count: int, *, is_flushed: bool
) -> Iterator[list[HandReplica]]:
    """Replicas as processes of their own, killed at the end. Raises RuntimeError."""
    files = [
        [str(directory / f"by-hand-{number}")] if is_flushed else [] for number in range(count)
    ]
    with listening("bench.sources.hand_replicas", files) as programs:
        yield [HandReplica(f"127.0.0.1:{port}", process) for port, process in programs]


class _Flushes:
    """Appends to a file; writes of one turn of the event loop share a flush."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._waiting: list[asyncio.Future[None]] = []

    async def append(self, data: bytes) -> None:
        """Return once the bytes are flushed."""
        os.write(self._file, data)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.append(done)
        await done

    def _flush(self) -> None:
        os.fdatasync(self._file)
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            if not done.done():
                done.set_result(None)


async def serve(port: int, path: str | None) -> None:
    """Serve one replica until killed."""
    values = Values()
    flushes = None if path is None else _Flushes(path)

    async def put(request: web.Request) -> web.Response:
        body = await request.read()
        if flushes is not None:
            await flushes.append(body)
        values.apply(_decode(body))
        return web.Response()

    app = web.Application(client_max_size=BODY_BYTES_MAX)

    async def get(_request: web.Request) -> web.Response:
        return web.Response(body=_encode(values.all()))

    app.add_routes([web.put("/", put), web.get("/", get)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    port_argument, *file_argument = sys.argv[1:]
    uvloop.run(serve(int(port_argument), file_argument[0] if file_argument else None))
