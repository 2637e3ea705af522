"""A proxy before a node, which lets a test act before and after each commit of a sink."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final, Self

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

SINKS: Final = "/v1/sinks/"
START_S: Final = 30.0
SKIPPED: Final = frozenset({"content-length", "transfer-encoding", "connection", "host"})

Act = Callable[[str], bool | None]
"""Is given the path of a commit; False: the client gets no answer."""


class SinkProxy:
    """Serves in a thread, since Spark's calls block the test's."""

    def __init__(self, target: str, *, before: Act | None = None, after: Act | None = None) -> None:
        self.target = target
        self.before = before
        self.after = after
        self.commits: list[str] = []
        """Paths of the commits, as they came."""
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(START_S)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._session = aiohttp.ClientSession(auto_decompress=False)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        host, port = site._server.sockets[0].getsockname()  # type: ignore[attr-defined]
        self.address = f"{host}:{port}"

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        is_commit = request.method == "POST" and request.path.startswith(SINKS)
        if is_commit:
            self.commits.append(request.path)
            await self._act(self.before, request)
        headers = {name: value for name, value in request.headers.items() if _is_kept(name)}
        async with self._session.request(
            request.method, f"http://{self.target}{request.path_qs}", data=body, headers=headers
        ) as answer:
            data = await answer.read()
        if is_commit:
            await self._act(self.after, request)
        kept = CIMultiDict(
            (name, value) for name, value in answer.headers.items() if _is_kept(name)
        )
        return web.Response(body=data, status=answer.status, headers=kept)

    async def _act(self, act: Act | None, request: web.Request) -> None:
        if act is None:
            return
        if await asyncio.to_thread(act, request.path) is False:
            assert request.transport is not None
            request.transport.abort()
            raise web.HTTPServiceUnavailable


def _is_kept(name: str) -> bool:
    return name.lower() not in SKIPPED
