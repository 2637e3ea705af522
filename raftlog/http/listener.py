"""Sockets: listen, sweep, and close in good order."""

from __future__ import annotations

import asyncio

from raftlog.http.connections import ConnectionServer
from raftlog.http.context import ServerContext
from raftlog.http.dispatch import Dispatcher


class HttpServer:
    """A running HTTP server: made by `HttpServer.start`, ended by `close`."""

    def __init__(
        self, context: ServerContext, connections: ConnectionServer, listener: asyncio.Server
    ) -> None:
        self.context = context
        self.connections = connections
        self.port: int = listener.sockets[0].getsockname()[1]
        """The port it listens on."""
        self._listener = listener
        self._sweeper = asyncio.create_task(self._sweep(), name="http-sweep")

    @classmethod
    async def start(
        cls, dispatcher: Dispatcher, context: ServerContext, host: str, port: int
    ) -> HttpServer:
        """Listen on `host` and `port` (0: a free one). Raises OSError if that cannot be had."""
        connections = ConnectionServer(dispatcher, context)
        listener = await asyncio.get_running_loop().create_server(
            connections, host, port, backlog=context.settings.backlog, reuse_address=True
        )
        return cls(context, connections, listener)

    async def close(self) -> None:
        """Accept nobody more, let requests in flight finish for `shutdown_s`, then cut them."""
        self.context.closing.set()
        self._listener.close()
        await self.connections.drain(self.context.limits.shutdown_s)
        self._sweeper.cancel()
        await asyncio.gather(self._sweeper, return_exceptions=True)

    async def _sweep(self) -> None:
        interval_s = self.connections.sweep_interval_s
        while True:
            await asyncio.sleep(interval_s)
            self.connections.sweep()
