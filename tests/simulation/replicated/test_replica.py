"""Replicas go wrong, one or all: the others go on, and no acknowledged command is lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
from raftlog_replicated import applier as applier_module
from raftlog_replicated.applier import Applier
from raftlog_replicated.codec import Commands, Fence, decode_entry, encode_entry
from raftlog_replicated.errors import (
    ApplyError,
    BehindError,
    DivergedError,
    NotPrimaryError,
    OutcomeUnknownError,
    ReplicaEndedError,
    UnknownEntryError,
)
from raftlog_replicated.examples.kv import CODEC, KeyValues, Outcome, Put
from raftlog_replicated.types import (
    EVENTUAL,
    LEASE,
    LINEARIZABLE,
    At,
    Read,
    Role,
    RoleChange,
    session,
)

from tests.simulation.replicated.harness import (
    PATIENCE_S,
    caught_up,
    get,
    primary_of,
    put,
    replica,
    run,
    submit,
)
from tests.simulation.replicated.service import LEASE_S, SimulatedWriter
from tests.simulation.replicated.workloads import KvWorkload
from tests.simulation.replicated.world import NAMES, World
from tests.waiting import until

ACKNOWLEDGED_S_MAX: Final = 0.05
"""A command's answer takes two calls, of at most 2 ms each, and a turn or two."""


@pytest.fixture(autouse=True)
def frequent_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier_module, "DIGEST_EVERY", 20)


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


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
        replica(world, other).machine.values.set("y", "damaged")
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

        def broken(command: Put, at: At) -> Outcome:
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
        known = CODEC.encode_command(Put("x", "8"))
        newer = encode_entry(Commands(term, 1_000, [known, b"\x81\xa4type\xa6Append"], {}))
        world.service.append(world.service.written_epoch, [newer], 0)
        for name in others:
            await until(lambda name=name: replica(world, name)._ended is not None)
            ended = replica(world, name)._ended
            assert ended is not None
            assert isinstance(ended.__cause__, UnknownEntryError)
            assert replica(world, name).position == before[name]
            assert dict(replica(world, name).machine.values.items()) == {"x": "4"}

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
            await world.call(primary, lambda one: one.submit(Put("x", "2"), timeout_ms=300))

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


def test_a_replica_killed_in_a_snapshot_leaves_none() -> None:
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        writing = world.loop.create_task(submit(world, primary, 200))
        while not world.service.chunks:  # noqa: ASYNC110 (of the model of the log)
            await asyncio.sleep(0.0005)
        # Its first chunk is there, the next one on its way.
        assert not world.service.manifests
        name = world.service.chunks[0][0].decode()[0]
        assert name != primary
        world.processes[name].life.kill()
        left = dict(world.service.chunks)
        await asyncio.sleep(0.01)
        assert not [key for key, _ in world.service.manifests if key.startswith(name.encode())]
        await writing
        world.start(name)
        await caught_up(world, name)
        await until(lambda: replica(world, name).role is Role.REPLICA)
        while world.service.chunks_start == 0:
            await submit(world, primary, 20)
        assert not set(left) & {key for key, _ in world.service.chunks}
        assert replica(world, name).machine.digest() == replica(world, primary).machine.digest()

    run(scenario)


def test_all_replicas_killed_lose_and_repeat_nothing() -> None:
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        first = await put(world, primary, "y", "once", "a-request")
        while world.service.start_offset == 0:
            await submit(world, primary, 20)
        await put(world, primary, "x", "new")
        await put(world, primary, "y", "later")
        term = replica(world, primary).term
        for name in NAMES:
            world.processes[name].life.kill()
        await asyncio.sleep(1.0)
        for name in NAMES:
            world.start(name)
        successor = await primary_of(world)
        assert replica(world, successor).term > term
        again = await put(world, successor, "y", "once", "a-request")
        assert again.result == first.result
        for name in NAMES:
            await caught_up(world, name)
            values = dict(replica(world, name).machine.values.items())
            assert values == {"x": "new", "y": "later"}

    run(scenario)


def test_without_any_network_all_replicas_wait_and_go_on() -> None:
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        await put(world, primary, "x", "1")
        for name in NAMES:
            await caught_up(world, name)
        world.service.cut.update(NAMES)
        await asyncio.sleep(5.0)
        for name in NAMES:
            with pytest.raises(NotPrimaryError):
                await put(world, name, "x", "2")
            assert await get(world, name, "x", EVENTUAL) == "1"
        world.service.cut.clear()
        await put(world, await primary_of(world), "x", "3")
        for name in NAMES:
            assert await get(world, name, "x", LINEARIZABLE) == "3"

    run(scenario)


RANDOM: Final = "random"


class CarelessKeyValues(KeyValues):
    """Draws a value in `apply`: another one on each replica."""

    numbers = itertools.count()

    def apply(self, command: Put, at: At) -> Outcome:
        if command.value == RANDOM:
            command = Put(command.key, f"drawn {next(self.numbers)}")
        return super().apply(command, at)


def test_random_in_apply_is_found_and_the_primary_s_snapshot_mends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[DivergedError] = []
    apply = Applier.apply

    def noted(self: Applier[Any, Any], *rest: Any) -> Any:
        try:
            return apply(self, *rest)
        except DivergedError as error:
            found.append(error)
            raise

    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        others = [name for name in NAMES if name != primary]
        for name in others:
            await until(lambda name=name: replica(world, name).role is Role.REPLICA)
        await put(world, primary, "y", RANDOM)
        for name in others:
            await submit(world, primary, 25)
            await until(lambda name=name: replica(world, name).role is Role.QUARANTINED)
            with pytest.raises(BehindError):
                await replica(world, name).read(lambda _: None, timeout_ms=1)
            assert name not in world.service.sessions, "no candidate"
        assert "differs from the primary's" in str(found[0])
        drawn = await get(world, primary, "y", LINEARIZABLE)
        for name in others:
            while replica(world, name).role is not Role.REPLICA:
                await submit(world, primary, 20)
            assert await get(world, name, "y", LINEARIZABLE) == drawn

    monkeypatch.setattr(KvWorkload, "machine", lambda _: CarelessKeyValues())
    monkeypatch.setattr(Applier, "apply", noted)
    run(scenario)


@pytest.mark.parametrize("fences", [True, False], ids=["fenced log", "log without fences"])
def test_a_primary_paused_past_its_lease_writes_nothing_and_answers_nothing_stale(
    *, fences: bool
) -> None:
    async def scenario(world: World) -> None:
        world.service.fences = fences
        old = await primary_of(world)
        await put(world, old, "x", "old")
        old_term = replica(world, old).term
        life = world.processes[old].life
        life.paused = True
        # Its next turn finds a command and a read that came meanwhile.
        waiting = [
            world.loop.create_task(replica_answer(world, old, late, str(number)))
            for number, late in enumerate([LEASE, LINEARIZABLE, None] * 3)
        ]
        await asyncio.sleep(LEASE_S + 0.2)
        new = await primary_of(world, besides=old)
        await put(world, new, "x", "new")
        world.loop.resume(life)
        answers = await asyncio.gather(*waiting)
        assert set(answers) <= {"new", "refused"}
        assert "new" in answers
        await caught_up(world, old)
        assert await get(world, new, "x", LINEARIZABLE) == "new"
        entries = [decode_entry(record.value) for record in world.service.all_records]
        fence = next(
            place
            for place, entry in enumerate(entries)
            if isinstance(entry, Fence) and entry.term > old_term
        )
        assert all(entry.term > old_term for entry in entries[fence:])

    run(scenario)


def test_of_two_fences_of_one_term_the_first_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    crossing = asyncio.Event()
    waiting: list[str] = []
    append = SimulatedWriter.append

    async def held(self: SimulatedWriter, values: Sequence[bytes], timestamp_ms: int) -> list[int]:
        if isinstance(decode_entry(values[0]), Fence) and not crossing.is_set():
            waiting.append(self._replica_id)
            if len(waiting) == 2:
                crossing.set()
            await crossing.wait()
        return await append(self, values, timestamp_ms)

    async def scenario(world: World) -> None:
        world.service.fences = False
        world.service.also = NAMES[0]
        await until(lambda: len(world.service.sessions) == len(NAMES))
        if world.service.primary == NAMES[0]:
            world.service.also = NAMES[1]
        await until(crossing.is_set)
        assert len(set(waiting)) == 2
        world.service.also = None
        await put(world, await primary_of(world), "x", "1")
        entries = [decode_entry(record.value) for record in world.service.all_records]
        fences = [entry for entry in entries if isinstance(entry, Fence)]
        assert [entry.term for entry in fences[:2]] == [1, 1]
        assert replica(world, fences[1].replica).term > 0
        # `after_event` has seen one primary of each term.
        assert world.primaries[1] <= {repr(world.processes[fences[0].replica].life)}

    monkeypatch.setattr(SimulatedWriter, "append", held)
    run(scenario)


def test_a_replica_without_a_fresh_lease_does_not_fence_its_successor() -> None:
    """Seed 4070: the end of a heartbeat's connection gives the lease to another replica early."""

    async def scenario(world: World) -> None:
        old = await primary_of(world)
        for name in NAMES:
            await caught_up(world, name)
        world.service.cut.add(old)
        world.service.disconnected(old)
        new = await primary_of(world, besides=old)
        await put(world, new, "x", "new")
        term = replica(world, new).term
        # The log is there again; the answer to the heartbeat is lost, and the lease not over.
        world.service.cut.discard(old)
        assert replica(world, old)._lease.is_primary
        with pytest.raises(NotPrimaryError):
            await put(world, old, "x", "old")
        await asyncio.sleep(0.3)
        assert max(world.primaries) == term
        assert await get(world, new, "x", LEASE) == "new"

    run(scenario)


def test_a_command_in_a_part_of_the_log_that_was_left_out_has_an_unknown_outcome() -> None:
    """Seed 5183: its snapshot is restored, and a later fence is no proof that it did not happen."""

    async def scenario(world: World) -> None:
        old = await primary_of(world)
        for name in NAMES:
            await caught_up(world, name)
        end = world.service.end()
        putting = world.loop.create_task(put(world, old, "y", "happened"))
        while world.service.end() == end:  # noqa: ASYNC110 (of the model of the log)
            await asyncio.sleep(0.0001)
        world.service.cut.add(old)  # without the answer
        world.service.disconnected(old)
        new = await primary_of(world, besides=old)
        while world.service.start_offset <= end:
            await submit(world, new, 20)
        world.service.cut.discard(old)
        await caught_up(world, old)
        third = next(name for name in NAMES if name not in {old, new})
        await world.call(new, lambda one: one.hand_over(third), patience_s=PATIENCE_S)
        await primary_of(world, besides=new)
        await caught_up(world, old)
        assert await get(world, old, "y", LINEARIZABLE) == "happened"
        with pytest.raises(OutcomeUnknownError):
            await putting

    run(scenario)


async def replica_answer(world: World, name: str, at: Read | None, value: str) -> str | None:
    """The answer to a read, or of a put (None), however long the replica takes."""
    done: asyncio.Future[str | None] = world.loop.create_future()
    one = replica(world, name)

    async def work() -> None:
        try:
            if at is None:
                await one.submit(Put("x", value))
                done.set_result(f"put {value}")
            else:
                done.set_result(await one.read(lambda machine: machine.values.get("x"), at))
        except NotPrimaryError:
            done.set_result("refused")

    world.spawn(world.processes[name].life, work())
    return await done


@pytest.mark.parametrize("is_paused", [False, True], ids=["slow", "stopped"])
def test_a_slow_replica_holds_back_no_acknowledgement(*, is_paused: bool) -> None:
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        slow = next(name for name in NAMES if name != primary)
        await caught_up(world, slow)
        position = replica(world, slow).position
        world.service.slow.add(slow)
        world.processes[slow].life.paused = is_paused
        behind = 0
        for number in range(200):
            begun = world.loop.time()
            await put(world, primary, "x", str(number))
            assert world.loop.time() - begun < ACKNOWLEDGED_S_MAX
            behind = max(behind, replica(world, primary).position - replica(world, slow).position)
        assert behind > 10
        if is_paused:
            assert replica(world, slow).position == position
            world.loop.resume(world.processes[slow].life)
        await caught_up(world, slow)
        assert await get(world, slow, "x", EVENTUAL) == "199"

    run(scenario)


def test_a_command_of_a_wrong_type_is_refused_before_it_poisons_the_log() -> None:
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        with pytest.raises(ValueError, match="decoded"):
            await put(world, primary, "x", 5)  # type: ignore[arg-type]
        await put(world, primary, "x", "1")
        for name in NAMES:
            await caught_up(world, name)
            assert replica(world, name).machine.values.get("x") == "1"

    run(scenario)
