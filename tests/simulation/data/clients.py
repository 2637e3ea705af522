"""Producers that behave like the real client, and write the history for the checker.

A producer has one batch per partition in flight. It repeats the batch, with the same sequence,
until an answer or its own timeout; then it continues under another name and producer id.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from raftlog.node.assembly import NodeCore
from raftlog.record.batch import RecordBatch, iterate_batches, split_batches
from raftlog.record.codec import BatchBuilder, decode
from raftlog.record.compression import Compression
from raftlog.record.errors import (
    DUPLICATE_SEQUENCE,
    NOT_READY,
    OUT_OF_ORDER_SEQUENCE,
    UNKNOWN_PARTITION,
    UNKNOWN_PRODUCER_ID,
    UNKNOWN_TOPIC,
    LogError,
)
from raftlog.record.isolation import readable_batches
from raftlog.record.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    AbortedTransaction,
    ProducerEpoch,
    ProducerId,
)
from raftlog.replication.partition import Acks
from tests.simulation.life import NodeDiedError
from tests.verification.log_history import TOMBSTONE, Outcome, Pairs, Send, is_tombstone

if TYPE_CHECKING:
    from tests.simulation.data.data_world import DataWorld

PATIENCE_S: Final = 2.0
"""With one request; then its outcome is unknown."""
APPEND_S: Final = 1.5
"""The timeout given to the node for a commit."""
DELIVERY_S: Final = 6.0
"""With one batch; then the producer gives up its sequence."""
PAUSE_S: Final = 0.05
READ_BYTES: Final = 2_000
BATCH_BYTES_MAX: Final = 1 << 16
TIME_MS: Final = 1_700_000_000_000
"""Base of record timestamps: the simulated clocks' start, so that retention deletes none."""


KEYS: Final = tuple(f"k{number}" for number in range(8))
"""Of the records of compacted topics: few, so that most records are superseded."""
TOMBSTONES: Final = 0.3
"""Share of the records of compacted topics without a value, where there are such ones."""
NAME: Final = "name"
"""Header of a record without a value."""
LATE_S: Final = 4.0
"""Most by which a record's timestamp is older than the time of its send."""
BUMPS: Final = 0.06
"""Share of the sends after which a producer begins its next epoch without need."""
ZOMBIE_S: Final = (0.05, 3.0)
"""From the next epoch until the zombie of the epoch before writes."""

_Told: TypeAlias = tuple[Outcome, int | None, int]
"""The outcome of a send: its offset, if known, and the number of attempts."""


@dataclass(frozen=True, slots=True)
class Part:
    """One partition of a topic."""

    topic: str
    number: int
    topic_id: str | None = None
    """The id of the current topic, where one is deleted and another created under the same name."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}{self.topic_id or ''}"

    def require(self, topic_id: str) -> None:
        """Raise LogError if the name belongs to another topic by now: nodes are called by name."""
        if self.topic_id is not None and self.topic_id != topic_id:
            raise LogError(UNKNOWN_TOPIC, f"{self.topic} is another topic here")


def encode(
    values: Sequence[str],
    identity: tuple[ProducerId, ProducerEpoch] | None = None,
    sequence: int = NO_SEQUENCE,
    *,
    keys: Sequence[str] = (),
    times: Sequence[int] = (),
) -> list[RecordBatch]:
    """One batch of these values."""
    producer_id, producer_epoch = identity or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    builder = BatchBuilder(
        Compression.NONE,
        BATCH_BYTES_MAX,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )
    for number, value in enumerate(values):
        key = keys[number].encode() if keys else None
        time_ms = times[number] if times else TIME_MS
        # A tombstone has no value: its name is in a header.
        named = (None, [(NAME, value.encode())]) if is_tombstone(value) else (value.encode(), [])
        assert builder.append(time_ms, key, *named)
    return split_batches(bytes(builder.build()), max_message_bytes=BATCH_BYTES_MAX)


def decode_all(
    data: bytes | memoryview, start: int, aborted: Sequence[AbortedTransaction] = ()
) -> Pairs:
    """Offsets and values of all records at or above `start`, without aborted ones."""
    if not data:
        return ()
    pairs: list[tuple[int, str]] = []
    for batch in readable_batches(iterate_batches(bytes(data)), aborted):
        if not batch.header.record_count:
            # Emptied by compaction.
            continue
        for record in decode(batch, decompressed_bytes_max=BATCH_BYTES_MAX):
            value = dict(record.headers)[NAME] if record.value is None else record.value
            assert value is not None
            if record.offset >= start:
                pairs.append((record.offset, value.decode()))
    return tuple(pairs)


async def ask(data: DataWorld, node_id: int, work: Callable[[NodeCore], Any]) -> Any:
    """Run an operation on a node. Raises LogError; after TimeoutError or NodeDiedError the outcome
    is unknown."""
    if data.nodes.cores.get(node_id) is None:
        raise LogError(NOT_READY, f"nobody listens at node {node_id}")

    async def serve(core: NodeCore) -> Any:
        # As the server does.
        if core.not_ready is not None:
            raise LogError(NOT_READY, core.not_ready)
        return await work(core)

    async with asyncio.timeout(PATIENCE_S):
        return await data.nodes.call(node_id, lambda core: _Request(serve, core))  # type: ignore[arg-type,return-value]


@dataclass
class _Request:
    """Creates the coroutine only when awaited: a node that dies first leaves none behind."""

    serve: Callable[[NodeCore], Coroutine[Any, Any, Any]]
    core: NodeCore

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.serve(self.core).__await__()

    def close(self) -> None:
        """There is nothing to close."""


@dataclass(frozen=True, slots=True)
class _Load:
    """What the values of one batch carry, beside themselves."""

    keys: tuple[str, ...]
    times: tuple[int, ...]
    identity: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class _Old:
    """What is left of a producer epoch that is over."""

    identity: Any
    part: Part
    sequence: int
    """The next one."""
    repeated: tuple[RecordBatch, ...] = ()
    """A batch of unknown outcome, to be sent again."""


@dataclass
class Producer:
    """Writes to any partition, one batch of a partition after the other."""

    data: DataWorld
    name: str
    acks: Acks = Acks.ALL
    idempotent: bool = True
    repeats: bool = True
    """Without sequences: repeats sends of unknown outcome, and so may duplicate records."""
    routed: float = 0.3
    """Share of sends to any node, which forwards them."""
    stale: float = 0.2
    """Share of refusals after which the producer stays with the known leader."""
    epochs: bool = False
    """Continues with the next epoch of its id, where it would begin with another id."""
    acknowledged: int = 0
    _identity: tuple[ProducerId, ProducerEpoch] | None = None
    _session: int = 0
    _zombies: int = 0
    _sequences: dict[Part, int] = field(default_factory=dict)
    _leaders: dict[Part, int] = field(default_factory=dict)
    _sent: int = 0
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = self.data.world.random(f"producer {self.name}")

    async def run(self, until_s: float, mean_s: float) -> None:
        """Write until `until`, with such pauses."""
        loop = self.data.world.loop
        while loop.now < until_s:
            await asyncio.sleep(self._chance.expovariate(1 / mean_s))
            parts = self.data.parts
            if parts:
                await self.send(self._chance.choice(parts), self._chance.randint(1, 3))

    async def send(
        self, part: Part, count: int = 1, *, within_s: float = DELIVERY_S, node: int | None = None
    ) -> Send | None:
        """Write one batch; return its outcome, or None if the send never began.

        With `node`, only that node is called, and does not forward.
        """
        if self.idempotent and self._identity is None and not await self._begin_session(node):
            return None
        values = []
        for _ in range(count):
            self._sent += 1
            values.append(f"{self.name}/{self._sent}{self._ending(part)}")
        sequence = self._sequences.get(part, 0) if self.idempotent else NO_SEQUENCE
        load = self._load(part, values)
        batches = encode(values, self._identity, sequence, keys=load.keys, times=load.times)
        invoked, deadline = self.data.step(), self.data.world.loop.now + within_s
        told: _Told = ("unknown", None, 1)
        try:
            told = await self._deliver(part, batches, deadline, node)
        finally:
            # Also records sends interrupted by the end of the history.
            send = self._note(part, values, load, invoked, told)
        if send.outcome == "ok" and self.acks is Acks.ALL:
            self.acknowledged += 1
            if self.epochs and self._chance.random() < BUMPS:
                self._end_session(_Old(self._identity, part, sequence + count))
        elif self.epochs and send.outcome == "unknown":
            # A network may deliver the batch once more, after the next epoch has begun.
            self._start_zombie(_Old(load.identity, part, sequence, tuple(batches)))
        return send

    def _ending(self, part: Part) -> str:
        has_some = self.data.has_tombstones and part.topic in self.data.compacted
        return TOMBSTONE if has_some and self._chance.random() < TOMBSTONES else ""

    def _load(self, part: Part, values: list[str]) -> _Load:
        keys: tuple[str, ...] = ()
        times: tuple[int, ...] = ()
        if part.topic in self.data.compacted:
            keys = tuple(self._chance.choice(KEYS) for _ in values)
        if self.data.lateness_s is not None:
            now_ms, late_s = self.data.time_ms(), self.data.lateness_s
            times = tuple(now_ms - int(1000 * self._chance.uniform(0, late_s)) for _ in values)
        return _Load(keys, times, self._identity if self.epochs else None)

    def _note(self, part: Part, values: list[str], load: _Load, invoked: int, told: _Told) -> Send:
        outcome, offset, tries = told
        if outcome != "ok" and self.idempotent:
            # The next sequence may follow only a batch known to be written.
            name = self._end_session()
        else:
            name = self._session_name
            self._sequences[part] = self._sequences.get(part, 0) + len(values)
        send = Send(
            keys=load.keys,
            times=load.times,
            identity=load.identity,
            partition=str(part),
            producer=name,
            values=tuple(values),
            invoked=invoked,
            completed=self.data.step(),
            outcome=outcome,
            offset=offset,
            acks=int(self.acks),
            idempotent=self.idempotent,
            repeated=tries > 1,
        )
        self.data.history.append(send)
        return send

    @property
    def _session_name(self) -> str:
        return f"{self.name}.{self._session}"

    def _end_session(self, old: _Old | None = None) -> str:
        """Continue under another name, with the next epoch or another producer id."""
        name = self._session_name
        if self.epochs and self._identity is not None:
            producer_id, epoch = self._identity
            self._identity = producer_id, ProducerEpoch(epoch + 1)
            if old is not None:
                self._start_zombie(old)
        else:
            self._identity = None
        self._session += 1
        self._sequences.clear()
        return name

    def _start_zombie(self, old: _Old) -> None:
        """Something of the epoch before is still alive, and writes later on."""
        self._zombies += 1
        task = self.data.world.loop.create_task(self._haunt(f"{self.name}.z{self._zombies}", old))
        self.data.zombies.add(task)
        task.add_done_callback(self.data.zombies.discard)

    async def _haunt(self, name: str, old: _Old) -> None:
        """One batch of the epoch before, sent to any node: the repetition of one that is known in
        the history already, or another one."""
        await asyncio.sleep(self._chance.uniform(*ZOMBIE_S))
        values = [] if old.repeated else [f"{name}/1"]
        load = replace(self._load(old.part, values), identity=old.identity)
        batches = old.repeated or encode(
            values, old.identity, old.sequence, keys=load.keys, times=load.times
        )
        invoked, outcome, offset = self.data.step(), "unknown", None
        node_id = self._chance.choice(self.data.nodes.node_ids)
        try:
            offset = await self._append(old.part, list(batches), node_id, APPEND_S, routed=True)
            outcome = "ok"
        except (NodeDiedError, TimeoutError):
            pass
        except LogError as error:
            outcome = "unknown" if error.entry.outcome_unknown else "refused"
        finally:
            if values:
                self.data.history.append(
                    Send(
                        partition=str(old.part),
                        producer=name,
                        values=tuple(values),
                        invoked=invoked,
                        completed=self.data.step(),
                        outcome=outcome,  # type: ignore[arg-type]
                        offset=offset,
                        acks=int(self.acks),
                        keys=load.keys,
                        times=load.times,
                        identity=old.identity,
                    )
                )

    async def _begin_session(self, node: int | None) -> bool:
        asked = node or self._chance.choice(self.data.nodes.node_ids)
        try:
            self._identity = await ask(
                self.data, asked, lambda core: core.services.metadata.allocate_producer_id()
            )
        except (LogError, NodeDiedError, TimeoutError):
            await asyncio.sleep(PAUSE_S)
        return self._identity is not None

    async def _deliver(
        self, part: Part, batches: list[RecordBatch], deadline: float, node: int | None
    ) -> _Told:
        outcome_unknown_error, tries = False, 0
        may_repeat = self.idempotent or self.repeats
        while self.data.world.loop.now < deadline and (may_repeat or not outcome_unknown_error):
            target, routed = self._target(part, node)
            if target is None:
                await asyncio.sleep(PAUSE_S)
                continue
            tries += 1
            try:
                timeout_s = min(APPEND_S, max(deadline - self.data.world.loop.now, 0.05))
                offset = await self._append(part, batches, target, timeout_s, routed=routed)
            except (NodeDiedError, TimeoutError):
                outcome_unknown_error = True
            except LogError as error:
                if error.entry is DUPLICATE_SEQUENCE:
                    return "ok", None, tries
                if (
                    error.entry in {OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER_ID}
                    and self.acks is Acks.ALL
                    and not self.data.has_losses
                ):
                    # All earlier sends were acknowledged.
                    self.data.complain(f"{part}: {self._session_name} was forgotten: {error}")
                outcome_unknown_error = outcome_unknown_error or error.entry.outcome_unknown
                # A new topic or partition may not be known on every node yet.
                is_new = error.entry in {UNKNOWN_TOPIC, UNKNOWN_PARTITION}
                may_pass = error.entry.retriable or is_new
                if not may_pass and not error.entry.outcome_unknown:
                    break
            else:
                return "ok", offset, tries
            if self._chance.random() >= self.stale:
                self._leaders.pop(part, None)
            await asyncio.sleep(self._chance.uniform(0.0, 2 * PAUSE_S))
        return ("unknown" if outcome_unknown_error else "refused"), None, tries

    def _target(self, part: Part, node: int | None) -> tuple[int | None, bool]:
        """The node to call, and whether it may forward."""
        if node is not None:
            return node, False
        if self._chance.random() < self.routed:
            return self._chance.choice(self.data.nodes.node_ids), True
        leader = self._leaders.get(part)
        if leader is None:
            leader = self.data.leader_by(self._chance.choice(self.data.nodes.node_ids), part)
            if leader is not None:
                self._leaders[part] = leader
        return leader, False

    async def _append(
        self,
        part: Part,
        batches: list[RecordBatch],
        node_id: int,
        timeout_s: float,
        *,
        routed: bool,
    ) -> int:
        async def work(core: NodeCore) -> int:
            services = core.services
            found: Any = (
                services.partitions.find(part.topic, part.number)
                if routed
                else services.replicas.partition(part.topic, part.number)
            )
            part.require(found.topic_id)
            results = await found.append(batches, acks=self.acks, timeout_s=timeout_s)
            return int(results[0].base_offset)

        offset: int = await ask(self.data, node_id, work)
        return offset
