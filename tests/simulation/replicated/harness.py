"""Scenarios over three replicas of the key-value store in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

from raftlog_replicated.examples.kv import Outcome, Put
from raftlog_replicated.types import Applied, Read, Role

from tests.simulation.loop import SimulatedLoop, still
from tests.simulation.replicated.service import Service
from tests.simulation.replicated.workloads import KvWorkload
from tests.simulation.replicated.world import NAMES, SNAPSHOT_BYTES, AnyReplica, World
from tests.waiting import until

PATIENCE_S: Final = 12.0
POLL_S: Final = 0.01
"""Poll interval of a wait, in virtual time. Seeds depend on it."""
SCENARIO_S_MAX: Final = 60.0
SERVING: Final = {Role.REPLICA, Role.PRIMARY}
Scenario = Callable[[World], Coroutine[Any, Any, None]]


def run(scenario: Scenario, *, snapshot_bytes: int = SNAPSHOT_BYTES) -> None:
    """Start the replicas, and run a scenario."""
    random = Random(1)
    loop = SimulatedLoop()
    workload = KvWorkload(random)
    world = World(1, random, Service(random), loop, workload, snapshot_bytes=snapshot_bytes)

    async def main() -> None:
        loop.after_event = world.after_event
        for name in NAMES:
            world.start(name)
        async with asyncio.timeout(SCENARIO_S_MAX):
            await scenario(world)

    try:
        with still():
            loop.run(main())
    finally:
        loop.close()


async def primary_of(world: World, *, besides: str = "") -> str:
    """Wait for a primary; `besides`: for another one."""

    def found() -> list[str]:
        names = [name for name in NAMES if name != besides]
        return [name for name in names if replica(world, name).role is Role.PRIMARY]

    await until(lambda: len(found()) == 1, poll_s=POLL_S)
    return found()[0]


def replica(world: World, name: str) -> AnyReplica:
    """The present process of a replica."""
    return world.processes[name].replica


async def put(
    world: World, name: str, key: str, value: str, request_id: str | None = None
) -> Applied[Outcome]:
    """Set a key at a replica."""
    command = Put(key, value)
    return await world.call(
        name, lambda one: one.submit(command, request_id=request_id), patience_s=PATIENCE_S
    )


async def submit(world: World, name: str, count: int = 1) -> None:
    """Set `x` so often."""
    for value in range(count):
        await put(world, name, "x", str(value))


async def get(world: World, name: str, key: str, at: Read) -> str | None:
    """Read a key at a replica."""
    return await world.call(
        name,
        lambda one: one.read(lambda machine: machine.values.get(key), at),
        patience_s=PATIENCE_S,
    )


async def caught_up(world: World, name: str) -> None:
    """Wait until a replica has applied the whole log, and serves."""
    await until(
        lambda: (
            replica(world, name)._offsets.value == world.service.end()
            and replica(world, name).role in SERVING
        ),
        poll_s=POLL_S,
    )
