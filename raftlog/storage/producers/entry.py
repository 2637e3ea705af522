"""One idempotent producer in one partition, judged batch by batch. Pure.

Every batch of such a producer carries (producer id, producer epoch, base sequence). Sequences count
records, per partition, and follow each other without a gap (KIP-98). The last five batches of each
producer are remembered, as many as a client may have in flight, and so may have to repeat.

| a batch arrives with | result |
|---|---|
| the epoch known, and the next sequence | Append |
| epoch, first and last sequence of one of the last five batches | Duplicate, with its offsets |
| the epoch known, only sequences written before those five | DUPLICATE_SEQUENCE |
| the epoch known, any other sequence | OUT_OF_ORDER_SEQUENCE |
| an older epoch | PRODUCER_FENCED |
| a newer epoch, or a producer not known, and sequence 0 | Append |
| a newer epoch, and another sequence | OUT_OF_ORDER_SEQUENCE |
| a producer not known, and another sequence, of an append that may start anywhere | Append |
| a producer not known, and another sequence | UNKNOWN_PRODUCER_ID |

KIP-98's rule is that an unknown producer starts with 0. KIP-360 (Kafka 2.5) loosened the rule to
"any first sequence", so that a producer with expired state can continue. Some clients cannot start
again (aiokafka). The loose rule has a danger. When the first of two pipelined batches is rejected
for the moment (no leader yet, not enough replicas), the second would be accepted as the start, and
the retry of the first could never be written (KAFKA-14312, KAFKA-15591, KAFKA-19880). So an append
may start anywhere only if no earlier batch can be rejected or undecided, at this node
(`broker/first_sequences.py`) or at an older leader (`LeaderRole`). In all other cases the rule is
strict. Then the producer gets UNKNOWN_PRODUCER_ID, and starts again at sequence 0 with the next
epoch or another producer id (the client's half of KIP-360), once the outcome of every batch in
flight is known. UNKNOWN_PRODUCER_ID is a separate entry because Kafka's clients recover from it,
and not from OUT_OF_ORDER_SEQUENCE.

A coordinator's own batch has no sequence (-1). Only its epoch is judged, and sequences stay.

**Transactions.** A batch that would be appended by the table above is judged again:

| open transaction | the batch | result |
|---|---|---|
| none | not transactional | Append |
| none | transactional, confirmed by the coordinator | Append, which opens it |
| none | transactional otherwise | TRANSACTION_NOT_VERIFIED |
| of this epoch | transactional | Append, which continues it |
| of this or an older epoch | not transactional | INVALID_TXN_STATE |
| of an older epoch | transactional | TRANSACTION_NOT_VERIFIED, as its marker has not come yet |

So all records between a transaction's first offset and its marker that have its producer id are its
own, and transactional. Readers and compaction identify them by that alone.

| a marker arrives with | result |
|---|---|
| a coordinator epoch above the newest coordinator's | COORDINATOR_FENCED |
| an older coordinator epoch than the newest marker's | COORDINATOR_FENCED |
| an older producer epoch | PRODUCER_FENCED |
| the epoch of the open transaction, of version 2 | PRODUCER_FENCED, as it is late (KIP-1228) |
| anything else | Append |

An appended marker ends the open transaction and fences older epochs. Version 2 of the protocol
(KIP-890) bumps the epoch with each end, version 1 keeps it. A marker of a newer coordinator is
appended even where nothing is open. Without it in the log, a late marker of the older coordinator
would end the next transaction of the same epoch.

The cluster's metadata has the newest coordinator's epoch. A stored epoch above it is of no
coordinator (an operator's marker in a log of an older release), and counts as the newest epoch. So
the newest coordinator is never fenced, and its marker replaces the stored epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import msgspec

from raftlog.record.control import Marker
from raftlog.record.errors import (
    COORDINATOR_FENCED,
    DUPLICATE_SEQUENCE,
    INVALID_TXN_STATE,
    OUT_OF_ORDER_SEQUENCE,
    PRODUCER_FENCED,
    TRANSACTION_NOT_VERIFIED,
    UNKNOWN_PRODUCER_ID,
    LogError,
)
from raftlog.record.header import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from raftlog.record.types import LEADER_EPOCH_MAX, NO_SEQUENCE, Offset, ProducerEpoch, ProducerId

BATCHES_REMEMBERED_MAX: Final = 5
SEQUENCES: Final = 2**31
"""Number of sequences. They run from 0 to 2^31 - 1 and then start again at 0."""

MayBegin: TypeAlias = Callable[[ProducerId, ProducerEpoch], bool]
"""Whether the coordinator has confirmed that the producer's transaction includes the partition."""


def may_not_begin(_producer_id: ProducerId, _epoch: ProducerEpoch) -> bool:
    """Allow no transaction to start."""
    return False


class Terms(NamedTuple):
    """Rights of an append."""

    may_begin: MayBegin = may_not_begin
    """Called, right before the write, for each transaction that the append would open."""
    is_coordinator: bool = False
    """Whether batches without sequences are a coordinator's own."""
    marker: Marker | None = None
    """Content of the only batch, if that is a marker."""
    newest_coordinator: Callable[[], int] = lambda: LEADER_EPOCH_MAX
    """Called, right before the write, for the newest epoch of the marker's coordinator."""
    may_start_anywhere: bool = False
    """Whether an unknown producer may start with any sequence."""


NO_TRANSACTIONS: Final = Terms()


@dataclass(frozen=True, slots=True)
class Append:
    """The batch is new and must be written."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch was written before, or precedes in the same request.

    Do not write it again. Respond with these offsets, and wait for their durability just as for a
    new batch.
    """

    base_offset: Offset
    last_offset: Offset
    log_append_time_ms: int
    """The broker's timestamp, or -1 if the records carry their timestamps."""


Outcome: TypeAlias = Append | Duplicate
APPEND: Final = Append()
NO_TIME: Final = -1


class WrittenBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A remembered batch."""

    base_sequence: int
    count: int
    """Number of its sequences, and offsets."""
    base_offset: int
    log_append_time_ms: int

    @property
    def last_offset(self) -> int:
        """Offset of its last record."""
        return self.base_offset + self.count - 1


class Producer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """State of one producer id.

    Replaced, never changed, so that a plan can hold the next state.
    """

    producer_id: int
    epoch: int
    next_sequence: int
    written_run: int
    """Number of sequences before the next that are known to be written without a gap."""
    last_offset: int
    """Last offset of its newest batch, markers included."""
    seen_ms: int
    """Time of its last batch."""
    batches: tuple[WrittenBatch, ...]
    """Newest batches of this epoch, oldest first. Empty if the epoch started with a marker."""
    coordinator_epoch: int = -1
    """Coordinator epoch of the newest marker, or -1 before the first marker."""
    transaction_start: int | None = None
    """First offset of its open transaction, or None."""

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction is open. Then it is of the producer's present epoch."""
        return self.transaction_start is not None


def judge(known: Producer | None, header: BatchHeader, terms: Terms) -> Outcome | LogError:
    """Judge a batch by the first two tables at the top of this module."""
    outcome: Outcome | LogError
    if terms.is_coordinator and header.base_sequence == NO_SEQUENCE:
        outcome = _fenced(known, header.producer_id, header.producer_epoch) or APPEND
    else:
        outcome = _judge_sequence(known, header, may_start_anywhere=terms.may_start_anywhere)
    is_open = known is not None and known.transaction_start is not None
    if outcome is APPEND and is_open and not header.is_transactional:
        return _outside_of(known)
    if outcome is APPEND and header.is_transactional:
        return _judge_transaction(known, header.producer_id, header.producer_epoch, terms.may_begin)
    return outcome


def judge_coordinator(
    known: Producer | None,
    producer_id: ProducerId,
    epoch: ProducerEpoch,
    may_begin: MayBegin,
) -> Outcome | LogError:
    """Judge a coordinator's batch in a transaction, as `judge` will."""
    fenced = _fenced(known, producer_id, epoch)
    return fenced or _judge_transaction(known, producer_id, epoch, may_begin)


def judge_marker(
    known: Producer | None,
    producer_id: ProducerId,
    epoch: ProducerEpoch,
    marker: Marker,
    newest_coordinator: int,
) -> Outcome | LogError:
    """Judge a marker by the last table at the top of this module.

    `newest_coordinator` is the coordinator's newest epoch, by metadata that is new enough
    (`may_be_outdated`).
    """
    stored = -1 if known is None else known.coordinator_epoch
    refusal = _judge_coordinator(stored, producer_id, marker, newest_coordinator)
    refusal = refusal or _fenced(known, producer_id, epoch)
    if refusal is not None:
        return refusal
    if known is None:
        return APPEND
    is_repeated = (
        not known.is_in_transaction
        and epoch == known.epoch
        and marker.coordinator_epoch == known.coordinator_epoch
    )
    if marker.is_epoch_next and known.is_in_transaction and epoch == known.epoch:
        return LogError(
            PRODUCER_FENCED,
            f"The marker of producer {producer_id} in epoch {epoch} is late: its transaction has "
            "ended here, and the next one has begun.",
        )
    if is_repeated:
        return Duplicate(Offset(known.last_offset), Offset(known.last_offset), NO_TIME)
    return APPEND


def _judge_coordinator(
    stored: int, producer_id: ProducerId, marker: Marker, newest_coordinator: int
) -> LogError | None:
    """Judge the marker's coordinator epoch, where `stored` is that of the newest marker."""
    if marker.coordinator_epoch > max(newest_coordinator, stored):
        return LogError(
            COORDINATOR_FENCED,
            f"Coordinator epoch {marker.coordinator_epoch} of the marker of producer {producer_id} "
            f"is no coordinator's: the newest is {newest_coordinator}.",
        )
    if marker.coordinator_epoch < min(newest_coordinator, stored):
        return LogError(
            COORDINATOR_FENCED,
            f"Coordinator epoch {marker.coordinator_epoch} is over: a coordinator of epoch "
            f"{stored} has ended a transaction of producer {producer_id} since.",
        )
    return None


def may_be_outdated(known: Producer | None, marker: Marker, newest_coordinator: int) -> bool:
    """Whether newer metadata, with a newer coordinator, may change the judgement of a marker."""
    is_fenced_by_newer = known is not None and marker.coordinator_epoch < known.coordinator_epoch
    return marker.coordinator_epoch > newest_coordinator or (
        marker.coordinator_epoch == newest_coordinator and is_fenced_by_newer
    )


def _fenced(
    known: Producer | None, producer_id: ProducerId, epoch: ProducerEpoch
) -> LogError | None:
    if known is None or epoch >= known.epoch:
        return None
    return LogError(
        PRODUCER_FENCED,
        f"Producer {producer_id} has epoch {epoch}; epoch {known.epoch} has written since.",
    )


def _judge_sequence(
    known: Producer | None, header: BatchHeader, *, may_start_anywhere: bool
) -> Outcome | LogError:
    epoch, sequence = header.producer_epoch, header.base_sequence
    if known is not None and epoch == known.epoch:
        if sequence == known.next_sequence:
            return APPEND
        return _judge_repeated(known, header)
    fenced = _fenced(known, header.producer_id, epoch)
    if fenced is not None:
        return fenced
    if sequence == 0 or (known is None and may_start_anywhere):
        return APPEND
    if known is None:
        return LogError(
            UNKNOWN_PRODUCER_ID,
            f"Producer {header.producer_id} is not known here and begins with sequence "
            f"{sequence}. If it was silent for long, it must begin again at sequence 0 with the "
            "next epoch or another producer id.",
        )
    return LogError(
        OUT_OF_ORDER_SEQUENCE,
        f"Producer {header.producer_id} begins epoch {epoch} with sequence {sequence}, not 0.",
    )


def _outside_of(known: Producer | None) -> LogError:
    assert known is not None
    return LogError(
        INVALID_TXN_STATE,
        f"Producer {known.producer_id} has an open transaction here since offset "
        f"{known.transaction_start}: it may not write outside of it.",
    )


def _judge_transaction(
    known: Producer | None, producer_id: ProducerId, epoch: ProducerEpoch, may_begin: MayBegin
) -> Outcome | LogError:
    """Judge a batch with a right sequence inside, or at the start of, a transaction."""
    if known is None or known.transaction_start is None:
        if may_begin(producer_id, epoch):
            return APPEND
        return LogError(
            TRANSACTION_NOT_VERIFIED,
            f"The coordinator has not confirmed that the transaction of producer {producer_id} in "
            f"epoch {epoch} includes this partition. Nothing was written; try again.",
        )
    if epoch != known.epoch:
        return LogError(
            TRANSACTION_NOT_VERIFIED,
            f"The transaction of producer {producer_id} in epoch {known.epoch} has not ended here "
            f"yet: epoch {epoch} may not write before. Nothing was written; try again.",
        )
    return APPEND


def _judge_repeated(known: Producer, header: BatchHeader) -> Outcome | LogError:
    """Judge a batch of the known epoch that does not have the next sequence."""
    sequence = header.base_sequence
    count = header.last_offset_delta + 1
    for batch in known.batches:
        if batch.base_sequence == sequence and batch.count == count:
            return Duplicate(
                Offset(batch.base_offset), Offset(batch.last_offset), batch.log_append_time_ms
            )
    if known.batches:
        # These are distances back from the next sequence, so that the wrap to 0 needs no thought.
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


def below(producer: Producer, offset: Offset) -> Producer | None:
    """The state before the batches at or above `offset`, of which at least one exists.

    None if that sequence is unknown, as the epoch started later, or with a marker. A transaction
    that is open, and started below, is known.
    """
    start = producer.transaction_start
    if start is not None and start >= offset:
        start = None
    kept = tuple(batch for batch in producer.batches if batch.last_offset < offset)
    later = producer.batches[len(kept) :]
    run = producer.written_run - sum(batch.count for batch in later)
    next_sequence = later[0].base_sequence if later else producer.next_sequence
    if kept:
        newest = kept[-1]
        next_sequence = (newest.base_sequence + newest.count) % SEQUENCES
        run = run if run > 0 else newest.count
    elif run <= 0 and start is None:
        return None
    return Producer(
        producer_id=producer.producer_id,
        epoch=producer.epoch,
        next_sequence=next_sequence,
        written_run=max(run, 0),
        last_offset=offset - 1,
        seen_ms=producer.seen_ms,
        batches=kept,
        coordinator_epoch=producer.coordinator_epoch,
        transaction_start=start,
    )


def after(
    known: Producer | None,
    header: BatchHeader,
    base_offset: int,
    seen_ms: int,
    log_append_time_ms: int,
    *,
    marker: Marker | None = None,
) -> Producer:
    """The producer's state once `header` is written at `base_offset`.

    `marker` is the content of a marker. It is None for other batches, and for a marker without
    content, which compaction leaves only once no record of its transaction is left.
    """
    last_offset, epoch = base_offset + header.last_offset_delta, header.producer_epoch
    attributes, base_sequence = header.attributes, header.base_sequence
    if known is not None and epoch < known.epoch:
        # Only a log not checked by these rules contains such a batch. The fence must stand.
        return msgspec.structs.replace(known, last_offset=last_offset, seen_ms=seen_ms)
    start = None if known is None else known.transaction_start
    coordinator_epoch = -1 if known is None else known.coordinator_epoch
    if attributes & CONTROL_BIT:
        if marker is not None:
            coordinator_epoch = marker.coordinator_epoch
        if marker is not None or not header.record_count:
            start = None
    elif attributes & TRANSACTIONAL_BIT and start is None and header.record_count:
        # A batch without records is a remnant that compaction left of an ended transaction.
        start = base_offset
    if base_sequence == NO_SEQUENCE or attributes & CONTROL_BIT:
        if known is not None and epoch == known.epoch:
            return msgspec.structs.replace(
                known,
                last_offset=last_offset,
                seen_ms=seen_ms,
                coordinator_epoch=coordinator_epoch,
                transaction_start=start,
            )
        return Producer(
            producer_id=header.producer_id,
            epoch=epoch,
            next_sequence=0,
            written_run=0,
            last_offset=last_offset,
            seen_ms=seen_ms,
            batches=(),
            coordinator_epoch=coordinator_epoch,
            transaction_start=start,
        )
    count = header.last_offset_delta + 1
    next_sequence = (base_sequence + count) % SEQUENCES
    batch = WrittenBatch(base_sequence, count, base_offset, log_append_time_ms)
    run = count
    batches: tuple[WrittenBatch, ...] = (batch,)
    if known is not None and epoch == known.epoch:
        batches = (*known.batches[1 - BATCHES_REMEMBERED_MAX :], batch)
        if base_sequence == known.next_sequence:
            # At most half the circle. Beyond it "before" and "after" look the same.
            run = min(known.written_run + count, SEQUENCES // 2)
    return Producer(
        producer_id=header.producer_id,
        epoch=epoch,
        next_sequence=next_sequence,
        written_run=run,
        last_offset=last_offset,
        seen_ms=seen_ms,
        batches=batches,
        coordinator_epoch=coordinator_epoch,
        transaction_start=start,
    )
