"""One random history of replicated partitions, made of a seed.

Run by tests/simulation/runner.py: `scripts/simulate data 486`, or `0:20000`. `--with`, `--without`
and `--only` choose ingredients (ingredients.py).
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
from raftlog.metadata.configs.topic import THROTTLED_RATE
from raftlog.raft.interface import MemberSettings
from raftlog.replication.leader import role as leader_role
from raftlog.replication.partition import Acks
from raftlog.storage import manager
from raftlog.storage.producers.state import PRODUCERS_MAX, ProducerStates
from raftlog.storage.types import StorageSettings
from tests.simulation import runner
from tests.simulation.data import ingredients
from tests.simulation.data.clients import LATE_S, Part, Producer
from tests.simulation.data.consumers import Consumer
from tests.simulation.data.data_world import DataWorld
from tests.simulation.data.ingredients import Ingredient, Ingredients
from tests.simulation.data.invariants import CHURN_S, watching
from tests.simulation.data.nemesis import DataNemesis, DataRates
from tests.simulation.data.operators import LONE, OperatorRates, Operators
from tests.simulation.data.storage_faults import StorageFaults
from tests.simulation.faults import FaultRates, Nemesis
from tests.simulation.node_world import SNAPSHOTS, NodeWorld
from tests.simulation.world import World, run
from tests.verification.log_history import Poll, Send

FAULTS_S: Final = 30.0
WRITE_S_MEAN: Final = 0.12
READ_S_MEAN: Final = 0.3
RETENTION_MS: Final = 3_000
KEPT_MS: Final = 6_000
"""`retention.ms` of a topic with this ingredient."""
DAY_MS: Final = 86_400_000
TOMBSTONES_MS: Final = 2_000
CATCH_UP_S: Final = 2.0
"""For so long tombstones wait for a follower that does not move: some come back too late."""
STUTTER_PER_S: Final = 1.0
FAILOVERS_PER_S: Final = 0.3
SUSPEND_PER_S: Final = 0.15
LONE_POWER_PER_S: Final = 0.15
PRODUCERS_FEW: Final = 40
"""Remembered by a partition in histories with many producers."""
LINKS_PER_S: Final = 0.4
WRONG_CLOCK_PER_S: Final = 0.2
COMPACTED: Final = "compacted"
SINGLE: Final = "single"


@dataclass(frozen=True, slots=True)
class TopicCast:
    """One topic."""

    assignments: tuple[tuple[int, ...], ...]
    configs: dict[str, str]
    name: str = ""
    """If not named by its number."""


def _with(topic: TopicCast, configs: dict[str, str]) -> TopicCast:
    return replace(topic, configs={**topic.configs, **configs})


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
    ingredients: Ingredients = frozenset()

    @classmethod
    def draw(cls, seed: int, picked: Ingredients = frozenset()) -> Cast:
        """Every seed differs in more than its faults."""
        return cls._draw(seed)._seasoned(seed, picked)

    def _seasoned(self, seed: int, picked: Ingredients) -> Cast:
        """With these ingredients, as far as they go with the rest."""
        chance = random.Random(f"data ingredients {seed}")
        topics = list(self.topics)
        faults, data_faults, rates = self.faults, self.data_faults, self.rates
        if any(topic.configs["flush"] == "async" for topic in topics):
            # Its losses are promised away by the number of replicas without power.
            picked -= ingredients.ASYNC_EXCLUDES
        flush = topics[0].configs["flush"]
        if any(each.needs_storage for each in picked):
            data_faults = replace(
                data_faults, rot_per_s=0.0, failed_sync_per_s=0.0, async_power_per_s=0.0
            )
            rates = replace(rates, wipe_per_s=0.0)
        if picked & ingredients.STORAGE_LOSSES:
            # The replicas of that topic are not watched.
            rates = replace(rates, recreate_per_s=0.0)
        faults = replace(
            faults,
            links_per_s=LINKS_PER_S * (Ingredient.LINKS in picked),
            suspend_per_s=SUSPEND_PER_S * (Ingredient.SUSPENSIONS in picked),
        )
        if Ingredient.CLOCKS in picked:
            faults = replace(faults, wrong_clock_per_s=WRONG_CLOCK_PER_S)
            topics = [_with(topic, {"retention.ms": str(DAY_MS)}) for topic in topics]
        if Ingredient.RETENTION in picked:
            faults = replace(faults, clock_jump_per_s=0.0)
            # A limit by size would delete younger records.
            kept = {"retention.ms": str(KEPT_MS), "retention.bytes": "-1"}
            topics = [_with(topic, kept) for topic in topics]
        data_faults = replace(
            data_faults,
            stutter_per_s=STUTTER_PER_S * (Ingredient.STUTTER in picked),
            failovers_per_s=FAILOVERS_PER_S * (Ingredient.FAILOVERS in picked),
            lone_power_per_s=LONE_POWER_PER_S * (Ingredient.LONE_ASYNC in picked),
        )
        if Ingredient.DELETIONS in picked:
            rates = replace(rates, delete_records_per_s=1.0)
        if Ingredient.UNCLEAN in picked:
            data_faults = replace(data_faults, stranded_per_s=0.25)
            topics = [
                _with(
                    topic,
                    {
                        "unclean.leader.election.enable": str(chance.random() < 0.7).lower(),
                        "min.insync.replicas": "1",
                    },
                )
                for topic in topics
            ]
        topics += self._more_topics(picked, chance, flush)
        return replace(
            self,
            topics=tuple(topics),
            faults=faults,
            data_faults=data_faults,
            rates=rates,
            ingredients=picked,
        )

    def _more_topics(
        self, picked: Ingredients, chance: random.Random, flush: str
    ) -> list[TopicCast]:
        """The topics that ingredients add."""
        topics = []
        if Ingredient.SINGLE_REPLICA in picked:
            one = ((chance.randint(1, self.nodes),),)
            topics.append(TopicCast(one, {"flush": flush}, SINGLE))
        if Ingredient.COMPACTION in picked:
            assignment = tuple(chance.sample(range(1, self.nodes + 1), 3))
            configs = {
                "flush": flush,
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0.01",
                "segment.bytes": str(chance.choice((400, 800, 1600))),
            }
            if Ingredient.TOMBSTONES in picked:
                configs["delete.retention.ms"] = str(TOMBSTONES_MS)
            topics.append(TopicCast((assignment,), configs, COMPACTED))
        if Ingredient.LONE_ASYNC in picked:
            one = ((chance.randint(1, self.nodes),),)
            topics.append(TopicCast(one, {"flush": "async"}, LONE.topic))
        return topics

    @classmethod
    def _draw(cls, seed: int) -> Cast:
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
    churn: int
    """Most changes of a partition's metadata within `CHURN_S`, without an operator's cause."""
    ingredients: tuple[str, ...]


@dataclass
class History:
    """One run."""

    data: DataWorld
    cast: Cast
    producers: list[Producer] = field(default_factory=list)
    end_s: float = 0.0
    _readers: list[asyncio.Task[None]] = field(default_factory=list)
    data_nemesis: DataNemesis = field(init=False)
    storage_faults: StorageFaults = field(init=False)
    operators: Operators = field(init=False)

    def __post_init__(self) -> None:
        picked = self.cast.ingredients
        self.data_nemesis = DataNemesis(self.data, self.cast.data_faults)
        self.storage_faults = StorageFaults(self.data, picked, self.data_nemesis)
        self.operators = Operators(self.data, self.cast.rates, self.data_nemesis, picked)
        self.operators.on_new_part = self._read_new_part
        self.data.has_losses = bool(picked & ingredients.LOSSES)
        self.data.has_tombstones = Ingredient.TOMBSTONES in picked
        if Ingredient.COMPACTION in picked:
            self.data.compacted.add(COMPACTED)
        if picked & {Ingredient.TIMES, Ingredient.EARLY_LOOKUPS}:
            self.data.lateness_s = LATE_S
        elif Ingredient.RETENTION in picked:
            self.data.lateness_s = 0.0

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
            name = topic.name or f"t{number}"
            await self.data.create(name, topic.assignments, topic.configs)
        if self.cast.throttle:
            values = {THROTTLED_RATE: str(self.cast.throttle)}
            await self.data.propose(AlterClusterSettings(values=values))
        nemesis = Nemesis(
            self.world, nodes.node_ids, nodes.start, self.cast.faults, focus=self._focus
        )
        nemesis.start()
        self.data_nemesis.start()
        self.storage_faults.start()
        self.operators.start()
        self.end_s = self.world.loop.now + FAULTS_S
        await asyncio.gather(*self._clients(self.end_s))
        self.data_nemesis.stop()
        self.storage_faults.stop()
        self.operators.stop()
        nemesis.heal_all()
        with self.data.supervised():
            await self.operators.finish()
            await asyncio.gather(*self._readers, *self.data.zombies)
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
            has_epochs = idempotent and Ingredient.PRODUCER_EPOCHS in self.cast.ingredients
            producer = self.data.producer(
                name,
                acks=acks,
                idempotent=idempotent,
                repeats=acks is Acks.ALL,
                epochs=has_epochs,
            )
            self.producers.append(producer)
            mean_s = WRITE_S_MEAN if acks is Acks.ALL else 4 * WRITE_S_MEAN
            tasks.append(loop.create_task(producer.run(end_s, mean_s)))
        for number, part in enumerate(self._read_parts()):
            consumer = self._consumer(f"c{number}", part)
            tasks.append(loop.create_task(consumer.run(end_s, READ_S_MEAN)))
        return tasks

    def _consumer(self, name: str, part: Part) -> Consumer:
        # A follower shows lost records until it has followed the election.
        near = 0.0 if self.data.has_losses else 0.5
        looks_up = Ingredient.EARLY_LOOKUPS in self.cast.ingredients
        return Consumer(self.data, name, part, near=near, looks_up=looks_up)

    def _read_new_part(self, part: Part) -> None:
        reading = self._consumer(f"c-{part}", part).run(self.end_s, READ_S_MEAN)
        self._readers.append(self.world.loop.create_task(reading))

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
            tuple(
                sorted(
                    (
                        self.data_nemesis.counts
                        | self.storage_faults.counts
                        | self.operators.counts
                    ).items()
                )
            ),
            self.operators.unexpected_endings(),
            data.resume_s,
            data.settle_s,
            data.replicas.churn.highest,
            tuple(ingredients.listed(self.cast.ingredients)),
        )


def replay(
    seed: int, *, allowed: Ingredients | None = None, exactly: Ingredients | None = None
) -> Report:
    """Run one seed's history. Raises AssertionError after a violation.

    Its ingredients are drawn from the allowed ones (by default those of the checks), or are exactly
    these.
    """
    if exactly is None:
        exactly = ingredients.draw(seed, ingredients.drawn() if allowed is None else allowed)
    cast = Cast.draw(seed, ingredients.compatible(exactly))

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
    producers_max = (
        PRODUCERS_FEW if Ingredient.MANY_PRODUCERS in cast.ingredients else PRODUCERS_MAX
    )
    limits = {"producers_max": producers_max}
    with (
        watching(),
        mock.patch.object(manager, "StorageSettings", often),
        mock.patch.object(leader_role, "CATCH_UP_S", CATCH_UP_S),
        mock.patch.dict(ProducerStates.__init__.__kwdefaults__, limits),
    ):
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
        f"at most {max((report.churn for report in reports), default=0)} changes of a partition "
        f"within {CHURN_S:g} s, "
        f"{dict(sorted(Counter(name for each in reports for name in each.ingredients).items()))}, "
        f"{sum(report.steps for report in reports)} events"
    )


def main(arguments: Sequence[str]) -> int:
    """See the runner, and ingredients.py for `--with`, `--without` and `--only`."""
    if "--help" in arguments:
        sys.stdout.write("\n    ".join((ingredients.__doc__, *ingredients.listed(ingredients.ALL))))
        return 0
    rest: list[str] = []
    allowed, exactly = ingredients.drawn(), None
    given = iter(arguments)
    for argument in given:
        if argument == "--with":
            allowed |= ingredients.parse(next(given))
        elif argument == "--without":
            allowed -= ingredients.parse(next(given))
        elif argument == "--only":
            exactly = ingredients.parse(next(given))
        else:
            rest.append(argument)
    return runner.main(partial(replay, allowed=allowed, exactly=exactly), summary, rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
