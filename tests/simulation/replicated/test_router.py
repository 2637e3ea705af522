"""Reads routed by positions: a policy alone is not monotonic for a client, a token is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import pytest
from raftlog_replicated.reads import POLICIES, Policy, Router
from raftlog_replicated.types import EVENTUAL, Token, session

from tests.simulation.replicated.harness import PATIENCE_S, caught_up, primary_of, put, replica, run
from tests.simulation.replicated.world import NAMES, AnyReplica, World

READS: Final = 400
PAUSE_S: Final = 0.001


@dataclass
class Reader:
    """A client and the positions of its reads, in order."""

    has_token: bool
    token: Token | None = None
    positions: list[int] = field(default_factory=list)

    async def read(self, world: World, name: str) -> None:
        """Read at a replica."""
        at = EVENTUAL if self.token is None else session(self.token)

        async def ask(one: AnyReplica) -> Token:
            return await one.read(lambda _: one.token, at)

        seen = await world.call(name, ask, patience_s=PATIENCE_S)
        self.positions.append(seen.position)
        if self.has_token:
            self.token = seen

    @property
    def is_monotonic(self) -> bool:
        """Whether no read is of an older state than the one before."""
        return all(before <= after for before, after in pairwise(self.positions))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_alone_goes_back_and_a_token_never_does(policy: Policy) -> None:
    plain, careful = Reader(has_token=False), Reader(has_token=True)

    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        for name in NAMES:
            await caught_up(world, name)
        writing = asyncio.create_task(write(world, primary))
        slow = next(name for name in NAMES if name != primary)
        world.service.slow.add(slow)
        router = Router(policy)
        for _ in range(READS):
            await asyncio.sleep(PAUSE_S)
            chosen = router.choose(await replica(world, primary).members())
            assert chosen is not None
            await plain.read(world, chosen.replica_id)
            await careful.read(world, chosen.replica_id)
        writing.cancel()

    run(scenario, snapshot_bytes=1 << 20)
    assert not plain.is_monotonic
    assert careful.is_monotonic
    assert careful.positions[-1] > careful.positions[0]


async def write(world: World, primary: str) -> None:
    while True:
        await put(world, primary, "x", "new")
