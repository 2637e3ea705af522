"""Producers of transactions: incarnations of one transactional id, and what is left of old ones.

An incarnation initializes its producer, writes transactions one after the other, and ends each like
the Python client: a failed write allows an abort only, and a commit without an answer is repeated
for some time. An incarnation may leave a transaction open, prepare a transaction, or go on beside
the next incarnation, which fences the older one. *Echoes* repeat requests of ended transactions.

`Record` collects the answers about one transaction, of all producers that ask for its end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from raftlog.broker.authorize import ANONYMOUS
from raftlog.broker.produce import ProduceOptions, StoredRecord, content_bytes
from raftlog.broker.service import Broker
from raftlog.broker.transactions import Initialized
from raftlog.coordinator.shard.decision import Producer
from raftlog.record.errors import (
    CONCURRENT_TRANSACTIONS,
    DUPLICATE_SEQUENCE,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    PRODUCER_FENCED,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
    LogError,
)
from raftlog.record.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, PartitionId
from raftlog.replication.partition import Acks
from tests.simulation.data.clients import APPEND_S, TIME_MS, Part
from tests.simulation.life import NodeDiedError
from tests.verification.log_history import Outcome, Send
from tests.verification.transaction_history import Processed, Transaction

if TYPE_CHECKING:
    from tests.simulation.transactions.histories import History

PAUSE_S: Final = 0.05
"""Between two attempts, at most twice as long."""
WRITE_S: Final = 3.0
"""For one batch; afterwards its transaction is aborted."""
END_S: Final = 4.0
"""For an end or an initialization; afterwards the incarnation is over."""
ECHO_S: Final = (0.0, 3.0)
"""From an end until an echo."""
FENCING: Final = frozenset({PRODUCER_FENCED, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING})
NO_PRODUCER: Final = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)

Value: TypeAlias = tuple[str, str]
"""A value and its key; "" for none."""
T = TypeVar("T")


class OverError(Exception):
    """The incarnation is over."""


class FencedError(OverError):
    """A newer incarnation, a timeout or an operator has fenced it."""


@dataclass
class Record:
    """One transaction, by the answers to all of its producers."""

    name: str
    ending: int | None = None
    """Step of the first request to commit it."""
    completed: int | None = None
    doubts: int = 0
    """Requests to commit it without a known outcome."""
    is_committed: bool = False
    is_aborted: bool = False
    processed: tuple[Processed, ...] = ()

    def operation(self) -> Transaction:
        """For the history."""
        outcome: Any = "unknown"
        if self.is_committed:
            outcome = "committed"
        elif self.is_aborted or not self.doubts:
            outcome = "aborted"
        return Transaction(
            name=self.name,
            ending=self.ending,
            completed=self.completed,
            outcome=outcome,
            processed=self.processed,
        )


@dataclass(frozen=True, slots=True)
class Manner:
    """Habits of an incarnation: shares of its transactions."""

    aborts: float = 0.15
    prepares: float = 0.15
    abandons: float = 0.08
    """The incarnation ends, and leaves the transaction open."""
    leaves: float = 0.4
    """Of the prepared ones: the incarnation ends, and leaves the transaction prepared."""
    echoes: float = 0.3
    keeps: float = 0.5
    """Of the initializations: with `keep_prepared`."""
    pauses: float = 0.3
    """Of the batches: late."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A batch of a transaction."""

    part: Part
    records: tuple[StoredRecord, ...]
    sequence: int


@dataclass
class Incarnation:
    """One producer, from its initialization to its end."""

    history: History
    transactional_id: str
    number: int
    timeout_ms: int
    chance: random.Random
    manner: Manner = field(default_factory=Manner)
    producer: Producer = NO_PRODUCER
    _sequences: dict[Part, int] = field(default_factory=dict)
    _written: list[_Written] = field(default_factory=list)
    _count: int = 0
    _echoes: int = 0

    @property
    def name(self) -> str:
        """Unique in the history."""
        return f"{self.transactional_id}.{self.number}"

    async def run(self, until_s: float, pause_s: float) -> None:
        """Write transactions until `until_s`, or until the incarnation is over."""
        try:
            await self._init()
            while self.history.world.loop.now < until_s:
                await asyncio.sleep(self.chance.expovariate(1 / pause_s))
                if not await self._transaction():
                    return
        except OverError as error:
            self.history.world.trace(f"{self.name} is over: {error}")

    # Transactions

    async def _init(self) -> None:
        keeps = self.chance.random() < self.manner.keeps
        begun: Initialized = await self._insist(
            lambda broker: broker.transactions.init(
                ANONYMOUS,
                self.transactional_id,
                timeout_ms=self.timeout_ms,
                known=NO_PRODUCER,
                keep_prepared=keeps,
            )
        )
        self.producer = begun.producer
        if begun.prepared is not None:
            record = self.history.records[begun.prepared]
            await self._end(record, is_commit=self.chance.random() < 0.7)

    async def _transaction(self) -> bool:
        """Write one transaction; return False at the end of the incarnation."""
        self._count += 1
        record = self.history.begin(f"{self.name}.{self._count}", self.producer)
        self._written.clear()
        manner, kind = self.manner, self.chance.random()
        is_whole = await self._write_all(record)
        if kind < manner.abandons:
            self._echo_later(record, self.producer, is_commit=False)
            return False
        if not is_whole or kind < manner.abandons + manner.aborts:
            await self._end(record, is_commit=False)
            return True
        if kind > 1 - manner.prepares:
            await self._insist(
                lambda broker: broker.transactions.prepare(
                    ANONYMOUS, self.transactional_id, self.producer
                )
            )
            if self.chance.random() < manner.leaves:
                return False
        await self._end(record, is_commit=True)
        return True

    async def _write_all(self, record: Record) -> bool:
        """Write the batches of a transaction; False after a failed one."""
        return await self._write_batches(record, self.history.batches(record.name, self.chance))

    async def _write_batches(
        self, record: Record, batches: Iterable[tuple[Part, Sequence[Value]]]
    ) -> bool:
        """Write batches of different partitions at the same time; whether all were written."""
        for part, values in batches:
            sequence = self._sequences.get(part, 0)
            self._written.append(_Written(part, tuple(map(_stored, values)), sequence))
            self._sequences[part] = sequence + len(values)
        outcomes = await asyncio.gather(*(self._write_later(record, one) for one in self._written))
        return all(outcome == "ok" for outcome in outcomes)

    async def _write_later(self, record: Record, written: _Written) -> Outcome:
        if self.chance.random() < self.manner.pauses:
            await asyncio.sleep(self.chance.expovariate(1 / PAUSE_S))
        return await self._write(record, written, self.name, WRITE_S)

    async def _write(
        self, record: Record, written: _Written, session: str, within_s: float
    ) -> Outcome:
        """Write one batch, with repetitions, into the history."""
        producer, invoked = self.producer, self.history.data.step()
        deadline = self.history.world.loop.now + within_s
        outcome: Outcome = "unknown"
        offset: int | None = None
        tries, is_unknown = 0, False
        try:
            while True:
                tries += 1
                try:
                    offset = await self._produce(written, producer)
                    outcome = "ok"
                    break
                except (NodeDiedError, TimeoutError):
                    is_unknown = True
                except LogError as error:
                    if error.entry is DUPLICATE_SEQUENCE:
                        outcome = "ok"
                        break
                    is_unknown = is_unknown or error.entry.outcome_unknown
                    is_new = error.entry in {UNKNOWN_TOPIC, UNKNOWN_PARTITION}
                    may_pass = error.entry.retriable or error.entry.outcome_unknown or is_new
                    if not may_pass:
                        outcome = "unknown" if is_unknown else "refused"
                        break
                if self.history.world.loop.now >= deadline:
                    outcome = "unknown" if is_unknown else "refused"
                    break
                await asyncio.sleep(self.chance.uniform(0.0, 2 * PAUSE_S))
        finally:
            # Also of a producer that is killed.
            keys = tuple(key.decode() for _, key, _, _ in written.records if key is not None)
            self.history.data.history.append(
                Send(
                    partition=str(written.part),
                    producer=session,
                    values=tuple((value or b"").decode() for _, _, value, _ in written.records),
                    keys=keys,
                    invoked=invoked,
                    completed=self.history.data.step(),
                    outcome=outcome,
                    offset=offset,
                    repeated=tries > 1,
                    identity=(producer.producer_id, producer.producer_epoch),
                    transaction=record.name,
                )
            )
        return outcome

    async def _produce(self, written: _Written, producer: Producer) -> int:
        """Write through any node; returns the first offset. Raises LogError."""
        options = ProduceOptions(
            Acks.ALL, APPEND_S, *producer, written.sequence, self.transactional_id
        )

        async def produce(broker: Broker) -> int:
            topic = await broker.produce.topic(ANONYMOUS, written.part.topic)
            (one,) = await broker.produce.write(
                topic,
                written.records,
                None,
                options,
                size_bytes=sum(map(content_bytes, written.records)),
                partition=PartitionId(written.part.number),
            )
            if isinstance(one.outcome, LogError):
                raise LogError(one.outcome.entry, one.outcome.message)
            return one.outcome[0]

        offset: int = await self.history.ask(self.chance, produce)
        return offset

    async def _end(self, record: Record, *, is_commit: bool) -> None:
        """Commit or abort until the outcome is known. Raises OverError."""
        ended = self.producer
        self._sequences.clear()
        if self.chance.random() < self.manner.echoes:
            self._echo_later(record, ended, is_commit=is_commit)
        try:
            self.producer = await self._insist_on_end(record, ended, is_commit=is_commit)
        except FencedError:
            if not is_commit:
                raise
            # Fenced for good, or aborted after its timeout: an abort tells.
            self.producer = await self._insist_on_end(record, ended, is_commit=False)

    async def _insist_on_end(
        self, record: Record, producer: Producer, *, is_commit: bool
    ) -> Producer:
        deadline = self.history.world.loop.now + END_S
        while True:
            try:
                return await self._request_end(record, producer, is_commit=is_commit)
            except (NodeDiedError, TimeoutError):
                pass
            except LogError as error:
                _require_passing(error)
            if self.history.world.loop.now >= deadline:
                raise OverError("an end without an answer")
            await asyncio.sleep(self.chance.uniform(0.0, 2 * PAUSE_S))

    async def _request_end(
        self, record: Record, producer: Producer, *, is_commit: bool
    ) -> Producer:
        """Request an end once, and note the outcome."""
        if is_commit:
            # The outcome is unknown until an answer, also of a killed producer.
            record.doubts += 1
            if record.ending is None:
                record.ending = self.history.data.step()
        try:
            following: Producer = await self.history.ask(
                self.chance,
                lambda broker: broker.transactions.end(
                    ANONYMOUS, self.transactional_id, producer, is_commit=is_commit
                ),
            )
        except LogError as error:
            is_known = not error.entry.outcome_unknown
            if is_commit and is_known and error.entry is not CONCURRENT_TRANSACTIONS:
                record.doubts -= 1
            raise
        self.history.ended(record, is_commit=is_commit)
        return following

    async def _insist(self, work: Callable[[Broker], Awaitable[T]]) -> T:
        """Repeat a request until success. Raises OverError."""
        deadline = self.history.world.loop.now + END_S
        while True:
            try:
                answer: T = await self.history.ask(self.chance, work)
            except (NodeDiedError, TimeoutError):
                pass
            except LogError as error:
                _require_passing(error)
            else:
                return answer
            if self.history.world.loop.now >= deadline:
                raise OverError("no answer")
            await asyncio.sleep(self.chance.uniform(0.0, 2 * PAUSE_S))

    # Echoes

    def _echo_later(self, record: Record, producer: Producer, *, is_commit: bool) -> None:
        """Send a request of a transaction again, around its end or later."""
        self._echoes += 1
        echo = replace(
            self,
            chance=self.history.world.random(f"echo {self.name} {self._echoes}"),
            producer=producer,
            _written=list(self._written),
        )
        session = f"{self.name}.e{self._echoes}"
        self.history.spawn(echo.echo(record, session, is_commit=is_commit))

    async def echo(self, record: Record, session: str, *, is_commit: bool) -> None:
        """Repeat a batch or the end, or add a batch to a transaction that was given up."""
        await asyncio.sleep(self.chance.uniform(*ECHO_S))
        kind = self.chance.choice(self._echo_kinds(is_commit=is_commit))
        try:
            await self._echo(kind, record, session, is_commit=is_commit)
        except (LogError, NodeDiedError, TimeoutError) as error:
            self.history.world.trace(f"echo {session} of {kind}: {error!r}")

    def _echo_kinds(self, *, is_commit: bool) -> list[str]:
        return ["batch", "end"] if is_commit else ["batch", "end", "more", "more"]

    async def _echo(self, kind: str, record: Record, session: str, *, is_commit: bool) -> None:
        if kind == "end":
            await self._request_end(record, self.producer, is_commit=is_commit)
        elif kind == "batch" and self._written:
            await self._produce(self.chance.choice(self._written), self.producer)
        elif kind == "more":
            part, sequence = self.history.any_part(self.chance), 0
            for written in self._written:
                if written.part == part:
                    sequence = written.sequence + len(written.records)
            more = _Written(
                part, (_stored(self.history.one(session, part, self.chance)),), sequence
            )
            await self._write(record, more, session, within_s=0.0)


def _stored(value: Value) -> StoredRecord:
    text, key = value
    return TIME_MS, key.encode() if key else None, text.encode(), None


def _require_passing(error: LogError) -> None:
    """Raise OverError or FencedError unless a repetition may help."""
    if error.entry in FENCING:
        raise FencedError(error.message) from None
    if not error.entry.retriable and not error.entry.outcome_unknown:
        raise OverError(error.message) from None
