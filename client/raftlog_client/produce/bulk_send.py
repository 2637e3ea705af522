"""`Producer.send_many` sends many records without a future for each.

Plain values go straight from a generator into `BatchBuilder.append_many`. Pairs of bytes are first
distributed to their partitions, a stretch at a time. All other records are added individually.
Between two stretches the loop gets a turn, so ready batches leave while the next batches fill.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

from murmurhash2 import murmurhash2

from raftlog.record.codec import RecordTuple
from raftlog.record.partitioner import MURMUR2_SEED, POSITIVE
from raftlog_client.errors import RaftlogClientError, SendManyError, SerializationError
from raftlog_client.produce.accumulator import RECORD_OVERHEAD_BYTES, Accumulator, TopicQueues
from raftlog_client.produce.batches import NO_OFFSET, PendingBatch
from raftlog_client.produce.delivery import PartitionQueue
from raftlog_client.produce.record_encoder import RecordEncoder, whole_timestamp_ms
from raftlog_client.types import PartitionRange, ProducerRecord, SendSummary, TopicPartition

RECORDS_PER_TURN_MAX: Final = 10_000
"""Records taken from the caller before the loop gets a turn, however small."""
BYTES_PER_TURN_MAX: Final = 1024 * 1024
"""Bytes of keyed and other records taken before the loop gets a turn. The buffer overflows by at
most this size."""

_END: Final = object()
_NOTHING: Final = object()


class BulkResult:
    """Sums up the outcomes of the batches of one `send_many`."""

    def __init__(self) -> None:
        self.pending: dict[PendingBatch, None] = {}
        """Batches without an outcome. Bounded by the send buffer."""
        self.error: RaftlogClientError | None = None
        """Error of the first failed batch."""
        self.outcome_unknown = False
        self.failed_count = 0
        self.count = 0
        """Records acknowledged."""
        self._ranges: dict[TopicPartition, PartitionRange] = {}

    def batch_acknowledged(self, batch: PendingBatch, base_offset: int) -> None:
        """Count a batch as written."""
        self.pending.pop(batch, None)
        count = batch.record_count
        self.count += count
        last_offset = NO_OFFSET if base_offset == NO_OFFSET else base_offset + count - 1
        before = self._ranges.get(batch.target)
        self._ranges[batch.target] = (
            PartitionRange(base_offset, last_offset, count)
            if before is None
            else PartitionRange(
                before.first_offset, max(before.last_offset, last_offset), before.count + count
            )
        )

    def batch_failed(self, batch: PendingBatch, error: RaftlogClientError) -> None:
        """Count a batch as not written, or with unknown outcome."""
        self.pending.pop(batch, None)
        self.failed_count += batch.record_count
        self.outcome_unknown = self.outcome_unknown or error.outcome_unknown
        if self.error is None:
            self.error = error

    def batch_split(self, batch: PendingBatch, parts: Sequence[PendingBatch]) -> None:
        """Wait for the parts instead of the batch."""
        del self.pending[batch]
        self.pending.update(dict.fromkeys(parts))

    def summary(self) -> SendSummary:
        """Return the acknowledged records so far."""
        return SendSummary(self.count, dict(sorted(self._ranges.items())))


class BulkSend:
    """One `send_many` under way."""

    def __init__(
        self,
        accumulator: Accumulator,
        topic: TopicQueues,
        encoder: RecordEncoder,
        *,
        partition: int | None,
    ) -> None:
        self._result = BulkResult()
        self._accumulator = accumulator
        self._topic = topic
        self._encoder = encoder
        self._fixed = None if partition is None else topic.queue(partition)
        self._held: Any = _NOTHING
        """First item of the next stretch of plain, keyed or other records."""
        self._has_raw_pairs = (
            (encoder.is_default or partition is not None)
            and encoder.key_serializer is None
            and encoder.value_serializer is None
        )

    async def run(self, records: Iterable[Any] | AsyncIterable[Any]) -> SendSummary:
        """Send all records, await and return their outcome. Raises SendManyError."""
        result = self._result
        try:
            if isinstance(records, AsyncIterable):
                await self._feed_async(records)
            else:
                await self._feed(iter(records))
        except Exception as error:
            # The iterable or a record of it is faulty. Earlier records are already sent, and their
            # outcome belongs to the result.
            await self._settle()
            error.add_note(f"send_many: {result.count} records before this were written.")
            if result.failed_count:
                error.add_note(f"{result.failed_count} were not: {result.error}")
            raise
        await self._settle()
        if result.error is not None:
            raise SendManyError(
                f"{result.count} records are written, {result.failed_count} are not, or not known "
                f"to be, and none after them was sent: {result.error}",
                summary=result.summary(),
                failed_count=result.failed_count,
                outcome_unknown=result.outcome_unknown,
            ) from result.error
        return result.summary()

    async def _settle(self) -> None:
        """Return once every batch is settled."""
        pending = self._result.pending
        self._accumulator.hurry()
        while pending:
            await next(iter(pending)).settled()

    async def _feed(self, records: Iterator[Any]) -> None:
        """Send records in stretches of plain and other records, until the end or a failure."""
        self._held = next(records, _END)
        while self._held is not _END and self._result.error is None:
            if self._is_plain(self._held):
                await self._feed_plain(records)
            elif self._is_keyed(self._held):
                await self._feed_keyed(records)
            else:
                await self._feed_others(records)

    async def _feed_plain(self, records: Iterator[Any]) -> None:
        """Send plain records (values only) until another kind or the end."""
        stream = self._plain_tuples(self._held, records)
        self._held = _NOTHING
        rest: RecordTuple | None = None
        while self._result.error is None and (rest is not None or self._held is _NOTHING):
            queue = self._queue(None, None, None)
            batch = self._batch(queue)
            try:
                if rest is not None and not batch.append(*rest):
                    self._accumulator.close_batch(queue)
                    continue
                rest = batch.builder.append_many(islice(stream, RECORDS_PER_TURN_MAX))
            except BaseException:
                self._discard_empty(queue)
                raise
            if rest is not None:
                self._accumulator.close_batch(queue)
            elif not batch.record_count:
                self._discard_empty(queue)
            await self._turn()

    def _plain_tuples(self, first: Any, records: Iterator[Any]) -> Iterator[RecordTuple]:
        """Yield plain records as the codec takes them. The first other item is left in `_held`."""
        encoder = self._encoder
        encode = encoder.value
        is_raw = encoder.value_serializer is None
        size_max = encoder.record_bytes_max - RECORD_OVERHEAD_BYTES
        for item in chain((first,), records):
            kind = item.__class__
            if kind is bytes and is_raw and len(item) <= size_max:
                yield (None, None, item, None)
            elif kind is tuple or kind is ProducerRecord:
                self._held = item
                return
            else:
                value = encode(item)
                encoder.size(None, value, None)
                yield (None, None, value, None)
        self._held = _END

    async def _feed_keyed(self, records: Iterator[Any]) -> None:
        """Send pairs of bytes until a record of another kind or the end."""
        while self._result.error is None and self._is_keyed(self._held):
            queues = list(self._topic.queues) if self._fixed is None else [self._fixed]
            shares: list[list[RecordTuple]] = [[] for _ in queues]
            try:
                self._share_out(records, shares)
            finally:  # records before a failure of the iterable are also sent
                for queue, share in zip(queues, shares, strict=True):
                    if share:
                        self._append_share(queue, share)
            await self._turn()

    def _share_out(self, records: Iterator[Any], shares: list[list[RecordTuple]]) -> None:
        """Take a turn's worth of pairs by partition, in order. The next item is left in `_held`.

        Hash and tests are inlined, because this runs for every keyed record.
        """
        count = len(shares)
        size_max = self._encoder.record_bytes_max - RECORD_OVERHEAD_BYTES
        room = BYTES_PER_TURN_MAX
        for item in chain((self._held,), islice(records, RECORDS_PER_TURN_MAX)):
            if item.__class__ is tuple and len(item) == 2:
                key, value = item
                if (
                    key.__class__ is bytes
                    and value.__class__ is bytes
                    and (size := len(key) + len(value)) <= size_max
                    and room > 0
                ):
                    shares[(murmurhash2(key, MURMUR2_SEED) & POSITIVE) % count].append(
                        (None, key, value, None)
                    )
                    room -= size + RECORD_OVERHEAD_BYTES
                    continue
            self._held = item
            return
        self._held = next(records, _END)

    def _append_share(self, queue: PartitionQueue, share: list[RecordTuple]) -> None:
        """Add records to one partition, in as many batches as needed."""
        records = iter(share)
        rest: RecordTuple | None = None
        while True:
            batch = self._batch(queue)
            try:
                if rest is not None:
                    batch.append(*rest)  # the first record of a batch always fits
                rest = batch.builder.append_many(records)
            except BaseException:
                self._discard_empty(queue)
                raise
            if rest is None:
                return
            self._accumulator.close_batch(queue)

    async def _feed_others(self, records: Iterator[Any]) -> None:
        """Send records individually until a plain or keyed record or the end."""
        item = self._held
        room = BYTES_PER_TURN_MAX
        append = self._append
        while (
            item is not _END
            and self._result.error is None
            and not self._is_plain(item)
            and not self._is_keyed(item)
        ):
            room -= append(item)
            if room <= 0:
                room = BYTES_PER_TURN_MAX
                await self._turn()
            item = next(records, _END)
        self._held = item

    async def _feed_async(self, records: AsyncIterable[Any]) -> None:
        room = BYTES_PER_TURN_MAX
        async for item in records:
            room -= self._append(item)
            if room <= 0:
                room = BYTES_PER_TURN_MAX
                await self._turn()
            if self._result.error is not None:
                return

    def _append(self, item: Any) -> int:
        """Add one record of any kind and return its cost in bytes of the turn.

        A full batch costs a whole turn, so that the loop sends the batch.
        """
        encoder = self._encoder
        partition = timestamp_ms = header_list = None
        if item.__class__ is tuple:
            if len(item) != 2:
                raise SerializationError(f"A tuple is (key, value), not of {len(item)} items.")
            key, value = item
        elif item.__class__ is ProducerRecord:
            key, value, partition = item.key, item.value, item.partition
            timestamp_ms, header_list = item.timestamp_ms, list(item.headers)
            if timestamp_ms is not None and timestamp_ms.__class__ is not int:
                timestamp_ms = whole_timestamp_ms(timestamp_ms)
        else:
            key, value = None, item
        key, value = encoder.key(key), encoder.value(value)
        size = encoder.size(key, value, header_list)
        queue = self._queue(partition, key, value)
        cost = size
        try:
            while True:
                batch = queue.open
                if batch is None or batch.bulk is not self._result:
                    batch = self._batch(queue)
                if batch.append(timestamp_ms, key, value, header_list):
                    return cost
                cost = BYTES_PER_TURN_MAX
                self._accumulator.close_batch(queue)
                queue = self._queue(partition, key, value)
        except BaseException:
            self._discard_empty(queue)
            raise

    def _queue(
        self, partition: int | None, key: bytes | None, value: bytes | None
    ) -> PartitionQueue:
        if self._fixed is not None and partition is None:
            return self._fixed
        return self._encoder.queue(self._topic, partition, key, value)

    def _batch(self, queue: PartitionQueue) -> PendingBatch:
        """Return the partition's open batch if this call opened it, else a new batch."""
        batch = queue.open
        if batch is None or batch.bulk is not self._result:
            batch = self._accumulator.open_batch(queue, self._result)
            self._result.pending[batch] = None
        return batch

    def _discard_empty(self, queue: PartitionQueue) -> None:
        """Remove a batch without records."""
        batch = queue.open
        if batch is not None and not batch.record_count:
            self._result.pending.pop(batch, None)
            self._accumulator.discard_empty(queue)

    def _is_plain(self, item: Any) -> bool:
        """Return whether the record is only a value and takes the sticky partition."""
        return (
            item.__class__ is not tuple
            and item.__class__ is not ProducerRecord
            and (self._encoder.is_default or self._fixed is not None)
        )

    def _is_keyed(self, item: Any) -> bool:
        """Return whether the record is a pair of bytes with a known partition."""
        if not self._has_raw_pairs or item.__class__ is not tuple or len(item) != 2:
            return False
        key, value = item
        size_max = self._encoder.record_bytes_max - RECORD_OVERHEAD_BYTES
        return (
            key.__class__ is bytes
            and value.__class__ is bytes
            and len(key) + len(value) <= size_max
        )

    async def _turn(self) -> None:
        """Charge the added bytes and give the loop a turn. Waits while the buffer is full."""
        accumulator = self._accumulator
        for batch in self._result.pending:
            accumulator.reserve(batch, batch.builder.size_bytes - batch.reserved_bytes)
        if accumulator.must_wait:
            await accumulator.wait_for_room()
        else:
            await asyncio.sleep(0)
