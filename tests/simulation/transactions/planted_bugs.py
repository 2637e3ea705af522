"""Mistakes in transactions, planted one at a time: random histories alone must find each.

    scripts/simulate planted-transactions late-batch 0:200     how many seeds find it, and how
    scripts/simulate planted-transactions all 1000:1200        each, over 200 fresh seeds

Each name begins with the number of its invariant in raftlog/coordinator/DESIGN.md, "What must never
happen". In the checks, one recorded seed finds each (test_planted_bugs.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from raftlog.broker.groups import GroupService
from raftlog.coordinator.shard.decision import CoordinatorRecord
from raftlog.coordinator.shard.records import TransactionLogValue
from raftlog.coordinator.shard.shard import Shard
from raftlog.coordinator.transactions import kind as transaction_kind
from raftlog.coordinator.transactions import transaction
from raftlog.coordinator.transactions.markers import MarkerWriter
from raftlog.coordinator.transactions.messages import PendingMarkers
from raftlog.coordinator.transactions.shard import TransactionShard
from raftlog.coordinator.transactions.verification import VerifiedTransactions
from raftlog.record.control import Marker
from raftlog.record.types import LEADER_EPOCH_MAX, NO_PRODUCER_ID
from raftlog.replication.partition import Isolation, Partition
from raftlog.storage.compaction.rewrite import CompactionPass
from raftlog.storage.log.core import LogCore
from raftlog.storage.producers import state as producer_state
from raftlog.storage.producers.entry import judge_marker
from raftlog.storage.producers.state import ProducerStates
from raftlog.storage.segments.segments import Segments
from raftlog.storage.transactions.transactions import UnstableTransactions
from tests.simulation.coordinator import planted_bugs as shell
from tests.simulation.data.planted_bugs import BlindSpot


async def _with_aborted(
    self: Partition, offset: Any, end: Any, max_bytes: int, isolation: Isolation
) -> Any:
    return await self.log.reader.read(offset, end=end, max_bytes=max_bytes), ()


def _half_committed(right: Callable[..., Any]) -> Any:
    async def attempt(self: Any, shard: Any, markers: PendingMarkers, partition: Any) -> Any:
        if markers.is_commit and partition == max(markers.partitions):
            markers = markers._replace(is_commit=False)
        return await right(self, shard, markers, partition)

    return attempt


async def _verified(*_arguments: Any, **_named: Any) -> None:
    """The leader trusts the client."""


def _for_any_epoch(right: Callable[..., None]) -> Any:
    def check_client(before: Any, producer: Any) -> None:
        if producer.producer_id != before.client.producer_id:
            right(before, producer)

    return check_client


def _of_any_coordinator(
    known: Any, producer_id: Any, epoch: Any, marker: Marker, newest: int
) -> Any:
    if known is not None and marker.coordinator_epoch < known.coordinator_epoch:
        known = replace(known, coordinator_epoch=-1)
    return judge_marker(known, producer_id, epoch, marker, newest)


def _of_any_epoch(known: Any, producer_id: Any, epoch: Any, marker: Marker, _newest: int) -> Any:
    return judge_marker(known, producer_id, epoch, marker, LEADER_EPOCH_MAX)


def _ended_at_the_marker(self: UnstableTransactions, producer_id: int, last_offset: int) -> Any:
    self._open.pop(producer_id)
    return next(iter(self._open.values()), last_offset + 1)


def _nothing(*_arguments: Any, **_named: Any) -> None:
    """Left out."""


def _without_transaction(right: Callable[..., Any]) -> Any:
    async def commit(self: GroupService, *arguments: Any) -> Any:
        return await right(self, *arguments[:4])

    return commit


def _own_decisions_alone(right: Callable[..., Any]) -> Any:
    async def run(self: MarkerWriter, shard: Any) -> None:
        shard.state._progress.clear()
        await right(self, shard)

    return run


def _without_previous_producer(right: Callable[..., Any]) -> Any:
    def encode(record: CoordinatorRecord) -> Any:
        if isinstance(record.value, TransactionLogValue):
            value = replace(record.value, previous_producer_id=NO_PRODUCER_ID)
            record = record._replace(value=value)
        return right(record)

    return encode


PLANTED: Final = (
    BlindSpot(
        "2-offsets-at-once",
        "The offsets of a transaction are committed before its end, whatever that is.",
        ((GroupService, "commit", _without_transaction(GroupService.commit)),),
        4,
    ),
    BlindSpot(
        "3-aborted-are-sent",
        "A fetch names no aborted transactions, so readers take their records for committed.",
        ((Partition, "_read", _with_aborted),),
        3,
    ),
    BlindSpot(
        "3-aborted-are-forgotten",
        "A segment with its first aborted transaction is not marked as having one.",
        ((Segments, "add_aborted", _nothing),),
        0,
    ),
    BlindSpot(
        "3-half-committed",
        "The last partition of a committed transaction gets an abort marker.",
        ((MarkerWriter, "_attempt", _half_committed(MarkerWriter._attempt)),),
        0,
    ),
    BlindSpot(
        "3-aborted-supersede",
        "Compaction lets the records of aborted transactions supersede committed ones.",
        ((CompactionPass, "_is_aborted", lambda _self, _batch: False),),
        4,
    ),
    BlindSpot(
        "4-unverified",
        "A leader appends the first batch of a transaction without its coordinator.",
        ((VerifiedTransactions, "_ask", _verified),),
        0,
    ),
    BlindSpot(
        "4-any-epoch",
        "A coordinator adds partitions for a producer epoch that is over.",
        ((transaction, "_check_client", _for_any_epoch(transaction._check_client)),),
        0,
    ),
    BlindSpot(
        "4-joins-the-decided",
        "A coordinator adds partitions to a transaction that is decided.",
        ((transaction, "_check_extensible", _nothing),),
        1,
    ),
    BlindSpot(
        "4-old-coordinator",
        "A marker of an old coordinator is appended after a newer one's.",
        ((producer_state, "judge_marker", _of_any_coordinator),),
        31,
    ),
    BlindSpot(
        "4-any-coordinator-epoch",
        "A leader takes the number in an operator's marker for a coordinator's epoch.",
        ((producer_state, "judge_marker", _of_any_epoch),),
        2,
    ),
    BlindSpot(
        "5-stable-at-the-marker",
        "A transaction is stable once its marker is written, not once it is committed.",
        ((UnstableTransactions, "end", _ended_at_the_marker),),
        0,
    ),
    BlindSpot(
        "5-open-forgotten-by-snapshots",
        "A producer snapshot does not restore the open transactions.",
        ((ProducerStates, "_restore_transactions", _nothing),),
        3,
    ),
    BlindSpot(
        "5-bound-not-held",
        "While the producers are rebuilt after a truncation, no transaction counts as open.",
        ((LogCore, "stable_bound", property(lambda _self: None, _nothing)),),
        1,
    ),
    BlindSpot(
        "5-decision-forgotten",
        "A new coordinator leaves the markers of earlier decisions unwritten: they hang.",
        ((MarkerWriter, "run", _own_decisions_alone(MarkerWriter.run)),),
        1,
    ),
    BlindSpot(
        "5-no-timer-after-a-load",
        "A new coordinator lets open transactions of earlier ones never time out.",
        ((TransactionShard, "loaded", _nothing),),
        7,
    ),
    BlindSpot(
        "6-answers-before-commit",
        "A coordinator answers before the records of its decision are committed.",
        ((Shard, "_waited", shell.answered_before_commit),),
        0,
    ),
    BlindSpot(
        "6-markers-before-commit",
        "An answer without records of its own does not wait for what it has seen.",
        ((Shard, "_committed", shell.not_waited),),
        0,
    ),
    BlindSpot(
        "6-record-without-a-field",
        "A record does not hold the producer that may ask again, so a load forgets the producer.",
        (
            (
                transaction_kind,
                "encode_record",
                _without_previous_producer(transaction_kind.encode_record),
            ),
        ),
        0,
    ),
    BlindSpot(
        "6-state-kept",
        "A coordinator keeps its state after an append that failed.",
        ((Shard, "end", shell.going_on(Shard.end)),),
        17,
    ),
    BlindSpot(
        "7-own-clock",
        "A coordinator forgets transactional ids and sinks by its own wall clock.",
        ((Shard, "moment", shell.by_own_clock(Shard.moment)),),
        2,
    ),
)


def planted_bug(name: str) -> BlindSpot:
    """The planted bug of a name."""
    return next(bug for bug in PLANTED if bug.name == name)
