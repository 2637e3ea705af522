"""Record batches encoded by the caller, for `Producer.send_batch`.

Some callers make batches faster than records can be handed over individually. Such batches are
stamped with producer id and sequence like the producer's batches, so repeats are also recognised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from raftlog.record.batch import sealed
from raftlog.record.codec import BatchBuilder, Headers, RecordTuple
from raftlog.record.errors import LogError
from raftlog.record.header import TRANSACTIONAL_BIT, parse_header
from raftlog.record.types import Buffer, ProducerEpoch, ProducerId
from raftlog_client.errors import RaftlogClientError, SerializationError
from raftlog_client.produce.batches import PendingBatch


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
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
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
