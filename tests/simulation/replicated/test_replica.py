"""One replica of three goes wrong: the others go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any

import pytest
from raftlog_replicated import applier as applier_module
from raftlog_replicated.entries import Commands, encode_entry
from raftlog_replicated.errors import (
    ApplyError,
    BehindError,
    NotPrimaryError,
    OutcomeUnknownError,
    ReplicaEndedError,
    UnknownEntryError,
)
from raftlog_replicated.types import EVENTUAL, LINEARIZABLE, At, Role, RoleChange, session

from tests.simulation.loop import SimulatedLoop, still
from tests.simulation.replicated.histories import (
    CODEC,
    NAMES,
    Answer,
    Cas,
    Increment,
    SimulatedReplica,
    World,
    Write,
)
from tests.simulation.replicated.service import Service

Scenario = Callable[[World], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def frequent_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier_module, "DIGEST_EVERY", 20)


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def run(scenario: Scenario) -> None:
    random = Random(1)
    loop = SimulatedLoop()
    world = World(1, random, Service(random), loop)

    async def main() -> None:
        loop.after_event = world.after_event
        for name in NAMES:
            world.start(name)
        async with asyncio.timeout(60):
            await scenario(world)

    try:
        with still():
            loop.run(main())
    finally:
        loop.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (of a few states of replicas)
        await asyncio.sleep(0.01)


async def primary_of(world: World) -> str:
    def found() -> list[str]:
        return [name for name in NAMES if replica(world, name).role is Role.PRIMARY]

    await until(lambda: len(found()) == 1)
    return found()[0]


def replica(world: World, name: str) -> SimulatedReplica:
    return world.processes[name].replica


async def submit(world: World, name: str, count: int = 1) -> None:
    for value in range(count):
        await world.call(name, lambda one, value=value: one.submit(Write("x", value)))


async def caught_up(world: World, name: str) -> None:
    await until(
        lambda: (
            replica(world, name)._offsets.value == world.service.end()
            and replica(world, name).role in {Role.REPLICA, Role.PRIMARY}
        )
    )


def test_a_diverged_replica_answers_nothing_and_is_built_again() -> None:
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        other = next(name for name in NAMES if name != primary)
        roles: list[RoleChange] = []

        async def note() -> None:
            async for change in replica(world, other).changes():
                roles.append(change)

        world.spawn(world.processes[other].life, note())
        await submit(world, primary, 5)
        await caught_up(world, other)
        replica(world, other).machine.count = -1
        await submit(world, primary, 20)
        await until(lambda: any(one.role is Role.QUARANTINED for one in roles))
        with pytest.raises(BehindError):
            await replica(world, other).read(lambda machine: machine.values, timeout_ms=1)
        # The primary's next digest is the proof.
        while replica(world, other).role is Role.QUARANTINED:
            await submit(world, primary, 5)
        await caught_up(world, other)
        digests = {replica(world, name).machine.digest() for name in (primary, other)}
        assert len(digests) == 1

    run(scenario)


def test_an_exception_of_apply_ends_the_replica_by_type(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        other = next(name for name in NAMES if name != primary)
        await submit(world, primary, 5)
        await caught_up(world, other)

        def broken(command: Write | Cas | Increment, at: At) -> Answer:
            raise RuntimeError("a full disk")

        monkeypatch.setattr(replica(world, other).machine, "apply", broken)
        await submit(world, primary)
        await until(lambda: replica(world, other)._ended is not None)
        with pytest.raises(ReplicaEndedError) as ended:
            await replica(world, other).read(lambda machine: machine.values)
        assert isinstance(ended.value.__cause__, ApplyError)
        await until(lambda: other not in world.service.sessions)
        await submit(world, primary)

    run(scenario)


def test_an_unknown_command_ends_the_replica_before_any_change() -> None:
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        others = [name for name in NAMES if name != primary]
        await submit(world, primary, 5)
        for name in others:
            await caught_up(world, name)
        before = {name: replica(world, name).position for name in others}
        term = replica(world, primary).term
        known = CODEC.encode_command(Write("x", 8))
        newer = encode_entry(Commands(term, 1_000, [known, b"\x81\xa4type\xa6Delete"], {}))
        world.service.append(world.service.written_epoch, [newer], 0)
        for name in others:
            await until(lambda name=name: replica(world, name)._ended is not None)
            ended = replica(world, name)._ended
            assert ended is not None
            assert isinstance(ended.__cause__, UnknownEntryError)
            assert replica(world, name).position == before[name]
            assert replica(world, name).machine.values == {"x": 4}

    run(scenario)


def test_a_replica_behind_the_log_s_start_restores_a_snapshot() -> None:
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        other = next(name for name in NAMES if name != primary)
        await caught_up(world, other)
        world.processes[other].life.paused = True
        while world.service.start_offset <= replica(world, other)._offsets.value:
            await submit(world, primary, 20)
        world.loop.resume(world.processes[other].life)
        await caught_up(world, other)
        assert replica(world, other).machine.digest() == replica(world, primary).machine.digest()

    run(scenario)


def test_a_replica_with_a_wiped_disk_passes_over_a_damaged_snapshot() -> None:
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        other = next(name for name in NAMES if name != primary)
        while world.service.start_offset == 0:
            await submit(world, primary, 20)
        key, chunk = world.service.chunks[-1]
        world.service.chunks[-1] = (key, chunk[:-1])
        world.processes[other].life.kill()
        world.start(other)
        await caught_up(world, other)
        assert replica(world, other).machine.digest() == replica(world, primary).machine.digest()

    run(scenario)


def test_a_torn_manifest_does_not_count() -> None:
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        other = next(name for name in NAMES if name != primary)
        while world.service.start_offset == 0:
            await submit(world, primary, 20)
        world.service.manifests.append((b"torn", b"\x01\x02"))
        world.processes[other].life.kill()
        world.start(other)
        await caught_up(world, other)
        assert replica(world, other).machine.digest() == replica(world, primary).machine.digest()

    run(scenario)


def test_a_hand_over_changes_the_primary_and_loses_nothing() -> None:
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        other = next(name for name in NAMES if name != primary)
        await submit(world, primary, 5)
        await until(lambda: other in world.service.sessions)
        await world.call(primary, lambda one: one.hand_over(other))
        with pytest.raises(NotPrimaryError):
            await submit(world, primary)
        assert await primary_of(world) == other
        await submit(world, other, 3)
        await caught_up(world, primary)
        with pytest.raises(NotPrimaryError) as refused:
            await submit(world, primary)
        assert refused.value.endpoint == other

    run(scenario)


def test_without_the_log_the_outcome_of_a_command_is_unknown() -> None:
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        await submit(world, primary)
        world.service.cut.add(primary)
        with pytest.raises(OutcomeUnknownError):
            await world.call(primary, lambda one: one.submit(Write("x", 2), timeout_ms=300))

    run(scenario)


def test_a_read_that_waits_in_vain_says_how_far_the_replica_is() -> None:
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        await submit(world, primary, 3)
        position = replica(world, primary).position
        with pytest.raises(BehindError) as late:
            await world.call(
                primary,
                lambda one: one.read(lambda _: None, session(f"1-{position + 5}"), timeout_ms=50),
            )
        assert (late.value.position, late.value.wanted) == (position, position + 5)
        world.service.cut.add(primary)
        with pytest.raises(BehindError):
            await world.call(
                primary, lambda one: one.read(lambda _: None, LINEARIZABLE, timeout_ms=50)
            )
        await world.call(primary, lambda one: one.read(lambda _: None, EVENTUAL))

    run(scenario)


def test_the_primary_s_end_frees_the_lead_at_once() -> None:
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        await until(lambda: len(world.service.sessions) == len(NAMES))
        begun = world.loop.time()
        await world.call(primary, lambda one: one.close())
        assert await primary_of(world) != primary
        assert world.loop.time() - begun < 0.5

    run(scenario)
