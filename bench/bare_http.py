"""The least work of a Python HTTP server for a POST: the reference for REST figures.

python -m bench.bare_http PORT
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from aiohttp import web

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


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
