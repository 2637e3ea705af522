"""The claims of "Building Replicated Distributed Systems with Kafka" (Verma, 2017), the article
before that of test_replicated_stateful_systems.py: keeping two systems in one state is hard by
hand, and takes no work with a log.

docs/sources.md lists all claims, those with tests elsewhere too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest
from raftlog_replicated.types import EVENTUAL

from bench.kept_connection import NotSentError, OutcomeLostError
from bench.sources.hand_replicas import ByHand, HandReplica, running_replicas
from tests.simulation.replicated.harness import caught_up, get, primary_of, put, replica, run
from tests.simulation.replicated.world import NAMES, World

pytestmark = pytest.mark.full  # a source against real clusters; the simulator has these cases too

WRITES: Final = 40


@contextmanager
def primary(*replicas: HandReplica) -> Iterator[ByHand]:
    """A primary that calls these replicas in turn."""
    with closing(ByHand([one.address for one in replicas], is_side_by_side=False)) as opened:
        yield opened


def test_by_hand_two_writers_leave_two_replicas_in_different_states(tmp_path: Path) -> None:
    """Each replica gets both writes, in an order of its own."""

    async def write(first: HandReplica, second: HandReplica) -> None:
        # The calls of two writers, as a network may deliver them.
        for one, value in ((first, b"1"), (second, b"2"), (first, b"2"), (second, b"1")):
            with primary(one) as writer:
                await writer.put([value])
        assert await first.values() == [b"1", b"2"]
        assert await second.values() == [b"2", b"1"]

    with running_replicas(tmp_path, 2, is_flushed=False) as (first, second):
        asyncio.run(write(first, second))


def test_through_the_log_the_writes_of_all_writers_give_all_replicas_one_state() -> None:
    async def scenario(world: World) -> None:
        name = await primary_of(world)
        await asyncio.gather(
            *(put(world, name, "x", f"{writer}-{n}") for n in range(WRITES) for writer in "ab")
        )
        for one in NAMES:
            await caught_up(world, one)
        assert len({await get(world, one, "x", EVENTUAL) for one in NAMES}) == 1
        assert len({replica(world, one).machine.digest() for one in NAMES}) == 1

    run(scenario)


def test_by_hand_a_replica_that_was_away_lacks_the_writes_of_that_time(tmp_path: Path) -> None:
    """And the primary has to choose: refuse all writes, or let the replicas part."""

    async def write(first: HandReplica, second: HandReplica) -> None:
        with primary(first, second) as both:
            await both.put([b"1"])
            second.process.kill()
            second.process.wait()
            with pytest.raises((NotSentError, OutcomeLostError)):
                await both.put([b"2"])
        # The write failed, and one replica has it.
        assert await first.values() == [b"1", b"2"]

    with running_replicas(tmp_path, 2, is_flushed=False) as (first, second):
        asyncio.run(write(first, second))


def test_through_the_log_a_replica_that_was_away_reads_the_writes_of_that_time() -> None:
    async def scenario(world: World) -> None:
        name = await primary_of(world)
        away = next(one for one in NAMES if one != name)
        await put(world, name, "x", "1")
        world.processes[away].life.kill()
        await put(world, name, "x", "2")
        world.start(away)
        await caught_up(world, away)
        assert await get(world, away, "x", EVENTUAL) == "2"

    run(scenario)


def test_through_the_log_a_dead_primary_loses_no_acknowledged_write() -> None:
    """Asynchronous replication by hand loses the writes since the last sync."""

    async def scenario(world: World) -> None:
        first = await primary_of(world)
        for number in range(WRITES):
            await put(world, first, f"key{number}", str(number))
        world.processes[first].life.kill()
        successor = await primary_of(world, besides=first)
        for number in range(WRITES):
            assert await get(world, successor, f"key{number}", EVENTUAL) == str(number)
        await put(world, successor, "x", "new")
        world.start(first)
        await caught_up(world, first)
        assert await get(world, first, "x", EVENTUAL) == "new"

    run(scenario)
