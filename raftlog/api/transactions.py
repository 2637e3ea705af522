"""Shapes of transactions in `/v1` (KIP-98, 890, 939).

A transaction starts with its first write, which is a produce request with `transactional_id`, or
offsets. The end of each transaction gives the producer its next epoch. The next transaction uses
that epoch, with sequence numbers from 0.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from raftlog.api.common import EPOCH_MAX, INT32_MAX, INT64_MAX
from raftlog.api.groups import GROUP_ID_PATTERN, NO_MEMBER_EPOCH, OffsetCommit

TRANSACTIONAL_ID_PATTERN: Final = r"^[^\x00-\x1f\x7f]{1,255}$"
TRANSACTION_TIMEOUT_MS_DEFAULT: Final = 60_000

_ProducerId = Annotated[int, Meta(ge=-1, le=INT64_MAX)]
_ProducerEpoch = Annotated[int, Meta(ge=-1, le=EPOCH_MAX)]


class InitRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Starts or restarts the only producer of a transactional id."""

    timeout_ms: Annotated[int, Meta(ge=1, le=INT32_MAX)] = TRANSACTION_TIMEOUT_MS_DEFAULT
    """Milliseconds after which an open transaction is aborted."""
    producer_id: _ProducerId = -1
    producer_epoch: _ProducerEpoch = -1
    """Producer id and epoch of an earlier response, else -1. Resumes after an error (KIP-360)."""
    keep_prepared: bool = False
    """Whether an earlier producer's prepared transaction remains to be ended (KIP-939)."""


class TransactionProducer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The producer id and epoch for the next writes."""

    producer_id: int
    producer_epoch: int
    is_prepared: bool = False
    """Whether a prepared transaction waits for its end."""


class EndRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Commit, abort or prepare the transaction of this producer.

    Harmless to repeat with the same epoch until the response arrives. An abort without an open
    transaction also gives the next epoch. After the coordinator has aborted a transaction for its
    timeout, a commit returns PRODUCER_FENCED and an abort gives the next epoch. The client thus
    distinguishes a timeout from a fence.
    """

    producer_id: Annotated[int, Meta(ge=0, le=INT64_MAX)]
    producer_epoch: Annotated[int, Meta(ge=0, le=EPOCH_MAX)]


class TransactionOffsets(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Offsets of a group that are committed with the transaction."""

    producer_id: Annotated[int, Meta(ge=0, le=INT64_MAX)]
    producer_epoch: Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
    group: Annotated[str, Meta(pattern=GROUP_ID_PATTERN)]
    offsets: list[OffsetCommit]
    member_id: Annotated[str, Meta(max_length=255)] = ""
    member_epoch: Annotated[int, Meta(ge=-1, le=INT32_MAX)] = NO_MEMBER_EPOCH


class TransactionPartition(msgspec.Struct, frozen=True):
    """A partition of a transaction."""

    topic: str
    partition: int


class TransactionListing(msgspec.Struct, frozen=True):
    """Summary of one transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    """`empty`, `ongoing`, `prepared`, `prepare-commit`, `prepare-abort`, `complete-commit`,
    `complete-abort`."""
    coordinator: int
    open_ms: int
    """Milliseconds since the start of the open transaction, or 0."""


class TransactionList(msgspec.Struct, frozen=True):
    """All transactional ids that match."""

    transactions: list[TransactionListing]
    incomplete: list[str] = []
    """Reasons for missing ids of unreachable coordinators."""


class TransactionDescription(msgspec.Struct, frozen=True):
    """A transactional id with its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    coordinator: int
    timeout_ms: int
    started_ms: int
    """Wall-clock milliseconds since the Unix epoch, or -1 without a transaction."""
    last_update_ms: int
    open_ms: int
    partitions: list[TransactionPartition]


class SinkEpochRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Commits one epoch of a sink with exactly these prepared transactions."""

    transactional_ids: list[Annotated[str, Meta(pattern=TRANSACTIONAL_ID_PATTERN)]]
    """Ids of the form `sink/<sink>/…`. All other transactions of the sink are aborted."""
    owner: Annotated[str, Meta(max_length=255)] = ""
    """Writer of the sink's epochs. An owner other than the first epoch's is rejected."""


class SinkCommitRequest(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Commits exactly these prepared transactions of a sink once."""

    transactional_ids: list[Annotated[str, Meta(pattern=TRANSACTIONAL_ID_PATTERN)]]
    """Ids of the form `sink/<sink>/…`. All other transactions of the sink are aborted, so an empty
    list aborts all."""
    owner: Annotated[str, Meta(max_length=255)] = ""
    """Writer of the sink's epochs. Another owner is rejected."""


class SinkEpoch(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest committed epoch of a sink."""

    sink: str
    epoch: int
    """Newest committed epoch, or -1."""
    owner: str = ""
