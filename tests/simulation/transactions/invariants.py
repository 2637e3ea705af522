"""Rules between the partitions of transactions and the coordinators' log, after every commit.

Numbers are those of raftlog/coordinator/DESIGN.md, "What must never happen". Judged when a replica
moves its high watermark, and while its log is truncated:

- 4. The log of a partition has no batch of a producer epoch behind a marker of a newer one, and no
  marker of a coordinator behind one of a newer coordinator.
- 4. A transaction opens in a partition only after its coordinator has added the partition to the
  transaction: so its decision has a marker for it.
- 3, 6. A marker has its decision, committed before, with the same end. A decision never changes.
- 5. The last stable offset of a replica passes no transaction that is open, or whose marker the
  replica does not know to be committed; it never goes back while the high watermark does not.
- 6. A response leaves when all records that it depends on are committed.

`History` judges the rest at its end: no transaction hangs, and the state of the coordinators is the
replay of their logs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock
from weakref import WeakKeyDictionary

from raftlog.coordinator.shard.record_codec import decode_transaction_record
from raftlog.coordinator.shard.records import TransactionLogKey, TransactionLogValue
from raftlog.coordinator.shard.shard import Shard
from raftlog.coordinator.transactions.kind import TOPIC
from raftlog.coordinator.transactions.messages import TopicPartition
from raftlog.coordinator.transactions.transaction import DECIDED, OPEN, State, Transaction
from raftlog.record.batch import RecordBatch
from raftlog.record.codec import decode
from raftlog.record.control import parse_marker
from raftlog.record.errors import LogError
from raftlog.replication.replica import Replica
from raftlog.storage.log.core import LogCore
from raftlog.storage.log.operations import LogOperations
from tests.simulation.life import Life, current_life
from tests.simulation.node_checker import InvariantError
from tests.simulation.transactions.committed_log import CommittedLog, Span
from tests.simulation.world import World

BATCH_BYTES_MAX: Final = 1 << 20


@dataclass
class Decision:
    """A decided transaction."""

    is_commit: bool
    partitions: frozenset[TopicPartition]


@dataclass
class TransactionChecker:
    """Watches the replicas and the coordinators of a world. Raises InvariantError."""

    world: World
    topics: set[str] = field(default_factory=lambda: {TOPIC})
    """The topics with transactions, and the coordinators' own."""
    logs: dict[str, CommittedLog] = field(default_factory=dict)
    """By partition."""
    joined: dict[tuple[int, int], frozenset[TopicPartition]] = field(default_factory=dict)
    """Producer id and epoch to the partitions of its transaction."""
    decisions: dict[tuple[int, int], Decision] = field(default_factory=dict)
    """By producer id and epoch of the markers."""
    markers: int = 0
    _marks: WeakKeyDictionary[Replica, tuple[int, int]] = field(default_factory=WeakKeyDictionary)
    """High watermark and last stable offset of each replica, as seen last."""
    _cut: list[tuple[Life | None, LogCore]] = field(default_factory=list)
    """Logs in a truncation, with their processes: some of these may be dead."""
    _violations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._after = self.world.loop.after_event
        self.world.loop.after_event = self._after_event

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch within the block."""
        move, execute, query = Replica.move_high_watermark, Shard.execute, Shard.query

        def moved(replica: Replica, end: Any) -> None:
            move(replica, end)
            life = current_life()
            if life is not None and replica.topic in self.topics:
                self._look(replica, life.node_id)

        async def executed(shard: Any, decide: Callable[[Any], Any], **named: Any) -> Any:
            needed: int | None = None

            def decided(state: Any) -> Any:
                nonlocal needed
                try:
                    decision = decide(state)
                except LogError:
                    # A refusal, too, depends on the state that it has seen.
                    needed = shard._next
                    raise
                needed = shard._next + len(decision.records)
                return decision

            try:
                response = await execute(shard, decided, **named)
            except LogError:
                if needed is not None and shard.ended is None:
                    self._check_response(shard, needed)
                raise
            assert needed is not None
            self._check_response(shard, needed)
            return response

        async def queried(shard: Any, read: Callable[[Any], Any]) -> Any:
            needed = shard._next
            response = await query(shard, read)
            self._check_response(shard, needed)
            return response

        truncate = LogOperations.truncate_to

        async def truncated(operations: LogOperations, *arguments: Any, **named: Any) -> Any:
            cut = (current_life(), operations._core)
            self._cut.append(cut)
            try:
                return await truncate(operations, *arguments, **named)
            finally:
                self._cut.remove(cut)

        with (
            mock.patch.object(LogOperations, "truncate_to", truncated),
            mock.patch.object(Replica, "move_high_watermark", moved),
            mock.patch.object(Shard, "execute", executed),
            mock.patch.object(Shard, "query", queried),
        ):
            yield

    def _after_event(self, life: Life) -> None:
        if self._after is not None:
            self._after(life)
        for cut_in, log in self._cut:
            if cut_in is life:
                self._check_cut(log)
        if self._violations:
            # Raised here: a node's own code must not handle it.
            raise InvariantError(self._violations[0])

    def _fail(self, what: str) -> None:
        self.world.trace("invariant violated", what)
        self._violations.append(what)

    def log(self, name: str) -> CommittedLog:
        """The committed log of a partition."""
        if name not in self.logs:
            self.logs[name] = CommittedLog(name)
        return self.logs[name]

    # Responses

    def _check_response(self, shard: Any, needed: int) -> None:
        if shard.partition.high_watermark < needed:
            self._fail(
                f"{shard.partition.name} answers with {shard.partition.high_watermark} committed, "
                f"and the response depends on all below {needed}"
            )

    # Batches

    def _look(self, replica: Replica, node_id: int) -> None:
        log = self.log(replica.name)
        high_watermark = int(replica.high_watermark)
        disk = self.world.disk(node_id)
        for batch in log.new_batches(replica.log, disk, high_watermark):
            if replica.topic == TOPIC:
                self._take_decisions(batch)
            elif batch.header.is_transactional:
                self._take(log, TopicPartition(replica.topic, int(replica.partition)), batch)
        self._check_stable(log, replica, high_watermark)

    def _take_decisions(self, batch: RecordBatch) -> None:
        for record in decode(batch, decompressed_bytes_max=BATCH_BYTES_MAX):
            decoded = decode_transaction_record(record.key or b"", record.value)
            key, value = decoded.key, decoded.value  # type: ignore[union-attr]
            if isinstance(key, TransactionLogKey) and isinstance(value, TransactionLogValue):
                self._take_state(Transaction.of(value))

    def _take_state(self, present: Transaction) -> None:
        producer = (int(present.producer.producer_id), int(present.producer.producer_epoch))
        if present.state in OPEN:
            self.joined[producer] = present.partitions
        if present.state not in DECIDED:
            return
        decision = Decision(present.state is State.PREPARE_COMMIT, present.partitions)
        known = self.decisions.setdefault(producer, decision)
        if known != decision:
            self._fail(f"producer {producer}: {known} is followed by {decision}")

    def _take(self, log: CommittedLog, place: TopicPartition, batch: RecordBatch) -> None:
        header = batch.header
        producer_id, epoch = int(header.producer_id), int(header.producer_epoch)
        offset = int(header.base_offset)
        what = f"{log.name}: producer {producer_id}, epoch {epoch}, at {offset}"
        newest = log.epochs.get(producer_id, -1)
        if epoch < newest:
            self._fail(f"{what} is behind epoch {newest}")
        log.epochs[producer_id] = max(newest, epoch)
        marker = parse_marker(header, batch.data)
        if marker is None:
            self._take_records(log, place, (producer_id, epoch), offset, what)
            return
        self.markers += 1
        before = log.coordinator_epochs.get(producer_id, -1)
        if marker.coordinator_epoch < before:
            self._fail(
                f"{what}: a marker of coordinator epoch {marker.coordinator_epoch} is behind one "
                f"of {before}"
            )
        log.coordinator_epochs[producer_id] = marker.coordinator_epoch
        decision = self.decisions.get((producer_id, epoch))
        if decision is None or decision.is_commit is not marker.commit:
            self._fail(f"{what}: {marker} without such a decision: {decision}")
        opened = log.open.pop(producer_id, None)
        if opened is not None:
            log.spans.append(Span(opened[1], offset))

    def _take_records(
        self,
        log: CommittedLog,
        place: TopicPartition,
        producer: tuple[int, int],
        offset: int,
        what: str,
    ) -> None:
        producer_id, epoch = producer
        opened = log.open.get(producer_id)
        if opened is not None and opened[0] != epoch:
            self._fail(f"{what} joins the transaction of epoch {opened[0]}")
        if opened is None:
            if place not in self.joined.get(producer, frozenset()):
                self._fail(
                    f"{what} opens a transaction that its coordinator has not extended to there: "
                    f"{sorted(self.joined.get(producer, ()))}"
                )
            log.open[producer_id] = (epoch, offset)

    def _check_cut(self, log: LogCore) -> None:
        """A log is being truncated, and its producers are read again: readers may come any time."""
        for replica in self._marks:
            if replica.log is log:
                self._check_stable(self.log(replica.name), replica, int(replica.high_watermark))

    def _check_stable(self, log: CommittedLog, replica: Replica, high_watermark: int) -> None:
        stable = int(replica.last_stable_offset)
        is_compacted = replica.log.config.compacts
        unstable = log.first_unstable(high_watermark, is_compacted=is_compacted)
        if unstable is not None and stable > max(unstable, int(replica.log_start_offset)):
            self._fail(
                f"{log.name}: the last stable offset {stable} is behind a transaction at {unstable}"
            )
        if stable > high_watermark:
            self._fail(f"{log.name}: last stable offset {stable}, of {high_watermark} committed")
        before = self._marks.get(replica)
        if before is not None and high_watermark >= before[0] and stable < before[1]:
            self._fail(f"{log.name}: the last stable offset falls from {before[1]} to {stable}")
        self._marks[replica] = (high_watermark, stable)
