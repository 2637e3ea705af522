"""A transaction shard with its log, its clocks and its producer ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raftlog.coordinator.shard.decision import UNDATED_MS, CoordinatorRecord, Decision, Producer
from raftlog.coordinator.shard.record_codec import decode_transaction_record, encode_record
from raftlog.coordinator.transactions.messages import (
    Ended,
    EndTransaction,
    Failure,
    Initialized,
    InitProducer,
    PendingMarkers,
    Request,
    Response,
    TopicPartition,
    Verification,
    Verified,
    VerifyOrAdd,
)
from raftlog.coordinator.transactions.shard import TransactionShard
from raftlog.coordinator.transactions.transaction import (
    ProducerIdRequiredError,
    State,
    Transaction,
    TransactionSettings,
)
from raftlog.record.errors import ErrorEntry, LogError
from raftlog.record.types import ProducerEpoch, ProducerId

FIRST_PRODUCER_ID = 1000
P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


def producer(producer_id: int, epoch: int) -> Producer:
    return Producer(ProducerId(producer_id), ProducerEpoch(epoch))


class Coordinator:
    """Appends and replays every decision, as the shell does."""

    def __init__(self, settings: TransactionSettings = TransactionSettings()) -> None:  # noqa: B008
        self.log: list[tuple[CoordinatorRecord, ...]] = []
        self.stored: list[tuple[bytes, bytes | None]] = []
        """Keys and values of all records."""
        self.settings = settings
        self.now_ms = 1_000
        self.wall_ms = 1_700_000_000_000
        self.is_dated = True
        """Whether the cluster time is known."""
        self.next_producer_id = FIRST_PRODUCER_ID
        self.shard = self.rebuilt()

    @property
    def time_ms(self) -> int:
        """The time that is stored."""
        return self.wall_ms if self.is_dated else UNDATED_MS

    def rebuilt(self) -> TransactionShard:
        shard = TransactionShard(self.settings)
        for position, (key, value) in enumerate(self.stored):
            record = decode_transaction_record(key, value)
            assert isinstance(record, CoordinatorRecord)
            shard.replay(record, position=position, producer=None)
        shard.loaded(self.now_ms)
        return shard

    def reload(self) -> None:
        self.shard = self.rebuilt()

    def decide(self, request: Request) -> Decision[Response]:
        try:
            return self.shard.decide(request, self.now_ms, self.time_ms)
        except ProducerIdRequiredError:
            self.next_producer_id += 1
            allocated = ProducerId(self.next_producer_id - 1)
            return self.shard.decide(request, self.now_ms, self.time_ms, allocated)

    def append(self, records: Sequence[CoordinatorRecord]) -> None:
        if not records:
            return
        self.log.append(tuple(records))
        for record in records:
            self.shard.replay(record, position=len(self.stored), producer=None)
            self.stored.append(encode_record(record))

    def ask(self, request: Request) -> Response:
        """The response, or the raised LogError."""
        decision = self.decide(request)
        self.append(decision.records)
        return decision.response

    def refusal(self, request: Request) -> ErrorEntry:
        """The error of a request: raised, or in the response. A raised one changes nothing."""
        try:
            response = self.ask(request)
        except LogError as error:
            return error.entry
        if isinstance(response, Verified):
            (response,) = [outcome for outcome in response.outcomes if outcome is not None]
        assert isinstance(response, Failure), f"not refused: {response}"
        return response.error().entry

    def elapse(self, duration_ms: int) -> None:
        """Let time pass; fire the timers."""
        self.now_ms += duration_ms
        self.wall_ms += duration_ms
        while (key := self.shard.timers.pop_due(self.now_ms)) is not None:
            expiry_ms = self.wall_ms if self.is_dated else None
            decision = self.shard.expire(key, self.now_ms, self.time_ms, expiry_ms)
            self.append(decision.records)

    def confirm(self, pending: PendingMarkers, partitions: Iterable[TopicPartition]) -> None:
        self.append(self.shard.markers_written(pending, partitions, self.time_ms).records)

    def write_markers(self) -> None:
        """Complete all decided transactions."""
        for pending in self.shard.pending_markers():
            self.confirm(pending, pending.partitions)

    def state(self, transactional_id: str) -> State:
        return self.transaction(transactional_id).state

    def transaction(self, transactional_id: str) -> Transaction:
        return self.shard._transactions[transactional_id]

    # Shorter forms of requests

    def init(
        self, transactional_id: str = "a", known: Producer | None = None, *, keep: bool = False
    ) -> Producer:
        response = self.ask(InitProducer(transactional_id, 60_000, known, keep))
        assert isinstance(response, Initialized), response
        return response.producer

    def add(
        self, client: Producer, *partitions: TopicPartition, transactional_id: str = "a"
    ) -> None:
        response = self.ask(addition(transactional_id, client, *partitions))
        assert response == Verified((None,)), response

    def end(
        self,
        client: Producer,
        *,
        commit: bool = True,
        version: int = 2,
        transactional_id: str = "a",
    ) -> Producer:
        response = self.ask(EndTransaction(transactional_id, client, commit, version))
        assert isinstance(response, Ended), response
        return response.producer


def addition(
    transactional_id: str, client: Producer, *partitions: TopicPartition, is_addition: bool = True
) -> VerifyOrAdd:
    return VerifyOrAdd((Verification(transactional_id, client, partitions, is_addition),))
