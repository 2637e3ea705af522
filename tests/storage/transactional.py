"""Transactions in a log, written and read as replication and clients do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from raftlog.record.batch import RecordBatch, iterate_batches, split_batches
from raftlog.record.codec import BatchBuilder, decode
from raftlog.record.control import Marker, build_marker, parse_marker
from raftlog.record.types import (
    AbortedTransaction,
    Buffer,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
)
from raftlog.storage.log.log import Log
from raftlog.storage.producers.entry import Terms
from tests.storage.logs import BATCH_BYTES_MAX, EPOCH

VERIFIED = Terms(may_begin=lambda _producer_id, _epoch: True)


def transactional(
    values: Sequence[bytes | None],
    producer: int,
    sequence: int,
    *,
    keys: Sequence[bytes | None] | None = None,
    epoch: int = 0,
    timestamp_ms: int = 1000,
) -> RecordBatch:
    """One batch of a transaction."""
    builder = BatchBuilder(
        size_bytes_max=BATCH_BYTES_MAX,
        producer_id=ProducerId(producer),
        producer_epoch=ProducerEpoch(epoch),
        base_sequence=sequence,
        transactional=True,
    )
    for number, value in enumerate(values):
        key = None if keys is None else keys[number]
        assert builder.append(timestamp_ms + number, key, value, [])
    data = builder.build()
    return split_batches(data, max_message_bytes=BATCH_BYTES_MAX, allow_transactional=True)[0]


async def append(log: Log, *batches: RecordBatch, leader_epoch: LeaderEpoch = EPOCH) -> Offset:
    """Append batches of confirmed transactions; return the offset of the first."""
    results = await log.appender.append(batches, leader_epoch, terms=VERIFIED)
    return results[0].base_offset


async def end(
    log: Log,
    producer: int,
    *,
    commit: bool,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    leader_epoch: LeaderEpoch = EPOCH,
) -> Offset:
    """Append a marker; return its offset."""
    marker = Marker(commit, coordinator_epoch)
    batch = build_marker(
        ProducerId(producer), ProducerEpoch(epoch), marker, timestamp_ms=1_700_000_000_000
    )
    results = await log.appender.append([batch], leader_epoch, terms=Terms(marker=marker))
    return results[0].base_offset


def visible(
    data: Buffer, aborted: Iterable[AbortedTransaction], aborting: set[int]
) -> list[tuple[Offset, bytes | None]]:
    """Offsets and values of the records of committed transactions, as clients filter them.

    `aborting` are the producers in an aborted transaction, before and after.
    """
    waiting = list(aborted)
    found: list[tuple[Offset, bytes | None]] = []
    for batch in iterate_batches(data):
        header = batch.header
        while waiting and waiting[0].first_offset <= header.last_offset:
            aborting.add(waiting.pop(0).producer_id)
        if header.is_control:
            marker = parse_marker(header, batch.data)
            if marker is not None and not marker.commit:
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            records = decode(batch, decompressed_bytes_max=BATCH_BYTES_MAX)
            found += [(Offset(record.offset), record.value) for record in records]
    return found


async def read_committed(
    log: Log, *, start: Offset | None = None, end_offset: Offset | None = None, max_bytes: int = 300
) -> list[tuple[Offset, bytes | None]]:
    """Offsets and values that a reader of committed records gets, each read filtered by itself."""
    offset = log.log_start_offset if start is None else start
    begin = offset
    stable = log.last_stable_offset(log.high_watermark) if end_offset is None else end_offset
    found: list[tuple[Offset, bytes | None]] = []
    while offset < stable:
        result, aborted = await log.reader.read_committed(offset, end=stable, max_bytes=max_bytes)
        found += visible(result.data, aborted, set())
        assert result.next_offset > offset
        offset = result.next_offset
    return [row for row in found if row[0] >= begin]


@dataclass
class Transactions:
    """A model: the transactions of a log, by the batches appended."""

    opened: dict[int, int] = field(default_factory=dict)
    """First offset by producer."""
    ended: list[tuple[int, int, int, bool]] = field(default_factory=list)
    """Producer, first offset, the marker's, whether committed."""
    batches: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer, base offset and next offset of each transactional batch."""

    def append(self, producer: int, base_offset: int, count: int) -> None:
        self.opened.setdefault(producer, base_offset)
        self.batches.append((producer, base_offset, base_offset + count))

    def end(self, producer: int, offset: int, *, commit: bool) -> None:
        first = self.opened.pop(producer, None)
        if first is not None:
            self.ended.append((producer, first, offset, commit))

    def cut(self, end_offset: int) -> None:
        """The log now ends at `end_offset`."""
        for producer, first, marker, _ in self.ended:
            if marker >= end_offset:
                self.opened[producer] = min(first, self.opened.get(producer, first))
        self.ended = [one for one in self.ended if one[2] < end_offset]
        self.opened = {one: first for one, first in self.opened.items() if first < end_offset}
        self.batches = [one for one in self.batches if one[1] < end_offset]

    def stable(self, high_watermark: int, log_start_offset: int = 0) -> int:
        firsts = [first for _, first, marker, _ in self.ended if marker >= high_watermark]
        first = min([*firsts, *self.opened.values()], default=high_watermark)
        return max(min(first, high_watermark), log_start_offset)

    def first_readable(self, high_watermark: int, log_start_offset: int) -> int:
        """The first readable record of a transaction that is open, or may be; else the mark."""
        unstable = {
            (producer, first)
            for producer, first, marker, _ in self.ended
            if marker >= high_watermark
        }
        unstable |= set(self.opened.items())
        return min(
            (
                max(base, log_start_offset)
                for producer, base, following in self.batches
                if following > log_start_offset
                and any(producer == other and base >= first for other, first in unstable)
            ),
            default=high_watermark,
        )

    def aborted_offsets(self) -> set[int]:
        """Offsets of the records of aborted transactions."""
        return {
            offset
            for producer, base, following in self.batches
            for offset in range(base, following)
            if any(
                producer == other and first <= base < marker and not commit
                for other, first, marker, commit in self.ended
            )
        }
