"""A cluster with replicated topics, its clients, and both oracles: after every event, and at last.

A test::

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])          # a partition led by node 1
        await data.write(Part("t", 0), 5)
        data.nodes.kill(1)
        ...
        await data.judge()                           # heals, waits, reads everything, judges

    simulate_data(test)
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from raftlog.metadata.commands import ChangePartitions, Command, CreateTopic
from raftlog.metadata.configs.topic import min_isr_default
from raftlog.metadata.decisions.reassignment import plan_reassignment
from raftlog.metadata.image import NO_LEADER_ID, PartitionImage, TopicImage
from raftlog.record.errors import LogError
from raftlog.record.types import BrokerId, TopicId
from raftlog.replication.cluster_metadata import propose
from raftlog.replication.partition import Partition
from raftlog.replication.repair import BATCH_RETRIES
from tests.simulation.data import final_checks
from tests.simulation.data.clients import PAUSE_S, TIME_MS, Part, Producer, ask
from tests.simulation.data.invariants import ReplicaChecker, watching
from tests.simulation.life import NodeDiedError
from tests.simulation.node_world import NodeWorld
from tests.simulation.world import World, run
from tests.verification.log_history import Loss, Operation, Send

RESUME_S_MAX: Final = 10.0
"""From the healing until every partition takes writes (FAULTS.md)."""
SETTLE_S_MAX: Final = 30.0
"""From then on until every replica is in sync, and equal."""
LED_S: Final = 10.0
SCRUBS_MAX: Final = 5
SUPERVISION_S: Final = 0.1
SMALL_SEGMENTS: Final = {"segment.bytes": "1024", "index.interval.bytes": "128"}


class Test(Protocol):
    """A scenario."""

    def __call__(self, data: DataWorld, /) -> Coroutine[Any, Any, None]: ...


@dataclass
class DataWorld:
    """Topics, clients and oracles of one cluster."""

    nodes: NodeWorld
    history: list[Operation] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    """All parts checked to the end."""
    gone: list[Part] = field(default_factory=list)
    """Parts of deleted topics."""
    complaints: list[str] = field(default_factory=list)
    """Wrong answers to clients."""
    compacted: set[str] = field(default_factory=set)
    """Topics with keyed records."""
    lateness_s: float | None = None
    """Most by which a record is older than its send; None: no record has a time of its own."""
    has_tombstones: bool = False
    """Some records of compacted topics have no value."""
    has_losses: bool = False
    """Partitions may lose records, as they say: unclean elections are allowed."""
    zombies: set[asyncio.Task[None]] = field(default_factory=set)
    """Producers of epochs that are over, still about to write."""
    out_of_range: int = 0
    resume_s: float = 0.0
    settle_s: float = 0.0
    replicas: ReplicaChecker = field(init=False)
    _steps: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    topic_ids: random.Random = field(init=False)
    _begun_s: float = field(init=False)
    _prober: Producer = field(init=False)

    def __post_init__(self) -> None:
        self.replicas = ReplicaChecker(self.nodes)
        self.replicas.on_loss = self._lost
        self._begun_s = self.world.loop.now
        self.topic_ids = self.world.random("topic ids")
        self._prober = Producer(self, "probe", idempotent=False, repeats=True, stale=0.0)

    @property
    def world(self) -> World:
        """The simulated world."""
        return self.nodes.world

    def step(self) -> int:
        """The history's clock."""
        return next(self._steps)

    def time_ms(self) -> int:
        """True time, whatever the nodes' wall clocks say: they begin right."""
        return TIME_MS + int(1000 * (self.world.loop.now - self._begun_s))

    def note_start(self, part: Part, start: int) -> None:
        """A client was told that the partition begins there: records may have become too old."""
        final_checks.note_expired(self, part, start)

    def complain(self, what: str) -> None:
        """Record a wrong answer to a client."""
        self.world.trace("complaint", what)
        self.complaints.append(what)

    @property
    def has_async(self) -> bool:
        """Whether some topic has flush=async."""
        assert self.replicas.newest is not None
        topics = self.replicas.newest.topics_by_id.values()
        return any(topic.configs.get("flush") == "async" for topic in topics)

    # Metadata

    async def propose(self, command: Command, node_id: int | None = None) -> Any:
        """Put a command through the quorum. Raises LogError."""
        asked = await self.nodes.until(self.nodes.controller) if node_id is None else node_id
        return await self.nodes.call(asked, lambda core: propose(core.quorum, command))

    async def create(
        self,
        name: str,
        assignments: Sequence[Sequence[int]],
        configs: Mapping[str, str] | None = None,
        *,
        small_segments: bool = True,
    ) -> TopicImage:
        """Create a topic with these replicas, and wait until its leaders take writes."""
        command = CreateTopic(
            topic_id=TopicId(self.topic_ids.randbytes(16).hex()),
            name=name,
            configs={**(SMALL_SEGMENTS if small_segments else {}), **(configs or {})},
            assignments=tuple(tuple(map(BrokerId, replicas)) for replicas in assignments),
        )
        await self.propose(command)
        self.parts += [Part(name, number) for number in range(len(assignments))]
        for number in range(len(assignments)):
            await self.nodes.until(lambda n=number: self.is_written(Part(name, n)))  # type: ignore[misc]
        return self.topic(name)

    async def reassign(self, part: Part, replicas: Sequence[int]) -> None:
        """Have a partition held by others. Raises LogError."""
        controller = await self.nodes.until(self.nodes.controller)
        command: ChangePartitions = plan_reassignment(
            self.nodes.image(controller),
            name=part.topic,
            partition=part.number,
            replicas=tuple(map(BrokerId, replicas)),
        )
        await self.propose(command, controller)

    def topic(self, name: str) -> TopicImage:
        """By the newest metadata."""
        assert self.replicas.newest is not None
        return self.replicas.newest.topic(name)

    def row(self, part: Part) -> PartitionImage:
        """By the newest metadata."""
        return self.topic(part.topic).partition(part.number)

    def key(self, part: Part) -> tuple[str, int]:
        """The part's key in the invariants."""
        return self.topic(part.topic).topic_id, part.number

    def min_insync_replicas(self, part: Part) -> int:
        """The topic's min.insync.replicas, or the default for its number of replicas."""
        topic = self.topic(part.topic)
        asked = topic.configs.get("min.insync.replicas")
        return min_isr_default(topic.replication_factor) if asked is None else int(asked)

    def leader(self, part: Part) -> int | None:
        """By the newest metadata."""
        leader = self.row(part).leader
        return None if leader == NO_LEADER_ID else int(leader)

    def leader_by(self, node_id: int, part: Part) -> int | None:
        """By that node's metadata, however old."""
        core = self.nodes.cores.get(node_id)
        if core is None:
            return None
        try:
            leader = core.services.metadata.image.partition(part.topic, part.number).leader
        except LogError:
            return None
        return None if leader == NO_LEADER_ID else int(leader)

    def has_newest_epoch(self, node_id: int, part: Part) -> bool:
        """Whether that node knows the newest leader epoch of the partition."""
        core = self.nodes.cores.get(node_id)
        if core is None:
            return False
        try:
            row = core.services.metadata.image.partition(part.topic, part.number)
        except LogError:
            return False
        return row.leader_epoch == self.row(part).leader_epoch

    def replica(self, node_id: int, part: Part) -> Partition | None:
        """The node's replica of a partition, if the node is up and has one."""
        core = self.nodes.cores.get(node_id)
        if core is None:
            return None
        topic = core.services.metadata.image.topics_by_name.get(part.topic)
        if topic is None or part.number >= len(topic.partitions):
            # By metadata from before its creation.
            return None
        row = topic.partitions[part.number]
        return core.services.replicas.replica(topic.topic_id, row.partition)

    def replicas_agree(self, parts: Iterable[Part]) -> bool:
        """Whether all replicas are there, equal, and know of no open transaction."""
        for part in parts:
            ends = set()
            for member in map(int, self.row(part).replicas):
                replica = self.replica(member, part)
                if replica is None:
                    return False
                ends |= {
                    replica.last_stable_offset,
                    replica.high_watermark,
                    replica.log_end_offset,
                }
            if len(ends) != 1:
                return False
        return True

    def is_written(self, part: Part) -> bool:
        """Whether its leader, by the newest metadata, would take a write."""
        leader = self.leader(part)
        return leader is not None and self.nodes.takes_writes(leader, part.topic, part.number)

    def is_in_sync(self, part: Part) -> bool:
        """Whether all replicas are in sync, including those of a reassignment."""
        row = self.row(part)
        return not row.adding and not row.removing and set(row.isr) == set(row.replicas)

    async def led(self, part: Part, *candidates: int, seconds: float = LED_S) -> int:
        """Wait until one of these nodes, or any node, takes writes as the leader; return its id."""
        wanted = candidates or tuple(self.nodes.node_ids)

        def leader() -> int | None:
            found = self.leader(part)
            return found if found in wanted and self.is_written(part) else None

        return await self.nodes.until(leader, seconds)

    async def isr(self, part: Part, *members: int) -> None:
        """Wait until the in-sync set is these."""
        await self.nodes.until(lambda: set(self.row(part).isr) == set(members))

    async def beside_controller(self) -> tuple[int, int, int, int]:
        """Create topic `t`, whose replicas are apart from the active controller, with records.

        Returns the controller, the leader and its two followers once all are in sync.
        """
        controller = await self.nodes.until(self.nodes.controller)
        leader, one, two, *_ = self.nodes.others(controller)
        await self.create("t", [[leader, one, two]])
        await self.write(self.parts[0], 3)
        await self.in_sync()
        return controller, leader, one, two

    async def in_sync(self, *parts: Part) -> None:
        """Wait until all replicas are in sync, and know the same to be committed."""
        await self.nodes.until(lambda: all(map(self._is_part_settled, parts or self.parts)))

    # Writers

    def producer(self, name: str, **arguments: Any) -> Producer:
        """A writer of the history."""
        return Producer(self, name, **arguments)

    async def write(self, part: Part, count: int = 1, within_s: float = RESUME_S_MAX) -> Send:
        """Write a batch with acks=all through the leader; fail unless acknowledged."""
        send = await self._prober.send(part, count, within_s=within_s)
        assert send is not None and send.outcome == "ok", (
            f"{part} took no write within {within_s} s: {send}\n{self.describe()}"
        )
        return send

    # Nodes

    def cut_power(self, *node_ids: int) -> None:
        """Cut the power of these, at once."""
        for node_id in node_ids:
            self.nodes.kill(node_id, power=True)

    def rot(self, node_id: int, part: Part, *, segment: int = 0, at: float = 0.5) -> str:
        """Flip a bit in a segment of a replica, counted from the oldest; return the file's path."""
        path = self.paths(node_id, part)[segment]
        size = len(self.world.disk(node_id).contents(path))
        self.flip(node_id, part, path, int(8 * size * at))
        return path

    def flip(self, node_id: int, part: Part, path: str, bit: int) -> None:
        """Flip this bit in a segment of a replica."""
        disk = self.world.disk(node_id)
        self.world.trace(f"rot {path} on {node_id}")
        disk.flip_bit(path, bit)
        self.replicas.damaged(node_id, self.key(part))
        self.replicas.replicas[node_id, self.key(part)].flips.append((disk._inode(path), bit))

    def lose(self, part: Part, from_offset: int) -> None:
        """The partition has reported a possible loss from that offset on."""
        self.history.append(Loss(partition=str(part), step=self.step(), offset=from_offset))
        self.replicas.forgive(self.key(part), from_offset)

    def _lost(self, key: tuple[str, int], from_offset: int) -> None:
        for part in (*self.parts, *self.gone):
            if self.replicas.newest is not None and (
                part.topic_id == key[0] if part.topic_id is not None else self.key(part) == key
            ):
                self.lose(part, from_offset)
                return
        self.replicas.forgive(key, from_offset)

    def paths(self, node_id: int, part: Part) -> list[str]:
        """The segment files of a replica, oldest first."""
        topic_id, number = self.key(part)
        place = f"/{topic_id}/{number}/"
        return [
            path
            for path in self.world.disk(node_id).paths()
            if path.startswith("replicas") and place in f"/{path}" and path.endswith(".log")
        ]

    # The end

    async def judge(self) -> None:
        """Heal, wait until all is well again, read everything, and judge. Raises AssertionError."""
        await self.settle()
        await final_checks.judge(self)

    async def settle(self) -> None:
        """Heal, and wait until all is well again. Raises AssertionError."""
        self.heal()
        with self.supervised():
            begun = self.world.loop.now
            await asyncio.gather(*(self.write(part) for part in self.parts))
            self.resume_s = self.world.loop.now - begun
            await self._settle()
            self.settle_s = self.world.loop.now - begun
        self.replicas.check_all()
        await self.nodes.agreed()

    async def _settle(self) -> None:
        """Wait until all replicas are in sync, equal, and readable from end to end.

        Reading finds the remaining damage, which is repaired.
        """
        for _ in range(SCRUBS_MAX):
            await self.nodes.until(self._is_settled, SETTLE_S_MAX)
            if all([await self._is_readable(part) for part in self.parts]):
                return
            # The read has reported the damage. A repair that met faults again and again waits
            # so long before its next attempt.
            await asyncio.sleep(BATCH_RETRIES.max_s)
        raise AssertionError(f"some replica is damaged, and not repaired:\n{self.describe()}")

    async def _is_readable(self, part: Part) -> bool:
        readable = True
        for member in map(int, self.row(part).replicas):
            try:
                await final_checks.read_replica(self, member, part)
            except LogError as error:
                self.world.trace(f"{part} cannot be read on {member}: {error}")
                readable = False
        return readable

    def heal(self) -> None:
        """Heal all connections and processes; for a nemesis see `Nemesis.heal_all`."""
        self.world.network.heal()
        for node_id in self.nodes.node_ids:
            if node_id in self.world.processes:
                self.world.resume(node_id)

    @contextmanager
    def supervised(self) -> Iterator[None]:
        """Restart every node that has ended, or is just stopping."""
        supervisor = self.world.loop.create_task(self._supervise())
        try:
            yield
        finally:
            supervisor.cancel()

    async def _supervise(self) -> None:
        while True:
            for node_id in self.nodes.node_ids:
                if not self.world.is_up(node_id):
                    self.nodes.start(node_id)
            await asyncio.sleep(SUPERVISION_S)

    def _is_settled(self) -> bool:
        return all(self._is_part_settled(part) for part in self.parts)

    def _is_part_settled(self, part: Part) -> bool:
        if not self.is_in_sync(part):
            return False
        replicas = [self.replica(int(member), part) for member in self.row(part).replicas]
        if any(each is None or each.is_closed for each in replicas):
            return False
        ends = {
            end
            for each in replicas
            if each is not None
            for end in (each.high_watermark, each.log_end_offset)
        }
        return len(ends) == 1

    def describe(self) -> str:
        """All nodes and all replicas, a line each."""
        lines = [self.nodes.describe()]
        for part in self.parts:
            lines.append(f"{part}: {self.row(part)}")
            for member in map(int, self.row(part).replicas):
                replica = self.replica(member, part)
                if replica is not None:
                    role = "leader" if replica.is_leader else "follower"
                    lines.append(
                        f"  n{member}: {role} epoch={replica.image.leader_epoch} "
                        f"start={replica.log_start_offset} hw={replica.high_watermark} "
                        f"durable={replica.durable_end} end={replica.log_end_offset} "
                        f"closed={replica.is_closed}"
                    )
        return "\n".join(lines)


def simulate_data(
    test: Test, seed: int = 0, *, may_end: bool = False, **arguments: Any
) -> DataWorld:
    """Run a scenario in a cluster with all nodes serving, and judge the history at the end.

    No node ends by itself, unless it `may_end`. `arguments` are those of NodeWorld.
    """

    async def main(world: World) -> DataWorld:
        data = DataWorld(NodeWorld(world, **arguments))
        data.nodes.start_all()
        await data.nodes.ready()
        await test(data)
        await data.judge()
        if not may_end:
            data.nodes.check_endings()
        return data

    with watching():
        return run(seed, main)


__all__ = ["PAUSE_S", "DataWorld", "NodeDiedError", "Part", "ask", "simulate_data"]
