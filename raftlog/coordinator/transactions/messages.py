"""Requests and responses of the transaction coordinator, free of any protocol.

They are also its messages between nodes (msgpack arrays, fields in order, the tag first).
`Messages.checked` and decoding enforce the bounds of numbers and lengths. The shard checks the
bounds that protect its state.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, Self, TypeAlias

import msgspec
from msgspec import Meta

from raftlog.coordinator.shard.decision import Producer
from raftlog.record.errors import ERROR_TABLE, INTERNAL, LogError

TRANSACTIONAL_ID_CHARACTERS_MAX: Final = 255
SINK_ID_CHARACTERS_MAX: Final = 200
SINK_OWNER_CHARACTERS_MAX: Final = 255
PARTITIONS_MAX: Final = 3_000
"""Partitions of one transaction. Its record, with names of 249 characters, stays below 0.9 MB."""
VERIFICATIONS_MAX: Final = 1_000
"""Transactions of one VerifyOrAdd."""
SINK_TRANSACTIONS_MAX: Final = 1_000
"""Transactions of one sink epoch."""
NO_EPOCH: Final = -1
LISTED_MAX: Final = 10_000
"""Transactional ids of one answer to ListTransactions."""

SINK_PREFIX: Final = "sink/"
"""Begins the transactional ids `sink/<sink id>/<anything>`."""

_TransactionalId = Annotated[str, Meta(max_length=TRANSACTIONAL_ID_CHARACTERS_MAX)]
_SinkId = Annotated[str, Meta(max_length=SINK_ID_CHARACTERS_MAX)]
_Owner = Annotated[str, Meta(max_length=SINK_OWNER_CHARACTERS_MAX)]
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_NumberOrNone = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
_Timeout = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class TopicPartition(NamedTuple):
    """A partition in a transaction, by name as in the records of Kafka."""

    topic: str
    partition: int


_Partitions = Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)]


class _Base(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Messages are arrays."""


def sink_of(transactional_id: str) -> str | None:
    """The sink id of `sink/<sink id>/<anything>`, or None for every other transactional id."""
    if not transactional_id.startswith(SINK_PREFIX):
        return None
    sink_id, slash, rest = transactional_id[len(SINK_PREFIX) :].partition("/")
    return sink_id if sink_id and slash and rest else None


def shard_key(transactional_id: str) -> str:
    """The text that chooses the partition. The transactional ids of one sink share a shard."""
    sink_id = sink_of(transactional_id)
    return transactional_id if sink_id is None else sink_shard_key(sink_id)


def sink_shard_key(sink_id: str) -> str:
    """The text that chooses the partition of a sink."""
    return f"{SINK_PREFIX}{sink_id}"


# Requests


class InitProducer(_Base, frozen=True, tag=1):
    """Become the only producer of a transactional id. An older transaction ends first."""

    transactional_id: _TransactionalId
    timeout_ms: _Timeout
    known: Producer | None = None
    """Earlier response, to continue after an error (KIP-360). Fenced if a newer producer exists."""
    keep_prepared: bool = False
    """A prepared transaction stays, for the new producer to end (KIP-939)."""


class AddPartitions(_Base, frozen=True, tag=2):
    """Add partitions to the transaction, before their first batch (clients of version 1).

    For a group's offsets it is their partition of `__consumer_offsets`.
    """

    transactional_id: _TransactionalId
    producer: Producer
    partitions: _Partitions


class Verification(_Base, frozen=True):
    """The question of a partition leader before the first batch of a producer and epoch."""

    transactional_id: _TransactionalId
    producer: Producer
    partitions: _Partitions
    is_addition: bool
    """Whether the partitions join (version 2) or are only verified (version 1)."""


class VerifyOrAdd(_Base, frozen=True, tag=3):
    """Verifications of one leader, each with its own outcome (KIP-890)."""

    verifications: Annotated[tuple[Verification, ...], Meta(max_length=VERIFICATIONS_MAX)]


class EndTransaction(_Base, frozen=True, tag=4):
    """Commit or abort."""

    transactional_id: _TransactionalId
    producer: Producer
    is_commit: bool
    version: Annotated[int, Meta(ge=1, le=2)]
    """Version of the client. 2 takes a new epoch from the response, 1 keeps its epoch (KIP-890)."""


class PrepareTransaction(_Base, frozen=True, tag=5):
    """First phase of two. The transaction stays open until an end, beyond any timeout."""

    transactional_id: _TransactionalId
    producer: Producer


class AbortTransaction(_Base, frozen=True, tag=6):
    """An operator's abort, which fences the producer."""

    transactional_id: _TransactionalId
    producer: Producer | None = None
    """Producer of the only transaction to abort, or None for any."""


class CommitSinkEpoch(_Base, frozen=True, tag=7):
    """Commit these prepared transactions of a sink, and abort its others, as one decision."""

    sink_id: _SinkId
    epoch: _NumberOrNone
    """NO_EPOCH: the sink commits once, or only aborts what is open."""
    transactional_ids: Annotated[
        tuple[_TransactionalId, ...], Meta(max_length=SINK_TRANSACTIONS_MAX)
    ]
    owner: _Owner = ""
    """Owner of the sink's epochs. Every owner but the first epoch's is refused."""


class DescribeSink(_Base, frozen=True, tag=8):
    """Query the newest committed epoch of a sink."""

    sink_id: _SinkId


class ListTransactions(_Base, frozen=True, tag=9):
    """Query transactional ids. An empty filter matches all (KIP-664)."""

    states: Annotated[frozenset[str], Meta(max_length=16)] = frozenset()
    producer_ids: Annotated[frozenset[int], Meta(max_length=1_000)] = frozenset()
    open_ms_min: _Number = 0
    """Shortest age of listed open transactions. 0 also lists idle transactional ids."""


class DescribeTransaction(_Base, frozen=True, tag=10):
    """Query one transactional id (KIP-664)."""

    transactional_id: _TransactionalId


Request: TypeAlias = (
    InitProducer
    | AddPartitions
    | VerifyOrAdd
    | EndTransaction
    | PrepareTransaction
    | AbortTransaction
    | CommitSinkEpoch
    | DescribeSink
    | ListTransactions
    | DescribeTransaction
)


# Responses


class Failure(_Base, frozen=True, tag=1):
    """A LogError as a response, where the decision has records or the request has parts."""

    code: int
    message: str

    @classmethod
    def of(cls, error: LogError) -> Self:
        """The response for an error."""
        return cls(error.entry.code, error.message)

    def error(self) -> LogError:
        """The error to raise."""
        return LogError(ERROR_TABLE.get(self.code, INTERNAL), self.message)


class Initialized(_Base, frozen=True, tag=2):
    """The producer for the next transaction."""

    producer: Producer
    prepared: Producer | None = None
    """Producer id and epoch under which the kept transaction was prepared, or None."""


class Done(_Base, frozen=True, tag=3):
    """The request is carried out."""


class Verified(_Base, frozen=True, tag=4):
    """The outcome of each verification, in order. With None its batches may be appended."""

    outcomes: Annotated[tuple[Failure | None, ...], Meta(max_length=VERIFICATIONS_MAX)]


class Ended(_Base, frozen=True, tag=5):
    """The transaction's end is decided."""

    producer: Producer
    """Producer of the next transaction, with the next epoch or a new id (version 2)."""


class SinkEpoch(_Base, frozen=True, tag=6):
    """The newest committed epoch of a sink."""

    sink_id: _SinkId
    epoch: _NumberOrNone
    """NO_EPOCH: none."""
    owner: _Owner = ""


class TransactionSummary(_Base, frozen=True):
    """One transactional id, in short."""

    transactional_id: str
    producer: Producer
    state: str
    """`empty`, `ongoing`, `prepared`, `prepare-commit`, `prepare-abort`, `complete-commit`,
    `complete-abort`."""
    open_ms: int
    """Age of the open transaction, or 0 without an open transaction."""
    is_overdue: bool
    """Prepared for longer than `prepared_timeout_ms`, so that an operator should end it."""


class TransactionListing(_Base, frozen=True, tag=7):
    """The transactional ids of a shard that match."""

    transactions: Annotated[tuple[TransactionSummary, ...], Meta(max_length=LISTED_MAX)]
    is_complete: bool
    """False: more match than one answer holds."""


class TransactionDescription(_Base, frozen=True, tag=8):
    """One transactional id with its transaction."""

    summary: TransactionSummary
    timeout_ms: int
    start_ms: int
    """Wall clock, milliseconds since the Unix epoch. -1 without a transaction."""
    last_update_ms: int
    partitions: tuple[TopicPartition, ...]
    unwritten: tuple[TopicPartition, ...]
    """Partitions of a decided transaction without a confirmed marker."""


Response: TypeAlias = (
    Failure
    | Initialized
    | Done
    | Verified
    | Ended
    | SinkEpoch
    | TransactionListing
    | TransactionDescription
)


def successful(response: Response) -> Response:
    """Return the response, or raise the LogError of a `Failure`."""
    if isinstance(response, Failure):
        raise response.error()
    return response


class PendingMarkers(NamedTuple):
    """Markers to write for one decided transaction, once its decision is committed."""

    transactional_id: str
    decision: int
    """Number of the decision in this shard, since its load. Two ends of a client of version 1 have
    the same producer id and epoch."""
    producer: Producer
    """The markers' producer id and epoch."""
    is_commit: bool
    version: int
    """Version of the protocol. With 2 the marker's epoch is above that of every batch of its
    transaction, so a leader with an open transaction of that very epoch must reject the marker
    (KIP-1228)."""
    partitions: frozenset[TopicPartition]
    """Those without a confirmed marker."""
