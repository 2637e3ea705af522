"""Processes of the key-value example, with calls: for benchmarks, and tests of processes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from raftlog.cluster.process import free_ports
from tests.soak.state_clients import LostError, Service, until

REPLICAS: Final = ("a", "b", "c")


class Store:
    """The processes of one key-value store."""

    def __init__(self, servers: str, name: str, directory: Path, *, layout: str = "shared") -> None:
        ports = free_ports("127.0.0.1", len(REPLICAS))
        self.addresses = {
            one: f"127.0.0.1:{port}" for one, port in zip(REPLICAS, ports, strict=True)
        }
        self.service = Service(list(self.addresses.values()), random.Random(1))
        self._arguments = ["--servers", servers, "--name", name, "--layout", layout]
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def port(self, name: str) -> int:
        """Of a replica's HTTP server."""
        return int(self.addresses[name].rpartition(":")[2])

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

    async def status(self, name: str) -> dict[str, Any] | None:
        """A replica's own status; None without an answer."""
        with suppress(LostError):
            answer = await self.service.call("GET", self.addresses[name], "/status")
            if answer.status == 200:
                found: dict[str, Any] = json.loads(answer.body)
                return found
        return None

    async def primary(self, *names: str) -> str:
        """The primary among these, or all, once there is one."""

        async def found() -> str:
            for name in names or REPLICAS:
                status = await self.status(name)
                if status is not None and status["role"] == "PRIMARY":
                    return name
            return ""

        return await until(found)

    async def caught_up(self) -> None:
        """Return once all replicas serve, at one position, and there is a primary."""

        async def level() -> bool:
            found = [await self.status(name) for name in REPLICAS]
            roles = [one["role"] for one in found if one is not None]
            serving = {one["position"] for one in found if one is not None}
            return sorted(roles) == ["PRIMARY", "REPLICA", "REPLICA"] and len(serving) == 1

        await until(level)

    async def put(self, key: str, value: str) -> None:
        """A put that is repeated until it is acknowledged, and happens once."""
        answer = await self.service.write("PUT", f"/kv/{key}", value.encode(), f"{key}-{value}")
        assert answer.status == 200, answer

    async def get(self, name: str, key: str, consistency: str = "linearizable") -> str | None:
        """A key's value at one replica, once it answers."""

        async def found() -> list[str | None]:
            with suppress(LostError):
                path = f"/kv/{key}?consistency={consistency}"
                answer = await self.service.call("GET", self.addresses[name], path)
                if answer.status in {200, 404}:
                    return [answer.body.decode() if answer.status == 200 else None]
            return []

        return (await until(found))[0]

    async def close(self) -> None:
        """Kill all processes, and close the connections."""
        for process in self._processes.values():
            process.kill()
            process.wait()
        await self.service.close()


@asynccontextmanager
async def running_store(
    servers: str, name: str, directory: Path, *, layout: str = "shared"
) -> AsyncIterator[Store]:
    """Three replicas, caught up, with a primary."""
    store = Store(servers, name, directory, layout=layout)
    store.start(*REPLICAS)
    try:
        await store.caught_up()
        yield store
    finally:
        await store.close()
