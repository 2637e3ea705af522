"""An honest coordinator of transactions, without I/O (KIP-890: each end gives the next epoch)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from raftlog.api.transactions import EndRequest, InitRequest, TransactionProducer
from raftlog.record.batch import RecordBatch
from raftlog.record.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_TXN_STATE,
    MALFORMED_BATCH,
    PRODUCER_FENCED,
    LogError,
)
from tests.client.fake_groups import FakeGroup
from tests.client.fake_partition import FakePartition

OPEN = ("ongoing", "prepared")


@dataclass
class FakeTransaction:
    transactional_id: str
    producer_id: int
    epoch: int
    timeout_s: float
    state: str = "empty"
    started: float = 0.0
    partitions: dict[tuple[str, int], FakePartition] = field(default_factory=dict)
    groups: dict[str, FakeGroup] = field(default_factory=dict)
    retry_epoch: int = -1
    """The epoch of the client that made the last change, and may ask again."""
    is_expired: bool = False
    slow_answers: int = 0
    """So many requests meet a decided transaction that is not complete yet."""
    written_epoch: int = -1
    """Of the open transaction's batches: older than `epoch` after an init that kept it."""

    def init(self, request: InitRequest) -> None:
        self._slow()
        known = (request.producer_id, request.producer_epoch)
        if request.producer_id >= 0 and known != (self.producer_id, self.epoch):
            raise LogError(PRODUCER_FENCED)
        self.timeout_s = request.timeout_ms / 1000
        if self.state == "prepared" and request.keep_prepared:
            self.epoch += 1
        elif self.state in OPEN:
            self._decide(is_commit=False)
            raise LogError(CONCURRENT_TRANSACTIONS)
        else:
            self.epoch += 1
            self.state = "empty"
        self.retry_epoch = -1

    def check(self, producer_id: int, epoch: int) -> None:
        self._slow()
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            raise LogError(PRODUCER_FENCED, f"epoch {epoch}, the newest is {self.epoch}")

    def add(self, producer_id: int, epoch: int, now: float) -> None:
        """A write begins the transaction, or goes on with it."""
        self.check(producer_id, epoch)
        if self.state == "prepared":
            raise LogError(INVALID_TXN_STATE)
        if self.state != "ongoing":
            self.state, self.started, self.written_epoch = "ongoing", now, epoch

    def end(self, request: EndRequest, *, is_commit: bool) -> None:
        self._slow()
        known = (request.producer_id, request.producer_epoch)
        if known == (self.producer_id, self.retry_epoch) and self.epoch == self.retry_epoch + 1:
            if self.state == ("complete-commit" if is_commit else "complete-abort"):
                return
            raise LogError(PRODUCER_FENCED if self.is_expired else INVALID_TXN_STATE)
        self.check(*known)
        if self.state in OPEN:
            self._decide(is_commit=is_commit)
        elif is_commit:
            raise LogError(INVALID_TXN_STATE)
        else:
            self.state = "complete-abort"
            self.epoch += 1
        self.retry_epoch = request.producer_epoch
        self.is_expired = False

    def prepare(self, request: EndRequest) -> None:
        self.check(request.producer_id, request.producer_epoch)
        if self.state not in OPEN:
            raise LogError(INVALID_TXN_STATE)
        self.state = "prepared"

    def expire(self, now: float) -> None:
        if self.state == "ongoing" and now - self.started > self.timeout_s:
            self.retry_epoch = self.epoch
            self._decide(is_commit=False)
            self.is_expired = True

    def fence(self) -> None:
        """Abort by an operator."""
        if self.state not in OPEN:
            raise LogError(INVALID_TXN_STATE)
        self._decide(is_commit=False)
        self.retry_epoch = -1

    def _decide(self, *, is_commit: bool) -> None:
        self.epoch += 1
        for partition in self.partitions.values():
            partition.write_marker(self.producer_id, self.epoch, is_commit=is_commit)
        for group in self.groups.values():
            group.end_transaction(self.producer_id, is_commit=is_commit)
        self.partitions, self.groups = {}, {}
        self.state = "complete-commit" if is_commit else "complete-abort"

    def _slow(self) -> None:
        if self.slow_answers:
            self.slow_answers -= 1
            raise LogError(CONCURRENT_TRANSACTIONS)

    def answer(self) -> TransactionProducer:
        return TransactionProducer(self.producer_id, self.epoch, self.state == "prepared")


class FakeTransactions:
    """All transactional ids."""

    def __init__(self, new_producer_id: Callable[[], int]) -> None:
        self.by_id: dict[str, FakeTransaction] = {}
        self._new_producer_id = new_producer_id

    def init(self, transactional_id: str, request: InitRequest, now: float) -> FakeTransaction:
        found = self.by_id.get(transactional_id)
        if found is None:
            found = self.by_id[transactional_id] = FakeTransaction(
                transactional_id, self._new_producer_id(), 0, request.timeout_ms / 1000
            )
            return found
        found.expire(now)
        found.init(request)
        return found

    def get(self, transactional_id: str, now: float) -> FakeTransaction:
        found = self.by_id.get(transactional_id)
        if found is None:
            raise LogError(PRODUCER_FENCED, "no such transactional id")
        found.expire(now)
        return found

    def check_batches(
        self,
        transactional_id: str,
        partition: FakePartition,
        batches: Sequence[RecordBatch],
        now: float,
    ) -> None:
        """The leader's question before it appends."""
        found = self.get(transactional_id, now)
        for batch in batches:
            header = batch.header
            if not header.is_transactional:
                raise LogError(MALFORMED_BATCH, "not a transactional batch")
            found.add(header.producer_id, header.producer_epoch, now)
        found.partitions[partition.topic, partition.partition] = partition
