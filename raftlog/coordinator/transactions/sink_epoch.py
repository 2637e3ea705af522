"""Sink epochs, which commit prepared transactions of many tasks as one decision.

A sink is an engine that writes in epochs, such as a streaming query of Spark. Each attempt of a
task prepares a transaction `sink/<sink id>/<anything>`, and one request commits those of an epoch.
They share a shard, so one batch of records commits the named transactions, aborts the sink's
others, and stores the epoch's number, all or nothing. A repeat is harmless.

**Owner.** The owner that commits a sink's first epoch owns its numbers, such as a query of Spark by
the id in its checkpoint. Another owner would use the same numbers. Its epochs would count as
committed, and their rows be lost.

**A sink that commits once** has no epochs. Its transactions themselves show whether they are
committed, for as long as they are known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from raftlog.coordinator.shard.records import SinkEpochValue
from raftlog.coordinator.transactions import transaction as transitions
from raftlog.coordinator.transactions.messages import (
    NO_EPOCH,
    SINK_ID_CHARACTERS_MAX,
    SINK_PREFIX,
    SINK_TRANSACTIONS_MAX,
    CommitSinkEpoch,
    sink_of,
)
from raftlog.coordinator.transactions.transaction import DECISION_BYTES_MAX, State, Transaction
from raftlog.record.errors import (
    INVALID_TRANSACTIONAL_ID,
    INVALID_TXN_STATE,
    SINK_OWNED,
    TRANSACTION_TOO_LARGE,
    UNKNOWN_TRANSACTION,
    LogError,
    quoted,
)

COMMITTED: Final = frozenset([State.PREPARE_COMMIT, State.COMPLETE_COMMIT])


class SinkDecision(NamedTuple):
    """What a request changes."""

    after: Mapping[str, Transaction]
    """Next transactions by transactional id."""
    value: SinkEpochValue | None
    """New epoch of the sink, or None."""


def decide(
    request: CommitSinkEpoch,
    committed: SinkEpochValue | None,
    open_ids: Collection[str],
    transactions: Mapping[str, Transaction],
    wall_ms: int,
) -> SinkDecision:
    """Commit an epoch, or abort transactions prepared again for a committed epoch.

    A replay of an epoch prepares other transactions than the committed epoch. These must neither
    hold back readers nor be committed. `open_ids` are the sink's ids with an open transaction.
    Raises LogError for a refusal, and then nothing changes.
    """
    named = dict.fromkeys(request.transactional_ids)
    _check(request, named, committed)
    after: dict[str, Transaction] = {}
    value: SinkEpochValue | None = None
    strays: Iterable[str] = [name for name in named if name in open_ids]
    if request.epoch == NO_EPOCH or committed is None or request.epoch > committed.committed_epoch:
        if request.epoch == NO_EPOCH:
            _check_known(named, transactions)
        for name in named:
            present = transactions.get(name)
            if request.epoch == NO_EPOCH and present is not None and present.state in COMMITTED:
                continue
            after[name] = _committed(name, present, wall_ms)
        strays = [name for name in open_ids if name not in named]
        if request.epoch != NO_EPOCH:
            value = SinkEpochValue(request.epoch, wall_ms, request.owner)
    size = sum(present.record_bytes(name) for name, present in after.items())
    if size > DECISION_BYTES_MAX:
        raise LogError(
            TRANSACTION_TOO_LARGE,
            "The transactions of this sink epoch have too many partitions for one decision.",
        )
    for name in strays:
        aborted = transitions.fence(transactions[name], wall_ms)
        size += aborted.record_bytes(name)
        if size > DECISION_BYTES_MAX:
            # The rest waits for its timeout, or for the next epoch.
            break
        after[name] = aborted
    return SinkDecision(after, value)


def _check(
    request: CommitSinkEpoch, named: Collection[str], committed: SinkEpochValue | None
) -> None:
    sink_id = request.sink_id
    if not 1 <= len(sink_id) <= SINK_ID_CHARACTERS_MAX or "/" in sink_id:
        raise LogError(
            INVALID_TRANSACTIONAL_ID,
            f"A sink id has 1 to {SINK_ID_CHARACTERS_MAX} characters, without a slash.",
        )
    if len(named) > SINK_TRANSACTIONS_MAX:
        raise LogError(
            TRANSACTION_TOO_LARGE,
            f"A sink epoch has at most {SINK_TRANSACTIONS_MAX:,} transactions.",
        )
    for name in named:
        if sink_of(name) != sink_id:
            raise LogError(
                INVALID_TRANSACTIONAL_ID,
                f"{quoted(name)} is no transactional id of this sink: they begin with "
                f"{quoted(f'{SINK_PREFIX}{sink_id}/')}.",
            )
    if committed is not None and committed.owner != request.owner:
        raise LogError(
            SINK_OWNED,
            f"The epochs of sink {quoted(sink_id)} belong to {quoted(committed.owner)}, which has "
            f"committed epoch {committed.committed_epoch}; {quoted(request.owner)} needs a sink id "
            "of its own.",
        )


def _check_known(named: Iterable[str], transactions: Mapping[str, Transaction]) -> None:
    """Raise LogError UNKNOWN_TRANSACTION if an earlier request may have committed the sink.

    All are committed at once, and forgotten a while after their end. So none of them is open then.
    """
    known = [transactions.get(name) for name in named]
    if None in known and all(each is None or each.state in COMMITTED for each in known):
        raise LogError(
            UNKNOWN_TRANSACTION,
            "The outcome of this sink is unknown. Its transactions have ended and are forgotten, "
            "or have never been. Look at the topic before you write again.",
        )


def _committed(name: str, present: Transaction | None, wall_ms: int) -> Transaction:
    """One transaction of a sink epoch, committed. Raises LogError unless it is prepared."""
    entry, reason = UNKNOWN_TRANSACTION, "There is no such transactional id."
    if present is not None:
        try:
            return transitions.commit_prepared(present, wall_ms)
        except LogError as error:
            entry, reason = INVALID_TXN_STATE, error.message
    raise LogError(
        entry, f"Nothing of this sink epoch is committed, because of {quoted(name)}: {reason}"
    )
