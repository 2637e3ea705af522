"""One random history of consumer groups on whole nodes, made of a seed.

Members of groups join, read, commit, give up partitions late, pause, die, leave, come back and
change their subscriptions; operators commit, reset and delete offsets, and create, enlarge and
delete topics. Meanwhile leaders are killed, cut off, paused and moved, machines lose power, disks
fill, clocks jump, the clock of one node is wrong by weeks, and a node joins. Run by
tests/simulation/runner.py: `scripts/simulate groups 486`, or `0:2000`.

Judged: by `log_checker` the ownership of partitions and all offsets; by `watch` the expiry of
members and each response's commit; by `ledger` that no member is fenced within its session, and
that no offset is ahead of the group's work; at last that all groups converge, that every record is
processed and committed, that no held heartbeat is left, and that the state of the last
coordinators equals the replay of their logs.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock
from uuid import UUID

from raftlog_client.groups import consumer as group_consumer

from raftlog.broker.authorize import ANONYMOUS
from raftlog.broker.groups import (
    Committer,
    GroupService,
    OffsetToCommit,
    ResetTarget,
    ShiftBy,
    ToEarliest,
    ToOffset,
)
from raftlog.coordinator.groups.consumer_group import ConsumerGroup
from raftlog.coordinator.groups.kind import TOPIC
from raftlog.coordinator.groups.settings import GroupSettings
from raftlog.coordinator.groups.shard import GroupShard
from raftlog.coordinator.shard import service
from raftlog.coordinator.shard.load import replay as replay_log
from raftlog.coordinator.shard.service import AnyShard
from raftlog.coordinator.shard.shard import Shard
from raftlog.node.assembly import NodeCore
from raftlog.record.batch import iterate_batches
from raftlog.record.codec import decode
from raftlog.record.errors import NOT_READY, LogError
from raftlog.replication.partition import Acks
from raftlog.rest.v1 import groups as v1_groups
from tests.simulation import runner
from tests.simulation.coordinator.committed_log import READ_BYTES, WHOLE_LOG, committed_log
from tests.simulation.coordinator.lead_faults import LeadFaults
from tests.simulation.data.clients import encode
from tests.simulation.faults import FaultRates, Nemesis, keep_wrong_clock
from tests.simulation.groups.ledger import NO_OFFSET, Ledger, Lookup, Place
from tests.simulation.groups.log_checker import LogChecker
from tests.simulation.groups.member import MemberCast, Slot
from tests.simulation.groups.transport import Deferred, Face, give_body, take_body
from tests.simulation.groups.watch import Watch
from tests.simulation.life import NodeDiedError
from tests.simulation.node_world import NodeWorld
from tests.simulation.world import World, run

FAULTS_S: Final = 8.0
WRITE_S_MEAN: Final = 0.08
CALM: Final = 0.25
"""Share of histories in which no node fails."""
MEMBER_S_MEANS: Final = (2.0, 4.0, 15.0)
OPERATOR_S_MEAN: Final = 1.0
LOOKUP_S_MEAN: Final = 0.4
FULL_S_MEAN: Final = 6.0
FULL_S_MAX: Final = 2.0
PATIENCE_S: Final = 3.0
PARTITIONS: Final = 2
"""Of `__consumer_offsets`."""
TOPIC_PARTITIONS_MAX: Final = 4
SWEEP_MS: Final = 2_000
CONVERGE_S_MAX: Final = 30.0
POLL_S: Final = 0.25
STEPS_MAX: Final = 1_000_000
TIME_S_MAX: Final = 300.0
SETTINGS: Final = GroupSettings(sweep_interval_ms=SWEEP_MS)
IDLE: Final = "idle"
"""A group without members whose offsets no operator deletes."""
IDLE_S_MEAN: Final = 1.0
SIMPLE: Final = "simple"
"""A group without members."""


@dataclass(frozen=True, slots=True)
class Cast:
    """The participants of a seed's history."""

    nodes: int
    voters: int
    late_node: bool
    """Whether the last node starts in the middle."""
    members: tuple[MemberCast, ...]
    faults: FaultRates
    is_calm: bool
    """No node fails: members and messages alone go wrong."""
    has_topic_changes: bool
    full_disks: bool
    late: float
    """Share of messages between clients and nodes that are delayed for long."""
    late_commits: bool
    """Whether only commits are: the members stay."""
    member_s_mean: float
    """Between two events of one member."""
    has_wrong_clock: bool
    """Whether a clock is wrong by weeks, beside a group that must not expire."""

    @classmethod
    def draw(cls, seed: int) -> Cast:
        """Every seed differs in more than its faults."""
        chance = random.Random(f"groups cast {seed}")
        nodes, voters = chance.choice(((3, 3), (3, 3), (4, 3)))
        members = []
        for group in ("g1", "g2")[: chance.choice((1, 1, 2))]:
            assignor = chance.choice((None, "range"))
            for number in range(chance.choice((2, 3, 3))):
                topics, pattern = chance.choice(SUBSCRIPTIONS)
                name = f"{group}-m{number}"
                members.append(
                    MemberCast(
                        name=name,
                        group=group,
                        topics=topics,
                        pattern=pattern,
                        instance_id=name if chance.random() < 0.35 else None,
                        assignor=assignor,
                        session_ms=chance.choice((1_000, 2_000, 3_000, 6_000)),
                        auto_commit_s=chance.choice((None, 0.3)),
                    )
                )
        is_calm = chance.random() < CALM
        return cls(
            nodes=nodes,
            voters=voters,
            late_node=nodes > voters and chance.random() < 0.5,
            members=tuple(members),
            faults=FaultRates() if is_calm else FaultRates.draw(chance),
            is_calm=is_calm,
            has_topic_changes=chance.random() < 0.6,
            full_disks=not is_calm and chance.random() < 0.3,
            late=chance.choice((0.0, 0.02, 0.2)),
            late_commits=chance.random() < 0.3,
            member_s_mean=chance.choice(MEMBER_S_MEANS),
            # The other half of the seeds has the histories of old.
            has_wrong_clock=seed % 2 == 0,
        )


SUBSCRIPTIONS: Final[Sequence[tuple[tuple[str, ...], str | None]]] = (
    (("t0",), None),
    (("t0", "t1"), None),
    (("t0", "t1"), None),
    ((), "t.*"),
)


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a history."""

    seed: int
    digest: str
    steps: int
    commits: int
    """In the logs."""
    acknowledged: int
    lookups: int
    loads: int
    expired: int
    stuck: int
    records: int
    """Records that were processed, by group."""
    heal_s: float
    """From the last fault until every coordinator serves."""
    converge_s: float
    """From then on until every group is stable."""
    events: tuple[tuple[str, int], ...]


@dataclass
class History:
    """One run."""

    world: World
    nodes: NodeWorld
    cast: Cast
    watch: Watch
    ledger: Ledger
    face: Face = field(init=False)
    faults: LeadFaults = field(init=False)
    slots: list[Slot] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    heal_s: float = 0.0
    converge_s: float = 0.0
    commits: int = 0
    _written: int = 0
    _ready_ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.face = Face(self.nodes, self.ledger, late=self.cast.late)
        if self.cast.late_commits:
            self.face.late_names = frozenset({"offsets"})
        self.faults = LeadFaults(self.world, self.nodes, TOPIC, PARTITIONS)
        numbers = [0]
        self.slots = [Slot(self.world, self.face, each, numbers) for each in self.cast.members]

    async def play(self) -> None:
        """All of the history. Raises AssertionError after a violation."""
        world, nodes, loop = self.world, self.nodes, self.world.loop
        first = [n for n in nodes.node_ids if not (self.cast.late_node and n == nodes.node_count)]
        world.network.latency_s = self.cast.faults.latency_s
        clocks = await self._wrong_clock(first)
        for node_id in first:
            nodes.start(node_id)
        await nodes.ready(*first)
        for name, partitions in (("t0", 3), ("t1", 2)):
            await nodes.create_topic(1, name, partitions=partitions)
        nemesis = Nemesis(world, first, nodes.start, self.cast.faults, focus=self.faults.leader)
        nemesis.start()
        if not self.cast.is_calm:
            self.faults.start()
        for slot in self.slots:
            slot.start()
        end_s = loop.now + FAULTS_S
        tasks = [loop.create_task(each) for each in self._actors()]
        while loop.now < end_s:
            await asyncio.sleep(POLL_S)
            for slot in self.slots:
                slot.revive()
            assert not self.ledger.violations, self.ledger.violations[:10]
        for task in (*tasks, *clocks):
            task.cancel()
        self.faults.stop()
        nemesis.heal_all()
        self.face.late = 0.0
        for node_id in nodes.node_ids:
            world.disk(node_id).capacity_bytes = None
        for slot in self.slots:
            slot.calm()
        supervisor = loop.create_task(self.faults.supervise())
        try:
            await self._finish()
        finally:
            supervisor.cancel()
            for slot in self.slots:
                if slot.process is not None:
                    slot.process.kill()

    def _actors(self) -> list[Coroutine[Any, Any, None]]:
        world = self.world
        actors = [
            slot.run(world.random(f"slot {slot.cast.name}"), self.cast.member_s_mean, SUBSCRIPTIONS)
            for slot in self.slots
        ]
        actors += [self._write_records(), self._operate(), self._look_up()]
        if self.cast.has_wrong_clock:
            actors.append(self._commit_idle())
        if self.cast.has_topic_changes:
            actors.append(self._change_topics())
        if self.cast.full_disks:
            actors.append(self._fill_disks())
        if self.cast.late_node:
            actors.append(self._join_late())
        return actors

    # Faults

    async def _wrong_clock(self, node_ids: Sequence[int]) -> list[asyncio.Task[None]]:
        """Begin with it before the nodes start."""
        if not self.cast.has_wrong_clock:
            return []
        task = self.world.loop.create_task(keep_wrong_clock(self.world, node_ids))
        await asyncio.sleep(0)
        return [task]

    async def _fill_disks(self) -> None:
        chance = self.world.random("full disks")
        while True:
            await asyncio.sleep(chance.expovariate(1 / FULL_S_MEAN))
            disk = self.world.disk(self.faults.leader() or chance.choice(self.nodes.node_ids))
            disk.capacity_bytes = disk.used_bytes() + chance.choice((0, 300, 3_000))
            await asyncio.sleep(chance.uniform(0.3, FULL_S_MAX))
            disk.capacity_bytes = None

    async def _join_late(self) -> None:
        await asyncio.sleep(self.world.random("join").uniform(0.0, FAULTS_S / 2))
        self.nodes.start(self.nodes.node_count)

    # Operators

    async def _ask(
        self, chance: random.Random, work: Callable[[NodeCore], Coroutine[Any, Any, Any]]
    ) -> Any:
        """An operator's request to any node; None if it failed, perhaps done all the same."""
        node_id = chance.choice(self.nodes.node_ids)
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self.nodes.call(node_id, lambda core: Deferred(work, core))  # type: ignore[arg-type,return-value]
        except (LogError, NodeDiedError, TimeoutError) as error:
            self.world.trace(f"operator: {error!r}"[:100])
            return None

    async def _write_records(self) -> None:
        chance = self.world.random("writer")
        while True:
            await asyncio.sleep(chance.expovariate(1 / WRITE_S_MEAN))
            topic = chance.choice(("t0", "t0", "t1", "t2"))
            await self._write(chance, topic, chance.randrange(TOPIC_PARTITIONS_MAX))

    async def _write(self, chance: random.Random, topic: str, number: int) -> bool:
        self._written += 1
        batches = encode([f"v{self._written}.{each}" for each in range(chance.randint(1, 3))])

        async def append(core: NodeCore) -> bool:
            found = core.services.partitions.find(topic, number)
            await found.append(batches, acks=Acks.ALL, timeout_s=PATIENCE_S / 2)
            return True

        return bool(await self._ask(chance, append))

    async def _change_topics(self) -> None:
        chance = self.world.random("topics")
        while True:
            await asyncio.sleep(chance.expovariate(1 / (2 * OPERATOR_S_MEAN)))
            kind = chance.choice(("create", "create", "enlarge", "delete"))
            topic = "t2" if kind != "enlarge" else chance.choice(("t0", "t1", "t2"))
            if kind == "delete":
                self.ledger.deleted.add(topic)

            async def change(core: NodeCore, kind: str = kind, topic: str = topic) -> bool:
                metadata = core.services.metadata
                if kind == "create":
                    await metadata.create_topic(topic, partitions=2)
                elif kind == "delete":
                    await metadata.delete_topic(topic)
                else:
                    count = len(metadata.image.topic(topic).partitions)
                    if count < TOPIC_PARTITIONS_MAX:
                        await metadata.add_partitions(topic, count + 1)
                return True

            self.events[kind] += bool(await self._ask(chance, change))

    async def _operate(self) -> None:
        chance = self.world.random("operator")
        while True:
            await asyncio.sleep(chance.expovariate(1 / OPERATOR_S_MEAN))
            group = chance.choice((SIMPLE, SIMPLE, *{each.group: 0 for each in self.cast.members}))
            kind = chance.choice(("commit", "commit", "commit", "reset", "forget", "delete"))
            work = getattr(self, f"_{kind}")(chance, group)
            self.events[kind] += bool(await self._ask(chance, work))

    async def _commit_idle(self) -> None:
        chance = self.world.random("idle")
        while True:
            await asyncio.sleep(chance.expovariate(1 / IDLE_S_MEAN))
            await self._ask(chance, self._commit(chance, IDLE))

    async def _look_up(self) -> None:
        """Look up committed offsets, often at nodes that lead or led."""
        chance, ledger = self.world.random("lookups"), self.ledger
        while True:
            await asyncio.sleep(chance.expovariate(1 / LOOKUP_S_MEAN))
            group = chance.choice((SIMPLE, *{each.group: 0 for each in self.cast.members}))
            sent = ledger.step()

            async def look_up(core: NodeCore, group: str = group) -> Any:
                return await self.face.groups(core).committed(
                    ANONYMOUS, group, {"t0": range(2), "t1": range(2)}, require_stable=False
                )

            found = await self._ask(chance, look_up)
            ended = ledger.step()
            ledger.lookups += [
                Lookup(group, one.topic, one.partition, one.offset, one.metadata, sent, ended)
                for one in found or ()
            ]

    def _commit(self, chance: random.Random, group: str) -> Callable[[NodeCore], Any]:
        """Commit without being a member: only while the group is empty."""
        topic, number = chance.choice(("t0", "t1")), chance.randrange(2)

        async def commit(core: NodeCore) -> bool:
            topic_id = core.services.metadata.image.topic(topic).topic_id
            progress = self.ledger.processed(Place(group, topic, topic_id, number))
            offset = chance.randint(0, progress.end + 3)
            progress.skip(offset)
            attempt = self.ledger.attempt(group, "", -1, {(topic, number): offset}, is_reset=True)
            wanted = OffsetToCommit(topic, number, offset, metadata=str(attempt.number))
            (outcome,) = await self.face.groups(core).commit(
                ANONYMOUS, group, [wanted], Committer()
            )
            if not outcome.error_code:
                attempt.ended = {(topic, number): self.ledger.step()}
            return not outcome.error_code

        return commit

    def _reset(self, chance: random.Random, group: str) -> Callable[[NodeCore], Any]:
        topic = chance.choice(("t0", "t1"))
        offset = chance.randint(0, 10)
        target: ResetTarget = chance.choice((ToEarliest(), ToOffset(offset), ShiftBy(-3)))

        async def reset(core: NodeCore) -> bool:
            image = core.services.metadata.image.topic(topic)
            if isinstance(target, ToOffset):
                for row in image.partitions:
                    place = Place(group, topic, image.topic_id, row.partition)
                    self.ledger.processed(place).skip(offset)
            await self.face.groups(core).reset(
                ANONYMOUS, group, {topic: None}, target, validate_only=chance.random() < 0.2
            )
            return True

        return reset

    def _forget(self, chance: random.Random, group: str) -> Callable[[NodeCore], Any]:
        topic = chance.choice(("t0", "t1", "t2"))

        self.ledger.forgotten.add((group, topic))

        async def forget(core: NodeCore) -> bool:
            await self.face.groups(core).delete_offsets(ANONYMOUS, group, {topic: None})
            return True

        return forget

    def _delete(self, _chance: random.Random, group: str) -> Callable[[NodeCore], Any]:
        self.ledger.forgotten.update((group, topic) for topic in ("t0", "t1", "t2"))

        async def delete(core: NodeCore) -> bool:
            await self.face.groups(core).delete(ANONYMOUS, group)
            return True

        return delete

    # The end

    async def _finish(self) -> None:
        nodes, loop, ledger = self.nodes, self.world.loop, self.ledger
        healed_s = loop.now
        await nodes.until(self.faults.serving, 60.0)
        self.heal_s = loop.now - healed_s
        begun_s = loop.now
        await self._eventually(self._converged)
        self.converge_s = loop.now - begun_s
        chance = self.world.random("last records")
        written: set[tuple[str, int]] = set()
        await self._eventually(lambda: self._write_last(chance, written))
        await self._eventually(self._all_committed)
        assert not ledger.violations, ledger.violations[:10]
        for slot in self.slots:
            assert slot.process is not None
            slot.process.leave()
        await nodes.until(
            lambda: all(slot.process is None or slot.process.has_left for slot in self.slots), 30.0
        )
        await self._eventually(self._none_held)
        await self._judge()

    async def _write_last(self, chance: random.Random, written: set[tuple[str, int]]) -> str:
        """Write to each partition not in `written` yet; a late request may still end a topic."""
        image = await self._image()
        for name, topic in sorted(image.topics_by_name.items()):
            for row in topic.partitions if name.startswith("t") else ():
                place = str(topic.topic_id), row.partition
                if place in written:
                    continue
                if not await self._write(chance, name, row.partition):
                    return f"{name}-{row.partition} takes no record"
                written.add(place)
        return ""

    async def _eventually(self, check: Callable[[], Coroutine[Any, Any, str]]) -> None:
        """Repeat until the check has no complaint. Raises AssertionError after a while."""
        deadline_s = self.world.loop.now + CONVERGE_S_MAX
        while complaint := await check():
            for slot in self.slots:
                slot.revive()
            assert not self.ledger.violations, self.ledger.violations[:10]
            assert self.world.loop.now < deadline_s, f"{complaint}\n{self.nodes.describe()}"
            await asyncio.sleep(POLL_S)

    async def _image(self) -> Any:
        controller = await self.nodes.until(self.nodes.controller)
        return self.nodes.image(controller)

    async def _call(self, work: Callable[[GroupService], Coroutine[Any, Any, Any]]) -> Any:
        ready = [node_id for node_id in self.nodes.node_ids if self.nodes.is_ready(node_id)]
        if not ready:
            raise LogError(NOT_READY)
        chance = self.world.random(f"last calls {self.ledger.step()}")
        async with asyncio.timeout(PATIENCE_S):
            return await self.face.call(chance.choice(ready), work)

    async def _converged(self) -> str:
        """Every group is stable, and each subscribed partition has one owner, who knows."""
        image = await self._image()
        for group in {slot.cast.group: 0 for slot in self.slots}:
            slots = [slot for slot in self.slots if slot.cast.group == group]
            try:
                view = await self._call(
                    lambda groups, group=group: groups.describe(ANONYMOUS, group)
                )  # type: ignore[misc]
            except (LogError, NodeDiedError, TimeoutError) as error:
                return repr(error)
            found = view.description
            alive = {slot.process.member_id: slot.process for slot in slots if slot.process}
            if found.state != "Stable" or {one.member_id for one in found.members} != set(alive):
                return f"{found}, alive: {sorted(alive)}"
            owners: Counter[tuple[str, int]] = Counter()
            wanted = set()
            for member in found.members:
                owned = {
                    (one.topic_id, number) for one in member.assignment for number in one.partitions
                }
                owners.update(owned)
                process = alive[member.member_id]
                if process.owned != owned:
                    return f"{member.member_id} reads {process.owned}, not {owned}"
                cast = process.cast
                wanted |= {
                    (topic.topic_id, row.partition)
                    for name, topic in image.topics_by_name.items()
                    if name in cast.topics or (cast.pattern and name.startswith("t"))
                    for row in topic.partitions
                }
            if owners != Counter(wanted):
                return f"{group} owns {owners}, not {wanted}"
        return ""

    async def _all_committed(self) -> str:
        """Every record of a subscribed topic is processed, and committed by its group."""
        image = await self._image()
        for group in {slot.cast.group: 0 for slot in self.slots}:
            try:
                view = await self._call(
                    lambda groups, group=group: groups.describe(ANONYMOUS, group)
                )  # type: ignore[misc]
            except (LogError, NodeDiedError, TimeoutError) as error:
                return repr(error)
            for committed, end, member_id in view.offsets:
                if member_id is None:
                    continue
                topic = image.topics_by_name.get(committed.topic)
                if topic is None or end is None:
                    return f"{committed}: {end}"
                place = Place(group, committed.topic, topic.topic_id, committed.partition)
                # An operator may have committed an offset that the log has not reached.
                if max(committed.offset, 0) < end or self.ledger.processed(place).end < end:
                    return f"{place}: {committed.offset}, {self.ledger.processed(place)} of {end}"
        return ""

    async def _none_held(self) -> str:
        """No heartbeat is held open, and no group has a member that does not come back."""
        for shard in self.faults.serving() or ():
            state: Any = shard.state
            if state._held or shard._held_count or shard._held:
                return f"{shard.partition.name} holds {state._held}, {shard._held}"
            for group_id, group in state.consumer_groups.items():
                static = {each.instance_id for each in group.members.values()}
                if None in static:
                    return f"{group_id} has {group.members}"
        return ""

    async def _judge(self) -> None:
        checker = LogChecker(self.ledger)
        shards = await self.nodes.until(self.faults.serving)
        for shard in shards:
            await self._judge_shard(shard, checker)
        checker.finish()
        self.commits = checker.commits
        assert not self.ledger.violations, self.ledger.violations[:10]

    async def _judge_shard(self, shard: AnyShard, checker: LogChecker) -> None:
        partition = shard.partition
        data = await committed_log(self.nodes, partition)
        state = GroupShard(SETTINGS)
        await replay_log(shard.kind, state, data)
        if content(state) != content(shard.state):
            self.ledger.complain(f"{partition.name}: the state differs from the replay of its log")
        for batch in iterate_batches(data):
            for record in decode(batch, decompressed_bytes_max=READ_BYTES):
                decoded = shard.kind.decode_record(record.key or b"", record.value)
                assert decoded is not None
                checker.replay(int(record.offset), decoded)


def content(state: GroupShard) -> object:
    """All that a replay makes."""
    table = state.offsets
    return (
        {
            group_id: {name: getattr(group, name) for name in ConsumerGroup.__slots__}
            for group_id, group in sorted(state.consumer_groups.items())
        },
        {group_id: sorted(table.offsets(group_id)) for group_id in sorted(table.group_ids())},
        len(table),
    )


def replay(seed: int) -> Report:
    """Run one seed's history. Raises AssertionError after a violation."""
    cast = Cast.draw(seed)

    async def main(world: World) -> History:
        ledger = Ledger(kept=frozenset({"t0"}))
        watch = Watch(ledger, world.loop, SETTINGS)
        nodes = NodeWorld(world, node_count=cast.nodes, voter_count=cast.voters)
        history = History(world, nodes, cast, watch, ledger)
        ids = world.random("member ids")
        uuids = SimpleNamespace(uuid4=lambda: UUID(int=ids.getrandbits(128)))
        with (
            mock.patch.object(service, "PARTITIONS", PARTITIONS),
            mock.patch.object(service, "TOPIC_CONFIGS", WHOLE_LOG),
            mock.patch.object(Shard, "_append", history.faults.flaky(Shard._append)),
            mock.patch.object(v1_groups, "read_json", take_body),
            mock.patch.object(v1_groups, "json_response", give_body),
            mock.patch.object(group_consumer, "uuid", uuids),
            watch.installed(),
        ):
            await history.play()
        return history

    history = run(seed, main, steps_max=STEPS_MAX, time_s_max=TIME_S_MAX)
    ledger = history.ledger
    events = history.events + sum((Counter(slot.counts) for slot in history.slots), Counter())
    return Report(
        seed,
        history.world.digest(),
        history.world.loop.steps,
        history.commits,
        sum(len(attempt.ended) for attempt in ledger.attempts),
        sum(lookup.offset != NO_OFFSET for lookup in ledger.lookups),
        history.watch.loads,
        history.watch.expired,
        history.watch.stuck,
        sum(progress.end for progress in ledger.progress.values()),
        history.heal_s,
        history.converge_s,
        tuple(sorted(events.items())),
    )


def summary(reports: Sequence[Report]) -> str:
    """The results of many histories."""
    events: Counter[str] = Counter()
    for report in reports:
        events.update(dict(report.events))
    return (
        f"{sum(each.commits for each in reports)} offsets, "
        f"{sum(each.acknowledged for each in reports)} acknowledged, "
        f"{sum(each.lookups for each in reports)} looked up, "
        f"{sum(each.records for each in reports)} records processed, "
        f"{sum(each.loads for each in reports)} loads, "
        f"{sum(each.expired for each in reports)} sessions expired, "
        f"{sum(each.stuck for each in reports)} members stuck, served again within "
        f"{max((each.heal_s for each in reports), default=0):.1f} s, stable within "
        f"{max((each.converge_s for each in reports), default=0):.1f} s, {dict(events)}, "
        f"{sum(each.steps for each in reports)} events"
    )


if __name__ == "__main__":
    sys.exit(runner.main(replay, summary, sys.argv[1:]))
