"""Replicas in virtual time, their clients and faults, and the checks of a whole history."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeAlias, TypeVar

from raftlog_replicated.applier import Applier
from raftlog_replicated.codec import Commands, decode_entry
from raftlog_replicated.errors import (
    DivergedError,
    NotPrimaryError,
    OverloadedError,
    ReplicatedError,
)
from raftlog_replicated.replica import Replica
from raftlog_replicated.types import (
    EVENTUAL,
    LEASE,
    LINEARIZABLE,
    Host,
    Read,
    Role,
    Token,
    session,
    within,
)

from tests.simulation.life import Life, NodeDiedError
from tests.simulation.loop import START_S, SimulatedLoop
from tests.simulation.replicated.faults import Nemesis, wrong_clocks
from tests.simulation.replicated.service import Service, SimulatedLog
from tests.simulation.replicated.workloads import (
    Effect,
    Recorder,
    Sent,
    View,
    Workload,
    effects_by_identity,
)
from tests.verification.register_checker import Verdict, check
from tests.verification.register_history import Operation, Outcome, render

T = TypeVar("T")

NAMES: Final = ("a", "b", "c")
CLIENTS: Final = 4
DURATION_S: Final = 12.0
CALLS_S: Final = (0.2, 0.2, 12.0)
"""Patience of clients."""
SNAPSHOT_BYTES: Final = 3_000
NAMED: Final = 0.4
"""Share of commands with a request id: repeated until acknowledged."""

AnyReplica: TypeAlias = Replica[Any, Any, Any]


@dataclass
class Process:
    """One process of a replica."""

    life: Life
    replica: AnyReplica


@dataclass(frozen=True)
class SeenRead:
    """A read's answer, and the place of its state."""

    client: int
    at: Read
    position: int
    view: View
    invoked_ns: int
    returned_ns: int
    replica: str

    @property
    def is_linearizable(self) -> bool:
        """Whether real time binds it."""
        return self.at in {LINEARIZABLE, LEASE}


@dataclass
class World:
    """Replicas, clients, faults and checks of one history."""

    seed: int
    random: Random
    service: Service
    loop: SimulatedLoop
    workload: Workload
    processes: dict[str, Process] = field(default_factory=dict)
    incarnations: int = 0
    sent: list[Sent] = field(default_factory=list)
    reads: list[SeenRead] = field(default_factory=list)
    primaries: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    requests: int = 0
    is_over: bool = False
    writes: float = 0.35
    """Share of all operations."""
    snapshot_bytes: int = SNAPSHOT_BYTES
    is_split: bool = False
    """The coordinator may give two replicas the lease, and the log takes appends of old writers."""

    def spawn(self, life: Life, work: Coroutine[Any, Any, Any]) -> None:
        """Run in a process."""
        life.context.copy().run(self.loop.create_task, work)

    def start(self, name: str) -> None:
        """Start a process."""
        self.incarnations += 1
        life = Life(NAMES.index(name), self.incarnations)

        def make() -> AnyReplica:
            return Replica(
                self.workload.machine(),
                SimulatedLog(self.service, name),
                name=self.workload.name,
                replica_id=name,
                endpoint=name,
                codec=self.workload.codec,
                host=Host(),
                snapshot_bytes=self.snapshot_bytes,
            )

        replica = life.context.copy().run(make)
        self.processes[name] = Process(life, replica)
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
        self,
        name: str,
        work: Callable[[AnyReplica], Coroutine[Any, Any, T]],
        *,
        patience_s: float | None = None,
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
            async with asyncio.timeout(patience_s or self.random.choice(CALLS_S)):
                return await done
        except TimeoutError:
            raise NodeDiedError(name) from None

    # Clients

    async def client(self, number: int) -> None:
        """Operations one after the other."""
        token: Token | None = None
        target = self.random.choice(NAMES)
        first = self.workload.first_command(number)
        if first is not None:
            target, token = await self._write(number, first, target, token, is_named=True)
        while not self.is_over:
            await asyncio.sleep(self.random.choice([0.0, 0.002, 0.1]) * self.random.random())
            if self.random.random() < self.writes:
                command, is_named = self.workload.command()
                is_named = is_named or self.random.random() < NAMED
                target, token = await self._write(number, command, target, token, is_named=is_named)
            else:
                token = await self._read(number, target, token)

    async def _write(
        self, number: int, command: Any, target: str, token: Token | None, *, is_named: bool
    ) -> tuple[str, Token | None]:
        """Send a command; a named one until it is acknowledged."""
        self.requests += 1
        request_id = f"{number}-{self.requests}" if is_named else None
        invoked = self._now_ns()
        while True:
            outcome, note, result, applied_token = Outcome.UNKNOWN, target, None, None
            try:
                applied = await self.call(
                    target, lambda one: one.submit(command, request_id=request_id)
                )
            except (NotPrimaryError, OverloadedError) as error:
                outcome, note = Outcome.FAIL, f"{target}: {error}"
                known = error.endpoint if isinstance(error, NotPrimaryError) else None
                target = known or self.random.choice(NAMES)
            except (NodeDiedError, ReplicatedError) as error:
                note = f"{target}: {error}"
                target = self.random.choice(NAMES)
            else:
                outcome, result, applied_token = Outcome.OK, applied.result, applied.token
                if token is None or applied.token.position > token.position:
                    token = applied.token
            if outcome is Outcome.OK or not is_named:
                break
            await asyncio.sleep(0.05)
        self.sent.append(
            Sent(
                number,
                command,
                request_id,
                invoked,
                self._now_ns(),
                outcome,
                result,
                applied_token,
                note,
            )
        )
        return target, token

    async def _read(self, number: int, primary: str, token: Token | None) -> Token | None:
        kinds: list[Read] = [LINEARIZABLE, LINEARIZABLE, EVENTUAL, within(100)]
        if not self.is_split:
            kinds.append(LEASE)
        if token is not None:
            kinds += [session(str(token))] * 3
        at = self.random.choice(kinds)
        target = primary if at is LEASE else self.random.choice(NAMES)
        invoked = self._now_ns()
        view = self.workload.view
        try:
            found, position, seen = await self.call(
                target,
                lambda one: one.read(lambda machine: (view(machine), one.position, one.token), at),
            )
        except (NodeDiedError, ReplicatedError):
            return token
        self.reads.append(SeenRead(number, at, position, found, invoked, self._now_ns(), target))
        if token is None or seen.position > token.position:
            token = seen
        return token

    def _now_ns(self) -> int:
        return int(self.loop.time() * 1e9)

    # Course

    async def run(self) -> None:
        """Faults, then peace, then all checks."""
        self.loop.after_event = self.after_event
        self.service.wrong_clocks = wrong_clocks(self.seed, NAMES)
        for name in NAMES:
            self.start(name)
        tasks = [self.loop.create_task(self.client(number)) for number in range(CLIENTS)]
        nemesis = self.loop.create_task(Nemesis(self).run())
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

    # Checks

    def check(self) -> None:
        """Equal replicas; each read a state of the log; commands once; linearizable."""
        recorder = Recorder(self.workload)
        model: Applier[Any, Any] = Applier(recorder, self.workload.codec)
        views, requests = [recorder.view], {}
        for record in self.service.all_records:
            entry = decode_entry(record.value)
            if isinstance(entry, Commands):
                requests[model.position] = entry.requests
            try:
                model.apply(entry, record.timestamp_ms)
            except DivergedError as error:
                raise AssertionError(f"a primary's state is not the log's: {error}") from error
            views.append(recorder.view)
        times_ms = [effect.at.timestamp_ms for effect in recorder.effects]
        assert times_ms == sorted(times_ms), "the log's time went back"
        elapsed_ms = (self.loop.time() - START_S) * 1000
        assert times_ms[-1] - times_ms[0] <= elapsed_ms, "the log's time ran ahead"
        for view in views:
            self.workload.check(view)
        for process in self.processes.values():
            assert process.replica.machine.digest() == recorder.digest(), "replicas differ"
            assert self.workload.view(process.replica.machine) == recorder.view
            assert process.replica.position == model.position
        for read in self.reads:
            assert views[read.position] == read.view, read
            wanted = read.at.token
            assert wanted is None or read.position >= wanted.position, read
        effects = effects_by_identity(recorder.effects, requests)
        found = [(one, effects.pop(one.request_id or one.command, [])) for one in self.sent]
        assert not effects, f"commands of no client: {effects}"
        for sent, applied in found:
            _check_once(sent, applied)
        self._check_real_time(found)
        for report in check(self._operations(found)):
            assert report.verdict is Verdict.LINEARIZABLE, (
                f"{report.key}: {report.verdict}\n{render(report.prefix)}\n{report.last}"
            )

    def _check_real_time(self, found: list[tuple[Sent, list[Effect]]]) -> None:
        """The log's order is one that the clients' clocks allow."""
        # Half steps: a command is before a read of the position after its entry.
        steps = [
            (one.invoked_ns, one.returned_ns, applied[0].at.position + 0.5, str(one))
            for one, applied in found
            if one.outcome is Outcome.OK
        ]
        steps += [
            (one.invoked_ns, one.returned_ns, float(one.position), str(one))
            for one in self.reads
            if one.is_linearizable
        ]
        returns = sorted((returned, place, text) for _, returned, place, text in steps)
        latest, next_return = (0.0, ""), 0
        for invoked, _, place, text in sorted(steps):
            while next_return < len(returns) and returns[next_return][0] < invoked:
                latest = max(latest, returns[next_return][1:])
                next_return += 1
            assert place >= latest[0], f"{text} at {place} after {latest}"

    def _operations(self, found: list[tuple[Sent, list[Effect]]]) -> list[Operation]:
        workload = self.workload
        operations = list(workload.first_operations())
        for sent, applied in found:
            operations += workload.operations(sent, applied[0] if applied else None)
        for read in self.reads:
            if read.is_linearizable:
                times, note = (read.invoked_ns, read.returned_ns), f"{read.at.kind} {read.replica}"
                operations += workload.reads(read.client, read.view, times, note)
        return operations


def _nothing(_: Any) -> None:
    """A query without an answer."""


def _check_once(sent: Sent, applied: list[Effect]) -> None:
    """An acknowledged command happened once, a refused one not."""
    assert len(applied) <= 1, f"{sent} happened {len(applied)} times"
    if sent.outcome is Outcome.OK:
        assert applied, f"{sent} is lost"
        assert applied[0].result == sent.result, f"{sent} differs from {applied[0]}"
        is_refused = not sent.result.done
        assert not is_refused or applied[0].before == applied[0].after, f"{sent} had an effect"
    elif sent.outcome is Outcome.FAIL:
        assert not applied, f"{sent} was refused, and happened"
