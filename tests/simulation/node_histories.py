"""One random history of a cluster of whole nodes, made of a seed.

Run by tests/simulation/runner.py: `python -m tests.simulation.node_histories 486`, or `0:20000`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from raftlog.node.assembly import NodeCore
from raftlog.raft.interface import MemberSettings
from raftlog.record.errors import LogError
from raftlog.replication.partition import Acks
from tests.simulation import runner
from tests.simulation.data import ingredients
from tests.simulation.data.ingredients import Ingredient
from tests.simulation.faults import FaultRates, Nemesis
from tests.simulation.life import NodeDiedError
from tests.simulation.node_world import POLL_S, SNAPSHOTS, UNTIL_S, NodeWorld
from tests.simulation.records import Ledger
from tests.simulation.world import World, run

FAULTS_S: Final = 10.0
PATIENCE_S: Final = 3.0
"""Time limit of a client's request; afterwards the client continues with an unknown outcome."""
PRODUCERS: Final = 2
TOPICS_MAX: Final = 12
SMALL_SEGMENTS: Final = {"segment.bytes": "1024", "index.interval.bytes": "128"}
SETTING: Final = "retention.ms"
LINKS_PER_S: Final = 0.4
WRONG_CLOCK_PER_S: Final = 0.2
MIN_ISR: Final = 2
"""The default of topics with three replicas."""


@dataclass(frozen=True, slots=True)
class Cast:
    """Members and faults of a seed's history."""

    nodes: int
    voters: int
    snapshots: bool
    changes: bool
    stops: bool
    links_per_s: float
    wrong_clock_per_s: float

    @classmethod
    def draw(cls, seed: int) -> Cast:
        """About every tenth seed of each important combination."""
        chance = random.Random(f"cast {seed}")
        nodes, voters = chance.choice(((3, 3), (3, 3), (4, 3), (5, 3), (5, 5), (3, 1)))
        picked = ingredients.draw(seed, ingredients.drawn())
        return cls(
            nodes=nodes,
            voters=voters,
            snapshots=chance.random() < 0.5,
            changes=chance.random() < 0.3,
            stops=chance.random() < 0.3,
            links_per_s=LINKS_PER_S if Ingredient.LINKS in picked else 0.0,
            wrong_clock_per_s=WRONG_CLOCK_PER_S if Ingredient.CLOCKS in picked else 0.0,
        )


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a history."""

    seed: int
    digest: str
    steps: int
    created: int
    acknowledged: int
    fenced: int
    endings: tuple[str, ...]
    heal_s: float
    """From the last fault until every node serves and every partition takes writes."""


@dataclass
class History:
    """One run: the clients, and the responses to their requests."""

    world: World
    nodes: NodeWorld
    cast: Cast
    created: dict[str, bool] = field(default_factory=dict)
    """Topics with acknowledged creation; whether a deletion was requested."""
    deleted: set[str] = field(default_factory=set)
    """Topics of which the deletion was acknowledged."""
    refused: set[str] = field(default_factory=set)
    """Topics with a refused creation."""
    setting: tuple[int, str] = (0, "")
    """The newest acknowledged value of the cluster setting, and its index."""
    doubtful: set[str] = field(default_factory=set)
    """Values with an unknown outcome, perhaps set later."""
    ledgers: dict[tuple[str, int], Ledger] = field(default_factory=dict)
    fenced: int = 0
    end_s: float = 0.0

    async def play(self) -> float:
        """Run the history. Returns the cluster's recovery time after healing."""
        world, nodes = self.world, self.nodes
        rates = FaultRates.draw(
            world.random("rates"),
            links_per_s=self.cast.links_per_s,
            wrong_clock_per_s=self.cast.wrong_clock_per_s,
        )
        nodes.checker.on_fenced = self._count_fencing
        nemesis = Nemesis(world, nodes.node_ids, nodes.start, rates, focus=nodes.controller)
        nemesis.start()
        nodes.start_all()
        self.end_s = world.loop.now + FAULTS_S
        works = [self._produce(number) for number in range(PRODUCERS)]
        works += [self._administer(), self._configure()]
        if self.cast.changes:
            works.append(self._change_voters())
        if self.cast.stops:
            works.append(self._stop_nodes())
        await asyncio.gather(*works)
        nemesis.heal_all()
        healed_at = world.loop.now
        await nodes.until(lambda: all(map(world.is_up, nodes.node_ids)))
        await self._keep_up()
        heal_s = world.loop.now - healed_at
        await nodes.agreed()
        await self._check()
        return heal_s

    def _count_fencing(self, _node_id: int) -> None:
        self.fenced += 1

    async def _keep_up(self) -> None:
        """Wait until all nodes serve, restarting ended ones like a supervisor."""
        nodes = self.nodes

        async def supervise() -> None:
            while True:
                for node_id in nodes.node_ids:
                    if not self.world.is_up(node_id):
                        nodes.start(node_id)
                await asyncio.sleep(0.1)

        supervisor = self.world.loop.create_task(supervise())
        try:
            await nodes.ready()
            await nodes.until(self._is_led)
            await self._write_everywhere()
        finally:
            supervisor.cancel()

    async def _write_everywhere(self) -> None:
        """Every partition takes a record again, as soon as its leader has heard of all."""
        controller = await self.nodes.until(self.nodes.controller)
        chance = self.world.random("after all")
        for name, topic in sorted(self.nodes.image(controller).topics_by_name.items()):
            for row in topic.partitions:
                await self._write_one(name, row.partition, chance)

    async def _write_one(self, name: str, number: int, chance: random.Random) -> None:
        deadline = self.world.loop.now + UNTIL_S
        while True:
            # Looked up for each attempt: a session that broke with the last fault may expire yet.
            controller = await self.nodes.until(self.nodes.controller)
            leader = self.nodes.image(controller).partition(name, number).leader
            try:
                await self.nodes.call(leader, lambda core: self._append(core, name, number, chance))
            except (LogError, NodeDiedError) as error:
                is_unknown = isinstance(error, NodeDiedError) or error.entry.outcome_unknown
                # A leader that moves during the write leaves its outcome unknown.
                controller = await self.nodes.until(self.nodes.controller)
                row = self.nodes.image(controller).partition(name, number)
                assert not (is_unknown and leader == row.leader >= 0), error
                assert self.world.loop.now < deadline, error
                await asyncio.sleep(POLL_S)
            else:
                return

    def _is_led(self) -> bool:
        controller = self.nodes.controller()
        if controller is None:
            return False
        return all(
            len(row.isr) >= min(MIN_ISR, len(row.replicas))
            and self.nodes.takes_writes(row.leader, topic.name, row.partition)
            and self._knows_its_end(row.leader, topic.name, row.partition)
            for topic in self.nodes.image(controller).topics_by_id.values()
            for row in topic.partitions
        )

    def _knows_its_end(self, leader: int, topic: str, number: int) -> bool:
        try:
            self.nodes.cores[leader].services.replicas.partition(
                topic, number
            ).require_leader().known_end_offset()
        except LogError:
            return False
        return True

    async def _check(self) -> None:
        controller = await self.nodes.ready()
        image = self.nodes.image(controller)
        for name, is_doomed in self.created.items():
            assert is_doomed or name in image.topics_by_name, f"{name} was created, and is gone"
        for name in sorted(self.deleted | self.refused):
            assert name not in image.topics_by_name, f"{name} was deleted or refused, and is there"
        index, value = self.setting
        assert not index or image.cluster_settings[SETTING] in {value, *self.doubtful}
        for (name, number), ledger in sorted(self.ledgers.items()):
            if name not in image.topics_by_name:
                continue
            leader = image.partition(name, number).leader
            partition = self.nodes.cores[leader].services.replicas.partition(name, number)
            await self.nodes.call(leader, lambda _, p=partition, x=ledger: x.check(p))  # type: ignore[misc]

    # Clients

    async def _ask(self, node_id: int, work: Any) -> Any:
        """Run a call on a node; None if impossible, or of unknown outcome. Raises LogError."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self.nodes.call(node_id, work)
        except (NodeDiedError, TimeoutError):
            return None

    async def _administer(self) -> None:
        """Creates topics, grows some, deletes some."""
        loop, chance = self.world.loop, self.world.random("topics")
        number = 0
        while loop.now < self.end_s:
            await asyncio.sleep(chance.expovariate(1 / 0.15))
            node_id = chance.choice(self.nodes.node_ids)
            living = [name for name, is_doomed in self.created.items() if not is_doomed]
            kind = chance.random()
            if len(living) < TOPICS_MAX and (kind < 0.6 or not living):
                number += 1
                await self._create(node_id, f"topic-{number}", chance.randint(1, 4))
            elif kind < 0.85:
                await self._delete(node_id, chance.choice(living))
            else:
                await self._grow(node_id, chance.choice(living))

    async def _create(self, node_id: int, name: str, partitions: int) -> None:
        def work(core: NodeCore) -> Any:
            return core.services.metadata.create_topic(name, partitions=partitions)

        try:
            if await self._ask(node_id, work) is not None:
                self.created[name] = False
        except LogError as error:
            if not error.entry.outcome_unknown:
                self.refused.add(name)

    async def _delete(self, node_id: int, name: str) -> None:
        self.created[name] = True
        try:
            if await self._ask(node_id, lambda core: core.services.metadata.delete_topic(name)):
                self.deleted.add(name)
        except LogError:
            pass

    async def _grow(self, node_id: int, name: str) -> None:
        async def work(core: NodeCore) -> None:
            metadata = core.services.metadata
            await metadata.add_partitions(name, len(metadata.image.topic(name).partitions) + 1)

        with contextlib.suppress(LogError):
            await self._ask(node_id, work)

    async def _configure(self) -> None:
        """Sets a cluster setting, to another value each time."""
        loop, chance = self.world.loop, self.world.random("settings")
        value = 10**9
        while loop.now < self.end_s:
            await asyncio.sleep(chance.expovariate(1 / 0.25))
            value += 1
            values = {SETTING: str(value)}
            try:
                done = await self._ask(
                    chance.choice(self.nodes.node_ids),
                    lambda core, v=values: core.services.metadata.alter_cluster_settings(v),
                )
            except LogError as error:
                if error.entry.outcome_unknown:
                    self.doubtful.add(str(value))
                continue
            if done is None:
                self.doubtful.add(str(value))
            else:
                assert done[0] > self.setting[0], "a later change has an earlier index"
                self.setting = (done[0], str(value))

    async def _produce(self, number: int) -> None:
        """Appends at the leader named by some node."""
        loop, chance = self.world.loop, self.world.random(f"producer {number}")
        while loop.now < self.end_s:
            await asyncio.sleep(chance.expovariate(1 / 0.03))
            asked = self.nodes.cores.get(chance.choice(self.nodes.node_ids))
            if asked is None:
                continue
            topics = [t for _, t in sorted(asked.services.metadata.image.topics_by_name.items())]
            if not topics:
                continue
            topic = chance.choice(topics)
            row = chance.choice(topic.partitions)
            try:
                await self._ask(
                    row.leader,
                    lambda core, t=topic.name, n=row.partition: self._append(core, t, n, chance),
                )
            except LogError:
                continue

    async def _append(self, core: NodeCore, topic: str, number: int, chance: random.Random) -> None:
        partition = core.services.replicas.partition(topic, number)
        ledger = self.ledgers.setdefault((topic, number), Ledger())
        if partition.is_leader and partition.host.write_gate.refusal is None:
            epoch = partition.image.leader_epoch
            self.nodes.checker.led(core.services.node_id, partition.topic_id, number, epoch)
        await ledger.append(partition, Acks.ALL, chance)

    async def _change_voters(self) -> None:
        """Adds and removes voters, and moves the lead."""
        loop, chance = self.world.loop, self.world.random("changes")
        while loop.now < self.end_s:
            await asyncio.sleep(chance.expovariate(1 / 0.6))
            asked, node_id = chance.choice(self.nodes.node_ids), chance.choice(self.nodes.node_ids)
            kind = chance.choice(("add_voter", "add_voter", "remove_voter", "transfer_leadership"))
            try:
                await self._ask(asked, lambda core, k=kind, n=node_id: getattr(core.quorum, k)(n))
            except LogError:
                continue

    async def _stop_nodes(self) -> None:
        """Stops nodes like SIGTERM; the supervisor starts each again."""
        loop, chance = self.world.loop, self.world.random("stops")
        while loop.now < self.end_s:
            await asyncio.sleep(chance.expovariate(1 / 2.0))
            node_id = chance.choice(self.nodes.node_ids)
            if not self.nodes.is_ready(node_id):
                continue
            process = self.world.processes[node_id]
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self.nodes.stop(node_id)
            except (NodeDiedError, TimeoutError):
                # A node that does not stop is killed.
                process.kill()


def replay(seed: int) -> Report:
    """Run one seed's history. Raises AssertionError on a violation."""
    cast = Cast.draw(seed)

    async def main(world: World) -> Report:
        nodes = NodeWorld(
            world,
            node_count=cast.nodes,
            voter_count=cast.voters,
            member_settings=SNAPSHOTS if cast.snapshots else MemberSettings(),
            topic_defaults=SMALL_SEGMENTS,
        )
        history = History(world, nodes, cast)
        heal_s = await history.play()
        return Report(
            seed,
            world.digest(),
            world.loop.steps,
            len(history.created),
            sum(len(ledger.acknowledged) for ledger in history.ledgers.values()),
            history.fenced,
            tuple(ending.reason for ending in nodes.endings),
            heal_s,
        )

    return run(seed, main)


def summary(reports: Sequence[Report]) -> str:
    """Results of many histories."""
    return (
        f"{sum(report.created for report in reports)} topics, "
        f"{sum(report.acknowledged for report in reports)} records, "
        f"{sum(report.fenced for report in reports)} fencings, "
        f"{sum(len(report.endings) for report in reports)} nodes ended by themselves, healed in "
        f"{max((report.heal_s for report in reports), default=0):.1f} s at most, "
        f"{sum(report.steps for report in reports)} events"
    )


if __name__ == "__main__":
    sys.exit(runner.main(replay, summary, sys.argv[1:]))
