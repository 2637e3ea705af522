"""A log has a partition for each replica, all written together in a transaction.

The key of a record is its entry's number, because partitions begin at different times, and offsets
have gaps for the transactions' markers. A replica reads its own partition. A replica that joined
later, and has no snapshot of that time yet, reads another partition until its next start.

`start` of a transactional producer ends and fences the earlier producer, so no entry of a former
primary comes between the last read number and the first number of the next primary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from raftlog_client import Consumer, OffsetOutOfRangeError, Producer, TopicPartition

from raftlog_replicated.errors import UnknownEntryError
from raftlog_replicated.logs.shared_log import CLOSE_MS, SharedLog
from raftlog_replicated.ports import LogRecord, LogTrimmedError, Writer
from raftlog_replicated.reads import Progress

POLL_MS: Final = 20
"""Milliseconds until a marker is noticed, which moves the position without a record."""
PARTITIONS_AGE_MS: Final = 1_000
"""A primary writes to a new partition at the latest after so long."""
KEY_BYTES: Final = 8
PROBE_MS: Final = 200


class PerReplicaLog(SharedLog):
    """`StateLog` over a partition for each replica. `offset` is the number of an entry."""

    _wanted = 0
    """Where to read, while `_must_place`."""
    _must_place = True
    _seeks = 0
    """Count of `seek` calls. A read that started before the last call returns nothing."""
    _next = 0
    """The number behind the last read or written entry."""

    async def _connect(self) -> None:
        own = await self._topics.own_partition(self._clients, self._replica_id)
        self._own = self._source = TopicPartition(self._topics.log, own)
        self._consumer = await self._open("read_committed")
        self._questions = await self._open("read_uncommitted")
        self._known = (-1, 0)
        """A number, and where its entry is, or will be, in the read partition."""
        self._passed = Progress()
        """Offset in that partition up to which all is read or written."""
        self._placed = asyncio.Event()

    async def end(self) -> int:
        """The committed end, the number behind all entries below the leader's high watermark.

        The end of committed transactions is not enough, because the marker of an acknowledged
        transaction may come later than its acknowledgement.
        """
        while True:
            await self._placed.wait()
            source, seeks = self._source, self._seeks
            questions = self._started(self._questions)
            high_watermark = (await questions.end_offsets([source]))[source]
            await self._passed.reach(high_watermark)
            if (source, seeks) == (self._source, self._seeks):
                return self._next

    def seek(self, offset: int) -> None:
        """Read from that entry on."""
        self._seeks += 1
        if self._consumer is None:
            return
        if offset == self._known[0]:
            self._next = offset
            self._consumer.seek(self._source, self._known[1])
        else:
            self._wanted, self._must_place = offset, True
            self._placed.clear()
        self._consumer.resume(self._source)

    async def read(self) -> list[LogRecord]:
        """The next entries of committed transactions."""
        while True:
            consumer = self._started(self._consumer)
            seeks = self._seeks
            if self._must_place:
                await self._place(consumer)
                continue
            try:
                taken = await consumer.getmany(timeout_ms=POLL_MS)
            except OffsetOutOfRangeError as error:
                raise LogTrimmedError(str(error)) from error
            if seeks != self._seeks:
                continue
            place = await consumer.position(self._source)
            found = [
                LogRecord(_number(record.key), record.timestamp, record.value)
                for record in taken.get(self._source, ())
                if record.value is not None
            ]
            if found and found[-1].offset >= self._next:
                self._next = found[-1].offset + 1
                self._known = (self._next, place)
            self._pass(place)
            if found:
                return found

    async def open_writer(self) -> Writer:
        """A new writer. Its start fences all writers before."""
        producer: Producer[bytes, bytes] = Producer(
            bootstrap_servers=self._servers,
            transactional_id=self._topics.log,
            metadata_max_age_ms=PARTITIONS_AGE_MS,
        )
        await producer.start()
        return _TransactionalWriter(producer, self)

    async def trim(self, offset: int) -> None:
        """Delete the entries below a number, in all partitions."""
        bounds = await self._clients.admin.offsets([self._topics.log])
        consumer = await self._open("read_committed")
        try:
            for source, record in bounds.items():
                consumer.assign([source])
                end = record.last_stable_offset
                place = await _find(consumer, source, offset, record.beginning_offset, end)
                await self._clients.admin.delete_records({source: place})
        finally:
            await consumer.close()

    def next_number(self) -> int:
        """Number of the next entry, for a writer that has fenced all others."""
        return self._next

    def written(self, number: int, last_offset: int) -> None:
        """All entries below the number are committed. The last entry has this offset here."""
        self._next = number
        self._known = (number, last_offset + 1)
        # Behind it is the transaction's marker.
        self._pass(last_offset + 2)

    def _pass(self, offset: int) -> None:
        """While a primary writes, the paused consumer stays behind."""
        if offset > self._passed.value:
            self._passed.advance(offset)

    @property
    def source(self) -> TopicPartition:
        """The partition that is read."""
        return self._source

    async def _place(self, consumer: Consumer[bytes, bytes]) -> None:
        """Choose a partition with the wanted entry, and find the entry there."""
        wanted, seeks = self._wanted, self._seeks
        bounds = await self._clients.admin.offsets([self._topics.log])
        is_empty = True
        for source in sorted(bounds, key=lambda record: (record != self._own, record)):
            record = bounds[source]
            consumer.assign([source])
            begin, end = record.beginning_offset, record.last_stable_offset
            first = await _probe(consumer, source, begin, end)
            if first is None:
                continue
            is_empty = False
            if first[1] <= wanted:
                place = await _find(consumer, source, wanted, begin, end)
                self._begin(consumer, source, place, wanted, seeks)
                return
        if not is_empty or wanted:
            raise LogTrimmedError(f"no partition of {self._topics.log} has entry {wanted}")
        consumer.assign([self._own])
        self._begin(consumer, self._own, bounds[self._own].beginning_offset, wanted, seeks)

    def _begin(
        self,
        consumer: Consumer[bytes, bytes],
        source: TopicPartition,
        place: int,
        wanted: int,
        seeks: int,
    ) -> None:
        if seeks != self._seeks:
            return
        consumer.seek(source, place)
        self._source, self._next, self._known = source, wanted, (wanted, place)
        self._passed.advance(place)
        self._must_place = False
        self._placed.set()


class _TransactionalWriter:
    """Appends to all partitions or to none."""

    def __init__(self, producer: Producer[bytes, bytes], log: PerReplicaLog) -> None:
        self._producer = producer
        self._log = log

    async def append(self, values: Sequence[bytes], timestamp_ms: int) -> Sequence[int]:
        log, producer = self._log, self._producer
        topic, own = log.source
        first = log.next_number()
        last = None
        async with producer.transaction():
            for partition in sorted(await producer.partitions_for(topic)):
                for number, value in enumerate(values, first):
                    key = number.to_bytes(KEY_BYTES, "big")
                    future = await producer.send(topic, value, key, partition, timestamp_ms)
                    if partition == own:
                        last = future
        assert last is not None, "the topic has the partition that this replica reads"
        end = first + len(values)
        log.written(end, (await last).offset)
        return range(first, end)

    async def close(self) -> None:
        await self._producer.close(timeout_ms=CLOSE_MS)


def _number(key: bytes | None) -> int:
    if key is None or len(key) != KEY_BYTES:
        raise UnknownEntryError("A record of the log has no entry's number as its key.")
    return int.from_bytes(key, "big")


async def _probe(
    consumer: Consumer[bytes, bytes], source: TopicPartition, begin: int, end: int
) -> tuple[int, int] | None:
    """Offset and number of the first entry from an offset on. None without an entry up to `end`."""
    consumer.seek(source, begin)
    consumer.resume(source)
    while await consumer.position(source) < end:
        taken = await consumer.getmany(source, timeout_ms=PROBE_MS, max_records=1)
        for record in taken.get(source, ()):
            return (record.offset, _number(record.key)) if record.offset < end else None
    return None


async def _find(
    consumer: Consumer[bytes, bytes], source: TopicPartition, number: int, begin: int, end: int
) -> int:
    """The offset from which all entries have at least this number, by bisection."""
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        found = await _probe(consumer, source, middle, end)
        if found is None or found[1] >= number:
            high = middle
        else:
            low = found[0] + 1
    return low
