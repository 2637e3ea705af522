"""Watchers get an example's applied changes as lines of JSON over HTTP."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import msgspec
from aiohttp import web

from raftlog_replicated import OverloadedError

WATCHERS_MAX: Final = 1_000
"""Most watchers at one replica. Each makes applying a change slower."""
WAITING_BYTES_MAX: Final = 4 << 20
"""Most bytes of changes that wait for one watcher. A slower watcher is ended, and reads the state
again."""
WRITE_S_MAX: Final = 30.0
"""A stalled connection is closed after so long."""


class _Watcher:
    """One connection, and its changes that are not sent yet."""

    def __init__(self, key: str | None) -> None:
        self.key = key
        self.loop = asyncio.get_running_loop()
        self.queue: deque[bytes] = deque()
        self.wakeup = asyncio.Event()
        self.end: str | None = None
        """Why no change follows."""
        self._waiting_bytes = 0

    def add(self, line: bytes) -> None:
        """Queue a line, or end here."""
        self._waiting_bytes += len(line)
        if self._waiting_bytes > WAITING_BYTES_MAX:
            self.stop("this watcher is too slow")
        elif self.end is None:
            self.queue.append(line)
            self.wakeup.set()

    def stop(self, reason: str) -> None:
        """Send what is queued, then the reason."""
        self.end = self.end or reason
        self.wakeup.set()

    async def take(self) -> bytes:
        """Wait for lines. Returns empty bytes after the last line."""
        while not self.queue and self.end is None:
            self.wakeup.clear()
            await self.wakeup.wait()
        lines = b"".join(self.queue)
        self.queue.clear()
        self._waiting_bytes = 0
        return lines


class Changes:
    """Applied changes, for the watchers of this replica. No part of the state."""

    def __init__(self) -> None:
        self._watchers: list[_Watcher] = []

    def publish(self, key: str, value: Any, position: int) -> None:
        """Give a change to the watchers of its key, and to those of all keys."""
        watchers = [watcher for watcher in self._watchers if watcher.key in {None, key}]
        if watchers:
            change = {"key": key, "value": value, "position": position}
            line = msgspec.json.encode(change) + b"\n"
            for watcher in watchers:
                watcher.add(line)

    def interrupt(self, reason: str) -> None:
        """End all watchers, since changes will be missing. From any thread."""
        for watcher in tuple(self._watchers):
            watcher.loop.call_soon_threadsafe(watcher.stop, reason)

    async def close(self, _: web.Application) -> None:
        """End all watchers on `on_shutdown`."""
        self.interrupt("this replica shuts down")

    async def watch(self, request: web.Request) -> web.StreamResponse:
        """GET sends a line per change, of one key with `?key=`. The last line has the reason."""
        if len(self._watchers) >= WATCHERS_MAX:
            raise OverloadedError(f"This replica has {WATCHERS_MAX} watchers already.")
        watcher = _Watcher(request.query.get("key"))
        self._watchers.append(watcher)
        try:
            response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
            await response.prepare(request)
            while lines := await watcher.take():
                async with asyncio.timeout(WRITE_S_MAX):
                    await response.write(lines)
            last = {"error": f"{watcher.end}: read the state again, changes are missing from here"}
            async with asyncio.timeout(WRITE_S_MAX):
                await response.write(msgspec.json.encode(last) + b"\n")
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._watchers.remove(watcher)
        return response
