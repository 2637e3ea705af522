"""A member of a consumer group: the shipped client's group machine in a process of its own.

Membership, rebalances, commits, lookups and the record buffer are the client's code; the
application, the fetches and the network are the simulation's. The process can be paused and killed
like a node's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from raftlog_client.errors import RaftlogClientError, ServerError
from raftlog_client.fetch.assignment import Assignment
from raftlog_client.fetch.record_buffer import RecordBuffer, RecordDecoder
from raftlog_client.fetch.subscription import OffsetReset, Subscription
from raftlog_client.groups.consumer import ConsumerGroup, GroupSettings
from raftlog_client.metadata import Backoff, ClusterMetadata
from raftlog_client.types import RebalanceListener

from raftlog.record.errors import UNRELEASED_INSTANCE_ID
from tests.simulation.groups.ledger import Place
from tests.simulation.groups.reader import Reader
from tests.simulation.groups.transport import ClientTransport, Face
from tests.simulation.life import Life
from tests.simulation.world import World

BATCH_BYTES_MAX: Final = 1 << 20
RECORDS_MAX: Final = 5
WAIT_S: Final = 1.0
"""Longest wait of a read call."""
WORK_S: Final = 0.02
LONG_WORK: Final = 0.02
"""Share of the reads with records that take long to process: a late revocation."""
LONG_WORK_S_MAX: Final = 4.0
MANUAL: Final = 0.5
"""Share of the reads after which a member without automatic commits commits."""
ERROR_PAUSE_S: Final = 0.2
FIRST_CLIENT: Final = 1_000
"""Ids of clients' processes begin there: below are nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberCast:
    """The manner of one member, the same in all of its processes."""

    name: str
    group: str
    topics: tuple[str, ...]
    pattern: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    session_ms: int = 2_000
    poll_interval_ms: int = 3_000
    auto_commit_s: float | None = 0.4


class MemberProcess(Life):
    """One process of a member, from `start` to `kill`, or to its own end."""

    def __init__(self, world: World, face: Face, cast: MemberCast, number: int) -> None:
        super().__init__(FIRST_CLIENT + number, 1)
        self.world = world
        self.cast = cast
        self.face = face
        self.chance = world.random(f"member {cast.name} {number}")
        self.is_calm = False
        """Whether to work without delays from now on."""
        self.must_leave = False
        self.has_left = False
        self.has_failed = False
        self.transport = ClientTransport(face, self, self.chance)
        self._subscription: tuple[tuple[str, ...], str | None] | None = None
        """To be subscribed to."""
        self._data = asyncio.Event()
        addresses = [str(node_id) for node_id in face.nodes.node_ids]
        metadata = ClusterMetadata(self.transport, addresses, Backoff(20, 300))  # type: ignore[arg-type]
        self._reader = Reader(face.nodes, self.chance, self._data.set)
        self._buffer = self._reader.buffer = RecordBuffer(
            RecordDecoder(
                key_deserializer=None,
                value_deserializer=None,
                decompressed_bytes_max=BATCH_BYTES_MAX,
            ),
            on_taken=self._reader.want,
        )
        self._assignment = Assignment(metadata, self._buffer, self._reader)  # type: ignore[arg-type]
        self.consumer = ConsumerGroup(
            GroupSettings(
                cast.group,
                cast.instance_id,
                cast.name,
                cast.assignor,
                cast.session_ms,
                cast.poll_interval_ms,
                cast.auto_commit_s,
                OffsetReset.EARLIEST,
            ),
            metadata,
            self._assignment,
            self._reader,  # type: ignore[arg-type]
            self._buffer,
            wake=self._data.set,
        )

    @property
    def member_id(self) -> str:
        """The id by which the group knows the member."""
        return self.consumer._member.member_id

    @property
    def owned(self) -> set[tuple[str, int]]:
        """The partitions that the member reads, by topic id."""
        return {(one.topic_id, one.partition) for one in self.consumer._member.readable}

    def start(self) -> None:
        """Begin: join, read, commit."""
        self.context.copy().run(self.world.loop.create_task, self._main())

    def subscribe(self, topics: tuple[str, ...], pattern: str | None) -> None:
        """Have the subscription changed."""
        self.cast = replace(self.cast, topics=topics, pattern=pattern)
        self._subscription = topics, pattern
        self._data.set()

    def leave(self) -> None:
        """Have the member leave in order."""
        self.must_leave = True
        self._data.set()

    async def _main(self) -> None:
        self.consumer.start()
        self._subscription = self.cast.topics, self.cast.pattern
        while not self.must_leave:
            try:
                await self._turn()
            except RaftlogClientError as error:
                self.world.trace(f"{self.cast.name}: {error!r}"[:120])
                if isinstance(error, ServerError) and error.entry is UNRELEASED_INSTANCE_ID:
                    # The process before seems to live on: the application ends.
                    self.has_failed = True
                    return
                await asyncio.sleep(ERROR_PAUSE_S)
        try:
            await self.consumer.close(is_clean=True)
        except RaftlogClientError as error:
            self.world.trace(f"{self.cast.name}: {error!r}"[:120])
        self._assignment.replace((), OffsetReset.EARLIEST)
        self.has_left = True
        self.world.trace(f"{self.cast.name} has left")

    async def _turn(self) -> None:
        """One read call, and the processing of its records."""
        if self._subscription is not None:
            (names, pattern), self._subscription = self._subscription, None
            try:
                await self.consumer.subscribe(Subscription(names, pattern), RebalanceListener())
            except RaftlogClientError:
                self._subscription = self._subscription or (names, pattern)
                raise
        self._data.clear()
        self._buffer.begin_call()
        await self.consumer.begin_read()
        taken = self._buffer.take_many(RECORDS_MAX, ())
        if not taken:
            await self._wait()
            return
        states = self._assignment.states
        places = {
            source: Place(
                self.cast.group, source.topic, str(states[source].topic_id), source.partition
            )
            for source in taken
        }
        await asyncio.sleep(self._work_s())
        for source, records in taken.items():
            progress = self.face.ledger.processed(places[source])
            for record in records:
                progress.add(int(record.offset))
        if self.cast.auto_commit_s is None and (self.is_calm or self.chance.random() < MANUAL):
            await self.consumer.commit(None)

    def _work_s(self) -> float:
        is_long = not self.is_calm and self.chance.random() < LONG_WORK
        return self.chance.uniform(0.0, LONG_WORK_S_MAX) if is_long else WORK_S

    async def _wait(self) -> None:
        self.consumer.is_waiting(waits=True)
        try:
            async with asyncio.timeout(WAIT_S):
                await self._data.wait()
        except TimeoutError:
            pass
        finally:
            self.consumer.is_waiting(waits=False)


@dataclass
class Slot:
    """The place of one member in its group: a process, or none at the moment."""

    world: World
    face: Face
    cast: MemberCast
    numbers: list[int]
    """The processes of all clients so far: one element, shared."""
    process: MemberProcess | None = None
    counts: dict[str, int] = field(default_factory=dict)

    def start(self) -> None:
        """Start a process."""
        assert self.process is None or not self.process.alive
        self.numbers[0] += 1
        self.process = MemberProcess(self.world, self.face, self.cast, self.numbers[0])
        self.world.trace(f"{self.cast.name} starts as {self.process}")
        self.process.start()

    async def run(
        self,
        chance: random.Random,
        mean_s: float,
        choices: Sequence[tuple[tuple[str, ...], str | None]],
    ) -> None:
        """Let things happen to the member, until cancelled."""
        while True:
            await asyncio.sleep(chance.expovariate(1 / mean_s))
            process = self.process
            assert process is not None
            kind = chance.choice(("pause", "pause", "kill", "leave", "subscribe", "unreachable"))
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self.world.trace(f"{self.cast.name}: {kind}")
            session_s = self.cast.session_ms / 1000
            if kind == "pause":
                process.paused = True
                await asyncio.sleep(chance.choice((0.3, 1.5, 2.5)) * session_s)
                self.world.loop.resume(process)
            elif kind == "kill":
                process.kill()
                await asyncio.sleep(chance.choice((0.0, 0.5, 1.5)) * session_s)
                self.start()
            elif kind == "leave":
                process.leave()
                await asyncio.sleep(chance.choice((0.2, 0.5, 1.5)) * session_s)
                process.kill()
                self.start()
            elif kind == "subscribe":
                topics, pattern = chance.choice(choices)
                process.subscribe(topics, pattern)
                self.cast = process.cast
            else:
                ids = self.face.nodes.node_ids
                process.transport.unreachable = set(chance.sample(ids, chance.randint(1, len(ids))))
                await asyncio.sleep(chance.choice((0.3, 1.5)) * session_s)
                process.transport.unreachable = set()

    def revive(self) -> None:
        """Start the application again if it has given up."""
        process = self.process
        if process is not None and process.alive and process.has_failed:
            process.kill()
            self.start()
            if process.is_calm:
                self.calm()

    def calm(self) -> None:
        """No more faults: the member lives, is reachable, and works fast."""
        process = self.process
        if process is not None and process.paused:
            self.world.loop.resume(process)
        if process is None or not process.alive or process.must_leave or process.has_failed:
            if process is not None:
                process.kill()
            self.start()
        assert self.process is not None
        self.process.is_calm = True
        self.process.transport.unreachable = set()
