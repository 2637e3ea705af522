"""Recurring events at random times, until stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tests.simulation.data.clients import Part
from tests.simulation.data.data_world import DataWorld

Happening = Callable[[], Awaitable[bool]]
"""Whether the event happened."""


class Recurring:
    """Lets things happen, each kind one at a time. Belongs to the test itself, not to a node."""

    def __init__(self, data: DataWorld, name: str) -> None:
        """`name` is the name of its own stream of randomness."""
        self.data = data
        self.random = data.world.random(name)
        self.counts: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, happenings: Sequence[tuple[float, Happening]]) -> None:
        """Begin, with so many of each kind in a second."""
        for per_s, happening in happenings:
            if per_s:
                task = self.data.world.loop.create_task(self._repeat(per_s, happening))
                self._tasks.append(task)

    def stop(self) -> None:
        """Stop; an event under way ends in the middle."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    async def _repeat(self, per_s: float, happening: Happening) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(per_s))
            if self.data.parts and await happening():
                self.count(happening.__name__)

    def count(self, name: str) -> None:
        """The event happened."""
        self.counts[name] = self.counts.get(name, 0) + 1

    def part(self) -> Part:
        """Any part that is checked to the end."""
        return self.random.choice(self.data.parts)

    def is_calm(self) -> bool:
        """Whether every replica is up and in sync, so that one may lose its storage."""
        nodes = self.data.nodes
        return all(map(nodes.is_ready, nodes.node_ids)) and all(
            self.data.is_in_sync(part) for part in self.data.parts
        )
