"""Peers of every manner, over real loopback sockets, and a server for them to meet."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from raftlog.broker.service import Broker
from raftlog.http.app import HttpServer, Port
from raftlog.http.dispatch import Dispatcher
from raftlog.http.metrics import ServerMetrics
from raftlog.http.request import Request, ServerContext
from raftlog.http.routing import Route, Router
from raftlog.http.settings import ServerLimits, ServerSettings

from .fakes import FakeNode

Handler = Callable[[Request, ServerContext], Awaitable[web.StreamResponse]]
PATIENCE_S = 60.0
"""Reached only by a failing test."""


@asynccontextmanager
async def serving(
    routes: Sequence[Route],
    limits: ServerLimits | None = None,
    *,
    node: FakeNode | None = None,
    on_broken_invariant: Callable[[AssertionError], None] | None = None,
    network: Any = None,
    **options: Any,
) -> AsyncIterator[HttpServer]:
    """A server of these routes on a free port; `options` are settings."""
    settings = ServerSettings(port=0, limits=limits or ServerLimits(shutdown_s=1), **options)
    broker = Broker((node or FakeNode()).services, settings.for_broker())
    context = ServerContext(
        broker=broker,
        settings=settings,
        metrics=ServerMetrics(broker.topics),
        on_broken_invariant=on_broken_invariant,
        network=network,
    )
    server = await HttpServer.start(
        Dispatcher(Router(routes), context), context, await Port.bind("127.0.0.1", 0)
    )
    try:
        yield server
    finally:
        await server.close()
    assert broker.bytes_in_flight.used == 0, "bytes in flight leaked"


@dataclass
class Reply:
    """An answer from the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error_code(self) -> int:
        assert self.headers["content-type"] in {"application/json", "application/vnd.kafka.v2+json"}
        assert set(self.json) == {"error_code", "message"}
        code = self.json["error_code"]
        assert isinstance(code, int)
        assert code // 100 == self.status
        return code


class RawPeer:
    """Sends exactly the given bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def connected(cls, port: int, host: str = "127.0.0.1") -> AsyncIterator[RawPeer]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):  # the test has seen how it ended
                await writer.wait_closed()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return await self.reply(has_body=method != "HEAD")

    async def reply(self, *, has_body: bool = True) -> Reply:
        """The next answer. Raises without one."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            status_line, *lines = head.rstrip().split("\r\n")
            headers = {}
            for line in lines:
                name, _, value = line.partition(": ")
                assert name.lower() not in headers, f"{name} is given twice"
                headers[name.lower()] = value
            body = b""
            if has_body and "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            elif has_body and headers.get("transfer-encoding") == "chunked":
                body = await self._chunks()
            return Reply(int(status_line.split()[1]), headers, body)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)
        return body

    async def rest(self) -> bytes:
        """All bytes until the server closes."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def is_closed(self) -> bool:
        """Whether the server closes without another word."""
        return await self.rest() == b""
