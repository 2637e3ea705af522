"""One random history of transactions on whole nodes, made of a seed.

Run by tests/simulation/runner.py: `scripts/simulate transactions 486`, or `0:20000`.

Several transactional ids write transfers: each transaction has a sum of zero over its partitions.
In half of the histories another one runs a chain (chain.py): input, outputs and offsets at once.
Incarnations of one id meet, an operator aborts, transactions are left open, prepared, taken over,
and time out. Judged: `invariants` during the history; at its end the clients' history by
tests/verification/transaction_checker.py, the sum of all transfers that each reader has read, that
no transaction hangs, and that the coordinators' state is the replay of their logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar
from unittest import mock

from raftlog.broker.authorize import ANONYMOUS
from raftlog.broker.service import Broker
from raftlog.coordinator.groups.kind import TOPIC as OFFSETS_TOPIC
from raftlog.coordinator.groups.shard import GroupShard
from raftlog.coordinator.shard import service
from raftlog.coordinator.shard.decision import Producer
from raftlog.coordinator.shard.load import replay as replay_log
from raftlog.coordinator.shard.service import AnyShard
from raftlog.coordinator.transactions import shard as transaction_shard
from raftlog.coordinator.transactions.kind import TOPIC
from raftlog.coordinator.transactions.messages import ListTransactions
from raftlog.coordinator.transactions.shard import TransactionShard
from raftlog.node.assembly import NodeCore
from raftlog.raft.interface import MemberSettings
from raftlog.record.batch import iterate_batches
from raftlog.record.codec import decode
from raftlog.record.control import Marker
from raftlog.record.errors import LogError
from raftlog.record.types import ProducerEpoch, ProducerId
from raftlog.replication.partition import Isolation
from raftlog.storage import manager
from raftlog.storage.types import StorageSettings
from tests.broker.harness import broker_settings
from tests.simulation import runner
from tests.simulation.coordinator.committed_log import READ_BYTES, WHOLE_LOG, committed_log
from tests.simulation.data import final_checks
from tests.simulation.data.clients import KEYS, Part, ask
from tests.simulation.data.consumers import Consumer
from tests.simulation.data.data_world import DataWorld
from tests.simulation.data.invariants import watching
from tests.simulation.data.nemesis import DataNemesis, DataRates
from tests.simulation.faults import FaultRates, Nemesis, keep_wrong_clock
from tests.simulation.life import NodeDiedError
from tests.simulation.node_checker import InvariantError
from tests.simulation.node_world import SNAPSHOTS, NodeWorld
from tests.simulation.transactions.chain import (
    GROUP,
    INPUT,
    OUTPUTS,
    ChainIncarnation,
    committed_offset,
)
from tests.simulation.transactions.chain import judge as judge_chain
from tests.simulation.transactions.clients import Incarnation, Record, Value
from tests.simulation.transactions.invariants import TransactionChecker
from tests.simulation.world import World, run
from tests.verification.log_history import FinalRead, Poll
from tests.verification.transaction_checker import require_sound
from tests.verification.transaction_history import CommittedOffset, Transaction

FAULTS_S: Final = 5.0
COORDINATORS: Final = 2
"""Partitions of `__transaction_state`."""
IDS: Final = 5
TRANSACTION_S_MEAN: Final = 0.08
"""Between two transactions of one incarnation."""
LIFE_S_MEAN: Final = 2.5
"""Of an incarnation; then it is killed, or goes on beside the next one."""
TIMEOUTS_MS: Final = (400, 1_500, 4_000)
OPERATOR_S_MEAN: Final = 1.5
WRONG_EPOCHS: Final = (1_000, 2**31 - 1)
"""Coordinator epochs that no history reaches."""
UNISSUED: Final = Producer(ProducerId(10**9), ProducerEpoch(0))
"""A producer that the cluster has never issued."""
SLOW_LINKS_PER_S: Final = 1.0
"""Markers and batches arrive after those of the next leader."""
MOVES_PER_S: Final = 1.0
PLAIN_S_MEAN: Final = 0.4
READ_S_MEAN: Final = 0.3
RETENTION_MS: Final = 1_000
"""Between two rounds of retention and compaction."""
EXPIRATION_MS: Final = 500
"""Pause of the expiry of transactional ids."""
SINK_RETENTION_MS: Final = 7 * 86_400_000
"""As short as that of transactional ids, and shorter than a wrong clock is wrong."""
SINK: Final = "sink"
HEAL_S_MAX: Final = 20.0
"""From the last fault, or the timeout of the last transaction, until none is open."""
RETRY_S: Final = 0.5
TRANSFERS: Final = "transfers"
COMPACTED: Final = "compacted"
KEPT: Final = "kept"
KEPT_BYTES: Final = 3_000
EXTRA: Final = frozenset({COMPACTED, KEPT, INPUT.topic})
"""Topics to which some transactions write values without an amount."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cast:
    """The participants of a seed's history, and their manner."""

    nodes: int
    voters: int
    snapshots: bool
    faults: FaultRates
    data_faults: DataRates
    moves_per_s: float
    topics: tuple[tuple[str, int, dict[str, str]], ...]
    """Name, partitions, configs."""
    has_operator: bool
    has_chain: bool
    has_wrong_clock: bool
    """Whether a clock is wrong by weeks, beside a sink that must not expire."""
    watches_replicas: bool
    """With the invariants of the data path, too: they cost half as much again."""
    has_wrong_markers: bool
    """An operator requests markers with numbers that are no coordinator's."""

    @classmethod
    def draw(cls, seed: int) -> Cast:
        """Most histories know a few kinds of faults only."""
        chance = random.Random(f"transactions cast {seed}")
        nodes, voters = chance.choice(((3, 3), (3, 3), (3, 3), (4, 3), (5, 3)))
        faults = replace(
            FaultRates.draw(chance),
            crash_per_s=chance.choice((0.0, 0.2, 0.5)),
            slow_link_per_s=chance.choice((0.0, 0.0, SLOW_LINKS_PER_S)),
            latency_s=chance.choice((0.0005, 0.002, 0.01)),
        )
        drawn = DataRates.draw(chance)
        data_faults = DataRates(
            double_failover_per_s=2 * drawn.double_failover_per_s,
            alone_per_s=2 * drawn.alone_per_s,
            full_disk_per_s=2 * drawn.full_disk_per_s,
            reassignment_per_s=2 * drawn.reassignment_per_s,
            stop_per_s=2 * drawn.stop_per_s,
            voters_per_s=drawn.voters_per_s,
        )
        topics: list[tuple[str, int, dict[str, str]]] = [(TRANSFERS, 3, {})]
        if chance.random() < 0.4:
            configs = {
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0.01",
                "segment.bytes": str(chance.choice((400, 800))),
            }
            topics.append((COMPACTED, 1, configs))
        has_chain = chance.random() < 0.5
        if has_chain:
            topics += [(INPUT.topic, 1, {}), (OUTPUTS[0].topic, len(OUTPUTS), {})]
        if chance.random() < 0.3:
            topics.append((KEPT, 1, {"retention.bytes": str(KEPT_BYTES)}))
        return cls(
            nodes=nodes,
            voters=voters,
            snapshots=chance.random() < 0.2,
            faults=faults,
            data_faults=data_faults,
            moves_per_s=chance.choice((0.0, MOVES_PER_S)),
            topics=tuple(topics),
            has_operator=chance.random() < 0.4,
            has_chain=has_chain,
            # The other half of the seeds has the histories of old.
            has_wrong_clock=seed % 2 == 0,
            watches_replicas=chance.random() < 0.15,
            has_wrong_markers=chance.random() < 0.3,
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a history."""

    seed: int
    digest: str
    steps: int
    committed: int
    aborted: int
    unknown: int
    markers: int
    polled: int
    """Records, by readers of committed transactions."""
    faults: tuple[tuple[str, int], ...]
    endings: tuple[str, ...]
    heal_s: float
    """From the last fault until no transaction was open but the prepared ones."""


class TransactionNemesis(DataNemesis):
    """Faults of data, half of them at the coordinators' partitions."""

    internal: tuple[Part, ...] = ()

    def part(self) -> Part:
        """A partition of any kind."""
        if self.random.random() < 0.5:
            return self.random.choice(self.internal)
        return super().part()

    async def move_lead(self) -> bool:
        """Have another replica lead."""
        part, node_id = self.part(), self.random.choice(self.data.nodes.node_ids)
        try:
            await ask(
                self.data,
                node_id,
                lambda core: core.services.metadata.operations.transfer_leader(
                    part.topic, part.number, None
                ),
            )
        except (LogError, NodeDiedError, TimeoutError):
            return False
        return True


@dataclass
class History:
    """One run."""

    data: DataWorld
    cast: Cast
    checker: TransactionChecker
    records: dict[Producer, Record] = field(default_factory=dict)
    """By the producer id and epoch of the batches."""
    offsets: list[CommittedOffset] = field(default_factory=list)
    """Answers about the group of the chain."""
    sink_epoch: int = -1
    """The newest acknowledged epoch of the sink."""
    heal_s: float = 0.0
    end_s: float = 0.0
    nemesis: TransactionNemesis = field(init=False)
    readers: list[Consumer] = field(default_factory=list)
    _brokers: dict[NodeCore, Broker] = field(default_factory=dict)
    _timeout_s: float = 0.0
    """The longest timeout of a transaction."""

    def __post_init__(self) -> None:
        self.nemesis = TransactionNemesis(self.data, self.cast.data_faults)
        self.checker.topics.update(name for name, _, _ in self.cast.topics)
        self.checker.topics.add(OFFSETS_TOPIC)

    @property
    def world(self) -> World:
        """The simulated world."""
        return self.data.world

    async def play(self) -> None:
        """The whole history. Raises AssertionError."""
        nodes = self.data.nodes
        self.world.network.latency_s = self.cast.faults.latency_s
        clocks: list[asyncio.Task[None]] = []
        if self.cast.has_wrong_clock:
            clocks.append(self.world.loop.create_task(keep_wrong_clock(self.world, nodes.node_ids)))
            await asyncio.sleep(0)
        nodes.start_all()
        await nodes.ready()
        await self._create_topics()
        nemesis = Nemesis(
            self.world, nodes.node_ids, nodes.start, self.cast.faults, focus=self._focus
        )
        nemesis.start()
        self.nemesis.start()
        self.nemesis.begin([(self.cast.moves_per_s, self.nemesis.move_lead)])
        self.end_s = self.world.loop.now + FAULTS_S
        await asyncio.gather(*self._clients())
        for task in clocks:
            task.cancel()
        self.nemesis.stop()
        nemesis.heal_all()
        healed_s = self.world.loop.now
        with self.data.supervised():
            await asyncio.gather(*self.data.zombies)
            await self.data.settle()
            await nodes.until(self._has_ended, self._timeout_s + HEAL_S_MAX)
            self.heal_s = self.world.loop.now - healed_s
            await self._end_prepared()
            await nodes.until(self._is_stable, HEAL_S_MAX)
            await self._judge()

    async def _create_topics(self) -> None:
        chance = self.world.random("topics")
        for name, count, configs in self.cast.topics:
            assignments = [chance.sample(self.data.nodes.node_ids, 3) for _ in range(count)]
            await self.data.create(name, assignments, configs)
            if name == COMPACTED:
                self.data.compacted.add(name)
        parts = list(self.data.parts)
        for name in (TOPIC, OFFSETS_TOPIC) if self.cast.has_chain else (TOPIC,):
            assignments = [chance.sample(self.data.nodes.node_ids, 3) for _ in range(COORDINATORS)]
            await self.data.create(name, assignments, service.TOPIC_CONFIGS, small_segments=False)
        # Only coordinators write there.
        self.nemesis.internal = tuple(self.data.parts[len(parts) :])
        self.data.parts = parts

    def _focus(self) -> int | None:
        try:
            return self.data.leader(self.nemesis.part())
        except LogError:
            return None

    # Clients

    def _clients(self) -> Iterator[Coroutine[Any, Any, None]]:
        for number in range(IDS):
            yield self._own(f"id{number}", Incarnation)
        if self.cast.has_chain:
            yield self._own("chain", ChainIncarnation)
            yield self._feed()
        yield self.data.producer("plain").run(self.end_s, PLAIN_S_MEAN)
        if self.cast.has_operator:
            yield self._operate()
        if self.cast.has_wrong_markers:
            yield self._mislead()
        if self.cast.has_wrong_clock:
            yield self._commit_sink()
        for part in self.data.parts:
            for kind, isolation, near in (
                ("lead", Isolation.READ_COMMITTED, 0.0),
                ("near", Isolation.READ_COMMITTED, 1.0),
                ("all", Isolation.READ_UNCOMMITTED, 0.5),
            ):
                reader = Consumer(
                    self.data, f"{kind}-{part}", part, near=near, seeks=0.03, isolation=isolation
                )
                self.readers.append(reader)
                yield reader.run(self.end_s, READ_S_MEAN)

    async def _feed(self) -> None:
        """Write the input of the chain."""
        producer, chance = self.data.producer("input"), self.world.random("feed")
        while self.world.loop.now < self.end_s:
            await asyncio.sleep(chance.expovariate(1 / PLAIN_S_MEAN))
            await producer.send(INPUT, chance.randint(1, 3))

    async def _own(self, transactional_id: str, kind: type[Incarnation]) -> None:
        """One incarnation after the other, and sometimes beside it."""
        chance = self.world.random(f"owner of {transactional_id}")
        loop, number = self.world.loop, 0
        while loop.now < self.end_s:
            number += 1
            timeout_ms = chance.choice(TIMEOUTS_MS)
            self._timeout_s = max(self._timeout_s, timeout_ms / 1000)
            incarnation = kind(
                self,
                transactional_id,
                number,
                timeout_ms,
                self.world.random(f"incarnation {transactional_id} {number}"),
            )
            task = self.spawn(incarnation.run(self.end_s, TRANSACTION_S_MEAN))
            await asyncio.wait({task}, timeout=chance.expovariate(1 / LIFE_S_MEAN))
            if not task.done() and chance.random() < 0.4:
                task.cancel()
            await asyncio.sleep(chance.uniform(0.0, 0.3))

    async def _commit_sink(self) -> None:
        """Commit the epochs of a sink, each with the rows of no task."""
        chance, epoch = self.world.random("sink"), 0
        while self.world.loop.now < self.end_s:
            await asyncio.sleep(chance.expovariate(1 / OPERATOR_S_MEAN))
            epoch += 1
            try:
                await self.ask(
                    chance,
                    lambda broker, n=epoch: broker.transactions.commit_sink_epoch(  # type: ignore[misc]
                        ANONYMOUS, SINK, (), epoch=n
                    ),
                )
                self.sink_epoch = epoch
            except (LogError, NodeDiedError, TimeoutError) as error:
                self.world.trace(f"sink epoch {epoch} is not committed: {error!r}")

    async def _operate(self) -> None:
        """Abort transactions like `txn abort`."""
        chance = self.world.random("operator")
        while self.world.loop.now < self.end_s:
            await asyncio.sleep(chance.expovariate(1 / OPERATOR_S_MEAN))
            name = f"id{chance.randrange(IDS)}"
            try:
                await self.ask(
                    chance,
                    lambda broker, n=name: broker.transactions.fence(ANONYMOUS, n),  # type: ignore[misc]
                )
            except (LogError, NodeDiedError, TimeoutError) as error:
                self.world.trace(f"the operator has not aborted {name}: {error!r}")

    async def _mislead(self) -> None:
        """Request markers like `kafka-transactions.sh abort`, each with a wrong number or topic."""
        chance = self.world.random("wrong markers")
        while self.world.loop.now < self.end_s:
            await asyncio.sleep(chance.expovariate(1 / OPERATOR_S_MEAN))
            part = chance.choice((*self.data.parts, *self.nemesis.internal))
            producer = chance.choice((*self.records, UNISSUED))
            is_wrong = producer is UNISSUED or part.topic == TOPIC
            epoch = chance.choice((0, 1) if is_wrong else WRONG_EPOCHS)
            marker = Marker(chance.random() < 0.5, epoch)
            try:
                await self.ask(
                    chance,
                    lambda broker, where=part, who=producer, what=marker: (  # type: ignore[misc]
                        broker.transactions.write_marker(
                            ANONYMOUS, where.topic, where.number, who, what, any_node=True
                        )
                    ),
                )
            except (LogError, NodeDiedError, TimeoutError) as error:
                self.world.trace(f"no marker in {part} of {producer}: {error!r}")
            else:
                raise InvariantError(f"{part} has taken {marker} of {producer} from an operator")

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something to its end, whatever the rest of the history does."""
        task = self.world.loop.create_task(_uncancelled(work))
        self.data.zombies.add(task)
        task.add_done_callback(self.data.zombies.discard)
        return task

    async def ask(self, chance: random.Random, work: Callable[[Broker], Any]) -> Any:
        """Run an operation at any node. See `data.clients.ask`."""
        node_id = chance.choice(self.data.nodes.node_ids)
        return await ask(self.data, node_id, lambda core: work(self._broker(core)))

    def _broker(self, core: NodeCore) -> Broker:
        if core not in self._brokers:
            self._brokers[core] = Broker(core.services, broker_settings())
        return self._brokers[core]

    # Records

    def begin(self, name: str, producer: Producer) -> Record:
        """A transaction begins under that producer id and epoch."""
        if producer in self.records:
            self.data.complain(f"{name} has the producer of {self.records[producer].name}")
        record = self.records[producer] = Record(name)
        return record

    def ended(self, record: Record, *, is_commit: bool) -> None:
        """An end was acknowledged."""
        if is_commit and not record.is_committed:
            record.is_committed, record.completed = True, self.data.step()
        if not is_commit:
            record.is_aborted = True
        if record.is_committed and record.is_aborted:
            self.data.complain(f"{record.name} is committed and aborted")

    def batches(self, name: str, chance: random.Random) -> Iterator[tuple[Part, list[Value]]]:
        """The batches of one transaction: their amounts have a sum of zero."""
        parts = [part for part in self.data.parts if part.topic == TRANSFERS]
        some = chance.sample(parts, chance.choice((2, 2, 3)))
        total, count = 0, 0
        for part in some:
            values = []
            for _ in range(chance.choice((1, 1, 2))):
                amount = chance.randint(-50, 50)
                total, count = total + amount, count + 1
                values.append((f"{name}/{count}:{amount}", ""))
            if part is some[-1]:
                values.append((f"{name}/{count + 1}:{-total}", ""))
            yield part, values
        for part in self.data.parts:
            if part.topic in EXTRA and chance.random() < 0.4:
                yield part, [self.one(f"{name}/{part}", part, chance)]

    def one(self, name: str, part: Part, chance: random.Random) -> Value:
        """One value without an amount."""
        return name, chance.choice(KEYS) if part.topic in self.data.compacted else ""

    def any_part(self, chance: random.Random) -> Part:
        """Any partition that transactions are written to."""
        return chance.choice(self.data.parts)

    # The end

    def _shards(self) -> list[AnyShard] | None:
        """The coordinators of all partitions, each at its leader."""
        found: list[AnyShard] = []
        for part in self.nemesis.internal:
            leader = self.data.leader(part)
            core = self.data.nodes.cores.get(leader or 0)
            if core is None:
                return None
            here = [
                shard
                for shard in core.coordinators.shards()
                if shard.partition.name == str(part) and shard.ended is None
            ]
            if len(here) != 1 or not here[0].partition.is_leader:
                return None
            found += here
        return found

    def _idle_shards(self) -> list[AnyShard] | None:
        """The coordinators, once all that they have replayed is committed."""
        shards = self._shards()
        if shards is None or any(shard.partition.high_watermark < shard._next for shard in shards):
            return None
        return shards

    def _has_ended(self) -> bool:
        """Whether all transactions but the prepared ones are complete."""
        shards = self._shards()
        if shards is None:
            return False
        states = [
            summary.state
            for shard in shards
            if isinstance(shard.state, TransactionShard)
            for summary in shard.state.decide(_LIST, 0, 0).response.transactions  # type: ignore[union-attr]
        ]
        return set(states) <= {"empty", "prepared", "complete-commit", "complete-abort"}

    async def _end_prepared(self) -> None:
        """An operator lists what is left open, and aborts it; again while nodes are starting."""
        chance = self.world.random("last operator")
        deadline_s = self.world.loop.now + HEAL_S_MAX
        while True:
            try:
                return await self._abort_prepared(chance)
            except (LogError, NodeDiedError, TimeoutError) as error:
                if self.world.loop.now >= deadline_s:
                    raise
                self.world.trace(f"the last operator tries again: {error!r}")
            await asyncio.sleep(RETRY_S)

    async def _abort_prepared(self, chance: random.Random) -> None:
        found = await self.ask(chance, lambda broker: broker.transactions.list(ANONYMOUS))
        assert not found.incomplete, found.incomplete
        for each in found.transactions:
            if each.summary.state == "prepared":
                name = each.summary.transactional_id
                await self.ask(
                    chance,
                    lambda broker, n=name: broker.transactions.fence(ANONYMOUS, n),  # type: ignore[misc]
                )

    def _is_stable(self) -> bool:
        """Whether no replica knows of an open transaction, and all are equal."""
        parts = (*self.data.parts, *self.nemesis.internal)
        return self.data.replicas_agree(parts) and self._has_ended()

    async def _judge(self) -> None:
        await self._drain()
        self.data.replicas.follow_all()
        await final_checks.read_to_the_end(self.data)
        for part in self.data.parts:
            for member in map(int, self.data.row(part).replicas):
                self.data.history.append(
                    await final_checks.read_replica(
                        self.data, member, part, Isolation.READ_COMMITTED
                    )
                )
            # More may have become too much meanwhile.
            final_checks.note_retention(self.data, part)
        if self.cast.has_chain:
            await self._judge_chain()
        require_sound([*self.data.history, *self.transactions(), *self.offsets])
        self._judge_sums()
        if self.cast.has_wrong_clock:
            await self._judge_sink()
        await self._judge_states()

    def transactions(self) -> list[Transaction]:
        """All transactions, with their outcomes so far."""
        return [record.operation() for record in self.records.values()]

    async def _drain(self) -> None:
        """Let each reader read to the end."""
        for reader in self.readers:
            while reader.position < self._end_of(reader.part):
                leader = self.data.leader(reader.part)
                assert leader is not None
                before = reader.position
                await reader.poll(leader)
                if reader.position == before:
                    # Its position may be deleted by now.
                    await reader.skip_deleted(leader)
                assert reader.position > before, f"{reader.name} stays at {before}"

    def _end_of(self, part: Part) -> int:
        leader = self.data.leader(part)
        replica = None if leader is None else self.data.replica(leader, part)
        assert replica is not None
        return int(replica.high_watermark)

    async def _judge_sink(self) -> None:
        """Each acknowledged epoch is remembered."""
        found = await self.ask(
            self.world.random("last sink"),
            lambda broker: broker.transactions.describe_sink(ANONYMOUS, SINK),
        )
        assert found.epoch >= self.sink_epoch, f"{found}, acknowledged: {self.sink_epoch}"

    def _judge_sums(self) -> None:
        """Every reader has seen all of each transfer, or none."""
        for kind in ("lead", "near"):
            values = {
                value
                for each in self.data.history
                if isinstance(each, Poll) and each.consumer.startswith(f"{kind}-{TRANSFERS}")
                for _, value in each.records
            }
            total = sum(map(_amount, values))
            assert total == 0, f"the transfers that {kind} readers have read sum up to {total}"

    async def _judge_chain(self) -> None:
        """Each input below the group's offset was processed exactly once."""
        invoked = self.data.step()
        offset = await self.ask(self.world.random("last offset"), committed_offset)
        self.note_offset(GROUP, INPUT, invoked, offset)
        finals = [
            each for each in self.data.history if isinstance(each, FinalRead) and each.is_committed
        ]
        inputs = next(each.records for each in finals if each.partition == str(INPUT))
        outputs = {
            place: value
            for each in finals
            if each.partition in map(str, OUTPUTS)
            for place, value in (((each.partition, at), value) for at, value in each.records)
        }
        judge_chain(offset, inputs, outputs.values())

    def note_offset(self, group: str, part: Part, invoked: int, offset: int) -> None:
        """Add an answer about a committed offset to the history."""
        self.offsets.append(
            CommittedOffset(
                group=group,
                partition=str(part),
                invoked=invoked,
                completed=self.data.step(),
                offset=offset,
            )
        )

    async def _judge_states(self) -> None:
        """The state of each coordinator is the replay of its log."""
        shards = await self.data.nodes.until(self._idle_shards)
        for shard in shards:
            data = await committed_log(self.data.nodes, shard.partition)
            if isinstance(shard.state, TransactionShard):
                _require_none_expired(data)
            state = shard.kind.create(lambda _key: None)
            await replay_log(shard.kind, state, data)
            assert _content(state) == _content(shard.state), (
                f"{shard.partition.name}: the state differs from the replay of its log"
            )

    def report(self, seed: int) -> Report:
        """The result of this history."""
        outcomes = Counter(each.outcome for each in self.transactions())
        polls = [each for each in self.data.history if isinstance(each, Poll)]
        return Report(
            seed,
            self.world.digest(),
            self.world.loop.steps,
            outcomes["committed"],
            outcomes["aborted"],
            outcomes["unknown"],
            self.checker.markers,
            sum(len(each.records) for each in polls if each.is_committed),
            tuple(sorted(self.nemesis.counts.items())),
            tuple(ending.reason for ending in self.data.nodes.endings),
            self.heal_s,
        )


_LIST: Final = ListTransactions()


async def _uncancelled(work: Coroutine[Any, Any, None]) -> None:
    """A killed client ends without an error."""
    with contextlib.suppress(asyncio.CancelledError):
        await work


def _content(state: TransactionShard | GroupShard) -> Any:
    if isinstance(state, TransactionShard):
        return state._transactions, state._sinks
    offsets = state.offsets
    return {
        group: (sorted(offsets.offsets(group)), offsets._pending.get(group))
        for group in offsets.group_ids()
    }


def _require_none_expired(data: bytes) -> None:
    """No id and no sink is forgotten within seven days."""
    for batch in iterate_batches(data):
        for record in decode(batch, decompressed_bytes_max=READ_BYTES):
            assert record.value is not None, f"{record.key!r} has expired"


def _amount(value: str) -> int:
    """What a value of a transfer moves; 0 for any other value."""
    _, colon, amount = value.partition(":")
    return int(amount) if colon else 0


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
        data = DataWorld(nodes)
        checker = TransactionChecker(world)
        history = History(data, cast, checker)
        with checker.watching():
            await history.play()
        return history

    often = partial(StorageSettings, retention_interval_ms=RETENTION_MS)
    with (
        watching() if cast.watches_replicas else contextlib.nullcontext(),
        mock.patch.object(manager, "StorageSettings", often),
        mock.patch.object(service, "PARTITIONS", COORDINATORS),
        mock.patch.object(service, "TOPIC_CONFIGS", WHOLE_LOG),
        mock.patch.object(transaction_shard, "EXPIRATION_INTERVAL_MS", EXPIRATION_MS),
        mock.patch.object(transaction_shard, "SINK_RETENTION_MS", SINK_RETENTION_MS),
    ):
        return run(seed, main).report(seed)


def summary(reports: Sequence[Report]) -> str:
    """The results of many histories."""
    faults: Counter[str] = Counter()
    for report in reports:
        faults.update(dict(report.faults))
    return (
        f"{sum(report.committed for report in reports)} transactions committed, "
        f"{sum(report.aborted for report in reports)} aborted, "
        f"{sum(report.unknown for report in reports)} unknown, "
        f"{sum(report.markers for report in reports)} markers, "
        f"{sum(report.polled for report in reports)} records read, "
        f"{dict(sorted(faults.items()))}, "
        f"{sum(len(report.endings) for report in reports)} nodes ended by themselves, all ended "
        f"in {max((report.heal_s for report in reports), default=0):.1f} s at most, "
        f"{sum(report.steps for report in reports)} events"
    )


if __name__ == "__main__":
    sys.exit(runner.main(replay, summary, sys.argv[1:]))
