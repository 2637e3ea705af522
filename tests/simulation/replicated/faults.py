"""The faults of a history: processes, networks, leases, snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Final

from raftlog_client import RaftlogClientError
from raftlog_replicated.errors import ReplicatedError

from tests.simulation.life import Life
from tests.simulation.loop import START_S

if TYPE_CHECKING:
    from tests.simulation.replicated.world import AnyReplica, World

CLOCK_S: Final = (0.5, 6.0)
"""Pause of a wall clock until its next change."""
CLOCKS_S: Final = 20.0
"""Time of the last change."""
WRONG_MS_MAX: Final = 30 * 86_400_000
PAUSE_S: Final = (0.2, 2.0)
"""From one fault to the next: some are there at the same time."""


def wrong_clocks(seed: int, names: Sequence[str]) -> dict[str, list[tuple[float, int]]]:
    """Changes of wall clocks, each with its time and the lead from then on, up to 30 days.

    Any number are wrong at the same time, as replicas know no clocks but their own. Drawn before
    the history, so that the clocks change nothing else of it.
    """
    chance = Random(f"clocks {seed}")
    found: dict[str, list[tuple[float, int]]] = {}
    for name in names:
        at, changes = START_S, []
        while at < START_S + CLOCKS_S:
            ahead_ms = chance.choice((0, 0, chance.randint(-WRONG_MS_MAX, WRONG_MS_MAX)))
            changes.append((at, ahead_ms))
            at += chance.uniform(*CLOCK_S)
        found[name] = changes
    return found


class Nemesis:
    """Strikes the replicas of a world, one fault after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self._service = world.service
        self._names = sorted(world.processes)
        self._is_damaged = False
        self._faults = [
            *[self._kill] * 2,
            self._kill_all,
            self._kill_in_snapshot,
            *[self._pause] * 2,
            self._cut,
            self._cut_all,
            self._lose,
            self._slow,
            self._hand_over,
            self._damage,
            self._restart_coordinator,
            *[self._two_leases] * (3 if world.is_split else 0),
        ]

    async def run(self) -> None:
        """Strike until the history is over."""
        while not self._world.is_over:
            await asyncio.sleep(self._random.uniform(*PAUSE_S))
            self._random.choice(self._faults)(self._random.choice(self._names))

    def _life(self, name: str) -> Life:
        return self._world.processes[name].life

    # Processes

    def _kill(self, name: str) -> None:
        if self._life(name).alive:
            self._life(name).kill()
            self._world.loop.call_later(self._random.uniform(0.1, 3.0), self._world.start, name)

    def _kill_all(self, _: str) -> None:
        for name in self._names:
            self._kill(name)

    def _kill_in_snapshot(self, name: str) -> None:
        """Chunks without a manifest stay, or old ones that were to be deleted."""
        self._world.loop.create_task(self._wait_for_snapshot(name))

    async def _wait_for_snapshot(self, name: str) -> None:
        process = self._world.processes[name]
        delay_s = self._random.uniform(0.0, 0.01)
        while process.life.alive and not self._world.is_over:
            await asyncio.sleep(0.002)
            if process.replica._snapshot_task is not None:
                await asyncio.sleep(delay_s)
                if process is self._world.processes[name]:
                    self._kill(name)
                return

    def _pause(self, name: str) -> None:
        life = self._life(name)
        if life.alive and not life.paused:
            life.paused = True
            self._world.loop.call_later(self._random.uniform(0.2, 4.0), self._resume, life)

    def _resume(self, life: Life) -> None:
        if life.alive and life.paused:
            self._world.loop.resume(life)

    # Networks

    def _cut(self, name: str) -> None:
        self._cut_for(name, self._random.uniform(0.2, 3.0))

    def _cut_all(self, _: str) -> None:
        """Or all nodes of the log are away."""
        seconds = self._random.uniform(0.2, 3.0)
        for name in self._names:
            self._cut_for(name, seconds)

    def _cut_for(self, name: str, seconds: float) -> None:
        self._service.cut.add(name)
        if self._random.random() < 0.5:
            self._service.disconnected(name)
        self._world.loop.call_later(seconds, self._service.cut.discard, name)

    def _lose(self, _: str) -> None:
        self._lose_share(self._random.choice([0.05, 0.3]))

    def _lose_share(self, share: float) -> None:
        self._service.lost = share
        self._world.loop.call_later(self._random.uniform(0.2, 2.0), self._heal_loss)

    def _heal_loss(self) -> None:
        self._service.lost = 0.0

    def _slow(self, name: str) -> None:
        self._service.slow.add(name)
        self._world.loop.call_later(
            self._random.uniform(0.2, 4.0), self._service.slow.discard, name
        )

    # Leases

    def _hand_over(self, name: str) -> None:
        life = self._life(name)
        if life.alive and not life.paused:
            replica, other = self._world.processes[name].replica, self._random.choice(self._names)
            self._world.spawn(life, _try_hand_over(replica, other))

    def _restart_coordinator(self, _: str) -> None:
        self._service.restart_coordinator()

    def _two_leases(self, name: str) -> None:
        self._service.also = name
        if self._random.random() < 0.5:
            # Late appends: the fences of both cross.
            self._lose_share(0.3)
        self._world.loop.call_later(self._random.uniform(0.5, 4.0), self._one_lease)

    def _one_lease(self) -> None:
        self._service.also = None

    # Snapshots

    def _damage(self, _: str) -> None:
        """Once: two damaged snapshots are more than the two that are kept allow for."""
        if self._service.chunks and not self._is_damaged:
            self._is_damaged = True
            key, chunk = self._service.chunks[-1]
            self._service.chunks[-1] = (key, chunk + b"!")


async def _try_hand_over(replica: AnyReplica, other: str) -> None:
    with suppress(ReplicatedError, RaftlogClientError):  # no primary, or no such member
        await replica.hand_over(other)
