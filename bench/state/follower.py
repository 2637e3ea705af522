"""A replica process that follows, and notes when it has applied each command.

`python -m bench.state.follower SERVERS NAME REPLICA LAYOUT` prints a line once it has caught up. At
the end of stdin it writes its times to stdout, and ends.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from array import array
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, cast

import msgspec
import uvloop
from raftlog_replicated import At, Replicated, Role, StructCodec
from raftlog_replicated.logs.topics import Layout

SNAPSHOT_BYTES: Final = 1 << 40
"""No snapshot, unless a benchmark is about snapshots."""


class Command(msgspec.Struct, array_like=True, frozen=True):
    """A numbered payload."""

    number: int
    payload: bytes = b""


CODEC: Final[StructCodec[Command, None]] = StructCodec(Command, type(None))


class Times:
    """When each command was applied here, by its number: the system's monotonic clock."""

    def __init__(self) -> None:
        self.times = array("d")

    def apply(self, command: Command, at: At) -> None:
        """Note the time, of commands with numbers from 0 on."""
        if command.number >= 0:
            self.times.append(time.monotonic())

    def snapshot(self) -> Iterator[bytes]:
        """Nothing to keep."""
        return iter(())

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Begin again."""
        for _ in chunks:
            raise AssertionError("these benchmarks take no snapshots")


Timed = Replicated[Times, Command, None]


def replica(servers: str, name: str, replica_id: str, layout: Layout = "shared") -> Timed:
    """A replica of the timed state."""
    return Replicated(
        Times(),
        codec=CODEC,
        name=name,
        replica_id=replica_id,
        bootstrap_servers=servers,
        layout=layout,
        snapshot_bytes=SNAPSHOT_BYTES,
    )


async def role_is(timed: Replicated[Any, Any, Any], *roles: Role) -> None:
    """Wait for one of the roles."""
    async for change in timed.changes():
        if change.role in roles:
            return


class Followers:
    """Running follower processes."""

    def __init__(self, servers: str, name: str, shape: Shape) -> None:
        program = (sys.executable, "-m", "bench.state.follower")
        self.processes = [
            subprocess.Popen(
                [*program, servers, name, f"follower{number}", shape.layout],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for number in range(shape.replicas - 1)
        ]
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline(), "a follower has ended"

    def end(self) -> list[array[float]]:
        """End all; the times of each."""
        return [array("d", process.communicate()[0]) for process in self.processes]


class Shape(NamedTuple):
    """The replicas of a state, the primary among them."""

    replicas: int
    layout: Layout = "shared"


@asynccontextmanager
async def following(servers: str, name: str, shape: Shape) -> AsyncIterator[Followers]:
    """All but the primary, which is there already; killed at the end."""
    # The primary's heartbeats go on meanwhile.
    followers = await asyncio.to_thread(Followers, servers, name, shape)
    try:
        yield followers
    finally:
        for process in followers.processes:
            process.kill()
            process.wait()


async def _main() -> None:
    servers, name, replica_id, layout = sys.argv[1:]
    async with replica(servers, name, replica_id, cast(Layout, layout)) as timed:
        await role_is(timed, Role.REPLICA, Role.PRIMARY)
        print("caught up", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        sys.stdout.buffer.write(timed.machine.times.tobytes())


if __name__ == "__main__":
    uvloop.run(_main())
