"""The least work of a Python server for a POST: the reference for REST figures.

python -m bench.bare_http PORT         aiohttp: read the body, answer
python -m bench.bare_http PORT FILE    no HTTP library: CRC32C of the body, append to FILE, answer
"""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from typing import Final, cast

import uvloop
from aiohttp import web
from crc32c import crc32c

REQUEST_BYTES_MAX: Final = 4 << 20
ANSWER = b'{"offsets":[{"partition":0,"offset":0,"error_code":null,"error":null}]}'


async def serve(port: int) -> None:
    """Read every body and answer the same; until killed."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        return web.Response(body=ANSWER, content_type="application/json")

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


class _Listener(asyncio.BufferedProtocol):
    """One kept connection: receives each request into one buffer, without a copy."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._buffer = memoryview(bytearray(REQUEST_BYTES_MAX))
        self._filled = self._body_start = self._request_end = 0
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if not self._request_end and not self._parse_head():
            return
        if self._filled < self._request_end:
            return
        body = self._buffer[self._body_start : self._request_end]
        crc32c(body)
        os.write(self._file, body)
        self._filled = self._request_end = 0
        assert self._transport is not None
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER)
        )

    def _parse_head(self) -> bool:
        head, found, _ = bytes(self._buffer[: min(self._filled, 4096)]).partition(b"\r\n\r\n")
        if found:
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._body_start = len(head) + len(found)
            self._request_end = self._body_start + int(length)
        return bool(found)


async def append_bodies(port: int, path: str) -> None:
    """Append every body to the file, and answer the same; until killed."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(_Listener, file), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    port_argument, *file_argument = sys.argv[1:]
    if file_argument:
        uvloop.run(append_bodies(int(port_argument), file_argument[0]))
    else:
        uvloop.run(serve(int(port_argument)))
