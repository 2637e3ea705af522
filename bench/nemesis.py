"""Who hurts a cluster: kills and pauses of leader and followers, healed after a moment.

One fault at a time, but a fault may hit several nodes, all of them too: safety must not depend on a
majority that stays alive. After each, the cluster must have an active leader again in time.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from bench.cluster_processes import ClusterProcesses, NoLeaderError
from bench.register_client import KeptConnection, NotSentError, OutcomeLostError

PAUSE_S: Final = (0.2, 3.0)
DOWN_S: Final = (0.0, 2.0)
CALM_S: Final = (0.5, 2.0)
RECOVERY_S_MAX: Final = 10.0
"""From the moment when all processes answer again to an active leader."""
LEADER_SHARE: Final = 0.5
FOLLOWER_SHARE: Final = 0.35
"""The rest of the faults hit any number of nodes at once."""
WATCH_S: Final = 0.1
WATCH_TIMEOUT_S: Final = 0.5


class FaultKind(StrEnum):
    """How nodes are hurt."""

    KILL = "kill"
    PAUSE = "pause"


class Target(StrEnum):
    """Which nodes are hurt."""

    LEADER = "leader"
    FOLLOWER = "follower"
    SOME = "some"
    """Any number of them, one to all."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Plan:
    """A fault, before it is known who leads."""

    kind: FaultKind
    target: Target
    seconds: float


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to which nodes, and for how long."""

    kind: FaultKind
    node_ids: tuple[int, ...]
    seconds: float


@dataclass(slots=True)
class Nemesis:
    """Hurts a cluster until told to stop, and leaves it healed."""

    cluster: ClusterProcesses
    randomness: random.Random
    plan: Sequence[Plan] | None = None
    """These faults, and then no more; None: random ones."""
    say: Callable[[str], None] = print
    faults: list[Fault] = field(default_factory=list)
    recovery_s: list[float] = field(default_factory=list)
    """For each fault, from the moment when all answered again to an active leader."""
    anomalies: list[str] = field(default_factory=list)

    async def run(self, stop: asyncio.Event) -> None:
        """Fault after fault; ends early if the cluster does not recover."""
        plans = self._random_plans() if self.plan is None else iter(self.plan)
        while not stop.is_set() and not self.anomalies:
            await asyncio.sleep(self.randomness.uniform(*CALM_S))
            plan = next(plans, None)
            if plan is None:
                return
            leader = await asyncio.to_thread(self.cluster.leader)
            await self.apply(Fault(plan.kind, self._victims(plan.target, leader), plan.seconds))

    async def apply(self, fault: Fault) -> None:
        """One fault, its healing, and the wait for a leader."""
        self.faults.append(fault)
        self.say(f"  {fault.kind} of {fault.node_ids} for {fault.seconds:.2f} s")
        strike = self.cluster.kill if fault.kind is FaultKind.KILL else self.cluster.pause
        await asyncio.to_thread(strike, *fault.node_ids)
        await asyncio.sleep(fault.seconds)
        try:
            await asyncio.to_thread(self.cluster.heal)
            await asyncio.to_thread(self.cluster.wait_answering)
            healed = time.perf_counter()
            await asyncio.to_thread(self.cluster.wait_active, RECOVERY_S_MAX)
        except (NoLeaderError, RuntimeError) as error:
            self.anomalies.append(f"After {fault}: {error}\n{self.cluster.log_ends()}")
            return
        self.recovery_s.append(time.perf_counter() - healed)

    def _random_plans(self) -> Iterator[Plan]:
        while True:
            kind = self.randomness.choice(list(FaultKind))
            draw = self.randomness.random()
            target = Target.SOME
            if draw < LEADER_SHARE:
                target = Target.LEADER
            elif draw < LEADER_SHARE + FOLLOWER_SHARE:
                target = Target.FOLLOWER
            span_s = DOWN_S if kind is FaultKind.KILL else PAUSE_S
            yield Plan(kind, target, self.randomness.uniform(*span_s))

    def _victims(self, target: Target, leader: int | None) -> tuple[int, ...]:
        nodes = sorted(self.cluster.nodes)
        match target:
            case Target.LEADER:
                return (self.randomness.choice(nodes) if leader is None else leader,)
            case Target.FOLLOWER:
                others = [node for node in nodes if node != leader] or nodes
                return (self.randomness.choice(others),)
            case Target.SOME:
                count = self.randomness.randint(1, len(nodes))
                return tuple(sorted(self.randomness.sample(nodes, count)))
            case Target.ALL:
                return tuple(nodes)


class Said(msgspec.Struct, frozen=True):
    """The part of GET /v1/quorum that is watched."""

    leader_id: int | None
    term: int
    is_active: bool


@dataclass(slots=True)
class Watch:
    """Looks at what every node says of the quorum, and at whether that can be."""

    addresses: dict[int, str]
    active_by_term: dict[int, set[int]] = field(default_factory=dict)
    """The nodes that said they are the active leader of that term: one, or Raft is broken."""
    terms: set[int] = field(default_factory=set)

    async def run(self, stop: asyncio.Event) -> None:
        """Look until told to stop."""
        await asyncio.gather(*(self._watch(node_id, stop) for node_id in sorted(self.addresses)))

    @property
    def elections(self) -> int:
        """Changes of the active leader or its term that were seen."""
        return max(0, sum(map(len, self.active_by_term.values())) - 1)

    def anomalies(self) -> list[str]:
        """Terms with more than one leader."""
        return [
            f"Nodes {sorted(leaders)} were all the active leader of term {term}."
            for term, leaders in sorted(self.active_by_term.items())
            if len(leaders) > 1
        ]

    async def _watch(self, node_id: int, stop: asyncio.Event) -> None:
        connection = KeptConnection(self.addresses[node_id])
        try:
            while not stop.is_set():
                said = await _quorum(connection)
                if said is not None:
                    self.terms.add(said.term)
                    if said.is_active and said.leader_id == node_id:
                        self.active_by_term.setdefault(said.term, set()).add(node_id)
                await asyncio.sleep(WATCH_S)
        finally:
            connection.close()


async def _quorum(connection: KeptConnection) -> Said | None:
    try:
        answer = await connection.request("GET", "/v1/quorum", timeout_s=WATCH_TIMEOUT_S)
    except (NotSentError, OutcomeLostError):
        return None
    return msgspec.json.decode(answer.body, type=Said) if answer.status == 200 else None
