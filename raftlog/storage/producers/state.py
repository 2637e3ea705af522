"""A partition's memory of its idempotent producers, so that a retry never duplicates.

`entry` judges a single batch or marker.

Checking and remembering are two steps. `prepare` judges all batches of one request together, and
changes nothing. `apply` remembers the batches, and is called only once the write has succeeded. So
a failed write leaves no trace here, and its retry does not count as a duplicate.

**Room.** The table is bounded, and an active producer never makes room for another. A leader
rejects *new* producers instead, above the bound and above a rate, so that no client fills the table
in a moment. Producer ids are issued by the cluster, and replication rejects others. A producer with
an open transaction is neither expired nor evicted. Its marker ends the transaction.

Time enters as `now_ms`. Use the monotonic clock, since only differences count, and a wall clock
jumping by a day would expire every producer. Snapshots hold ages, which survive a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from raftlog.record.control import Marker
from raftlog.record.errors import (
    DUPLICATE_SEQUENCE,
    OUT_OF_ORDER_SEQUENCE,
    QUOTA_EXCEEDED,
    LogError,
)
from raftlog.record.header import TRANSACTIONAL_BIT, BatchHeader
from raftlog.record.types import NO_PRODUCER_ID, NO_SEQUENCE, Offset, ProducerEpoch, ProducerId
from raftlog.storage.checksummed import Damaged, unwrap, wrap
from raftlog.storage.producers.entry import (
    APPEND,
    NO_TIME,
    NO_TRANSACTIONS,
    SEQUENCES,
    Duplicate,
    MayBegin,
    Outcome,
    Producer,
    Terms,
    after,
    below,
    judge,
    judge_coordinator,
    judge_marker,
    may_be_outdated,
)
from raftlog.storage.transactions.transactions import AbortedEntry, UnstableTransactions

KIND: Final = b"RLPS"
VERSION: Final = 2
VERSION_BEFORE_TRANSACTIONS: Final = 1
"""Older version that is still read. It had no open transactions."""
PRODUCERS_MAX: Final = 100_000
"""Most producers remembered for one partition. Only a producer silent for EXPIRATION_MS makes room
for a new producer, since a retry of a forgotten producer would be written twice."""
EXPIRATION_MS: Final = 24 * 3_600_000
NEW_PRODUCERS_MAX: Final = 1000
"""New producers of one partition admitted at once, and so by one request."""
NEW_PRODUCERS_PER_S: Final = 100
"""New producers of one partition admitted per second. The table must not fill in a moment."""


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    offset: int
    now_ms: int
    producers: list[Producer]
    ended: list[tuple[int, int]] = []
    """First offset and marker's offset of each ended transaction whose marker may not be committed.
    """


_SNAPSHOTS: Final = msgspec.msgpack.Decoder(_Snapshot)
"""The decoder is created here, once. Disk threads that had msgspec inspect the type at the same
time have crashed the process (msgspec 0.22, SIGSEGV)."""


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """The batches of one request to write, and the state to apply afterwards."""

    outcomes: Sequence[Outcome]
    """Outcome of each batch, in order."""
    updates: tuple[Producer, ...]
    revision: int
    new_producers: int
    seen_ms: int
    marker: Marker | None = None


class Truncation(StrEnum):
    """Producer state after a truncation of the log."""

    EXACT = "exact"
    """No remembered batch was truncated."""
    REBUILD = "rebuild"
    """The state must be read from a snapshot and the later batches. The caller reads the newest
    snapshot at or below the new end, then calls `update` for each later batch."""


class ProducerDescription(NamedTuple):
    """A producer of a partition, for operators."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """Last sequence, or -1 for none in this epoch."""
    idle_ms: int
    """Milliseconds since its newest batch."""
    coordinator_epoch: int
    """Coordinator epoch of its newest marker, or -1."""
    transaction_start: int | None
    """First offset of its open transaction, or None."""


class ProducerStates:
    """The idempotent producers of one partition, least recently written first."""

    __slots__ = (
        "_admitted",
        "_admitted_at_ms",
        "_expiration_ms",
        "_producers",
        "_producers_max",
        "_revision",
        "_time_shift_ms",
        "_transactions",
    )

    def __init__(
        self, *, producers_max: int = PRODUCERS_MAX, expiration_ms: int = EXPIRATION_MS
    ) -> None:
        assert producers_max > 0
        self._producers: OrderedDict[int, Producer] = OrderedDict()
        self._transactions = UnstableTransactions()
        self._producers_max = producers_max
        self._expiration_ms = expiration_ms
        self._revision = 0
        self._admitted = 0.0
        """New producers admitted lately. It falls by NEW_PRODUCERS_PER_S."""
        self._admitted_at_ms = 0
        self._time_shift_ms = 0
        """Added to every `now_ms`, so that times of a snapshot need no change."""

    def __len__(self) -> int:
        return len(self._producers)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._producers

    def prepare(
        self,
        headers: Sequence[BatchHeader],
        base_offset: Offset,
        *,
        now_ms: int,
        log_append_time_ms: int = NO_TIME,
        terms: Terms = NO_TRANSACTIONS,
    ) -> AppendPlan:
        """Judge the batches of one request, none of them a marker. Changes nothing.

        `base_offset` is the log end offset, where new batches are written, one after the other.
        `log_append_time_ms` is the broker's time if the topic stamps with it. The plan is valid as
        long as nothing else is applied or updated in between.

        Raises LogError for the whole request, with PRODUCER_FENCED, OUT_OF_ORDER_SEQUENCE,
        UNKNOWN_PRODUCER_ID, TRANSACTION_NOT_VERIFIED or INVALID_TXN_STATE. QUOTA_EXCEEDED means no
        room for its new producers, DUPLICATE_SEQUENCE that all batches were written before, but not
        all are remembered.
        """
        outcomes: list[Outcome] = []
        pending: dict[int, Producer] = {}
        forgotten: LogError | None = None
        next_offset: int = base_offset
        for header in headers:
            producer_id = header.producer_id
            if producer_id == NO_PRODUCER_ID:
                outcomes.append(APPEND)
                next_offset += header.last_offset_delta + 1
                continue
            known = pending.get(producer_id) or self._producers.get(producer_id)
            outcome: Outcome | LogError = APPEND
            # One test covers the common case, in which `judge` would return the same.
            if (
                known is None
                or header.base_sequence != known.next_sequence
                or header.producer_epoch != known.epoch
                or known.transaction_start is not None
                or header.attributes & TRANSACTIONAL_BIT
            ):
                outcome = judge(known, header, terms)
            if isinstance(outcome, LogError):
                if outcome.entry is not DUPLICATE_SEQUENCE:
                    raise outcome
                forgotten = outcome
                continue
            if outcome is APPEND:
                pending[producer_id] = after(
                    known, header, next_offset, now_ms + self._time_shift_ms, log_append_time_ms
                )
                next_offset += header.last_offset_delta + 1
            outcomes.append(outcome)
        if forgotten is not None:
            raise _rejection(forgotten, outcomes)
        new_producers = sum(producer_id not in self._producers for producer_id in pending)
        seen_ms = now_ms + self._time_shift_ms
        if new_producers:
            self._require_room(new_producers, seen_ms)
        return AppendPlan(
            outcomes=outcomes,
            updates=tuple(pending.values()),
            revision=self._revision,
            new_producers=new_producers,
            seen_ms=seen_ms,
        )

    def prepare_marker(
        self,
        header: BatchHeader,
        marker: Marker,
        base_offset: Offset,
        *,
        newest_coordinator: int,
        now_ms: int,
    ) -> AppendPlan:
        """Judge a marker at `base_offset`, like `prepare`.

        `newest_coordinator` as for `judge_marker`. Raises LogError (COORDINATOR_FENCED,
        PRODUCER_FENCED).
        """
        producer_id, seen_ms = header.producer_id, now_ms + self._time_shift_ms
        known = self._producers.get(producer_id)
        outcome = judge_marker(
            known, producer_id, header.producer_epoch, marker, newest_coordinator
        )
        if isinstance(outcome, LogError):
            raise outcome
        if known is None and self._lacks_room(1, seen_ms):
            # No transaction is open, and its end must not wait for room. The epoch remains unfenced
            # here, but no batch of the transaction is verified any more.
            outcome = Duplicate(Offset(base_offset - 1), Offset(base_offset - 1), NO_TIME)
        updates: tuple[Producer, ...] = ()
        if outcome is APPEND:
            updates = (after(known, header, base_offset, seen_ms, NO_TIME, marker=marker),)
        new_producers = 1 if updates and known is None else 0
        return AppendPlan(
            outcomes=(outcome,),
            updates=updates,
            revision=self._revision,
            new_producers=new_producers,
            seen_ms=seen_ms,
            marker=marker,
        )

    def may_be_outdated(
        self, producer_id: ProducerId, marker: Marker, newest_coordinator: int
    ) -> bool:
        """See `entry.may_be_outdated`."""
        return may_be_outdated(self._producers.get(producer_id), marker, newest_coordinator)

    def needs_marker(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        marker: Marker,
        *,
        newest_coordinator: int,
        new_producers: int,
        now_ms: int,
    ) -> bool:
        """Whether `prepare_marker` will have the marker written. Raises its LogError.

        `new_producers` as for `check_coordinator`.
        """
        known = self._producers.get(producer_id)
        outcome = judge_marker(known, producer_id, producer_epoch, marker, newest_coordinator)
        if isinstance(outcome, LogError):
            raise outcome
        if known is None:
            return self._lacks_room(new_producers, now_ms + self._time_shift_ms) is None
        return outcome is APPEND

    def check_coordinator(
        self,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        *,
        new_producers: int,
        now_ms: int,
        may_begin: MayBegin,
    ) -> None:
        """Raise the LogError of `prepare` for a coordinator's transactional batch.

        `new_producers` counts the producers not known here with batches on their way to the log,
        this producer included.
        """
        known = self._producers.get(producer_id)
        outcome = judge_coordinator(known, producer_id, epoch, may_begin)
        if isinstance(outcome, LogError):
            raise outcome
        if known is None:
            self._require_room(new_producers, now_ms + self._time_shift_ms)

    def _require_room(self, new_producers: int, now_ms: int) -> None:
        refusal = self._lacks_room(new_producers, now_ms)
        if refusal is not None:
            raise refusal

    def _lacks_room(self, new_producers: int, now_ms: int) -> LogError | None:
        """Error why new producers cannot be admitted, or None."""
        if self._admitted_by(now_ms) + new_producers > NEW_PRODUCERS_MAX:
            return LogError(
                QUOTA_EXCEEDED,
                f"Too many new producer ids: a partition admits {NEW_PRODUCERS_MAX} at once, and "
                f"{NEW_PRODUCERS_PER_S} per second. Nothing was written; try again later.",
            )
        missing = len(self._producers) + new_producers - self._producers_max
        if missing > 0 and len(self._expired(now_ms, missing)) < missing:
            return LogError(
                QUOTA_EXCEEDED,
                f"The partition remembers {len(self._producers)} producers, all active within "
                f"{self._expiration_ms / 3_600_000:g} h: no room for a new producer id. "
                "Nothing was written; try again later.",
            )
        return None

    def _expired(self, now_ms: int, count_max: int) -> list[int]:
        """Producers silent for the expiry time, without an open transaction, oldest first."""
        found: list[int] = []
        for producer in self._producers.values():
            if len(found) >= count_max or now_ms - producer.seen_ms < self._expiration_ms:
                break
            if producer.transaction_start is None:
                found.append(producer.producer_id)
        return found

    def _admitted_by(self, now_ms: int) -> float:
        elapsed_s = (now_ms - self._admitted_at_ms) / 1000
        return max(self._admitted - NEW_PRODUCERS_PER_S * elapsed_s, 0.0)

    def apply(self, plan: AppendPlan) -> AbortedEntry | None:
        """Remember the batches of `plan`. Call it after the write succeeded, else drop the plan.

        Returns the aborted transaction, if the plan has an abort marker that ended a transaction.
        """
        if not plan.updates:
            return None
        assert plan.revision == self._revision, "producers changed between prepare and apply"
        if plan.new_producers:
            self._admitted = self._admitted_by(plan.seen_ms) + plan.new_producers
            self._admitted_at_ms = plan.seen_ms
        aborted: AbortedEntry | None = None
        for producer in plan.updates:
            aborted = self._remember(producer, plan.marker)
        return aborted

    def update(
        self, header: BatchHeader, *, now_ms: int, marker: Marker | None = None
    ) -> AbortedEntry | None:
        """Remember a batch in the log, in replay or replication. Checks nothing.

        The header's base offset is real. `marker` is `parse_marker` of a control batch. A known
        batch changes nothing, so that a scan may start below the snapshot's offset. Gaps in the
        sequence are accepted, because compaction leaves gaps. The leader has judged whether there
        is room, and the last PRODUCERS_MAX to write include all that it remembers. Returns the
        aborted transaction, if the batch is an abort marker that ended a transaction.
        """
        if header.producer_id == NO_PRODUCER_ID:
            return None
        known = self._producers.get(header.producer_id)
        if known is not None and header.last_offset <= known.last_offset:
            return None
        log_append_time_ms = header.max_timestamp_ms if header.is_log_append_time else NO_TIME
        seen_ms = now_ms + self._time_shift_ms
        producer = after(
            known, header, header.base_offset, seen_ms, log_append_time_ms, marker=marker
        )
        return self._remember(producer, marker)

    def expire(self, now_ms: int) -> int:
        """Forget producers silent for the expiry time, and return how many.

        Producers with open transactions stay. A coordinator ends these after their timeout.
        """
        expired = self._expired(now_ms + self._time_shift_ms, len(self._producers))
        for producer_id in expired:
            del self._producers[producer_id]
        self._revision += len(expired) > 0
        return len(expired)

    # Transactions

    @property
    def has_unstable(self) -> bool:
        """Whether a transaction is open, or its marker was not committed at the last check."""
        return bool(self._transactions)

    def first_unstable(self, high_watermark: Offset) -> Offset | None:
        """First offset of the earliest transaction without a marker below `high_watermark`.

        None if there is none. The high watermark must not be lower than at the last call, unless a
        truncation came between.
        """
        return self._transactions.first_unstable(high_watermark)

    def described(self, count_max: int, now_ms: int) -> list[ProducerDescription]:
        """Describe at most `count_max` producers, open transactions first, then the newest."""
        now_ms += self._time_shift_ms
        newest = reversed(self._producers.values())
        ordered = sorted(newest, key=lambda producer: not producer.is_in_transaction)
        return [
            ProducerDescription(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=(
                    (producer.next_sequence - 1) % SEQUENCES if producer.batches else NO_SEQUENCE
                ),
                idle_ms=max(now_ms - producer.seen_ms, 0),
                coordinator_epoch=producer.coordinator_epoch,
                transaction_start=producer.transaction_start,
            )
            for producer in ordered[:count_max]
        ]

    def is_in_transaction(self, producer_id: ProducerId, epoch: ProducerEpoch) -> bool:
        """Whether the producer has an open transaction here, in this epoch."""
        known = self._producers.get(producer_id)
        return known is not None and known.is_in_transaction and known.epoch == epoch

    def awaits_marker(self, producer_id: ProducerId, epoch: ProducerEpoch) -> bool:
        """Whether the producer has an open transaction here, of an older epoch."""
        known = self._producers.get(producer_id)
        return known is not None and known.is_in_transaction and known.epoch < epoch

    def truncate_to(self, offset: Offset) -> Truncation:
        """Note that the log now ends at `offset`.

        Dropping remembered batches cannot bring back the earlier state (the earlier epoch, or the
        sixth batch back). So if any producer wrote at or above `offset`, everything is forgotten (a
        rejection is safe, a wrong result is not) and the caller must rebuild, by `from_bytes` of
        the newest snapshot at or below `offset`, then `update` for every batch from there on.
        """
        if all(
            producer.last_offset < offset for producer in self._producers.values()
        ) and not self._transactions.has_ended_from(offset):
            return Truncation.EXACT
        self._producers.clear()
        self._transactions = UnstableTransactions()
        self._revision += 1
        return Truncation.REBUILD

    def below(self, offset: Offset) -> ProducerStates:
        """State derived only from the records below `offset`, as far as still known.

        This is for a log that starts at `offset`. Later batches follow in the log itself, and must
        not be counted before. A producer with no more batches in flight than are remembered here
        gets the same results as from a log with all records. Only a much older repetition gets
        OUT_OF_ORDER_SEQUENCE where the other log might return DUPLICATE_SEQUENCE. Open transactions
        that started below are known, and only these. If a transaction has ended since, the records
        from `offset` on start it again, until its marker, which also follows in the log.
        """
        states = ProducerStates(
            producers_max=self._producers_max, expiration_ms=self._expiration_ms
        )
        states._time_shift_ms = self._time_shift_ms
        for producer_id, producer in self._producers.items():
            known = producer if producer.last_offset < offset else below(producer, offset)
            if known is not None:
                states._producers[producer_id] = known
        states._restore_transactions(
            (first, last) for first, last in self._transactions.ended if last < offset
        )
        return states

    def last_offsets(self) -> dict[ProducerId, Offset]:
        """Last offset of the batch from which each producer's state can be derived.

        Compaction keeps these batches, if necessary without records, so that a scan finds the
        sequences.
        """
        return {
            ProducerId(producer.producer_id): Offset(
                producer.batches[-1].last_offset if producer.batches else producer.last_offset
            )
            for producer in self._producers.values()
        }

    def to_bytes(self, offset: Offset, *, now_ms: int) -> bytes:
        """Encode a snapshot, the state after every batch below `offset` and none above."""
        snapshot = _Snapshot(
            offset,
            now_ms + self._time_shift_ms,
            list(self._producers.values()),
            self._transactions.ended,
        )
        return wrap(KIND, VERSION, msgspec.msgpack.encode(snapshot))

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        offset: Offset,
        *,
        now_ms: int,
        producers_max: int = PRODUCERS_MAX,
        expiration_ms: int = EXPIRATION_MS,
    ) -> ProducerStates | Damaged:
        """Read the snapshot of `offset` back.

        After Damaged, use an older snapshot or scan the whole log. The time the node was down does
        not count towards expiry. A snapshot of version 1 has no transaction, since the versions
        that took it wrote none.
        """
        content = unwrap(KIND, VERSION, data)
        if isinstance(content, Damaged):
            older = unwrap(KIND, VERSION_BEFORE_TRANSACTIONS, data)
            if isinstance(older, Damaged):
                return content
            content = older
        try:
            snapshot = _SNAPSHOTS.decode(content)
        except msgspec.DecodeError as error:
            return Damaged(f"not a producer snapshot: {error}")
        if snapshot.offset != offset:
            return Damaged(f"a snapshot of offset {snapshot.offset}, not {offset}")
        if any(producer.last_offset >= offset for producer in snapshot.producers):
            return Damaged(f"it includes records at or after offset {offset}")
        states = cls(producers_max=producers_max, expiration_ms=expiration_ms)
        states._time_shift_ms = snapshot.now_ms - now_ms
        states._producers = OrderedDict(
            (producer.producer_id, producer) for producer in snapshot.producers
        )
        while len(states._producers) > producers_max and states._evict():
            pass
        states._restore_transactions(snapshot.ended)
        return states

    def _restore_transactions(self, ended: Iterable[tuple[int, int]]) -> None:
        opened = (
            (producer.producer_id, producer.transaction_start)
            for producer in self._producers.values()
            if producer.transaction_start is not None
        )
        self._transactions = UnstableTransactions(opened, ended)

    def _remember(self, producer: Producer, marker: Marker | None) -> AbortedEntry | None:
        """Take over a producer's next state. Returns the transaction that the marker aborted."""
        producers = self._producers
        producer_id = producer.producer_id
        before = producers.get(producer_id)
        producers[producer_id] = producer
        producers.move_to_end(producer_id)
        if len(producers) > self._producers_max:
            self._evict()
        self._revision += 1
        start = None if before is None else before.transaction_start
        if start == producer.transaction_start:
            return None
        if producer.transaction_start is not None:
            self._transactions.begin(producer_id, producer.transaction_start)
            return None
        assert start is not None
        last_offset = Offset(producer.last_offset)
        stable_offset = self._transactions.end(producer_id, last_offset)
        if marker is None or marker.commit:
            return None
        return AbortedEntry(ProducerId(producer_id), Offset(start), last_offset, stable_offset)

    def _evict(self) -> bool:
        """Forget the longest silent producer without an open transaction. False if none."""
        for producer_id, producer in self._producers.items():
            if producer.transaction_start is None:
                del self._producers[producer_id]
                return True
        return False


def _rejection(forgotten: LogError, outcomes: Sequence[Outcome]) -> LogError:
    """The error of a request that repeats a forgotten batch."""
    if all(outcome is not APPEND for outcome in outcomes):
        return forgotten
    # With a DUPLICATE result, the client would believe the new batches written as well.
    return LogError(
        OUT_OF_ORDER_SEQUENCE,
        f"{forgotten.message} Other batches of the request are new: nothing of it was written.",
    )
