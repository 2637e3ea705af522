"""Random histories of a replicated map of registers and counters.

.venv/bin/python -m tests.simulation.replicated.histories 486       replays seed 486
.venv/bin/python -m tests.simulation.replicated.histories 0:5000    runs all, on all cores
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any, Final, TypeVar

import msgspec
from raftlog_client import RaftlogClientError
from raftlog_replicated import applier as applier_module
from raftlog_replicated.applier import Applier
from raftlog_replicated.codec import StructCodec
from raftlog_replicated.entries import decode_entry
from raftlog_replicated.errors import (
    BehindError,
    NotPrimaryError,
    OutcomeUnknownError,
    OverloadedError,
    ReplicatedError,
)
from raftlog_replicated.replica import Replica
from raftlog_replicated.types import (
    EVENTUAL,
    LEASE,
    LINEARIZABLE,
    At,
    Host,
    Read,
    Role,
    Token,
    session,
    within,
)

from tests.simulation.life import Life, NodeDiedError
from tests.simulation.loop import SimulatedLoop, still
from tests.simulation.replicated.service import Service, SimulatedLog
from tests.simulation.runner import main
from tests.verification.register_checker import Verdict, check
from tests.verification.register_history import Kind, Operation, Outcome, render

T = TypeVar("T")

NAMES: Final = ("a", "b", "c")
CLIENTS: Final = 4
KEYS: Final = ("x", "y")
DURATION_S: Final = 12.0
CALLS_S: Final = (0.2, 0.2, 12.0)
"""Patience of clients."""


class Write(msgspec.Struct, tag=True, frozen=True):
    """Set a register."""

    key: str
    value: int


class Cas(msgspec.Struct, tag=True, frozen=True):
    """Set a register if it holds a value."""

    key: str
    expected: int | None
    value: int


class Increment(msgspec.Struct, tag=True, frozen=True):
    """Count."""


class Answer(msgspec.Struct, frozen=True):
    """Whether it took effect; the counter's value."""

    is_done: bool
    count: int = 0


CODEC: Final[StructCodec[Write | Cas | Increment, Answer]] = StructCodec(
    Write | Cas | Increment,  # type: ignore[arg-type]
    Answer,
)


class Registers:
    """The state machine."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.count = 0

    def apply(self, command: Write | Cas | Increment, at: At) -> Answer:
        """Deterministic."""
        match command:
            case Write():
                self.values[command.key] = command.value
            case Cas():
                if self.values.get(command.key) != command.expected:
                    return Answer(is_done=False)
                self.values[command.key] = command.value
            case Increment():
                self.count += 1
                return Answer(is_done=True, count=self.count)
        return Answer(is_done=True)

    def snapshot(self) -> Iterator[bytes]:
        """Two chunks."""
        return iter([msgspec.msgpack.encode(self.values), msgspec.msgpack.encode(self.count)])

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Both, or the empty state."""
        found = list(chunks)
        self.values, self.count = {}, 0
        if found:
            self.values = msgspec.msgpack.decode(found[0], type=dict[str, int])
            self.count = msgspec.msgpack.decode(found[1], type=int)

    def digest(self) -> bytes:
        """Of both."""
        return sha256(repr((sorted(self.values.items()), self.count)).encode()).digest()


def _nothing(_: Registers) -> None:
    """A query without an answer."""


SimulatedReplica = Replica[Registers, Write | Cas | Increment, Answer]


@dataclass
class _Process:
    life: Life
    replica: SimulatedReplica


@dataclass
class SeenRead:
    """A read's answer, and the place of its state."""

    position: int
    key: str
    value: int | None
    token: Token | None


@dataclass(frozen=True)
class Report:
    """What a history did."""

    seed: int
    digest: str
    operations: int
    acknowledged: int
    terms: int
    primaries: int
    snapshots: int
    starts: int


@dataclass
class World:
    """Replicas, clients, faults and checks of one history."""

    seed: int
    random: Random
    service: Service
    loop: SimulatedLoop
    processes: dict[str, _Process] = field(default_factory=dict)
    incarnations: int = 0
    operations: list[Operation] = field(default_factory=list)
    reads: list[SeenRead] = field(default_factory=list)
    primaries: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    counts: list[int] = field(default_factory=list)
    increments: int = 0
    next_value: int = 0
    is_over: bool = False
    writes: float = 0.35
    """Share of all operations."""
    is_damaged: bool = False
    is_split: bool = False
    """The coordinator may give two replicas the lease, and the log takes appends of old writers."""

    def spawn(self, life: Life, work: Coroutine[Any, Any, Any]) -> None:
        """Run in a process."""
        life.context.copy().run(self.loop.create_task, work)

    def start(self, name: str) -> None:
        """Start a process."""
        self.incarnations += 1
        life = Life(NAMES.index(name), self.incarnations)

        def make() -> SimulatedReplica:
            return Replica(
                Registers(),
                SimulatedLog(self.service, name),
                name="registers",
                replica_id=name,
                endpoint=name,
                codec=CODEC,
                host=Host(),
                snapshot_bytes=3_000,
            )

        replica = life.context.copy().run(make)
        self.processes[name] = _Process(life, replica)
        self.spawn(life, replica.start())

    def after_event(self, life: Life) -> None:
        """One primary a term."""
        process = self.processes.get(NAMES[life.node_id])
        if process is not None and process.life is life:
            replica = process.replica
            if replica.role is Role.PRIMARY:
                found = self.primaries[replica.term]
                found.add(repr(life))
                assert len(found) == 1, f"term {replica.term} has the primaries {found}"

    async def call(
        self, name: str, work: Callable[[SimulatedReplica], Coroutine[Any, Any, T]]
    ) -> T:
        """A request of a client to a replica. NodeDiedError: its outcome is unknown."""
        process = self.processes[name]
        done: asyncio.Future[T] = self.loop.create_future()

        async def run() -> None:
            try:
                result = await work(process.replica)
            except Exception as error:
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)

        if not process.life.alive:
            raise NotPrimaryError(None, 0)
        self.spawn(process.life, run())
        try:
            async with asyncio.timeout(self.random.choice(CALLS_S)):
                return await done
        except TimeoutError:
            raise NodeDiedError(name) from None

    # Clients

    async def client(self, number: int) -> None:
        """Operations one after the other."""
        token: Token | None = None
        target = self.random.choice(NAMES)
        while not self.is_over:
            await asyncio.sleep(self.random.choice([0.0, 0.002, 0.1]) * self.random.random())
            key = self.random.choice(KEYS)
            chance = self.random.random()
            if chance < self.writes:
                target, token = await self._write(number, key, target, token)
            elif chance < self.writes + 0.15:
                target = await self._increment(number, target)
            else:
                token = await self._read(number, key, token)

    async def _write(
        self, number: int, key: str, target: str, token: Token | None
    ) -> tuple[str, Token | None]:
        self.next_value += 1
        value, expected = self.next_value, None
        command: Write | Cas = Write(key, value)
        kind = Kind.WRITE
        if self.random.random() < 0.3:
            expected = self.random.randint(max(1, value - 5), value)
            command, kind = Cas(key, expected, value), Kind.CAS
        invoked, outcome, note = self._now_ns(), Outcome.UNKNOWN, ""
        try:
            applied = await self.call(target, lambda one: one.submit(command))
        except (NotPrimaryError, OverloadedError) as error:
            outcome, note = Outcome.FAIL, str(error)
            known = error.endpoint if isinstance(error, NotPrimaryError) else None
            target = known or self.random.choice(NAMES)
        except (OutcomeUnknownError, NodeDiedError, ReplicatedError) as error:
            note = str(error)
            target = self.random.choice(NAMES)
        else:
            outcome = Outcome.OK if applied.result.is_done else Outcome.FAIL
            if token is None or applied.token.position > token.position:
                token = applied.token
        self._note(number, kind, key, value, invoked, outcome=outcome, note=note, expected=expected)
        return target, token

    async def _increment(self, number: int, target: str) -> str:
        """Until it is acknowledged, with one request id."""
        self.increments += 1
        request_id = f"{number}-{self.increments}"
        while True:
            try:
                applied = await self.call(
                    target, lambda one: one.submit(Increment(), request_id=request_id)
                )
            except NotPrimaryError as error:
                target = error.endpoint or self.random.choice(NAMES)
            except (ReplicatedError, NodeDiedError):
                target = self.random.choice(NAMES)
            else:
                self.counts.append(applied.result.count)
                return target
            await asyncio.sleep(0.05)

    async def _read(self, number: int, key: str, token: Token | None) -> Token | None:
        kinds: list[Read] = [LINEARIZABLE, LINEARIZABLE, EVENTUAL, within(100)]
        if not self.is_split:
            kinds.append(LEASE)
        if token is not None:
            kinds += [session(str(token))] * 3
        kind = self.random.choice(kinds)
        target = self.random.choice(NAMES)
        invoked = self._now_ns()
        try:
            value, position, seen = await self.call(
                target,
                lambda one: one.read(
                    lambda machine: (machine.values.get(key), one.position, one.token), kind
                ),
            )
        except (NotPrimaryError, BehindError, OverloadedError, NodeDiedError, ReplicatedError):
            return token
        self.reads.append(SeenRead(position, key, value, kind.token))
        if kind in {LINEARIZABLE, LEASE}:
            note = f"{kind.kind} {target}"
            self._note(number, Kind.READ, key, value, invoked, outcome=Outcome.OK, note=note)
        if token is None or seen.position > token.position:
            token = seen
        return token

    def _now_ns(self) -> int:
        return int(self.loop.time() * 1e9)

    def _note(
        self,
        number: int,
        kind: Kind,
        key: str,
        value: int | None,
        invoked: int,
        *,
        outcome: Outcome,
        note: str,
        expected: int | None = None,
    ) -> None:
        self.operations.append(
            Operation(
                process=number,
                kind=kind,
                key=key,
                value=value,
                expected=expected,
                invoked_ns=invoked,
                returned_ns=self._now_ns(),
                outcome=outcome,
                note=note,
            )
        )

    # Faults

    async def faults(self) -> None:
        """One after the other, some at the same time."""
        random = self.random
        while not self.is_over:
            await asyncio.sleep(random.uniform(0.2, 2.0))
            name = random.choice(NAMES)
            process = self.processes[name]
            fault = random.choice(
                ["kill", "kill", "pause", "pause", "cut", "loss", "slow", "hand over", "damage"]
                + ["two leases"] * self.is_split
            )
            if fault == "kill" and process.life.alive:
                process.life.kill()
                self.loop.call_later(random.uniform(0.1, 3.0), self.start, name)
            elif fault == "pause" and process.life.alive and not process.life.paused:
                process.life.paused = True
                self.loop.call_later(random.uniform(0.2, 4.0), self._resume, process.life)
            elif fault == "cut":
                self.service.cut.add(name)
                if random.random() < 0.5:
                    self.service.disconnected(name)
                self.loop.call_later(random.uniform(0.2, 3.0), self.service.cut.discard, name)
            elif fault == "loss":
                self.service.lost = random.choice([0.05, 0.3])
                self.loop.call_later(random.uniform(0.2, 2.0), self._heal_loss)
            elif fault == "slow":
                self.service.slow.add(name)
                self.loop.call_later(random.uniform(0.2, 4.0), self.service.slow.discard, name)
            elif fault == "hand over" and process.life.alive and not process.life.paused:
                other = random.choice(NAMES)
                self.spawn(process.life, self._hand_over(process.replica, other))
            elif fault == "two leases":
                self.service.also = name
                self.loop.call_later(random.uniform(0.5, 4.0), self._one_lease)
            elif fault == "damage" and self.service.chunks and not self.is_damaged:
                # Once: two damaged snapshots are more than the two that are kept allow for.
                self.is_damaged = True
                key, chunk = self.service.chunks[-1]
                self.service.chunks[-1] = (key, chunk + b"!")

    async def _hand_over(self, replica: SimulatedReplica, other: str) -> None:
        with suppress(ReplicatedError, RaftlogClientError):  # no primary, or no such member
            await replica.hand_over(other)

    def _resume(self, life: Life) -> None:
        if life.alive and life.paused:
            self.loop.resume(life)

    def _one_lease(self) -> None:
        self.service.also = None

    def _heal_loss(self) -> None:
        self.service.lost = 0.0

    # Course

    async def run(self) -> None:
        """Faults, then peace, then all checks."""
        self.loop.after_event = self.after_event
        for name in NAMES:
            self.start(name)
        tasks = [self.loop.create_task(self.client(number)) for number in range(CLIENTS)]
        nemesis = self.loop.create_task(self.faults())
        await asyncio.sleep(DURATION_S)
        self.is_over = True
        nemesis.cancel()
        await asyncio.sleep(4.5)  # the last fault's end
        self.service.lost = 0.0
        self.service.also = None
        self.service.cut.clear()
        self.service.slow.clear()
        try:
            async with asyncio.timeout(60):
                await asyncio.gather(*tasks)
                while not self._is_quiet():
                    for name in NAMES:
                        with suppress(ReplicatedError, NodeDiedError):
                            # A primary does not read by itself what an old writer appended.
                            await self.call(name, lambda one: one.read(_nothing, LINEARIZABLE))
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"not quiet: {self._describe()}") from None
        self.check()

    def _describe(self) -> str:
        return f"the log ends at {self.service.end()}; " + "; ".join(
            f"{name}: alive={one.life.alive} {one.replica.role} at {one.replica.position}, "
            f"ended by {one.replica._ended!r}"
            for name, one in self.processes.items()
        )

    def _is_quiet(self) -> bool:
        end = self.service.end()
        return all(
            one.life.alive
            and one.replica._offsets.value == end
            and one.replica.role in {Role.REPLICA, Role.PRIMARY}
            for one in self.processes.values()
        )

    def check(self) -> None:
        """Linearizable; each read a state of the log; tokens; requests once; equal replicas."""
        machine = Registers()
        model: Applier[Write | Cas | Increment, Answer] = Applier(machine, CODEC)
        states = [dict(machine.values)]
        for record in self.service.all_records:
            model.apply(decode_entry(record.value), record.timestamp_ms)
            states.append(dict(machine.values))
        for process in self.processes.values():
            assert process.replica.machine.digest() == machine.digest(), "replicas differ"
            assert process.replica.position == model.position
        for read in self.reads:
            assert states[read.position].get(read.key) == read.value, read
            assert read.token is None or read.position >= read.token.position, read
        assert len(set(self.counts)) == len(self.counts), "two requests with one result"
        assert machine.count == self.increments == len(self.counts), "a request not once"
        for report in check(self.operations):
            assert report.verdict is Verdict.LINEARIZABLE, (
                f"{report.key}: {report.verdict}\n{render(report.prefix)}\n{report.last}"
            )


def replay(
    seed: int, *, plant: Callable[[Service], AbstractContextManager[None]] | None = None
) -> Report:
    """Run a history. Raises AssertionError with a violation. `plant` makes a mistake."""
    random = Random(seed)
    loop = SimulatedLoop()
    service = Service(random)
    is_split = seed % 4 == 3
    service.fences = not is_split
    writes = random.choice([0.05, 0.35])
    world = World(seed, random, service, loop, is_split=is_split, writes=writes)
    every, applier_module.DIGEST_EVERY = applier_module.DIGEST_EVERY, 20  # type: ignore[misc]
    logging.disable(logging.ERROR)
    try:
        with still(), nullcontext() if plant is None else plant(service):
            loop.run(world.run())
    finally:
        logging.disable(logging.NOTSET)
        applier_module.DIGEST_EVERY = every  # type: ignore[misc]
        loop.close()
    trace = repr((world.operations, world.reads, service.all_records))
    return Report(
        seed,
        sha256(trace.encode()).hexdigest()[:16],
        len(world.operations),
        sum(one.outcome is Outcome.OK for one in world.operations),
        max(world.primaries, default=0),
        len(world.primaries),
        sum(value is not None for _, value in service.manifests),
        world.incarnations,
    )


def summary(reports: Sequence[Report]) -> str:
    """One line for many."""
    count = len(reports)
    return (
        f"{count} histories: {sum(one.operations for one in reports)} operations, "
        f"{sum(one.acknowledged for one in reports)} acknowledged, "
        f"{sum(one.primaries for one in reports)} primaries, "
        f"{sum(one.snapshots for one in reports)} snapshots, "
        f"{sum(one.starts for one in reports)} starts"
    )


if __name__ == "__main__":
    sys.exit(main(replay, summary, sys.argv[1:]))
