"""One random history of replicated partitions, made of a seed.

Run by tests/simulation/runner.py: `scripts/simulate data 486`, or `0:20000`.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from unittest import mock

from raftlog.metadata.commands import AlterClusterSettings
from raftlog.metadata.configs import THROTTLED_RATE
from raftlog.raft.interface import MemberSettings
from raftlog.replication.partition import Acks
from raftlog.storage import manager
from raftlog.storage.types import StorageSettings
from tests.simulation import runner
from tests.simulation.data.clients import Part, Producer
from tests.simulation.data.consumers import Consumer
from tests.simulation.data.data_world import DataWorld
from tests.simulation.data.invariants import watching
from tests.simulation.data.nemesis import DataNemesis, DataRates
from tests.simulation.data.operators import OperatorRates, Operators
from tests.simulation.faults import FaultRates, Nemesis
from tests.simulation.node_world import SNAPSHOTS, NodeWorld
from tests.simulation.world import World, run
from tests.verification.log_history import Poll, Send

FAULTS_S: Final = 30.0
WRITE_S_MEAN: Final = 0.12
READ_S_MEAN: Final = 0.3
RETENTION_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class TopicCast:
    """One topic."""

    assignments: tuple[tuple[int, ...], ...]
    configs: dict[str, str]


@dataclass(frozen=True, slots=True)
class Cast:
    """The participants of a seed's history, and their manner."""

    nodes: int
    voters: int
    snapshots: bool
    topics: tuple[TopicCast, ...]
    faults: FaultRates
    data_faults: DataRates
    rates: OperatorRates
    throttle: int
    """Bytes per second for replicas in addition; 0: no bound."""

    @classmethod
    def draw(cls, seed: int) -> Cast:
        """Every seed differs in more than its faults."""
        chance = random.Random(f"data cast {seed}")
        nodes, voters = chance.choice(((3, 3), (3, 3), (4, 3), (5, 3), (5, 5)))
        faults = replace(FaultRates.draw(chance), crash_per_s=chance.choice((0.0, 0.15, 0.4)))
        data_faults = DataRates.draw(chance)
        flush = "async" if chance.random() < 0.25 else "sync"
        if flush == "async":
            # Promise 2: fewer power cuts than the minimum at a time. `DataNemesis` ensures this.
            faults = replace(faults, power=0.0)
            data_faults = replace(data_faults, failed_sync_per_s=0.0, rot_per_s=0.0)
        else:
            data_faults = replace(data_faults, async_power_per_s=0.0)
        rates = OperatorRates.draw(chance)
        if rates.wipe_per_s:
            # Another lost vote at the same time could be one too many.
            data_faults = replace(data_faults, voters_per_s=0.0)
        topics = []
        for _ in range(chance.choice((1, 1, 2, 3))):
            factor = chance.choice((2, 3, 3, 3, 5 if nodes == 5 else 3))
            partitions = chance.choice((1, 1, 2))
            assignments = tuple(
                tuple(chance.sample(range(1, nodes + 1), factor)) for _ in range(partitions)
            )
            configs = {"flush": flush}
            if factor == 5 and chance.random() < 0.5:
                configs["min.insync.replicas"] = "3"
            if chance.random() < 0.2:
                configs["retention.bytes"] = str(chance.choice((1_500, 4_000)))
            topics.append(TopicCast(assignments, configs))
        return cls(
            nodes=nodes,
            voters=voters,
            snapshots=chance.random() < 0.3,
            topics=tuple(topics),
            faults=faults,
            data_faults=data_faults,
            rates=rates,
            throttle=chance.choice((0, 0, 3_000, 50_000)),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a history."""

    seed: int
    digest: str
    steps: int
    acknowledged: int
    unknown: int
    refused: int
    polled: int
    epochs: int
    """Leader epochs in which something was led, of all partitions."""
    faults: tuple[tuple[str, int], ...]
    endings: tuple[str, ...]
    resume_s: float
    """From the healing until every partition took a write."""
    settle_s: float
    """Until every replica was in sync and equal."""


@dataclass
class History:
    """One run."""

    data: DataWorld
    cast: Cast
    producers: list[Producer] = field(default_factory=list)
    data_nemesis: DataNemesis = field(init=False)
    operators: Operators = field(init=False)

    def __post_init__(self) -> None:
        self.data_nemesis = DataNemesis(self.data, self.cast.data_faults)
        self.operators = Operators(self.data, self.cast.rates, self.data_nemesis)

    @property
    def world(self) -> World:
        """The simulated world."""
        return self.data.world

    async def play(self) -> None:
        """All writes of a history."""
        nodes = self.data.nodes
        self.world.network.latency_s = self.cast.faults.latency_s
        nodes.start_all()
        await nodes.ready()
        for number, topic in enumerate(self.cast.topics):
            await self.data.create(f"t{number}", topic.assignments, topic.configs)
        if self.cast.throttle:
            values = {THROTTLED_RATE: str(self.cast.throttle)}
            await self.data.propose(AlterClusterSettings(values=values))
        nemesis = Nemesis(
            self.world, nodes.node_ids, nodes.start, self.cast.faults, focus=self._focus
        )
        nemesis.start()
        self.data_nemesis.start()
        self.operators.start()
        end_s = self.world.loop.now + FAULTS_S
        await asyncio.gather(*self._clients(end_s))
        self.data_nemesis.stop()
        self.operators.stop()
        nemesis.heal_all()
        with self.data.supervised():
            await self.operators.finish()
        await self.data.judge()

    def _focus(self) -> int | None:
        """Targets of faults: leaders of some partition."""
        chance = self.data_nemesis.random
        return self.data.leader(chance.choice(self.data.parts))

    def _clients(self, end_s: float) -> list[asyncio.Task[None]]:
        kinds = (
            ("idempotent-1", Acks.ALL, True),
            ("idempotent-2", Acks.ALL, True),
            ("plain", Acks.ALL, False),
            ("leader-only", Acks.LEADER, True),
            ("no-answer", Acks.NONE, False),
        )
        loop = self.world.loop
        tasks = []
        for name, acks, idempotent in kinds:
            producer = self.data.producer(
                name, acks=acks, idempotent=idempotent, repeats=acks is Acks.ALL
            )
            self.producers.append(producer)
            mean_s = WRITE_S_MEAN if acks is Acks.ALL else 4 * WRITE_S_MEAN
            tasks.append(loop.create_task(producer.run(end_s, mean_s)))
        for number, part in enumerate(self._read_parts()):
            consumer = Consumer(self.data, f"c{number}", part)
            tasks.append(loop.create_task(consumer.run(end_s, READ_S_MEAN)))
        return tasks

    def _read_parts(self) -> list[Part]:
        """Each partition once, and the first twice: readers of one partition are compared."""
        return [*self.data.parts, self.data.parts[0]]

    def report(self, seed: int) -> Report:
        """The result of this history."""
        data = self.data
        outcomes = Counter(each.outcome for each in data.history if isinstance(each, Send))
        return Report(
            seed,
            self.world.digest(),
            self.world.loop.steps,
            outcomes["ok"],
            outcomes["unknown"],
            outcomes["refused"],
            sum(len(each.records) for each in data.history if isinstance(each, Poll)),
            sum(len(shared.leaders) for shared in data.replicas.shared.values()),
            tuple(sorted((self.data_nemesis.counts | self.operators.counts).items())),
            self.operators.unexpected_endings(),
            data.resume_s,
            data.settle_s,
        )


def replay(seed: int) -> Report:
    """Run one seed's history. Raises AssertionError after a violation."""
    cast = Cast.draw(seed)

    async def main(world: World) -> History:
        nodes = NodeWorld(
            world,
            node_count=cast.nodes,
            voter_count=cast.voters,
            member_settings=SNAPSHOTS if cast.snapshots else MemberSettings(),
        )
        history = History(DataWorld(nodes), cast)
        await history.play()
        return history

    # As much of retention in half a minute as otherwise in five.
    often = partial(StorageSettings, retention_interval_ms=RETENTION_MS)
    with watching(), mock.patch.object(manager, "StorageSettings", often):
        return run(seed, main).report(seed)


def summary(reports: Sequence[Report]) -> str:
    """The results of many histories."""
    faults = Counter({name: 0 for report in reports for name, _ in report.faults})
    for report in reports:
        faults.update(dict(report.faults))
    return (
        f"{sum(report.acknowledged for report in reports)} sends acknowledged, "
        f"{sum(report.unknown for report in reports)} unknown, "
        f"{sum(report.refused for report in reports)} refused, "
        f"{sum(report.polled for report in reports)} records polled, "
        f"{sum(report.epochs for report in reports)} leader epochs, "
        f"{dict(sorted(faults.items()))}, "
        f"{sum(len(report.endings) for report in reports)} nodes ended by themselves, writes "
        f"resumed in {max((report.resume_s for report in reports), default=0):.1f} s at most, "
        f"all in sync in {max((report.settle_s for report in reports), default=0):.1f} s, "
        f"{sum(report.steps for report in reports)} events"
    )


if __name__ == "__main__":
    sys.exit(runner.main(replay, summary, sys.argv[1:]))
