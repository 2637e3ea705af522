"""One transactional id with its states and transitions. Pure (KIP-98, 360, 890, 939).

Each function takes the present `Transaction` and returns the next `Transaction`, or raises
LogError. The record of a transition is the whole next state. "Decided" is PrepareCommit or
PrepareAbort, "ended" is CompleteCommit or CompleteAbort. v1 and v2 are versions of the protocol
(KIP-890).

| state | event | next, and response |
|---|---|---|
| (none), Empty, ended | init | Empty, epoch + 1 (a new producer id at 32,766) |
| Ongoing, Prepared | init | PrepareAbort, fencing epoch. CONCURRENT_TRANSACTIONS until ended |
| Prepared | init, keeping it | Prepared. `next_producer` is the new identity (KIP-939) |
| Empty, ended | add partitions | Ongoing, start time |
| Ongoing | add partitions | Ongoing, with the union |
| Ongoing, Prepared | commit or abort | PrepareCommit or PrepareAbort, the decision. v2: epoch + 1 |
| Empty, ended | abort (v2) | CompleteAbort, epoch + 1, so a late first batch finds no transaction |
| Ongoing | timeout | PrepareAbort, fencing epoch. A v2 client that aborts gets the epoch |
| Ongoing | prepare (v2) | Prepared, without a timeout or further partitions |
| Prepared, of a sink | timeout since the preparation | PrepareAbort, fencing epoch |
| Ongoing, Prepared | an operator's abort | PrepareAbort, fencing epoch |
| decided | all markers written | CompleteCommit or CompleteAbort, without partitions |
| decided | new epoch, or the same end again | CONCURRENT_TRANSACTIONS until ended |
| ended | the same end again | success, no record |
| decided, ended | the contrary end | INVALID_TXN_STATE. v2, commit after abort: PRODUCER_FENCED |
| any | an older epoch or producer id | PRODUCER_FENCED |
| any | an epoch never issued | INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING |

Events are of the present epoch. An end is repeated by the epoch before (v2) or by the epoch (v1).

*Identities.* `producer` stands in the batches and markers of the transaction. `client` is the
identity of the living producer. They are the same, unless `next_producer` is set, which takes over
when the transaction is complete. It is set if the epochs of the producer id are used up, or a new
producer took over a prepared transaction.

*Retries.* `previous_producer_id`, with the epoch before the client's, is the identity that made the
last change. Its response may be lost, so a repeated request gets the response again. A fence leaves
no previous producer, so a fenced producer never gets the new epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from raftlog.coordinator.shard.decision import UNDATED_MS, Producer
from raftlog.coordinator.shard.records import (
    NO_TIMESTAMP,
    TransactionLogValue,
    TransactionPartitions,
)
from raftlog.coordinator.transactions.messages import PARTITIONS_MAX, TopicPartition
from raftlog.metadata.configs.broker import (
    TRANSACTION_PREPARED,
    TRANSACTION_TIMEOUT,
    TRANSACTIONAL_ID_RETENTION,
    coordinator_number,
)
from raftlog.record.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    TRANSACTION_TOO_LARGE,
    LogError,
)
from raftlog.record.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId

DECISION_BYTES_MAX: Final = 900_000
"""Estimated bytes of a decision's records, in one batch below a `max.message.bytes` of 1 MiB."""
EPOCH_MAX: Final = 32_766
"""The last epoch of a client. 32,767 stays free, to fence it and to end its transaction."""
VERSION_1: Final = 1
"""Version of clients that add partitions first and keep their epoch."""
VERSION_2: Final = 2
"""Version of clients that take their next epoch from the response to every end (KIP-890)."""


class State(IntEnum):
    """The numbers of the records. 8 is not Kafka's."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    PREPARED = 8

    @property
    def label(self) -> str:
        """The name for users."""
        return self.name.lower().replace("_", "-")


OPEN: Final = (State.ONGOING, State.PREPARED)
DECIDED: Final = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
COMPLETE: Final = (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


class TransactionSettings(Struct, frozen=True):
    """Cluster settings. Times in milliseconds."""

    timeout_ms_max: int = coordinator_number({}, TRANSACTION_TIMEOUT)
    """Largest transaction timeout of a client."""
    id_retention_ms: int = coordinator_number({}, TRANSACTIONAL_ID_RETENTION)
    """An idle transactional id expires so long after its last change."""
    prepared_timeout_ms: int = coordinator_number({}, TRANSACTION_PREPARED)
    """Time after which a prepared transaction is overdue. Only an operator aborts it."""

    def following(self, cluster: Mapping[str, str]) -> TransactionSettings:
        """These settings, with those that are set for the cluster."""
        found = {
            field: coordinator_number(cluster, name)
            for field, name in _CLUSTER_SETTINGS.items()
            if name in cluster
        }
        return replace(self, **found) if found else self


_CLUSTER_SETTINGS: Final = {
    "timeout_ms_max": TRANSACTION_TIMEOUT,
    "id_retention_ms": TRANSACTIONAL_ID_RETENTION,
    "prepared_timeout_ms": TRANSACTION_PREPARED,
}
"""The cluster setting of a field."""


class ProducerIdRequiredError(Exception):
    """The decision needs a new producer id. Allocate an id, and decide again with it."""


class Transaction(Struct, frozen=True, gc=False):
    """The state of one transactional id."""

    producer: Producer
    state: State
    timeout_ms: int
    last_update_ms: int
    next_producer: Producer | None = None
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    version: int = VERSION_1
    """Version of the client that opened the transaction. Once the transaction is decided, it is the
    version of its end, or 2 for a fence."""

    @property
    def client(self) -> Producer:
        """The identity of the living producer."""
        return self.producer if self.next_producer is None else self.next_producer

    def open_ms(self, time_ms: int) -> int:
        """How long it has been open. 0 while the time is unknown, or if the clock went back."""
        return 0 if time_ms == UNDATED_MS else max(0, time_ms - self.start_ms)

    def is_retry_of(self, producer: Producer) -> bool:
        """Whether this identity made the last change, and may not know its answer."""
        if producer.producer_id != self.previous_producer_id:
            return False
        client = self.client
        if producer.producer_id == client.producer_id:
            return producer.producer_epoch == client.producer_epoch - 1
        return client.producer_epoch == 0 and producer.producer_epoch == EPOCH_MAX

    def record_bytes(self, transactional_id: str) -> int:
        """An upper bound for the record's size. Names of topics are ASCII, ids are not."""
        partitions = sum(len(place.topic) + 8 for place in self.partitions)
        return 128 + 4 * len(transactional_id) + partitions

    def value(self) -> TransactionLogValue:
        """The record of this state."""
        by_topic: dict[str, list[int]] = {}
        for place in self.partitions:
            by_topic.setdefault(place.topic, []).append(place.partition)
        # Kafka writes null in place of the partitions of Empty.
        partitions = tuple(
            TransactionPartitions(topic, tuple(sorted(by_topic[topic])))
            for topic in sorted(by_topic)
        )
        next_producer = self.next_producer or Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        return TransactionLogValue(
            producer_id=self.producer.producer_id,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=next_producer.producer_id,
            producer_epoch=self.producer.producer_epoch,
            next_producer_epoch=next_producer.producer_epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=self.state.value,
            transaction_partitions=None if self.state is State.EMPTY else partitions,
            transaction_last_update_timestamp_ms=self.last_update_ms,
            transaction_start_timestamp_ms=self.start_ms,
            client_transaction_version=self.version,
        )

    @classmethod
    def of(cls, value: TransactionLogValue) -> Transaction:
        """The state of a record. Raises ValueError for a state that is never written."""
        has_next = value.next_producer_id != NO_PRODUCER_ID
        partitions = frozenset(
            TopicPartition(entry.topic, partition)
            for entry in value.transaction_partitions or ()
            for partition in entry.partitions
        )
        return cls(
            producer=_producer(value.producer_id, value.producer_epoch),
            state=State(value.transaction_status),
            timeout_ms=value.transaction_timeout_ms,
            last_update_ms=value.transaction_last_update_timestamp_ms,
            next_producer=_producer(value.next_producer_id, value.next_producer_epoch)
            if has_next
            else None,
            previous_producer_id=ProducerId(value.previous_producer_id),
            partitions=partitions,
            start_ms=value.transaction_start_timestamp_ms,
            version=value.client_transaction_version,
        )


class Initialization(NamedTuple):
    """The outcome of `init`."""

    after: Transaction
    """The same object as before if nothing changes."""
    is_ready: bool
    """False while an older transaction is being aborted. The client then retries."""


def init(
    before: Transaction | None,
    timeout_ms: int,
    known: Producer | None,
    *,
    keep_prepared: bool,
    next_producer_id: ProducerId | None,
    wall_ms: int,
) -> Initialization:
    """Make the caller the only producer, and end an older transaction first.

    With `known` the caller continues as that producer (KIP-360). Raises ProducerIdRequiredError, or
    LogError PRODUCER_FENCED if `known` is not the newest producer, or CONCURRENT_TRANSACTIONS until
    a decided transaction is complete.
    """
    if before is None:
        producer = Producer(_required(next_producer_id), ProducerEpoch(0))
        return Initialization(Transaction(producer, State.EMPTY, timeout_ms, wall_ms), True)
    is_retry = known is not None and before.is_retry_of(known)
    if known is not None and known != before.client and not is_retry:
        raise _fenced(known, before.client)
    if before.state in DECIDED:
        raise _concurrent(before)
    previous = NO_PRODUCER_ID if known is None else before.client.producer_id
    if before.state is State.PREPARED and keep_prepared:
        if is_retry:
            return Initialization(before, True)
        after = replace(
            before,
            next_producer=_following(before.client, next_producer_id),
            previous_producer_id=previous,
            last_update_ms=wall_ms,
        )
        return Initialization(after, True)
    if before.state in OPEN:
        if known is None:
            return Initialization(fence(before, wall_ms), False)
        client = _following(before.client, next_producer_id)
        return Initialization(_decided(before, client, previous, wall_ms), False)
    if is_retry:
        client, previous = before.client, before.previous_producer_id
    else:
        client = _following(before.client, next_producer_id)
    after = Transaction(
        producer=client,
        state=State.EMPTY,
        timeout_ms=timeout_ms,
        last_update_ms=wall_ms,
        next_producer=None,
        previous_producer_id=previous,
        version=before.version,
    )
    return Initialization(after, True)


def add(
    before: Transaction,
    producer: Producer,
    partitions: Iterable[TopicPartition],
    version: int,
    wall_ms: int,
) -> Transaction:
    """Add partitions to the transaction, or start it. The same object if none is new.

    Raises LogError for a wrong producer, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE once prepared,
    or TRANSACTION_TOO_LARGE.
    """
    _check_client(before, producer)
    _check_extensible(before)
    union = before.partitions.union(partitions)
    if len(union) == len(before.partitions):
        return before
    if len(union) > PARTITIONS_MAX:
        raise LogError(
            TRANSACTION_TOO_LARGE, f"A transaction has at most {PARTITIONS_MAX:,} partitions."
        )
    return replace(
        before,
        state=State.ONGOING,
        previous_producer_id=NO_PRODUCER_ID,
        partitions=union,
        start_ms=before.start_ms if before.state is State.ONGOING else wall_ms,
        last_update_ms=wall_ms,
        version=version,
    )


def verify(before: Transaction, producer: Producer, partitions: Iterable[TopicPartition]) -> None:
    """Check that the partitions are in the open transaction (KIP-890, part 1).

    Raises LogError as `add`, and TRANSACTION_ABORTABLE for a partition that is not.
    """
    _check_client(before, producer)
    _check_extensible(before)
    missing = sorted(set(partitions) - before.partitions)
    if missing:
        raise LogError(
            TRANSACTION_ABORTABLE,
            f"Partition {missing[0].topic}-{missing[0].partition} is not in the transaction of "
            f"producer {producer.producer_id}, epoch {producer.producer_epoch}, which is "
            f"{before.state.label}. Abort the transaction.",
        )


def end(
    before: Transaction,
    producer: Producer,
    *,
    is_commit: bool,
    version: int,
    next_producer_id: ProducerId | None,
    wall_ms: int,
) -> Transaction:
    """Commit or abort. The same object for the retry of an end that is complete.

    Raises ProducerIdRequiredError, or LogError for a wrong producer, CONCURRENT_TRANSACTIONS until
    the decided transaction is complete, INVALID_TXN_STATE for the contrary end and for a commit of
    nothing, or PRODUCER_FENCED for a commit after an abort by the coordinator.
    """
    state = before.state
    decided = state in DECIDED or state in COMPLETE
    if decided and before.is_retry_of(producer):
        _check_same_end(before, producer, is_commit=is_commit)
        if state in DECIDED:
            raise _concurrent(before)
        return before
    _check_client(before, producer)
    if state is State.ONGOING and version == VERSION_1:
        after = State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT
        return replace(before, state=after, last_update_ms=wall_ms, version=version)
    if state in OPEN:
        following = _following(producer, next_producer_id)
        return _decided(before, following, producer.producer_id, wall_ms, is_commit=is_commit)
    if decided and before.version == VERSION_1 and version == VERSION_1:
        # The epoch stays, so this is the decided transaction's own end, again.
        _check_same_end(before, producer, is_commit=is_commit)
        if state in COMPLETE:
            return before
    if state in DECIDED:
        raise _concurrent(before)
    if is_commit or version == VERSION_1:
        verb = "commit" if is_commit else "abort"
        raise LogError(
            INVALID_TXN_STATE,
            f"Nothing to {verb}: no partition joined a transaction of producer "
            f"{producer.producer_id}, epoch {producer.producer_epoch}.",
        )
    # Abort an empty transaction, so that a delayed first batch of its epoch does not open it.
    return replace(
        before,
        producer=_following(producer, next_producer_id),
        state=State.COMPLETE_ABORT,
        previous_producer_id=producer.producer_id,
        start_ms=NO_TIMESTAMP,
        last_update_ms=wall_ms,
        version=version,
    )


def prepare(before: Transaction, producer: Producer, wall_ms: int) -> Transaction:
    """First phase of two (KIP-939). The same object if the transaction is prepared already.

    Raises LogError for a wrong producer, CONCURRENT_TRANSACTIONS, or INVALID_TXN_STATE without an
    open transaction, and for a client of version 1, which could not receive its next epoch.
    """
    _check_client(before, producer)
    if before.state in DECIDED:
        raise _concurrent(before)
    if before.state not in OPEN:
        raise _no_open(before)
    if before.version == VERSION_1:
        raise LogError(INVALID_TXN_STATE, "Clients of version 1 have no two-phase transactions.")
    if before.state is State.PREPARED:
        return before
    return replace(before, state=State.PREPARED, last_update_ms=wall_ms)


def abort(before: Transaction, producer: Producer | None, wall_ms: int) -> Transaction:
    """Abort by an operator, fencing the producer. The same object if it is being aborted already.

    Raises LogError INVALID_TXN_STATE without an open transaction or after a commit, or for a
    `producer` that is not the transaction's.
    """
    if before.state is State.PREPARE_ABORT:
        return before
    if before.state is State.PREPARE_COMMIT:
        raise LogError(
            INVALID_TXN_STATE, "The transaction is committed; its markers are being written."
        )
    if before.state not in OPEN:
        raise _no_open(before)
    if producer is not None and producer != before.producer:
        _check_client(before, producer)
    return fence(before, wall_ms)


def expire(before: Transaction, wall_ms: int) -> Transaction:
    """Abort an open transaction that is over its time.

    A client of version 2 that requests this very abort gets the next epoch, and continues.
    """
    assert before.state in OPEN
    goes_on = before.version == VERSION_2 and before.client.producer_epoch < EPOCH_MAX
    return fence(before, wall_ms, before.client.producer_id if goes_on else NO_PRODUCER_ID)


def commit_prepared(before: Transaction, wall_ms: int) -> Transaction:
    """Commit for the owner of a sink, in place of the client, which is fenced.

    Raises LogError INVALID_TXN_STATE unless the transaction is prepared.
    """
    if before.state is not State.PREPARED:
        raise LogError(INVALID_TXN_STATE, f"The transaction is {before.state.label}, not prepared.")
    return _decided(before, _next_epoch(before.client), NO_PRODUCER_ID, wall_ms, is_commit=True)


def fence(
    before: Transaction, wall_ms: int, previous_producer_id: ProducerId = NO_PRODUCER_ID
) -> Transaction:
    """Abort an open transaction, and fence its client.

    At 32,766 the epoch becomes 32,767, and the next `init` takes another producer id. The client
    with `previous_producer_id` may retry, see `Transaction.is_retry_of`.
    """
    assert before.state in OPEN
    return _decided(before, _next_epoch(before.client), previous_producer_id, wall_ms)


def complete(before: Transaction, wall_ms: int) -> Transaction:
    """All markers are written."""
    assert before.state in DECIDED
    is_commit = before.state is State.PREPARE_COMMIT
    return replace(
        before,
        producer=before.client,
        next_producer=None,
        state=State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT,
        partitions=frozenset(),
        last_update_ms=wall_ms,
    )


def _decided(
    before: Transaction,
    client: Producer,
    previous_producer_id: ProducerId,
    wall_ms: int,
    *,
    is_commit: bool = False,
) -> Transaction:
    """The decision, with markers of the epoch after the batches'."""
    marker = _next_epoch(before.producer)
    return replace(
        before,
        producer=marker,
        next_producer=None if client == marker else client,
        previous_producer_id=previous_producer_id,
        state=State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT,
        last_update_ms=wall_ms,
        version=VERSION_2,
    )


def _producer(producer_id: int, producer_epoch: int) -> Producer:
    return Producer(ProducerId(producer_id), ProducerEpoch(producer_epoch))


def _next_epoch(producer: Producer) -> Producer:
    return _producer(producer.producer_id, producer.producer_epoch + 1)


def _following(client: Producer, next_producer_id: ProducerId | None) -> Producer:
    """The next identity to give out."""
    if client.producer_epoch < EPOCH_MAX:
        return _next_epoch(client)
    return _producer(_required(next_producer_id), 0)


def _required(next_producer_id: ProducerId | None) -> ProducerId:
    if next_producer_id is None:
        raise ProducerIdRequiredError
    return next_producer_id


def _check_client(before: Transaction, producer: Producer) -> None:
    """Raise LogError unless this is the living producer."""
    client = before.client
    if producer == client:
        return
    if producer.producer_id > client.producer_id:
        raise LogError(
            INVALID_PRODUCER_ID_MAPPING,
            f"The transactional id has producer id {client.producer_id}, not "
            f"{producer.producer_id}.",
        )
    is_same_id = producer.producer_id == client.producer_id
    if is_same_id and producer.producer_epoch > client.producer_epoch:
        raise LogError(
            INVALID_PRODUCER_EPOCH,
            f"Producer {producer.producer_id} has epoch {client.producer_epoch}; epoch "
            f"{producer.producer_epoch} was never given out.",
        )
    raise _fenced(producer, client)


def _check_extensible(before: Transaction) -> None:
    if before.state in DECIDED:
        raise _concurrent(before)
    if before.state is State.PREPARED:
        raise LogError(
            INVALID_TXN_STATE, "The transaction is prepared: it can only be committed or aborted."
        )


def _check_same_end(before: Transaction, producer: Producer, *, is_commit: bool) -> None:
    was_commit = before.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
    if was_commit == is_commit:
        return
    if was_commit:
        raise LogError(INVALID_TXN_STATE, "The transaction is committed; it cannot be aborted.")
    if before.version == VERSION_1:
        raise LogError(INVALID_TXN_STATE, "The transaction is aborted; it cannot be committed.")
    # Clients that did not abort it can continue after this error (KAFKA-20785).
    raise LogError(
        PRODUCER_FENCED,
        f"The transaction of producer {producer.producer_id}, epoch {producer.producer_epoch}, is "
        "aborted, by its client or after its timeout. Initialize the producer again.",
    )


def _fenced(producer: Producer, client: Producer) -> LogError:
    return LogError(
        PRODUCER_FENCED,
        f"Producer {producer.producer_id}, epoch {producer.producer_epoch}, is fenced: the "
        f"transactional id has producer {client.producer_id}, epoch {client.producer_epoch}. "
        "Another producer took it over, or the transaction was aborted after its timeout.",
    )


def _concurrent(before: Transaction) -> LogError:
    return LogError(
        CONCURRENT_TRANSACTIONS,
        f"The transaction before is {before.state.label}: its markers are being written. Try "
        "again.",
    )


def _no_open(before: Transaction) -> LogError:
    return LogError(
        INVALID_TXN_STATE, f"No open transaction: the transactional id is {before.state.label}."
    )
