"""Operators and users who change topics and brokers during all other faults.

`finish` completes unfinished work in a healed cluster at the end of a history: a broker with a
wiped disk is removed and added again, maintenance and decommissions end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from raftlog.metadata.commands import AlterClusterSettings, CreateTopic, DeleteTopic
from raftlog.metadata.image import BrokerImage
from raftlog.node.assembly import NodeCore
from raftlog.raft import RaftMember
from raftlog.record.errors import LogError
from raftlog.record.types import BrokerId, Offset, TopicId
from raftlog.replication.cluster_metadata import propose
from tests.simulation.data.clients import Part, ask
from tests.simulation.data.consumers import Consumer
from tests.simulation.data.data_world import SMALL_SEGMENTS, DataWorld
from tests.simulation.data.ingredients import Ingredient, Ingredients
from tests.simulation.data.nemesis import DataNemesis
from tests.simulation.data.recurring import Happening, Recurring
from tests.simulation.data.storage_faults import ORDERED
from tests.simulation.life import NodeDiedError
from tests.verification.log_history import Deletion

PATIENCE_S: Final = 60.0
"""With anything, faults or not."""
WISH_S: Final = 0.1
"""Between two attempts."""
MAINTENANCE_S: Final = (0.5, 5.0)
DECOMMISSION_S: Final = (1.0, 8.0)
LONE: Final = Part("lone", 0)
"""The topic of one replica with flush=async, if drawn."""
FLOOD: Final = 8
REPEATED: Final = "recreated"
"""The topic that is deleted and created again."""
REPEATED_SENDS: Final = 6
MIN_ISR: Final = "min.insync.replicas"
DELETIONS_ALONE: Final = 0.2
"""Share of the judged deletions in which the leader is cut off from all other nodes."""
ALONE_S: Final = (0.2, 4.0)
PARTITIONS_MAX: Final = 4
"""Most partitions of a topic that grows."""
WIPED_REASONS: Final = ("another data directory", "is not registered in this cluster any more")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRates:
    """Rates of operations, in the whole cluster."""

    wipe_per_s: float = 0.0
    """A disk is lost for good, and another one takes its place."""
    delete_records_per_s: float = 0.0
    maintenance_per_s: float = 0.0
    decommission_per_s: float = 0.0
    recreate_per_s: float = 0.0
    """A topic is deleted, and another created under its name."""

    @classmethod
    def draw(cls, chance: random.Random) -> OperatorRates:
        """Rates of one run: most runs have only a few operations."""
        pick = chance.choice
        return cls(
            wipe_per_s=pick((0.0, 0.0, 0.3)),
            delete_records_per_s=pick((0.0, 0.0, 0.4)),
            maintenance_per_s=pick((0.0, 0.0, 0.0, 0.2)),
            decommission_per_s=pick((0.0, 0.0, 0.0, 0.2)),
            recreate_per_s=pick((0.0, 0.0, 1.0)),
        )


class Operators(Recurring):
    """Run all operations until `stop`, and complete them in `finish`."""

    def __init__(
        self,
        data: DataWorld,
        rates: OperatorRates,
        nemesis: DataNemesis,
        ingredients: Ingredients = frozenset(),
    ) -> None:
        super().__init__(data, "operators")
        self.rates = rates
        self.on_new_part: Callable[[Part], None] = lambda _: None
        """Called for each partition that a topic gets in addition."""
        self._ingredients = ingredients
        self._nemesis = nemesis
        self._wiped: int | None = None
        """The broker to be removed and added again."""
        self._wiped_epoch = 0
        """The broker epoch of its last start with the lost disk."""
        self._had_vote = False
        self._ever_wiped: set[int] = set()
        self._lives = 0
        self._floods = 0
        self._has_unknown_outcome = False
        self._repeated: Part | None = None
        """The present topic of the name, as far as created."""
        self._ending: Part | None = None
        """The topic to be deleted."""

    def start(self) -> None:
        """Begin."""
        rates = self.rates
        self.data.world.trace(rates)
        self.begin(
            (
                (rates.wipe_per_s, self._wipe),
                (rates.delete_records_per_s, self._delete_records),
                (rates.maintenance_per_s, self._maintain),
                (rates.decommission_per_s, self._decommission),
                (rates.recreate_per_s, self._recreate),
            )
        )
        kinds: tuple[tuple[float, Ingredient, Happening], ...] = (
            (0.7, Ingredient.MIN_ISR, self._flip_min),
            (0.15, Ingredient.MIN_ISR, self._flip_cluster_min),
            (0.3, Ingredient.MORE_PARTITIONS, self._grow),
            (1.0, Ingredient.UNCLEAN, self._elect_unclean),
            (0.5, Ingredient.LONE_ASYNC, self._accept_loss),
            (0.7, Ingredient.MANY_PRODUCERS, self._flood),
        )
        self.begin([(rate, work) for rate, each, work in kinds if each in self._ingredients])

    async def finish(self) -> None:
        """Complete unfinished work. The cluster is healed."""
        await self._await_unknown_outcomes()
        await self._clear_wishes()
        self._take_new_parts()
        if self._ending is not None:
            # First: without reassignment of this topic, a wiped broker with a replica cannot leave.
            await self._end_life()
        if self._wiped is not None:
            await self._replace(self._wiped)
        if Ingredient.LONE_ASYNC in self._ingredients:
            # The metadata names the leader until its next start has reported the loss.
            await self._until(self._accept_loss, lambda: self.data.is_written(LONE))
        if self._repeated is not None:
            # The last of its name is judged with all others.
            part = self._repeated
            await self._until(lambda: self._created(part), lambda: self._is_there(part))
            self.data.parts.append(part)

    def unexpected_endings(self) -> tuple[str, ...]:
        """Restart nodes; those with a wiped disk end until they have been removed.

        Once more, if an operator without an answer removes a node that has just come back.
        """
        return tuple(
            ending.reason
            for ending in self.data.nodes.endings
            if (
                ending.node_id not in self._ever_wiped
                or not any(reason in ending.reason for reason in WIPED_REASONS)
            )
            and ORDERED not in ending.reason
        )

    # Helpers

    async def _ask(
        self, work: Callable[[NodeCore], Awaitable[Any]], node_id: int | None = None
    ) -> bool:
        """Run an operation on that node, or on any; return whether it succeeded."""
        try:
            await ask(self.data, node_id or self.random.choice(self.data.nodes.node_ids), work)
        except (LogError, NodeDiedError, TimeoutError) as error:
            self.data.world.trace(f"an operator was told {error!r}")
            self._has_unknown_outcome = True
            return False
        return True

    async def _await_unknown_outcomes(self) -> None:
        """Commit a command without effect: behind it, no request of unknown outcome is left.

        A request through a node that died may be in the log of a leader without a majority, and is
        committed once that is healed.
        """

        async def commit() -> None:
            try:
                await self.data.propose(AlterClusterSettings(values={}))
            except (LogError, NodeDiedError):
                return
            self._has_unknown_outcome = False

        await self._until(commit, lambda: not self._has_unknown_outcome)

    async def _until(
        self, attempt: Callable[[], Awaitable[Any]], is_done: Callable[[], bool]
    ) -> None:
        """Retry until success."""
        deadline = self.data.world.loop.now + PATIENCE_S
        while not is_done():
            assert self.data.world.loop.now < deadline, self.data.describe()
            await attempt()
            await asyncio.sleep(WISH_S)

    def _broker(self, node_id: int) -> BrokerImage | None:
        assert self.data.replicas.newest is not None
        return self.data.replicas.newest.brokers.get(BrokerId(node_id))

    # Brokers

    async def _maintain(self) -> bool:
        node_id = BrokerId(self.random.choice(self.data.nodes.node_ids))
        if not await self._ask(
            lambda core: core.services.metadata.operations.set_maintenance(node_id, wanted=True)
        ):
            return False
        await asyncio.sleep(self.random.uniform(*MAINTENANCE_S))
        await self._ask(
            lambda core: core.services.metadata.operations.set_maintenance(node_id, wanted=False)
        )
        return True

    async def _decommission(self) -> bool:
        node_id = BrokerId(self.random.choice(self.data.nodes.node_ids))
        if not await self._ask(
            lambda core: core.services.metadata.operations.decommission(node_id)
        ):
            return False
        await asyncio.sleep(self.random.uniform(*DECOMMISSION_S))
        await self._ask(lambda core: core.services.metadata.operations.recommission(node_id))
        return True

    async def _clear_wishes(self) -> None:
        for node_id in map(BrokerId, self.data.nodes.node_ids):

            async def clear(node_id: BrokerId = node_id) -> None:
                await self._ask(
                    lambda core: core.services.metadata.operations.set_maintenance(
                        node_id, wanted=False
                    )
                )
                await self._ask(
                    lambda core: core.services.metadata.operations.recommission(node_id)
                )

            def is_clear(node_id: BrokerId = node_id) -> bool:
                broker = self._broker(node_id)
                return broker is None or not (broker.maintenance or broker.decommissioning)

            await self._until(clear, is_clear)

    # Lost disks

    async def _wipe(self) -> bool:
        victim = self.random.choice(self.data.nodes.node_ids)
        nodes = self.data.nodes
        held = [part for part in self.data.parts if victim in self.data.row(part).replicas]
        if not self._nemesis.is_calm() or not all(map(self._nemesis.may_lose_one, held)):
            return False
        staying = nodes.node_count - 1
        if any(len(self.data.row(part).replicas) > staying for part in held):
            return False
        self._had_vote = any(core.quorum.voters.find(victim) for core in nodes.cores.values())
        broker = self._broker(victim)
        assert broker is not None
        self._wiped, self._wiped_epoch = victim, int(broker.broker_epoch)
        self._ever_wiped.add(victim)
        nodes.kill(victim, power=self.random.random() < 0.5)
        self.data.world.wipe(victim)
        # A new machine joins, whatever the one before did.
        join = ",".join(map(self.data.world.address, nodes.others(victim)))
        nodes.overrides[victim] = {"voters": None, "join": join}
        self.count("_wipe begun")
        await self._replace(victim)
        return True

    async def _replace(self, victim: int) -> None:
        """Reassign the broker's replicas, unregister it, and add it again with its new disk."""

        def is_gone() -> bool:
            known = self._broker(victim)
            return known is None or known.broker_epoch != self._wiped_epoch

        async def start() -> None:
            if not self.data.world.is_up(victim):
                self.data.nodes.start(victim)

        await self._until(lambda: self._take_out(victim), is_gone)
        await self._until(start, lambda: self._is_back(victim))
        if self._had_vote:
            await self._until(
                lambda: self._ask(lambda core: core.quorum.add_voter(victim)),
                lambda: self._has_vote(victim),
            )
        self._wiped = None

    def _has_vote(self, node_id: int) -> bool:
        """By the member with the newest metadata."""
        cores = self.data.nodes.cores.values()
        newest = max((core.quorum for core in cores), key=_known, default=None)
        return newest is not None and newest.voters.find(node_id) is not None

    def _is_back(self, victim: int) -> bool:
        broker = self._broker(victim)
        core = self.data.nodes.cores.get(victim)
        return (
            core is not None
            and core.not_ready is None
            and broker is not None
            and core.permit.broker_epoch == broker.broker_epoch
        )

    async def _take_out(self, victim: int) -> None:
        self._take_new_parts()
        others = self.data.nodes.others(victim)
        held = [*self.data.parts, *([self._repeated] if self._repeated else [])]
        for part in held:
            if not self._is_there(part) or victim not in self.data.row(part).replicas:
                continue
            row = self.data.row(part)
            if victim in row.removing:
                continue
            staying = [int(each) for each in row.replicas if each != victim]
            staying = [each for each in staying if each not in row.removing]
            spare = [each for each in others if each not in staying]
            wanted = len(row.replicas) - len(row.adding)
            replicas = [*staying, *spare][:wanted]
            try:
                async with asyncio.timeout(3.0):
                    await self.data.reassign(part, replicas)
            except (LogError, NodeDiedError, TimeoutError, AssertionError) as error:
                self.data.world.trace(f"{part} cannot leave {victim} yet: {error!r}")
                return
        if self._has_vote(victim):
            await self._ask(lambda core: core.quorum.remove_voter(victim))
        await self._ask(lambda core: core.services.metadata.unregister_broker(BrokerId(victim)))

    # Deleted records and topics

    async def _delete_records(self) -> bool:
        part = self.part()
        before = self.random.randint(
            0, self.data.replicas.shared[self.data.key(part)].committed_end
        )
        self.data.history.append(Deletion(partition=str(part), before=before))

        async def work(core: NodeCore) -> None:
            found = core.services.partitions.find(part.topic, part.number)
            await found.delete_records(Offset(before))
            self._note_deleted(part, before)

        may_cut = Ingredient.DELETIONS in self._ingredients
        if may_cut and self.random.random() < DELETIONS_ALONE:
            return await self._ask_alone(part, work)
        return await self._ask(work)

    def _note_deleted(self, part: Part, before: int) -> None:
        if not self.data.has_losses:
            self.data.history.append(
                Deletion(partition=str(part), before=before, completed=self.data.step())
            )
            self.data.replicas.deleted(self.data.key(part), before)

    async def _ask_alone(self, part: Part, work: Callable[[NodeCore], Awaitable[Any]]) -> bool:
        """Run an operation on the leader, which no other node hears for a while."""
        leader = self.data.leader(part)
        if leader is None:
            return False
        network, others = self.data.world.network, self.data.nodes.others(leader)
        self.data.nodes.cut_off(leader)
        try:
            return await self._ask(work, leader)
        finally:
            await asyncio.sleep(self.random.uniform(*ALONE_S))
            for other in others:
                network.unblock(leader, other)
                network.unblock(other, leader)

    # Settings and partitions of topics

    async def _flip_min(self) -> bool:
        part = self.part()
        row = self.data.row(part)
        replicas = min(
            len(set(row.replicas) - set(row.adding)), len(set(row.replicas) - set(row.removing))
        )
        value = str(min(replicas, self.random.choice((1, 1, 2, 2, 3))))
        return await self._ask(
            lambda core: core.services.metadata.alter_configs(part.topic, {MIN_ISR: value})
        )

    async def _flip_cluster_min(self) -> bool:
        if any(len(self.data.row(part).replicas) == 1 for part in self.data.parts):
            return False
        value = self.random.choice(("1", "2"))
        return await self._ask(
            lambda core: core.services.metadata.alter_cluster_settings({MIN_ISR: value})
        )

    async def _grow(self) -> bool:
        topic = self.part().topic
        image = self.data.topic(topic)
        count = len(image.partitions)
        # With an answer still to come, the only replica of a new partition would be wiped unknown.
        if topic == REPEATED or image.replication_factor == 1 or count >= PARTITIONS_MAX:
            return False
        is_grown = await self._ask(
            lambda core: core.services.metadata.add_partitions(topic, count + 1)
        )
        self._take_new_parts()
        return is_grown

    def _take_new_parts(self) -> None:
        """Judge the partitions that topics have got, perhaps by a request of unknown outcome."""
        if Ingredient.MORE_PARTITIONS not in self._ingredients:
            return
        for topic in sorted({part.topic for part in self.data.parts} - {REPEATED}):
            for row in self.data.topic(topic).partitions:
                part = Part(topic, row.partition)
                if part not in self.data.parts:
                    self.data.parts.append(part)
                    self.on_new_part(part)

    async def _elect_unclean(self) -> bool:
        part = self.part()
        return self.data.leader(part) is None and await self._ask(
            lambda core: core.services.metadata.operations.transfer_leader(
                part.topic, part.number, None, unclean=True
            )
        )

    async def _accept_loss(self) -> bool:
        """A topic of one replica waits for this after a power cut with flush=async."""
        row = self.data.row(LONE)
        if self.data.leader(LONE) is not None or row.isr or row.elr:
            return False
        return await self._ask(
            lambda core: core.services.metadata.operations.transfer_leader(
                LONE.topic, LONE.number, None, unclean=True
            )
        )

    async def _flood(self) -> bool:
        """Clients with a producer each, and one batch."""
        part = self.part()
        for _ in range(FLOOD):
            self._floods += 1
            await self.data.producer(f"flood-{self._floods}", repeats=False).send(
                part, within_s=0.3
            )
        return True

    def _is_there(self, part: Part) -> bool:
        assert self.data.replicas.newest is not None
        known = self.data.replicas.newest.topics_by_id
        return part.topic_id is None or part.topic_id in known

    async def _created(self, part: Part) -> None:
        assert part.topic_id is not None
        count = min(3, self.data.nodes.node_count)
        replicas = self.random.sample(self.data.nodes.node_ids, count)
        command = CreateTopic(
            topic_id=TopicId(part.topic_id),
            name=part.topic,
            configs=SMALL_SEGMENTS,
            assignments=(tuple(map(BrokerId, replicas)),),
        )
        await self._ask(lambda core: propose(core.quorum, command))

    async def _end_life(self) -> None:
        if self._repeated is not None:
            self._ending, self._repeated = self._repeated, None
            self.data.gone.append(self._ending)
        if (part := self._ending) is not None:
            command = DeleteTopic(topic_id=TopicId(part.topic_id or ""))
            await self._until(
                lambda: self._ask(lambda core: propose(core.quorum, command)),
                lambda: not self._is_there(part),
            )
            self._ending = None

    async def _recreate(self) -> bool:
        """One life of the topic, from the end of the one before."""
        await self._end_life()
        self._lives += 1
        name = f"life-{self._lives}"
        part = Part(REPEATED, 0, self.data.topic_ids.randbytes(16).hex())
        self._repeated = part
        await self._until(lambda: self._created(part), lambda: self._is_there(part))
        writer = self.data.producer(name, idempotent=False, repeats=False)
        reader = Consumer(self.data, name, part)
        reader.seek(0)
        for _ in range(self.random.randint(1, REPEATED_SENDS)):
            await writer.send(part, self.random.randint(1, 3))
            near = self.random.random() < 0.5
            await reader.poll(self.random.choice(self.data.nodes.node_ids), near=near)
        return True


def _known(quorum: RaftMember[Any]) -> tuple[int, int]:
    status = quorum.status()
    return status.term, status.last_index
