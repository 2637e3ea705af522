"""A TCP load balancer on loopback: connections go to the backends in turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from itertools import cycle
from types import TracebackType

CHUNK_BYTES = 1 << 16


class Balancer:
    """Use it as a context manager: it runs in a thread of its own."""

    def __init__(self, backends: Sequence[str]) -> None:
        """`backends`: addresses, `host:port`; those that refuse are passed over."""
        self._backends = cycle(backends)
        self._count = len(backends)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="balancer")
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.connections: dict[str, int] = dict.fromkeys(backends, 0)
        """Connections by backend since the start."""

    def __enter__(self) -> Balancer:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for _ in range(self._count):
                backend = next(self._backends)
                host, _, port = backend.partition(":")
                try:
                    theirs = await asyncio.open_connection(host, int(port))
                except OSError:
                    continue
                self.connections[backend] += 1
                await _relay(reader, writer, *theirs)
                return
        finally:
            writer.close()


async def _relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    their_reader: asyncio.StreamReader,
    their_writer: asyncio.StreamWriter,
) -> None:
    """Copy both ways until one side ends."""
    ways = [
        asyncio.ensure_future(_copy(reader, their_writer)),
        asyncio.ensure_future(_copy(their_reader, writer)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        their_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
