"""The replicated state of scripts/demo: a key-value store of three processes.

demo_state.py LOGS    start the store, write to it, kill -9 its primary meanwhile, and read all of
                      it from every process; the processes' logs go to the directory
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import aiohttp

REPLICAS = ("a", "b", "c")
PUTS = 1_000
KILL_AT = 500
ATTEMPT_S = 0.5
PATIENCE_S = 30.0
RETRY_S = 0.01


class Store:
    """The processes, and calls to them."""

    def __init__(self, directory: Path) -> None:
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in free_ports().items()}
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ATTEMPT_S))

    def start(self, name: str) -> None:
        """Start a replica."""
        with (self._directory / f"kv-{name}.log").open("ab") as log:
            command = (
                *(sys.executable, "-m", "raftlog_replicated.examples.kv", "--replica-id", name),
                *("--servers", os.environ["RAFTLOG_SERVERS"], "--listen", self.addresses[name]),
            )
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._processes[name].kill()
        self._processes[name].wait()

    async def close(self) -> None:
        """End all processes."""
        await self._session.close()
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait()

    async def call(self, method: str, address: str, path: str, **options: object) -> str | None:
        """The answer's text; None without a good answer. Follows redirects to the primary."""
        try:
            async with self._session.request(method, f"http://{address}{path}", **options) as found:
                return await found.text() if found.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def until(
        self, method: str, path: str, name: str | None = None, **options: object
    ) -> str:
        """Repeat a call until it succeeds: at one replica, or at any."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for address in self.addresses.values():
                    if name is None or address == self.addresses[name]:
                        answer = await self.call(method, address, path, **options)
                        if answer is not None:
                            return answer
                await asyncio.sleep(RETRY_S)

    async def primary(self) -> str:
        """The name of the present primary."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for name, address in self.addresses.items():
                    if '"PRIMARY"' in (await self.call("GET", address, "/status") or ""):
                        return name
                await asyncio.sleep(RETRY_S)


def free_ports() -> dict[str, int]:
    """A port for each replica."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in REPLICAS]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return {name: one.getsockname()[1] for name, one in zip(REPLICAS, sockets, strict=True)}


async def main(directory: Path) -> None:
    """Write, kill, read."""
    store = Store(directory)
    try:
        for name in REPLICAS:
            store.start(name)
        primary = await store.primary()
        print(f"   replica {primary} is the primary; {PUTS} puts, each with an id of its own")
        killed_at = 0.0
        for number in range(PUTS):
            if number == KILL_AT:
                store.kill(primary)
                killed_at = time.monotonic()
            headers = {"Idempotency-Key": f"put-{number}"}
            await store.until("PUT", f"/kv/{number}", data=str(number), headers=headers)
            if number == KILL_AT:
                gap_s = time.monotonic() - killed_at
                print(
                    f"   kill -9 of replica {primary}; replica {await store.primary()} "
                    f"acknowledged the next put {gap_s:.2f} s later"
                )
        store.start(primary)
        for name in REPLICAS:
            for number in range(PUTS):
                path = f"/kv/{number}?consistency=linearizable"
                found = await store.until("GET", path, name)
                if found != str(number):
                    sys.exit(f"replica {name} has {found!r} for {number}: a put is lost")
        print(f"   {PUTS} of {PUTS} are on all three, the killed one too; 0 lost")
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
