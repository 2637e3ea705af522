"""Shapes of transactions in /v1 (KIP-98, 890, 939).

A transaction begins with its first write: a produce request with `transactional_id`, or offsets.
The end of each transaction gives the producer its next epoch, which the next transaction uses, with
sequence numbers from 0.
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
    """Begin, or begin again, as the one producer of a transactional id."""

    timeout_ms: Annotated[int, Meta(ge=1, le=INT32_MAX)] = TRANSACTION_TIMEOUT_MS_DEFAULT
    """A transaction that lasts longer is aborted."""
    producer_id: _ProducerId = -1
    producer_epoch: _ProducerEpoch = -1
    """Both of an earlier answer, to go on after an error (KIP-360); else -1."""
    keep_prepared: bool = False
    """A prepared transaction of an earlier producer stays, to be committed or aborted (KIP-939)."""


class TransactionProducer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The producer id and epoch for the next writes."""

    producer_id: int
    producer_epoch: int
    is_prepared: bool = False
    """A prepared transaction waits for its end."""


class EndRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Commit, abort or prepare the transaction of this producer.

    Harmless to repeat with the same epoch until the answer is known. An abort without an open
    transaction gives the next epoch, too; after the coordinator has aborted a transaction for its
    timeout, the commit is answered PRODUCER_FENCED, and the abort gives the next epoch: so a client
    tells a timeout from a fence.
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
    """One transactional id, in short."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    """`empty`, `ongoing`, `prepared`, `prepare-commit`, `prepare-abort`, `complete-commit`,
    `complete-abort`."""
    coordinator: int
    open_ms: int
    """How long its transaction is open; 0 without one."""


class TransactionList(msgspec.Struct, frozen=True):
    """All transactional ids that match."""

    transactions: list[TransactionListing]
    incomplete: list[str] = []
    """Why those of some coordinators are missing, if any."""


class TransactionDescription(msgspec.Struct, frozen=True):
    """A transactional id with its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    coordinator: int
    timeout_ms: int
    started_ms: int
    """Wall clock, milliseconds since the Unix epoch; -1 without a transaction."""
    last_update_ms: int
    open_ms: int
    partitions: list[TransactionPartition]


class SinkEpochRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Commit one epoch of a sink: these prepared transactions, and none of its others."""

    transactional_ids: list[Annotated[str, Meta(pattern=TRANSACTIONAL_ID_PATTERN)]]
    """Each `sink/<sink>/…`. All other transactions of the sink are aborted."""
    owner: Annotated[str, Meta(max_length=255)] = ""
    """The writer of the sink's epochs. Another owner than that of the first one is refused."""


class SinkCommitRequest(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Commit these prepared transactions of a sink once, and none of its others."""

    transactional_ids: list[Annotated[str, Meta(pattern=TRANSACTIONAL_ID_PATTERN)]]
    """Each `sink/<sink>/…`. All other transactions of the sink are aborted; with none here, all."""
    owner: Annotated[str, Meta(max_length=255)] = ""
    """As of an epoch: another owner than that of the sink's epochs is refused."""


class SinkEpoch(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest committed epoch of a sink."""

    sink: str
    epoch: int
    """-1: none."""
    owner: str = ""
