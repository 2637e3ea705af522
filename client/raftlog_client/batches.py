"""One record batch on its way: the records gathered, who waits for them, and what became of them.

Life: open (takes records) → sealed (takes no more) → stamped (has producer id and sequence, and
bytes that never change again: a node recognises a repeat by them) → settled (acknowledged or
failed), once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from raftlog.record.batch import sealed
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression
from raftlog.record.header import parse_header
from raftlog.record.types import NO_SEQUENCE, ProducerEpoch, ProducerId
from raftlog_client.errors import RaftlogClientError
from raftlog_client.types import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    RecordMetadata,
    TopicPartition,
)

NO_OFFSET = -1
"""The offset of a record that was acknowledged without one (acks=0)."""


class ProducerIdentity(NamedTuple):
    """What a node recognises repeats by. A partition gets a new one after a batch was given up."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class Acknowledged(NamedTuple):
    """A node's word that a frame of batches is written as far as `acks` asks."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int = -1


class BulkListener(Protocol):
    """Whoever waits for whole batches instead of single records."""

    def batch_acknowledged(self, batch: PendingBatch, base_offset: int) -> None:
        """The batch is written; base_offset is -1 if nobody knows where."""
        ...

    def batch_failed(self, batch: PendingBatch, error: RaftlogClientError) -> None:
        """The batch is given up."""
        ...


class PendingBatch:
    """A batch from its first record to its outcome."""

    __slots__ = (
        "_data",
        "_on_settled",
        "append",
        "base_sequence",
        "builder",
        "bulk",
        "deadline",
        "futures",
        "identity",
        "is_due",
        "is_settled",
        "last_error",
        "linger_timer",
        "outcome_unknown",
        "reserved_bytes",
        "settled_waiter",
        "target",
        "timestamps",
    )

    def __init__(
        self,
        target: TopicPartition,
        *,
        compression: Compression,
        size_bytes_max: int,
        deadline: float,
        bulk: BulkListener | None,
        on_settled: Callable[[PendingBatch], None],
    ) -> None:
        self.target = target
        self.builder = BatchBuilder(compression, size_bytes_max)
        self.append = self.builder.append
        self.bulk = bulk
        self.deadline = deadline
        """Loop time after which the batch is given up."""
        self.futures: list[asyncio.Future[RecordMetadata]] = []
        self.timestamps: list[int] = []
        self.reserved_bytes = 0
        """What the batch takes of the send buffer."""
        self.is_due = False
        """Whether the batch may travel before it is full."""
        self.linger_timer: asyncio.TimerHandle | None = None
        self.identity: ProducerIdentity | None = None
        self.base_sequence = NO_SEQUENCE
        self.outcome_unknown = False
        """Whether an attempt ended so that it may have written the batch. Never forgotten."""
        self.last_error: RaftlogClientError | None = None
        self.is_settled = False
        self.settled_waiter: asyncio.Future[None] | None = None
        self._on_settled = on_settled
        self._data: bytearray | None = None

    @property
    def record_count(self) -> int:
        """Records in the batch."""
        return self.builder.record_count

    @property
    def was_sent(self) -> bool:
        """Whether the batch ever left, whatever became of it."""
        return self.last_error is not None or self._data is not None

    def stamp(self, identity: ProducerIdentity, base_sequence: int) -> None:
        """Give the batch what a node recognises repeats by.

        Stamping again, under another identity, is allowed only while the batch is certainly not
        written: otherwise it could be written twice.
        """
        assert not self.outcome_unknown, "a batch that may be written must stay recognisable"
        self.identity = identity
        self.base_sequence = base_sequence
        if self._data is None:
            self.builder.set_producer_state(*identity, base_sequence)
        else:
            header = parse_header(self._data)
            sealed(
                self._data,
                header._replace(
                    producer_id=identity.producer_id,
                    producer_epoch=identity.producer_epoch,
                    base_sequence=base_sequence,
                ),
            )

    def unstamp(self) -> None:
        """Forget the identity of a batch that is certainly not written."""
        assert not self.outcome_unknown
        self.identity = None
        self.base_sequence = NO_SEQUENCE

    def data(self) -> bytearray:
        """The batch's bytes; the same ones at every call."""
        if self._data is None:
            self._data = self.builder.build()
        return self._data

    def size_bytes(self) -> int:
        """Size of the batch, compressed if it is built already."""
        return len(self._data) if self._data is not None else self.builder.size_bytes

    def acknowledge(self, base_offset: int, log_append_time_ms: int = -1) -> None:
        """Settle the batch as written and tell every waiter where its record stands."""
        if self.bulk is not None:
            self.bulk.batch_acknowledged(self, base_offset)
        offset = base_offset
        step = 0 if offset == NO_OFFSET else 1
        topic, partition = self.target
        # One loop for the whole batch: this runs for every awaited record.
        if log_append_time_ms < 0:
            for future, timestamp in zip(self.futures, self.timestamps, strict=True):
                if not future.done():
                    future.set_result(
                        RecordMetadata(topic, partition, offset, timestamp, CREATE_TIME)
                    )
                offset += step
        else:
            for future in self.futures:
                if not future.done():
                    future.set_result(
                        RecordMetadata(
                            topic, partition, offset, log_append_time_ms, LOG_APPEND_TIME
                        )
                    )
                offset += step
        self._settle()

    def fail(self, error: RaftlogClientError) -> None:
        """Settle the batch as given up and tell every waiter why."""
        if self.bulk is not None:
            self.bulk.batch_failed(self, error)
        for future in self.futures:
            if not future.done():
                future.set_exception(error)
        self._settle()

    def settled(self) -> asyncio.Future[None]:
        """A future that is done once the batch is settled, either way."""
        if self.settled_waiter is None:
            self.settled_waiter = asyncio.get_running_loop().create_future()
            if self.is_settled:
                self.settled_waiter.set_result(None)
        return self.settled_waiter

    def _settle(self) -> None:
        assert not self.is_settled, "a batch has one outcome"
        self.is_settled = True
        if self.linger_timer is not None:
            self.linger_timer.cancel()
        if self.settled_waiter is not None and not self.settled_waiter.done():
            self.settled_waiter.set_result(None)
        self._on_settled(self)
