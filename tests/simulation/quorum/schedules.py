"""One random history of a quorum, made of a seed: its members, faults and requests.

Run by tests/simulation/runner.py: `python -m tests.simulation.quorum.schedules 486`, or `0:20000`.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulation import runner
from tests.simulation.faults import Nemesis
from tests.simulation.quorum.member_world import QUICK, SNAPSHOTS, MemberWorld
from tests.simulation.world import World, run

CLIENTS = 3


@dataclass(frozen=True, slots=True)
class Cast:
    """The members of a seed's history, and their settings."""

    voters: int
    observers: int
    snapshots: bool
    changes: bool
    think_s: float
    faults_s: float

    @classmethod
    def draw(cls, seed: int) -> Cast:
        """Every tenth seed or so of each important combination."""
        chance = random.Random(f"cast {seed}")
        return cls(
            voters=chance.choice((3, 3, 5)),
            observers=chance.choice((0, 0, 1, 2, 5)),
            snapshots=chance.random() < 0.5,
            changes=chance.random() < 0.4,
            think_s=chance.choice((0.01, 0.03, 0.1)),
            faults_s=chance.choice((1.5, 3.0, 5.0)),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a history."""

    seed: int
    digest: str
    steps: int
    elections: int
    committed: int
    acknowledged: int
    refused: int


def replay(seed: int) -> Report:
    """Run one seed's history. Raises AssertionError (InvariantError) on a violation."""
    cast = Cast.draw(seed)

    async def main(world: World) -> Report:
        members = MemberWorld(
            world, cast.voters, cast.observers, SNAPSHOTS if cast.snapshots else QUICK
        )
        await _history(world, members, cast)
        checker = members.checker
        return Report(
            seed,
            world.digest(),
            world.loop.steps,
            checker.elections,
            checker.last_committed,
            len(checker.acknowledged),
            len(checker.refused),
        )

    return run(seed, main)


async def _history(world: World, members: MemberWorld, cast: Cast) -> None:
    nemesis = Nemesis(world, members.node_ids, members.start, focus=members.leader)
    nemesis.start()
    members.start_all()
    end = asyncio.get_running_loop().time() + cast.faults_s
    works = [_client(world, members, cast, number, end) for number in range(CLIENTS)]
    if cast.changes:
        works.append(_changes(world, members, end))
    await asyncio.gather(*works)
    nemesis.heal_all()
    await members.until(lambda: len(members.members) == len(members.node_ids))
    await members.settle()


async def _client(world: World, members: MemberWorld, cast: Cast, number: int, end: float) -> None:
    """Proposes, mostly where a leader is believed to be; several at once at times."""
    loop, chance = asyncio.get_running_loop(), world.random(f"client {number}")
    while loop.time() < end:
        members.check_failures()
        leader = members.leader()
        node_id = leader if leader and chance.random() < 0.6 else chance.choice(members.node_ids)
        burst = chance.choice((1, 1, 1, 3, 8))
        works = [members.propose(node_id) for _ in range(burst)]
        if chance.random() < 0.1:
            works.append(_barrier(world, members, node_id))  # type: ignore[arg-type]
        await asyncio.gather(*works)
        await asyncio.sleep(chance.expovariate(1 / cast.think_s))


async def _barrier(world: World, members: MemberWorld, node_id: int) -> None:
    """A fresh read: every command acknowledged before must have been applied there after."""
    newest = max(members.checker.acknowledged.values(), default=0)
    if await members.ask(node_id, lambda member: member.read_barrier()):
        member = members.members.get(node_id)
        if member is not None:
            assert member.applied_index >= newest, "a fresh read was stale"


async def _changes(world: World, members: MemberWorld, end: float) -> None:
    """Adds and removes voters, and moves the leadership."""
    loop, chance = asyncio.get_running_loop(), world.random("changes")
    while loop.time() < end:
        await asyncio.sleep(chance.expovariate(1 / 0.4))
        asked = chance.choice(members.node_ids)
        node_id = chance.choice(members.node_ids)
        kind = chance.random()
        if kind < 0.4:
            await members.ask(asked, lambda member, n=node_id: member.add_voter(n))  # type: ignore[misc]
        elif kind < 0.8:
            await members.ask(asked, lambda member, n=node_id: member.remove_voter(n))  # type: ignore[misc]
        else:
            await members.ask(asked, lambda member: member.transfer_leadership(None))


def summary(reports: Sequence[Report]) -> str:
    """The sums of many histories."""
    return (
        f"{sum(report.acknowledged for report in reports)} acknowledged, "
        f"{sum(report.elections for report in reports)} elections, "
        f"{sum(report.steps for report in reports)} events"
    )


if __name__ == "__main__":
    sys.exit(runner.main(replay, summary, sys.argv[1:]))
