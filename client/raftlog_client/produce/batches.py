"""One record batch with its records, their futures and their outcome.

A batch is open (takes records), then sealed (takes no more), then stamped (has producer id and
sequence), then settled once (acknowledged or failed). Once a stamped batch may be written, its
bytes never change, because a node recognises a repeat by its sequence. A batch that proves too
large is split, and its halves continue.

Some callers make batches faster than records can be handed over individually, for
`Producer.send_batch`. Such batches are stamped like the producer's batches, so repeats are also
recognised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from raftlog.record.batch import RecordBatch, sealed
from raftlog.record.codec import BatchBuilder, Headers, RecordTuple, decode
from raftlog.record.compression import Compression
from raftlog.record.errors import LogError
from raftlog.record.header import BATCH_LENGTH_MAX, TRANSACTIONAL_BIT, parse_header
from raftlog.record.types import NO_SEQUENCE, Buffer, ProducerEpoch, ProducerId
from raftlog_client.errors import RaftlogClientError, SerializationError
from raftlog_client.types import CREATE_TIME, LOG_APPEND_TIME, RecordMetadata, TopicPartition

NO_OFFSET = -1
"""The offset of a record acknowledged without one (acks=0)."""


class ProducerIdentity(NamedTuple):
    """Producer id and epoch, by which a node recognises repeats.

    A partition gets a new identity after a batch with unknown outcome was given up.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class Acknowledged(NamedTuple):
    """A frame of batches is written as far as `acks` requires."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int = -1


class BulkListener(Protocol):
    """Receives the outcome of whole batches."""

    def batch_acknowledged(self, batch: PendingBatch, base_offset: int) -> None:
        """Note that the batch is written. `base_offset` is -1 if unknown."""
        ...

    def batch_failed(self, batch: PendingBatch, error: RaftlogClientError) -> None:
        """Note that the batch is given up."""
        ...

    def batch_split(self, batch: PendingBatch, parts: Sequence[PendingBatch]) -> None:
        """Note that the batch was too large. Its parts take its place."""
        ...


class PendingBatch:
    """A batch from its first record to its outcome."""

    __slots__ = (
        "_compression",
        "_data",
        "_is_transactional",
        "_on_change",
        "_parts",
        "_waiters",
        "append",
        "base_sequence",
        "builder",
        "bulk",
        "deadline",
        "failure",
        "futures",
        "identity",
        "is_due",
        "is_settled",
        "last_error",
        "linger_timer",
        "outcome_unknown",
        "reserved_bytes",
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
        on_change: Callable[[PendingBatch, Sequence[PendingBatch]], None],
        builder: BatchBuilder | None = None,
        is_transactional: bool = False,
    ) -> None:
        """`builder` is given if it already has records."""
        self.target = target
        self.builder = builder or BatchBuilder(
            compression, size_bytes_max, transactional=is_transactional
        )
        self.append = self.builder.append
        self.bulk = bulk
        self.deadline = deadline
        """Loop time after which the batch is given up."""
        self.futures: list[asyncio.Future[RecordMetadata]] = []
        self.timestamps: list[int] = []
        self.reserved_bytes = 0
        """The batch's share of the send buffer."""
        self.is_due = False
        """Whether the batch may travel before it is full."""
        self.linger_timer: asyncio.TimerHandle | None = None
        self.identity: ProducerIdentity | None = None
        self.base_sequence = NO_SEQUENCE
        self.outcome_unknown = False
        """Whether an attempt may have written the batch. Never reset."""
        self.failure: RaftlogClientError | None = None
        """Error once the batch is given up."""
        self.last_error: RaftlogClientError | None = None
        self.is_settled = False
        """Whether the batch has an outcome. After a split its parts may have none yet."""
        self._waiters: list[asyncio.Future[None]] = []
        self._parts: Sequence[PendingBatch] = ()
        self._is_transactional = is_transactional
        self._compression = compression
        self._on_change = on_change
        self._data: bytearray | None = None

    @property
    def record_count(self) -> int:
        """Number of records in the batch."""
        return self.builder.record_count

    @property
    def was_sent(self) -> bool:
        """Whether the batch was ever sent."""
        return self.last_error is not None or self._data is not None

    def stamp(self, identity: ProducerIdentity, base_sequence: int) -> None:
        """Stamp producer identity and sequence, by which a node recognises repeats.

        Allowed again only while the batch is certainly not written. Otherwise a repeat could be
        written twice.
        """
        assert not self.outcome_unknown, "a batch that may be written must stay recognisable"
        if (identity, base_sequence) == (self.identity, self.base_sequence):
            return
        self.identity, self.base_sequence = identity, base_sequence
        if self._data is None:
            self.builder.set_producer_state(*identity, base_sequence)
        else:
            header = parse_header(self._data)._replace(
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                base_sequence=base_sequence,
            )
            sealed(self._data, header)

    def split(self) -> list[PendingBatch]:
        """Return two batches, each with half of the records, in place of this batch.

        Allowed only while the batch is certainly not written.
        """
        assert not self.outcome_unknown
        data = self.data()
        records = decode(
            RecordBatch(parse_header(data), memoryview(data)),
            decompressed_bytes_max=BATCH_LENGTH_MAX,
        )
        middle = len(records) // 2
        parts: list[PendingBatch] = []
        for part_of in (slice(None, middle), slice(middle, None)):
            part = PendingBatch(
                self.target,
                compression=self._compression,
                size_bytes_max=BATCH_LENGTH_MAX,
                deadline=self.deadline,
                bulk=self.bulk,
                on_change=self._on_change,
                is_transactional=self._is_transactional,
            )
            for record in records[part_of]:
                part.append(record.timestamp, record.key, record.value, record.headers)
            part.futures, part.timestamps = self.futures[part_of], self.timestamps[part_of]
            part.reserved_bytes = self.reserved_bytes // 2
            part.last_error = self.last_error
            parts.append(part)
        parts[1].reserved_bytes = self.reserved_bytes - parts[0].reserved_bytes
        if self.bulk is not None:
            self.bulk.batch_split(self, parts)
        self._end(parts)
        return parts

    def data(self) -> bytearray:
        """Return the batch's bytes, which are the same at every call."""
        if self._data is None:
            self._data = self.builder.build()
        return self._data

    def size_bytes(self) -> int:
        """Size of the batch. Once built, the size of its compressed bytes."""
        return len(self._data) if self._data is not None else self.builder.size_bytes

    def acknowledge(self, base_offset: int, log_append_time_ms: int = -1) -> None:
        """Settle the batch as written and give every waiter its record's offset."""
        if self.bulk is not None:
            self.bulk.batch_acknowledged(self, base_offset)
        offset = base_offset
        step = 0 if offset == NO_OFFSET else 1
        topic, partition = self.target
        # One loop for the whole batch, because this runs for every awaited record.
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
        self._end()

    def fail(self, error: RaftlogClientError) -> None:
        """Settle the batch as given up and give every waiter the error."""
        self.failure = error
        if self.bulk is not None:
            self.bulk.batch_failed(self, error)
        for future in self.futures:
            if not future.done():
                future.set_exception(error)
                if self._is_transactional:
                    # The end of the transaction reports it, so the future need not be awaited.
                    future.exception()
        self._end()

    async def settled(self) -> None:
        """Return once all parts of the batch are settled, acknowledged or failed."""
        if not self.is_settled:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        for part in self._parts:
            await part.settled()

    def _end(self, parts: Sequence[PendingBatch] = ()) -> None:
        """End the batch, which is settled or continued by `parts`."""
        assert not self.is_settled, "a batch has one outcome"
        self.is_settled = True
        self._parts = parts
        if self.linger_timer is not None:
            self.linger_timer.cancel()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._on_change(self, parts)


class RawBatchBuilder(BatchBuilder):
    """A full builder. Its batch is built already and takes no more records."""

    __slots__ = ("_data", "header")

    def __init__(self, data: bytearray) -> None:
        """The producer takes ownership of `data`. Raises SerializationError unless it is one batch.

        Its CRC may be wrong until `set_producer_state`.
        """
        try:
            header = parse_header(data)
        except LogError as error:
            raise SerializationError(f"The bytes are no record batch: {error}") from error
        if header.size_bytes != len(data) or header.record_count < 1:
            raise SerializationError(
                f"{len(data)} bytes are not one record batch of {header.size_bytes} bytes and "
                f"{header.record_count} records."
            )
        self._data = data
        self.header = header
        self.record_count = header.record_count

    def append(
        self,
        timestamp_ms: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Headers | None = None,
    ) -> bool:
        """Reject the record, because there is no room."""
        return False

    def append_many(self, records: Iterable[RecordTuple]) -> RecordTuple | None:
        """Reject the records, because there is no room even for the first."""
        return next(iter(records), None)

    @property
    def size_bytes(self) -> int:
        """Size of the batch, compressed or not."""
        return len(self._data)

    def make_transactional(self) -> None:
        """Mark the batch as part of a transaction, from the next `set_producer_state`."""
        self.header = self.header._replace(attributes=self.header.attributes | TRANSACTIONAL_BIT)

    def set_producer_state(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, base_sequence: int
    ) -> None:
        """Stamp the batch, and compute its CRC."""
        self.header = sealed(
            self._data,
            self.header._replace(
                producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
            ),
        )

    def build(self) -> bytearray:
        """Return the batch."""
        return self._data


class RawBatchSend:
    """Awaits one batch, or all parts of a split batch. Satisfies `BulkListener`."""

    __slots__ = ("_base_offset", "_error", "_pending", "future")

    def __init__(self) -> None:
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pending = 1
        self._base_offset: int | None = None
        self._error: RaftlogClientError | None = None

    def batch_acknowledged(self, batch: PendingBatch, base_offset: int) -> None:
        """A part is written."""
        if self._base_offset is None:
            self._base_offset = base_offset
        self._settle()

    def batch_failed(self, batch: PendingBatch, error: RaftlogClientError) -> None:
        """A part is given up."""
        if self._error is None or (error.outcome_unknown and not self._error.outcome_unknown):
            self._error = error
        self._settle()

    def batch_split(self, batch: PendingBatch, parts: Sequence[PendingBatch]) -> None:
        """A part was too large."""
        self._pending += len(parts) - 1

    def _settle(self) -> None:
        self._pending -= 1
        if self._pending or self.future.done():
            return
        if self._error is None:
            assert self._base_offset is not None
            self.future.set_result(self._base_offset)
        else:
            self.future.set_exception(self._error)
