"""A partition's memory of its idempotent producers, so that a retry never duplicates.

Every batch of such a producer carries (producer id, producer epoch, base sequence); sequences count
records, per partition, and follow each other without a gap (KIP-98). The last five batches of each
producer are remembered: as many as a client may have in flight, and so may have to repeat.

| a batch arrives with | answer |
|---|---|
| the epoch known, and the next sequence | Append |
| epoch, first and last sequence of one of the last five batches | Duplicate, with its offsets |
| the epoch known, only sequences written before those five | DUPLICATE_SEQUENCE |
| the epoch known, any other sequence | OUT_OF_ORDER_SEQUENCE |
| an older epoch | PRODUCER_FENCED |
| a newer epoch, or a producer not known, and sequence 0 | Append |
| a newer epoch, or a producer not known, and another sequence | OUT_OF_ORDER_SEQUENCE |

A transaction's marker (a control batch) has no sequence: only its epoch is looked at.

The last line is KIP-98's rule. KIP-360 (Kafka 2.5) loosened the rule to "any first sequence", so
that a producer with expired state could go on. This loses records silently: when the first of two
pipelined batches is refused for the moment (no leader yet, not enough replicas), the second is
taken as the beginning, and the retry of the first can never be written (KAFKA-14312, KAFKA-15591,
KAFKA-19880). Kafka went back to the strict rule for transactions (KIP-890) and for partitions never
written to (KAFKA-15591). Here the rule is strict throughout: a producer silent for longer than the
expiry time, or evicted, gets OUT_OF_ORDER_SEQUENCE, and begins again at sequence 0 with the next
epoch or another producer id (the client's half of KIP-360), once the outcome of every batch in
flight is known.

Checking and remembering are two steps. `prepare` judges all batches of one request together, and
changes nothing; `apply` remembers the batches, and is called only once the write has succeeded. So
a failed write leaves no trace here, and its retry does not count as a duplicate.

**Room.** The table is bounded, and an active producer never makes room for another. A leader
refuses *new* producers instead: above the bound, and above a rate, so that no client fills the
table in a moment. Producer ids are issued by the cluster, and replication refuses others.

Time enters as `now_ms`. Use the monotonic clock: only differences count, and a wall clock jumping
by a day would expire every producer. Snapshots hold ages, which survive a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from raftlog.record.errors import (
    DUPLICATE_SEQUENCE,
    OUT_OF_ORDER_SEQUENCE,
    PRODUCER_FENCED,
    QUOTA_EXCEEDED,
    LogError,
)
from raftlog.record.header import BatchHeader
from raftlog.record.types import NO_PRODUCER_ID, Offset, ProducerId
from raftlog.storage.checksummed import Damaged, unwrap, wrap

KIND: Final = b"RLPS"
VERSION: Final = 1
BATCHES_REMEMBERED_MAX: Final = 5
PRODUCERS_MAX: Final = 100_000
"""Producers remembered for one partition. Only one silent for EXPIRATION_MS makes room for a new
one: a retry of a forgotten producer would be written twice."""
EXPIRATION_MS: Final = 24 * 3_600_000
NEW_PRODUCERS_MAX: Final = 1000
"""New producers of one partition admitted at once, and so by one request."""
NEW_PRODUCERS_PER_S: Final = 100
"""New producers of one partition admitted per second: the table must not fill in a moment."""
SEQUENCES: Final = 2**31
"""Sequences run from 0 to 2^31 - 1 and then begin again at 0."""
NO_TIME: Final = -1


@dataclass(frozen=True, slots=True)
class Append:
    """The batch is new: write it."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch was written before, or precedes in the same request: do not write it again.

    Answer with these offsets, and wait for their durability just as for a new batch.
    """

    base_offset: Offset
    last_offset: Offset
    log_append_time_ms: int
    """The broker's timestamp; -1 if the records carry their own timestamps."""


Outcome: TypeAlias = Append | Duplicate
APPEND: Final = Append()


class _Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    base_sequence: int
    count: int
    """Number of its sequences, and offsets."""
    base_offset: int
    log_append_time_ms: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.count - 1


class _Producer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """State of one producer id. Replaced, never changed, so that a plan can hold the next state."""

    producer_id: int
    epoch: int
    next_sequence: int
    written_run: int
    """How many sequences before the next one are known to have been written without a gap."""
    last_offset: int
    """Of its newest batch, markers included."""
    seen_ms: int
    """Time of its last batch."""
    batches: tuple[_Batch, ...]
    """The newest of this epoch, oldest first; none if the epoch began with a marker."""


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    offset: int
    now_ms: int
    producers: list[_Producer]


_SNAPSHOTS: Final = msgspec.msgpack.Decoder(_Snapshot)
"""Created here, once: disk threads that had msgspec inspect the type at the same time have crashed
the process (msgspec 0.22, SIGSEGV)."""


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """The result of one request: the batches to write, and the state to apply afterwards."""

    outcomes: Sequence[Outcome]
    """One for each batch, in order."""
    updates: tuple[_Producer, ...]
    revision: int
    new_producers: int
    seen_ms: int


class Truncation(StrEnum):
    """Producer state after a truncation of the log."""

    EXACT = "exact"
    """No remembered batch was truncated."""
    REBUILD = "rebuild"
    """Read the newest snapshot at or below the new end, then `update` for each later batch."""


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
    )

    def __init__(
        self, *, producers_max: int = PRODUCERS_MAX, expiration_ms: int = EXPIRATION_MS
    ) -> None:
        assert producers_max > 0
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        self._producers_max = producers_max
        self._expiration_ms = expiration_ms
        self._revision = 0
        self._admitted = 0.0
        """New producers admitted lately; falls by NEW_PRODUCERS_PER_S."""
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
    ) -> AppendPlan:
        """Decide about the batches of one request; change nothing.

        `base_offset` is the log end offset: new batches are written there, one after the other.
        `log_append_time_ms` is the broker's time if the topic stamps with it. The plan is valid as
        long as nothing else is applied or updated in between.

        Raises LogError for the whole request: PRODUCER_FENCED, OUT_OF_ORDER_SEQUENCE;
        QUOTA_EXCEEDED, if there is no room for its new producers; or DUPLICATE_SEQUENCE, if all
        batches were written before, but not all are remembered.
        """
        outcomes: list[Outcome] = []
        pending: dict[int, _Producer] = {}
        forgotten: LogError | None = None
        next_offset: int = base_offset
        for header in headers:
            producer_id = header.producer_id
            if producer_id == NO_PRODUCER_ID:
                outcomes.append(APPEND)
                next_offset += header.last_offset_delta + 1
                continue
            known = pending.get(producer_id) or self._producers.get(producer_id)
            outcome = _judge(known, header)
            if isinstance(outcome, LogError):
                if outcome.entry is not DUPLICATE_SEQUENCE:
                    raise outcome
                forgotten = outcome
                continue
            if outcome is APPEND:
                pending[producer_id] = _after(
                    known, header, next_offset, now_ms + self._time_shift_ms, log_append_time_ms
                )
                next_offset += header.last_offset_delta + 1
            outcomes.append(outcome)
        if forgotten is not None:
            if any(outcome is APPEND for outcome in outcomes):
                # With a DUPLICATE result, the client would take the new batches for written, too.
                raise LogError(
                    OUT_OF_ORDER_SEQUENCE,
                    f"{forgotten.message} Other batches of the request are new: "
                    "nothing of it was written.",
                )
            raise forgotten
        new_producers = sum(producer_id not in self._producers for producer_id in pending)
        seen_ms = now_ms + self._time_shift_ms
        if new_producers:
            self._require_room(new_producers, seen_ms)
        return AppendPlan(outcomes, tuple(pending.values()), self._revision, new_producers, seen_ms)

    def _require_room(self, new_producers: int, now_ms: int) -> None:
        if self._admitted_by(now_ms) + new_producers > NEW_PRODUCERS_MAX:
            raise LogError(
                QUOTA_EXCEEDED,
                f"Too many new producer ids: a partition admits {NEW_PRODUCERS_MAX} at once, and "
                f"{NEW_PRODUCERS_PER_S} per second. Nothing was written; try again later.",
            )
        missing = len(self._producers) + new_producers - self._producers_max
        for producer in islice(self._producers.values(), max(missing, 0)):
            if now_ms - producer.seen_ms < self._expiration_ms:
                raise LogError(
                    QUOTA_EXCEEDED,
                    f"The partition remembers {len(self._producers)} producers, all active within "
                    f"{self._expiration_ms / 3_600_000:g} h: no room for a new producer id. "
                    "Nothing was written; try again later.",
                )

    def _admitted_by(self, now_ms: int) -> float:
        elapsed_s = (now_ms - self._admitted_at_ms) / 1000
        return max(self._admitted - NEW_PRODUCERS_PER_S * elapsed_s, 0.0)

    def apply(self, plan: AppendPlan) -> None:
        """Remember the batches of `plan`. Call it after the write succeeded, else drop the plan."""
        if not plan.updates:
            return
        assert plan.revision == self._revision, "producers changed between prepare and apply"
        if plan.new_producers:
            self._admitted = self._admitted_by(plan.seen_ms) + plan.new_producers
            self._admitted_at_ms = plan.seen_ms
        for producer in plan.updates:
            self._remember(producer)

    def update(self, header: BatchHeader, *, now_ms: int) -> None:
        """Remember a batch in the log: replay, replication, markers. Checks nothing.

        The header's base offset is real. A known batch changes nothing, so that a scan may begin
        below the snapshot's offset. Gaps in the sequence are accepted: compaction leaves gaps. The
        leader has judged whether there is room: the last PRODUCERS_MAX to write include all that it
        remembers.
        """
        if header.producer_id == NO_PRODUCER_ID:
            return
        known = self._producers.get(header.producer_id)
        if known is not None and header.last_offset <= known.last_offset:
            return
        log_append_time_ms = header.max_timestamp_ms if header.is_log_append_time else NO_TIME
        seen_ms = now_ms + self._time_shift_ms
        self._remember(_after(known, header, header.base_offset, seen_ms, log_append_time_ms))

    def expire(self, now_ms: int) -> int:
        """Forget producers silent for the expiry time; return how many."""
        expired = 0
        while self._producers:
            producer = next(iter(self._producers.values()))
            if now_ms + self._time_shift_ms - producer.seen_ms < self._expiration_ms:
                break
            del self._producers[producer.producer_id]
            expired += 1
        self._revision += expired > 0
        return expired

    def truncate_to(self, offset: Offset) -> Truncation:
        """The log now ends at `offset`.

        Dropping remembered batches cannot bring back the state before: the earlier epoch, or the
        sixth batch back. So if any producer wrote at or above `offset`, everything is forgotten (a
        refusal is safe, a wrong result is not) and the caller must rebuild: `from_bytes` of the
        newest snapshot at or below `offset`, then `update` for every batch from there on.
        """
        if all(producer.last_offset < offset for producer in self._producers.values()):
            return Truncation.EXACT
        self._producers.clear()
        self._revision += 1
        return Truncation.REBUILD

    def below(self, offset: Offset) -> ProducerStates:
        """State derived from the records below `offset` alone, as far as still known.

        For a log that begins at `offset`: later batches follow in the log itself, and must not be
        counted before. A producer with no more batches in flight than are remembered here gets the
        same results as from a log with all records; only a much older repetition gets
        OUT_OF_ORDER_SEQUENCE where the other log might answer DUPLICATE_SEQUENCE.
        """
        states = ProducerStates(
            producers_max=self._producers_max, expiration_ms=self._expiration_ms
        )
        states._time_shift_ms = self._time_shift_ms
        for producer_id, producer in self._producers.items():
            known = producer if producer.last_offset < offset else _below(producer, offset)
            if known is not None:
                states._producers[producer_id] = known
        return states

    def last_offsets(self) -> dict[ProducerId, Offset]:
        """For each producer the last offset of the batch from which its state can be derived.

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
        """A snapshot: the state after every batch below `offset`, and none above."""
        snapshot = _Snapshot(offset, now_ms + self._time_shift_ms, list(self._producers.values()))
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
        """Read the snapshot of `offset` back. Damaged: use an older one, or scan the whole log.

        The time the node was down does not count towards expiry.
        """
        content = unwrap(KIND, VERSION, data)
        if isinstance(content, Damaged):
            return content
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
        newest = snapshot.producers[-producers_max:]
        states._producers = OrderedDict((producer.producer_id, producer) for producer in newest)
        return states

    def _remember(self, producer: _Producer) -> None:
        producers = self._producers
        producers[producer.producer_id] = producer
        producers.move_to_end(producer.producer_id)
        if len(producers) > self._producers_max:
            producers.popitem(last=False)
        self._revision += 1


def _judge(known: _Producer | None, header: BatchHeader) -> Outcome | LogError:
    """The table at the top of this module."""
    epoch, sequence = header.producer_epoch, header.base_sequence
    if known is not None and epoch == known.epoch:
        if sequence == known.next_sequence or header.is_control:
            return APPEND
        return _judge_repeated(known, header)
    if known is not None and epoch < known.epoch:
        return LogError(
            PRODUCER_FENCED,
            f"Producer {header.producer_id} has epoch {epoch}; epoch {known.epoch} has written "
            "since.",
        )
    if sequence == 0 or header.is_control:
        return APPEND
    if known is None:
        return LogError(
            OUT_OF_ORDER_SEQUENCE,
            f"Producer {header.producer_id} is not known here and begins with sequence "
            f"{sequence}. If it was silent for long, it must begin again at sequence 0 with the "
            "next epoch or another producer id.",
        )
    return LogError(
        OUT_OF_ORDER_SEQUENCE,
        f"Producer {header.producer_id} begins epoch {epoch} with sequence {sequence}, not 0.",
    )


def _judge_repeated(known: _Producer, header: BatchHeader) -> Outcome | LogError:
    """Judge a batch of the known epoch with another than the next sequence."""
    sequence = header.base_sequence
    count = header.last_offset_delta + 1
    for batch in known.batches:
        if batch.base_sequence == sequence and batch.count == count:
            return Duplicate(
                Offset(batch.base_offset), Offset(batch.last_offset), batch.log_append_time_ms
            )
    if known.batches:
        # Distances back from the next sequence, so that the wrap to 0 needs no thought.
        begins_back = (known.next_sequence - sequence) % SEQUENCES
        ends_back = begins_back - count
        oldest_back = (known.next_sequence - known.batches[0].base_sequence) % SEQUENCES
        if begins_back <= known.written_run and ends_back >= oldest_back:
            return LogError(
                DUPLICATE_SEQUENCE,
                f"Producer {header.producer_id} wrote the {count} records from sequence {sequence} "
                "on so long ago that their offsets are no longer known.",
            )
    return LogError(
        OUT_OF_ORDER_SEQUENCE,
        f"Producer {header.producer_id} sent sequence {sequence}; {known.next_sequence} is next.",
    )


def _below(producer: _Producer, offset: Offset) -> _Producer | None:
    """The state before the batches at or above `offset`, of which there is one at least.

    None if that sequence is unknown: the epoch began later, or with a marker.
    """
    kept = tuple(batch for batch in producer.batches if batch.last_offset < offset)
    later = producer.batches[len(kept) :]
    run = producer.written_run - sum(batch.count for batch in later)
    next_sequence = later[0].base_sequence if later else producer.next_sequence
    if kept:
        newest = kept[-1]
        next_sequence = (newest.base_sequence + newest.count) % SEQUENCES
        run = run if run > 0 else newest.count
    elif run <= 0:
        return None
    return _Producer(
        producer.producer_id,
        producer.epoch,
        next_sequence,
        run,
        offset - 1,
        producer.seen_ms,
        kept,
    )


def _after(
    known: _Producer | None,
    header: BatchHeader,
    base_offset: int,
    seen_ms: int,
    log_append_time_ms: int,
) -> _Producer:
    """The producer's state once `header` is written at `base_offset`."""
    last_offset = base_offset + header.last_offset_delta
    epoch = header.producer_epoch
    if known is not None and epoch < known.epoch:
        # Only a log not checked by this table contains such a batch. The fence must stand.
        return msgspec.structs.replace(known, last_offset=last_offset, seen_ms=seen_ms)
    same_epoch = known is not None and epoch == known.epoch
    if header.is_control:
        if known is not None and same_epoch:
            return msgspec.structs.replace(known, last_offset=last_offset, seen_ms=seen_ms)
        return _Producer(header.producer_id, epoch, 0, 0, last_offset, seen_ms, ())
    count = header.last_offset_delta + 1
    next_sequence = (header.base_sequence + count) % SEQUENCES
    batch = _Batch(header.base_sequence, count, base_offset, log_append_time_ms)
    run = count
    batches: tuple[_Batch, ...] = (batch,)
    if known is not None and same_epoch:
        batches = (*known.batches[1 - BATCHES_REMEMBERED_MAX :], batch)
        if header.base_sequence == known.next_sequence:
            # Half the circle at most: beyond it "before" and "after" cannot be told apart.
            run = min(known.written_run + count, SEQUENCES // 2)
    return _Producer(header.producer_id, epoch, next_sequence, run, last_offset, seen_ms, batches)
