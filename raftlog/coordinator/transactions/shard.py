"""All transactional ids of one partition of `__transaction_state`. Pure.

The shell calls `decide` for a request and `expire` for a due timer, appends the decision's records
and passes each to `replay`. A load is `replay` of the whole log, then `loaded`. The timers and the
progress of the markers are soft state, and a load starts both again.

Markers may be written only once the decision is committed. The shell takes `pending_markers` after
the records replayed so far are committed, writes each marker under the leader epoch of this
partition as the coordinator epoch, and reports it through `markers_written`. A marker that is
written twice changes nothing.

**Sink epochs.** The transactional ids `sink/<sink id>/…` share a shard, and one request commits a
set of them (transactions/sink_epoch.py). A sink's transaction also ends by its timeout once it is
prepared, because it holds back readers, and an engine that was killed for good never requests its
end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Final, TypeAlias

from msgspec.structs import replace

from raftlog.coordinator.shard.decision import (
    UNDATED_MS,
    Aging,
    CoordinatorRecord,
    Counts,
    Decision,
    Event,
    Producer,
    Timers,
)
from raftlog.coordinator.shard.records import (
    NO_TIMESTAMP,
    SinkEpochKey,
    SinkEpochValue,
    TransactionLogKey,
    TransactionLogValue,
)
from raftlog.coordinator.transactions import sink_epoch
from raftlog.coordinator.transactions import transaction as transitions
from raftlog.coordinator.transactions.messages import (
    LISTED_MAX,
    NO_EPOCH,
    TRANSACTIONAL_ID_CHARACTERS_MAX,
    AbortTransaction,
    AddPartitions,
    CommitSinkEpoch,
    DescribeSink,
    DescribeTransaction,
    Done,
    Ended,
    EndTransaction,
    Failure,
    Initialized,
    InitProducer,
    ListTransactions,
    PendingMarkers,
    PrepareTransaction,
    Request,
    Response,
    SinkEpoch,
    TopicPartition,
    TransactionDescription,
    TransactionListing,
    TransactionSummary,
    Verification,
    Verified,
    VerifyOrAdd,
    sink_of,
)
from raftlog.coordinator.transactions.transaction import (
    COMPLETE,
    DECIDED,
    DECISION_BYTES_MAX,
    OPEN,
    State,
    Transaction,
    TransactionSettings,
)
from raftlog.record.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TRANSACTION_TIMEOUT,
    INVALID_TRANSACTIONAL_ID,
    OVERLOADED,
    QUOTA_EXCEEDED,
    UNKNOWN_TRANSACTION,
    LogError,
    quoted,
)
from raftlog.record.types import ProducerEpoch, ProducerId

IDS_MAX: Final = 200_000
"""Transactional ids of one shard, about 100 MB."""
SINKS_MAX: Final = 10_000
"""Sinks of one shard."""
EXPIRATIONS_MAX: Final = 500
"""Records of one decision about idle keys."""
EXPIRATION_INTERVAL_MS: Final = 60_000
SINK_ID_RETENTION_MS: Final = 60_000
"""Retention of a sink's complete transactional id. Each task attempt has its own id, which never
returns."""
SINK_RETENTION_MS: Final = 365 * 24 * 3_600_000
"""Retention of a sink's epoch, from its last commit. Without the epoch, a late retry would commit
again."""


class ShardTimer(Enum):
    """Timers of the whole shard."""

    EXPIRATION = "expiration"


class Watched(Enum):
    """Keys of changes that no single transactional id has."""

    DECISIONS = "decisions"


DECISIONS: Final = Watched.DECISIONS
"""A transaction was decided."""

TimerKey: TypeAlias = str | ShardTimer
"""The transactional id of an ongoing transaction, or a timer of the shard."""


@dataclass(frozen=True, slots=True)
class _Progress:
    """Progress of the markers of one decision."""

    decision: int
    unwritten: set[TopicPartition]
    rejected: set[TopicPartition] = field(default_factory=set)
    """Partitions whose leader has rejected the marker."""


class TransactionShard:
    """The state of one shard."""

    def __init__(
        self,
        settings: TransactionSettings,
        on_changed: Callable[[Hashable], None] = lambda _key: None,
        counts: Counts | None = None,
    ) -> None:
        """`on_changed` gets each transactional id that a replay changes, and DECISIONS.

        `counts` gets the decisions' events.
        """
        self._counts = Counter() if counts is None else counts
        self._defaults = self._settings = settings
        self._on_changed = on_changed
        self.timers: Timers[TimerKey] = Timers()
        self._transactions: dict[str, Transaction] = {}
        self._sinks: dict[str, SinkEpochValue] = {}
        self.decisions = 0
        """Count of decided transactions since the load began."""
        self._progress: dict[str, _Progress] = {}
        """Progress of each decided transaction."""
        self._unfinished: dict[str, None] = {}
        """Transactional ids with a transaction that is open, or without all of its markers."""
        self._open_of_sink: dict[str, dict[str, None]] = {}
        """Transactional ids with an open transaction, by sink."""
        # Keys without an open transaction, in the order of the log, with the time of their last
        # change.
        self._idle_ids: dict[str, int] = {}
        self._idle_sink_ids: dict[str, int] = {}
        self._idle_sinks: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._transactions)

    def follow_settings(self, cluster: Mapping[str, str]) -> None:
        """Take over the settings of the cluster, from now on."""
        self._settings = self._defaults.following(cluster)

    # Replay

    def replay(
        self, record: CoordinatorRecord, *, position: int, producer: Producer | None
    ) -> None:
        """Apply a record of the log. Raises TypeError for one of another topic."""
        key, value = record
        if isinstance(key, TransactionLogKey) and isinstance(value, TransactionLogValue | None):
            self._replay_transaction(key.transactional_id, value)
        elif isinstance(key, SinkEpochKey) and isinstance(value, SinkEpochValue | None):
            self._replay_sink(key.sink_id, value)
        else:
            raise TypeError(f"{key!r}: {value!r} is not a record of __transaction_state")

    def replay_marker(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        *,
        committed: bool,
        position: int,
    ) -> None:
        """No transaction has this partition. Raises TypeError."""
        raise TypeError(f"a marker of producer {producer_id} in __transaction_state")

    def _replay_transaction(self, transactional_id: str, value: TransactionLogValue | None) -> None:
        self._on_changed(transactional_id)
        self._progress.pop(transactional_id, None)
        self._unfinished.pop(transactional_id, None)
        self._idle_ids.pop(transactional_id, None)
        self._idle_sink_ids.pop(transactional_id, None)
        sink_id = sink_of(transactional_id)
        if value is None:
            self._transactions.pop(transactional_id, None)
            if sink_id is not None:
                self._close_of_sink(sink_id, transactional_id)
            return
        present = Transaction.of(value)
        self._transactions[transactional_id] = present
        if present.state in OPEN or present.state in DECIDED:
            self._unfinished[transactional_id] = None
        if present.state in DECIDED:
            self.decisions += 1
            self._progress[transactional_id] = _Progress(self.decisions, set(present.partitions))
            self._on_changed(DECISIONS)
        if sink_id is not None:
            if present.state in OPEN:
                self._open_of_sink.setdefault(sink_id, {})[transactional_id] = None
            else:
                self._close_of_sink(sink_id, transactional_id)
        if present.state in COMPLETE and sink_id is not None:
            self._idle_sink_ids[transactional_id] = present.last_update_ms
        elif present.state in COMPLETE or present.state is State.EMPTY:
            self._idle_ids[transactional_id] = present.last_update_ms

    def _close_of_sink(self, sink_id: str, transactional_id: str) -> None:
        open_ids = self._open_of_sink.get(sink_id, {})
        open_ids.pop(transactional_id, None)
        if not open_ids:
            self._open_of_sink.pop(sink_id, None)

    def _replay_sink(self, sink_id: str, value: SinkEpochValue | None) -> None:
        self._idle_sinks.pop(sink_id, None)
        if value is None:
            self._sinks.pop(sink_id, None)
            return
        self._sinks[sink_id] = value
        self._idle_sinks[sink_id] = value.commit_timestamp_ms

    def loaded(self, now_ms: int) -> None:
        """Start to serve after a load, with all timers at their full length.

        `pending_markers` has the decided transactions that an earlier coordinator left.
        """
        for transactional_id, present in self._transactions.items():
            if _has_timeout(transactional_id, present):
                self.timers.set(transactional_id, now_ms + present.timeout_ms)
        self.timers.set(ShardTimer.EXPIRATION, now_ms + EXPIRATION_INTERVAL_MS)

    def unfinished(self) -> list[Transaction]:
        """Transactions that are open, or without all of their markers."""
        return [self._transactions[transactional_id] for transactional_id in self._unfinished]

    # Markers

    def pending_markers(self, after: int = 0) -> list[PendingMarkers]:
        """The unconfirmed markers of the decisions with a number above `after`, oldest first."""
        pending = []
        for transactional_id, progress in reversed(self._progress.items()):
            if progress.decision <= after:
                # A new decision is added at the end.
                break
            present = self._transactions[transactional_id]
            pending.append(
                PendingMarkers(
                    transactional_id=transactional_id,
                    decision=progress.decision,
                    producer=present.producer,
                    is_commit=present.state is State.PREPARE_COMMIT,
                    version=present.version,
                    partitions=frozenset(progress.unwritten),
                )
            )
        pending.reverse()
        return pending

    def is_ending(self, transactional_id: str) -> bool:
        """Whether its transaction is decided, and some marker is not confirmed yet."""
        return transactional_id in self._progress

    def park(self, markers: PendingMarkers, partition: TopicPartition) -> None:
        """Note that the partition's leader rejects a marker of the decision."""
        progress = self._progress.get(markers.transactional_id)
        if progress is not None and progress.decision == markers.decision:
            progress.rejected.add(partition)

    def parked(self) -> int:
        """Number of decided transactions with a marker that is rejected."""
        return sum(bool(progress.rejected) for progress in self._progress.values())

    def markers_written(
        self, markers: PendingMarkers, partitions: Iterable[TopicPartition], wall_ms: int
    ) -> Decision[None]:
        """Confirm markers of a decision, and ignore those of an earlier decision.

        A partition that no longer exists counts as written. The last marker completes the
        transaction.
        """
        transactional_id = markers.transactional_id
        progress = self._progress.get(transactional_id)
        if progress is None or progress.decision != markers.decision:
            return Decision(None)
        progress.unwritten.difference_update(partitions)
        progress.rejected.intersection_update(progress.unwritten)
        if progress.unwritten:
            return Decision(None)
        after = transitions.complete(self._transactions[transactional_id], wall_ms)
        return Decision(None, (_record(transactional_id, after),))

    # Timers

    def expire(
        self, key: TimerKey, now_ms: int, wall_ms: int, expiry_ms: int | None = None
    ) -> Decision[None]:
        """Decide about a due timer. Stored times expire by `expiry_ms`, and by nothing else."""
        if isinstance(key, ShardTimer):
            aging = None if expiry_ms is None else Aging(expiry_ms, wall_ms)
            return self._expire_idle(now_ms, aging)
        present = self._transactions.get(key)
        if present is None or not _has_timeout(key, present):
            return Decision(None)
        self._counts[Event.TRANSACTION_TIMEOUT] += 1
        return Decision(None, (_record(key, transitions.expire(present, wall_ms)),))

    def _expire_idle(self, now_ms: int, aging: Aging | None) -> Decision[None]:
        records = () if aging is None else tuple(islice(self._aged(aging), EXPIRATIONS_MAX))
        is_full = len(records) == EXPIRATIONS_MAX
        self.timers.set(
            ShardTimer.EXPIRATION, now_ms if is_full else now_ms + EXPIRATION_INTERVAL_MS
        )
        return Decision(None, records)

    def _aged(self, aging: Aging) -> Iterator[CoordinatorRecord]:
        """Forget keys that were idle for their retention. A use ahead of the time counts as now."""
        time_ms = aging.time_ms
        for idle, retention_ms in (
            (self._idle_ids, self._settings.id_retention_ms),
            (self._idle_sink_ids, SINK_ID_RETENTION_MS),
        ):
            for name, is_over in _due(idle, retention_ms, aging):
                dated = replace(self._transactions[name], last_update_ms=time_ms).value()
                yield CoordinatorRecord(TransactionLogKey(name), None if is_over else dated)
        for name, is_over in _due(self._idle_sinks, SINK_RETENTION_MS, aging):
            epoch = replace(self._sinks[name], commit_timestamp_ms=time_ms)
            yield CoordinatorRecord(SinkEpochKey(name), None if is_over else epoch)

    def _schedule(self, transactional_id: str, after: Transaction, now_ms: int) -> None:
        """Set the timer that a transition requires."""
        if not _has_timeout(transactional_id, after):
            self.timers.cancel(transactional_id)
            return
        present = self._transactions.get(transactional_id)
        if present is None or present.state is not after.state:
            self.timers.set(transactional_id, now_ms + after.timeout_ms)

    # Requests

    def decide(
        self,
        request: Request,
        now_ms: int,
        wall_ms: int,
        next_producer_id: ProducerId | None = None,
    ) -> Decision[Response]:
        """Decide about a request.

        Raises LogError for a refusal, or ProducerIdRequiredError if the decision needs a new
        producer id and `next_producer_id` is None. Then allocate an id, and decide again. An unused
        id may serve the next request.
        """
        decision: Decision[Response]
        match request:
            case VerifyOrAdd():
                decision = self._verify_or_add(request.verifications, now_ms, wall_ms)
            case AddPartitions():
                decision = self._add_partitions(request, now_ms, wall_ms)
            case EndTransaction():
                decision = self._end(request, now_ms, wall_ms, next_producer_id)
            case InitProducer():
                decision = self._init(request, now_ms, wall_ms, next_producer_id)
            case PrepareTransaction():
                present = self._of_producer(request.transactional_id)
                after = transitions.prepare(present, request.producer, wall_ms)
                decision = self._changed(request.transactional_id, after, now_ms, Done())
            case AbortTransaction():
                present = self._known(request.transactional_id)
                after = transitions.abort(present, request.producer, wall_ms)
                decision = self._changed(request.transactional_id, after, now_ms, Done())
            case CommitSinkEpoch():
                decision = self._commit_sink_epoch(request, wall_ms)
            case DescribeSink():
                decision = Decision(self._sink_epoch(request.sink_id))
            case ListTransactions():
                decision = Decision(self._list(request, wall_ms))
            case DescribeTransaction():
                decision = Decision(self._describe(request.transactional_id, wall_ms))
        return decision

    def _init(
        self,
        request: InitProducer,
        now_ms: int,
        wall_ms: int,
        next_producer_id: ProducerId | None,
    ) -> Decision[Response]:
        transactional_id = request.transactional_id
        before = self._transactions.get(transactional_id)
        if not 0 < request.timeout_ms <= self._settings.timeout_ms_max:
            raise LogError(
                INVALID_TRANSACTION_TIMEOUT,
                f"A transaction timeout is 1 to {self._settings.timeout_ms_max:,} ms; requested: "
                f"{request.timeout_ms:,} ms.",
            )
        if before is None:
            self._check_new_id(transactional_id)
        after, is_ready = transitions.init(
            before,
            request.timeout_ms,
            request.known,
            keep_prepared=request.keep_prepared,
            next_producer_id=next_producer_id,
            wall_ms=wall_ms,
        )
        response: Response
        if is_ready:
            is_prepared = after.state is State.PREPARED
            response = Initialized(after.client, after.producer if is_prepared else None)
        else:
            response = Failure(
                CONCURRENT_TRANSACTIONS.code,
                "The transaction of an earlier producer is being aborted. Try again.",
            )
        return self._changed(transactional_id, after, now_ms, response)

    def _check_new_id(self, transactional_id: str) -> None:
        if not 1 <= len(transactional_id) <= TRANSACTIONAL_ID_CHARACTERS_MAX:
            raise LogError(
                INVALID_TRANSACTIONAL_ID,
                f"A transactional id has 1 to {TRANSACTIONAL_ID_CHARACTERS_MAX} characters.",
            )
        if len(self._transactions) >= IDS_MAX:
            raise LogError(
                QUOTA_EXCEEDED,
                f"This coordinator has {IDS_MAX:,} transactional ids, its bound. Use fewer ids, or "
                "lower their retention.",
            )

    def _add_partitions(
        self, request: AddPartitions, now_ms: int, wall_ms: int
    ) -> Decision[Response]:
        after = transitions.add(
            self._of_producer(request.transactional_id),
            request.producer,
            request.partitions,
            transitions.VERSION_1,
            wall_ms,
        )
        return self._changed(request.transactional_id, after, now_ms, Done())

    def _verify_or_add(
        self, verifications: Iterable[Verification], now_ms: int, wall_ms: int
    ) -> Decision[Response]:
        """Each verification sees the additions before it. A transactional id gets one record."""
        changed: dict[str, Transaction] = {}
        outcomes: list[Failure | None] = []
        size = 0
        for verification in verifications:
            transactional_id = verification.transactional_id
            try:
                before = changed.get(transactional_id) or self._of_producer(transactional_id)
                after = self._verified(before, verification, wall_ms)
                if after is not before:
                    grown = size + after.record_bytes(transactional_id)
                    if transactional_id in changed:
                        grown -= before.record_bytes(transactional_id)
                    _check_decision_bytes(grown)
                    changed[transactional_id], size = after, grown
            except LogError as error:
                outcomes.append(Failure.of(error))
            else:
                outcomes.append(None)
        records = []
        for transactional_id, after in changed.items():
            self._schedule(transactional_id, after, now_ms)
            records.append(_record(transactional_id, after))
        return Decision(Verified(tuple(outcomes)), tuple(records))

    @staticmethod
    def _verified(before: Transaction, verification: Verification, wall_ms: int) -> Transaction:
        producer, partitions = verification.producer, verification.partitions
        if verification.is_addition:
            return transitions.add(before, producer, partitions, transitions.VERSION_2, wall_ms)
        transitions.verify(before, producer, partitions)
        return before

    def _end(
        self,
        request: EndTransaction,
        now_ms: int,
        wall_ms: int,
        next_producer_id: ProducerId | None,
    ) -> Decision[Response]:
        after = transitions.end(
            self._of_producer(request.transactional_id),
            request.producer,
            is_commit=request.is_commit,
            version=request.version,
            next_producer_id=next_producer_id,
            wall_ms=wall_ms,
        )
        return self._changed(request.transactional_id, after, now_ms, Ended(after.client))

    def _changed(
        self, transactional_id: str, after: Transaction, now_ms: int, response: Response
    ) -> Decision[Response]:
        if after is self._transactions.get(transactional_id):
            return Decision(response)
        self._schedule(transactional_id, after, now_ms)
        return Decision(response, (_record(transactional_id, after),))

    def _of_producer(self, transactional_id: str) -> Transaction:
        """The state for a request of its producer."""
        present = self._transactions.get(transactional_id)
        if present is None:
            raise LogError(
                INVALID_PRODUCER_ID_MAPPING,
                f"The transactional id {quoted(transactional_id)} has no producer: it expired, or "
                "was never initialized. Initialize the producer again.",
            )
        return present

    def _known(self, transactional_id: str) -> Transaction:
        """The state for a request of an operator."""
        present = self._transactions.get(transactional_id)
        if present is None:
            raise LogError(
                UNKNOWN_TRANSACTION,
                f"No transaction of {quoted(transactional_id)} is known: it expired, or never was.",
            )
        return present

    # Sink epochs

    def _commit_sink_epoch(self, request: CommitSinkEpoch, wall_ms: int) -> Decision[Response]:
        sink_id = request.sink_id
        after, value = sink_epoch.decide(
            request,
            self._sinks.get(sink_id),
            self._open_of_sink.get(sink_id, {}),
            self._transactions,
            wall_ms,
        )
        records: list[CoordinatorRecord] = []
        response = self._sink_epoch(sink_id)
        if value is not None:
            if sink_id not in self._sinks and len(self._sinks) >= SINKS_MAX:
                raise LogError(QUOTA_EXCEEDED, f"This coordinator has {SINKS_MAX:,} sinks.")
            records.append(CoordinatorRecord(SinkEpochKey(sink_id), value))
            response = _described(sink_id, value)
        for name in after:
            self.timers.cancel(name)
        records += [_record(name, present) for name, present in after.items()]
        return Decision(response, tuple(records))

    def _sink_epoch(self, sink_id: str) -> SinkEpoch:
        return _described(sink_id, self._sinks.get(sink_id))

    # Queries

    def _list(self, request: ListTransactions, wall_ms: int) -> TransactionListing:
        listed: list[TransactionSummary] = []
        for transactional_id, present in self._transactions.items():
            if request.states and present.state.label not in request.states:
                continue
            if request.producer_ids and present.producer.producer_id not in request.producer_ids:
                continue
            summary = self._summary(transactional_id, present, wall_ms)
            if summary.open_ms < request.open_ms_min:
                continue
            if len(listed) == LISTED_MAX:
                return TransactionListing(tuple(listed), False)
            listed.append(summary)
        return TransactionListing(tuple(listed), True)

    def _describe(self, transactional_id: str, wall_ms: int) -> TransactionDescription:
        present = self._known(transactional_id)
        is_open = present.state in OPEN or present.state in DECIDED
        progress = self._progress.get(transactional_id)
        return TransactionDescription(
            summary=self._summary(transactional_id, present, wall_ms),
            timeout_ms=present.timeout_ms,
            start_ms=_if_dated(present.start_ms) if is_open else NO_TIMESTAMP,
            last_update_ms=_if_dated(present.last_update_ms),
            partitions=tuple(sorted(present.partitions)),
            unwritten=() if progress is None else tuple(sorted(progress.unwritten)),
        )

    def _summary(
        self, transactional_id: str, present: Transaction, wall_ms: int
    ) -> TransactionSummary:
        is_open = present.state in OPEN or present.state in DECIDED
        open_ms = present.open_ms(wall_ms) if is_open else 0
        is_overdue = (
            present.state is State.PREPARED and open_ms > self._settings.prepared_timeout_ms
        )
        return TransactionSummary(
            transactional_id=transactional_id,
            producer=present.client,
            state=present.state.label,
            open_ms=open_ms,
            is_overdue=is_overdue,
        )


def _record(transactional_id: str, after: Transaction) -> CoordinatorRecord:
    return CoordinatorRecord(TransactionLogKey(transactional_id), after.value())


def _due(idle: Mapping[str, int], retention_ms: int, aging: Aging) -> Iterator[tuple[str, bool]]:
    """Keys to forget (True), or last used ahead of the time (False). The first other ends it."""
    for name, changed_ms in idle.items():
        is_ahead = aging.is_ahead(changed_ms)
        if not is_ahead and not aging.is_over(changed_ms, retention_ms):
            return
        yield name, not is_ahead


def _if_dated(stored_ms: int) -> int:
    return NO_TIMESTAMP if stored_ms == UNDATED_MS else stored_ms


def _check_decision_bytes(size: int) -> None:
    if size > DECISION_BYTES_MAX:
        raise LogError(OVERLOADED, "Too many partitions at once join transactions. Try again.")


def _has_timeout(transactional_id: str, present: Transaction) -> bool:
    is_kept = present.state is State.PREPARED and sink_of(transactional_id) is not None
    return is_kept or present.state is State.ONGOING


def _described(sink_id: str, value: SinkEpochValue | None) -> SinkEpoch:
    if value is None:
        return SinkEpoch(sink_id, NO_EPOCH)
    return SinkEpoch(sink_id, value.committed_epoch, value.owner)
