"""Processes of the key-value example, for benchmarks and for tests of processes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from bench.kept_connection import HttpAnswer, NoAnswerError, request_once
from raftlog.cluster.process import free_ports

REPLICAS: Final = ("a", "b", "c")
CALL_TIMEOUT_S: Final = 1.0
WAIT_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.02

StoreT = TypeVar("StoreT", bound="Store")


class Store:
    """The processes of one key-value store."""

    def __init__(self, servers: str, name: str, directory: Path, *, layout: str = "shared") -> None:
        ports = free_ports("127.0.0.1", len(REPLICAS))
        self.addresses = {
            one: f"127.0.0.1:{port}" for one, port in zip(REPLICAS, ports, strict=True)
        }
        self._arguments = ["--servers", servers, "--name", name, "--layout", layout]
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str) -> None:
        """Start replicas."""
        for name in names:
            module = [sys.executable, "-m", "raftlog_replicated.examples.kv"]
            own = ["--replica-id", name, "--listen", self.addresses[name]]
            with (self._directory / f"{name}.log").open("ab") as log:
                self._processes[name] = subprocess.Popen(
                    [*module, *own, *self._arguments], stdout=log, stderr=log
                )

    def signal(self, number: signal.Signals, *names: str) -> None:
        """Send a signal; SIGKILL returns after the processes' end."""
        for name in names:
            self._processes[name].send_signal(number)
        if number == signal.SIGKILL:
            for name in names:
                self._processes[name].wait()

    async def call(self, method: str, address: str, path: str, body: bytes = b"") -> HttpAnswer:
        """Send one request to a replica. Raises NoAnswerError."""
        return await request_once(address, method, path, body, timeout_s=CALL_TIMEOUT_S)

    async def status(self, name: str) -> dict[str, Any] | None:
        """A replica's own status; None without an answer."""
        with suppress(NoAnswerError):
            answer = await self.call("GET", self.addresses[name], "/status")
            if answer.status == 200:
                found: dict[str, Any] = json.loads(answer.body)
                return found
        return None

    async def primary(self, *names: str) -> str:
        """The primary among these, or all, once there is one. Raises TimeoutError."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while True:
                for name in names or REPLICAS:
                    status = await self.status(name)
                    if status is not None and status["role"] == "PRIMARY":
                        return name
                await asyncio.sleep(POLL_S)

    async def caught_up(self) -> None:
        """Return once all replicas serve, at one position, and there is a primary.

        Raises TimeoutError.
        """
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while True:
                found = [status for name in REPLICAS if (status := await self.status(name))]
                roles = sorted(one["role"] for one in found)
                is_level = len({one["position"] for one in found}) == 1
                if is_level and roles == ["PRIMARY", "REPLICA", "REPLICA"]:
                    return
                await asyncio.sleep(POLL_S)

    def close(self) -> None:
        """Kill all processes."""
        for process in self._processes.values():
            process.kill()
            process.wait()


@asynccontextmanager
async def running_store(store: StoreT) -> AsyncIterator[StoreT]:
    """Three replicas, caught up, with a primary. Killed at the end."""
    store.start(*REPLICAS)
    try:
        await store.caught_up()
        yield store
    finally:
        store.close()
