"""One random history of registers (tests/coordinator/registers.py) on whole nodes, made of a seed.

Clients increment and read through any node while leaders are killed, cut off, paused and moved, and
machines lose power. Run by tests/simulation/runner.py:
`python -m tests.simulation.coordinator.histories 486`, or `0:20000`.

Judged: an acknowledged increment is in the log once, at its value; values count from 1 without a
gap; operations and reads of a register that do not overlap in time have values in that order; a
response leaves after the commit of all that it depends on; the state of the last leaders equals the
replay of the log; silent clients expire.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

from raftlog.coordinator.shard import service
from raftlog.coordinator.shard.load import replay as replay_log
from raftlog.coordinator.shard.service import AnyShard
from raftlog.coordinator.shard.shard import Shard
from raftlog.node import assembly
from raftlog.node.assembly import NodeCore
from raftlog.record.batch import iterate_batches
from raftlog.record.codec import decode
from raftlog.record.errors import ILLEGAL_STATE, LogError
from tests.coordinator import registers
from tests.coordinator.registers import (
    KEPT,
    KIND,
    MESSAGES,
    SESSION_MS,
    TOPIC,
    Await,
    Get,
    Increment,
    RegisterKind,
    Registers,
    RegisterShard,
    Request,
    Response,
)
from tests.simulation import runner
from tests.simulation.coordinator.committed_log import READ_BYTES, committed_log
from tests.simulation.coordinator.lead_faults import LeadFaults
from tests.simulation.faults import FaultRates, Nemesis
from tests.simulation.life import NodeDiedError
from tests.simulation.node_world import NodeWorld
from tests.simulation.world import World, run

FAULTS_S: Final = 15.0
PATIENCE_S: Final = 3.0
"""Time limit of a client's request."""
CALL_S: Final = 2.0
"""The timeout given to the node."""
ATTEMPTS_MAX: Final = 8
"""Of one operation; then its outcome stays unknown."""
PAUSE_S_MEAN: Final = 0.05
PARTITIONS: Final = 3
REGISTERS: Final = tuple(f"r{number}" for number in range(5))
CLIENTS: Final = 6
SERVE_S_MAX: Final = 15.0
"""From the last fault until every partition has a shard that serves."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A known response: of an increment with its operation, or of a read."""

    register: str
    operation: str | None
    value: int
    begun: int
    ended: int


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a history."""

    seed: int
    digest: str
    steps: int
    acknowledged: int
    unknown: int
    reads: int
    loads: int
    """Shards that were loaded."""
    heal_s: float
    """From the last fault until every partition has a shard that serves."""


@dataclass
class History:
    """One run."""

    world: World
    nodes: NodeWorld
    answers: list[Answer] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    loads: int = 0
    heal_s: float = 0.0
    faults: LeadFaults = field(init=False)
    _clock: int = 0

    def __post_init__(self) -> None:
        self.faults = LeadFaults(self.world, self.nodes, TOPIC, PARTITIONS)

    def step(self) -> int:
        self._clock += 1
        return self._clock

    async def play(self) -> None:
        world, nodes = self.world, self.nodes
        rates = FaultRates.draw(world.random("rates"))
        nemesis = Nemesis(world, nodes.node_ids, nodes.start, rates, focus=self.faults.leader)
        nemesis.start()
        nodes.start_all()
        end_s = world.loop.now + FAULTS_S
        self.faults.start()
        await asyncio.gather(*(self._client(number, end_s) for number in range(CLIENTS)))
        self.faults.stop()
        nemesis.heal_all()
        healed_s = world.loop.now
        supervisor = world.loop.create_task(self.faults.supervise())
        try:
            await nodes.until(self.faults.serving, 60.0)
            self.heal_s = world.loop.now - healed_s
            await asyncio.sleep(2 * SESSION_MS / 1000)
            await nodes.until(self.faults.serving, 60.0)
            await self._judge()
        finally:
            supervisor.cancel()

    # Clients

    async def _client(self, number: int, end_s: float) -> None:
        chance = self.world.random(f"client {number}")
        count = 0
        while self.world.loop.now < end_s:
            await asyncio.sleep(chance.expovariate(1 / PAUSE_S_MEAN))
            register = chance.choice(REGISTERS)
            kind = chance.random()
            if kind < 0.6:
                count += 1
                name = f"{KEPT}-{number}"
                await self._ask(chance, Increment(register, name, f"{name}/{count}"))
            elif kind < 0.7:
                count += 1
                name = f"once-{number}-{count}"
                await self._ask(chance, Increment(register, name, f"{name}/1"), attempts=1)
            elif kind < 0.9:
                await self._ask(chance, Get(register), attempts=1)
            else:
                known = max((each.value for each in self.answers), default=0)
                await self._ask(chance, Await(register, known + 1, 500), attempts=1)

    async def _ask(
        self, chance: random.Random, request: Request, attempts: int = ATTEMPTS_MAX
    ) -> None:
        """Repeat a request until its outcome is known; note the response."""
        begun = self.step()
        operation = request.operation if isinstance(request, Increment) else None
        outcome = "refused"
        for _ in range(attempts):
            core_id = chance.choice(self.nodes.node_ids)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    response = await self.nodes.call(core_id, _Call(request))
            except LogError as error:
                if error.entry is ILLEGAL_STATE:
                    self.violations.append(f"{request}: {error.message}")
                if error.entry.outcome_unknown:
                    outcome = "unknown"
            except (TimeoutError, NodeDiedError):
                outcome = "unknown"
            else:
                answer = Answer(request.register, operation, response.value, begun, self.step())
                self.answers.append(answer)
                outcome = "read" if operation is None else "acknowledged"
                break
            await asyncio.sleep(chance.uniform(0.0, 0.3))
        self.outcomes[outcome] += 1
        self.world.trace(request, outcome)

    # The judgement

    async def _judge(self) -> None:
        values: dict[str, list[str]] = {register: [] for register in REGISTERS}
        shards = self.faults.serving()
        assert shards is not None
        for shard in shards:
            await self._judge_shard(shard, values)
        for register, operations in values.items():
            repeated = [name for name, count in Counter(operations).items() if count > 1]
            if repeated:
                self.violations.append(f"{register}: {repeated} more than once")
            for answer in self.answers:
                if answer.register == register:
                    self._judge_answer(answer, operations)
            self._judge_order(register)
        assert not self.violations, self.violations[:10]

    async def _judge_shard(self, shard: AnyShard, values: dict[str, list[str]]) -> None:
        name = shard.partition.name
        data = await committed_log(self.nodes, shard.partition)
        state = Registers()
        await replay_log(KIND, state, data)
        if state.content() != shard.state.content():
            self.violations.append(f"{name}: the state differs from the replay of its log")
        if any(not client.startswith(KEPT) for client in shard.state.clients):
            self.violations.append(f"{name}: silent clients were not forgotten")
        for batch in iterate_batches(data):
            for record in decode(batch, decompressed_bytes_max=READ_BYTES):
                decoded: Any = registers.decode_record(record.key or b"", record.value)
                if decoded.key.partition != registers.REGISTER:
                    continue
                operations = values[decoded.key.group]
                operations.append(decoded.value.metadata)
                if decoded.value.offset != len(operations):
                    self.violations.append(f"{name}: {decoded} is number {len(operations)}")

    def _judge_answer(self, answer: Answer, operations: list[str]) -> None:
        if answer.value > len(operations):
            self.violations.append(f"{answer} is lost: {len(operations)} are left")
        elif answer.operation is not None and operations[answer.value - 1] != answer.operation:
            self.violations.append(f"{answer} has the place of {operations[answer.value - 1]}")

    def _judge_order(self, register: str) -> None:
        """Each response follows the ones that were there before its request."""
        answers = [each for each in self.answers if each.register == register]
        ended = sorted(answers, key=lambda each: each.ended)
        highest, index = 0, 0
        for answer in sorted(answers, key=lambda each: each.begun):
            while index < len(ended) and ended[index].ended < answer.begun:
                highest = max(highest, ended[index].value)
                index += 1
            if answer.value < highest + (answer.operation is not None):
                self.violations.append(f"{answer} does not follow {highest}")


class _WatchedKind(RegisterKind):
    """Checks each response, and counts the loads."""

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    async def handle(self, shard: RegisterShard, request: Request) -> Response:
        response = await super().handle(shard, request)
        position = response.position
        if isinstance(request, Increment):
            position = max(position, shard.state.placed[request.operation])
        if shard.partition.high_watermark <= position:
            self._history.violations.append(f"{request} was answered before its commit")
        return response

    def create(self, changed: Callable[[Hashable], None]) -> Registers:
        self._history.loads += 1
        return super().create(changed)


@dataclass
class _Call:
    """A client's request to a node."""

    request: Request

    async def __call__(self, core: NodeCore) -> Response:
        is_change = isinstance(self.request, Increment)
        return await core.coordinators.call(
            MESSAGES,
            self.request.register,
            self.request,
            timeout_s=CALL_S,
            may_change=is_change,
            may_repeat=True,
            is_held=isinstance(self.request, Await),
        )


def replay(seed: int) -> Report:
    """Run one seed's history. Raises AssertionError after a violation."""
    chance = random.Random(f"coordinator cast {seed}")
    count, voters = chance.choice(((3, 3), (3, 3), (4, 3), (1, 1)))

    async def main(world: World) -> History:
        history = History(world, NodeWorld(world, node_count=count, voter_count=voters))
        kind = _WatchedKind(history)
        with (
            mock.patch.object(assembly, "coordinator_kinds", lambda *_: (kind,)),
            mock.patch.object(service, "PARTITIONS", PARTITIONS),
            mock.patch.object(Shard, "_append", history.faults.flaky(Shard._append)),
        ):
            await history.play()
        return history

    history = run(seed, main)
    return Report(
        seed,
        history.world.digest(),
        history.world.loop.steps,
        history.outcomes["acknowledged"],
        history.outcomes["unknown"],
        history.outcomes["read"],
        history.loads,
        history.heal_s,
    )


def summary(reports: Sequence[Report]) -> str:
    """The results of many histories."""
    return (
        f"{sum(each.acknowledged for each in reports)} increments acknowledged, "
        f"{sum(each.unknown for each in reports)} unknown, {sum(each.reads for each in reports)} "
        f"reads, {sum(each.loads for each in reports)} loads, served again within "
        f"{max((each.heal_s for each in reports), default=0):.1f} s"
    )


if __name__ == "__main__":
    sys.exit(runner.main(replay, summary, sys.argv[1:]))
