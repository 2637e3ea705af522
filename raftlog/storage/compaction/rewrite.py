"""One pass of compaction, which keeps only the newest record of each key.

The pass maps each key to its newest offset, then rewrites batches without the rest. The caller
reads and writes. This module only decides and transforms, one batch at a time, so memory is bounded
by the map of keys and one batch, and the caller can pause between any two batches:

    work = CompactionPass(history, ...)
    for batch in the log from plan.first_dirty_offset to plan.end_offset:
        if not work.survey(batch):
            break
    end_offset = work.finish_survey(plan.end_offset)
    for group in group_segments(segments, end_offset=end_offset, ...):
        for batch in the group's segments:
            data = work.rewrite(batch, is_last=...)     # bytes to write, or None
        sync the new segment, put it in the place of the old segments, durably
    history = work.finish()                             # to be stored now, not before

Unchanged are offsets, the order of records, a batch's base and last offset, its producer id, epoch
and sequence, its leader epoch, and each remaining record, byte for byte. A batch without outdated
records is passed through as is. From other batches, records are cut as bytes out of the
decompressed block instead of being encoded again. Base offset and base timestamp stay, so their
deltas hold, and only the record count, the largest timestamp, the length and the CRC are new.

**Batches without records** stay where needed:

- the newest batch of each producer, known by its offset, from which a scan derives its sequence
  (KAFKA-8335),
- the first batch of each leader epoch, so that the log itself shows where each epoch started,
- the last batch of each new segment, so that a segment still shows its end, and a missing segment
  differs from a compacted segment.

Such batches have no timestamp (-1), so no lookup by time returns them.

Without the starts of the epochs, a replica that was built from the compacted log, or has rebuilt
its history by a scan, would attribute an epoch's records to an older epoch. As leader it would
accept a follower with records that this epoch had replaced, or make a follower truncate committed
records.

**Records without a key** cannot be superseded. Kafka drops such records here. raftlog keeps them,
since compaction may remove only records replaced by newer records. `refuse_keyless` keeps keyless
records out of compacted topics.

**Transactions.** The caller passes the aborted transactions, and plans no further than the last
stable offset. Aborted records supersede nothing and are removed. A marker stays as long as a record
of its transaction does, and then for `delete.retention.ms`, like a tombstone.

**A batch that cannot be read** ends the pass below it. Its keys are unknown, and the log above
cannot count as clean.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final

from raftlog.record.batch import RecordBatch, sealed
from raftlog.record.codec import Record, decode, iterate_records
from raftlog.record.compression import compress, decompress
from raftlog.record.errors import INVALID_BODY, MALFORMED_BATCH, LogError
from raftlog.record.header import COMPRESSION_MASK, HEADER_SIZE, LENGTH_END
from raftlog.record.types import Buffer, Offset, ProducerId
from raftlog.storage.compaction.plan import CompactionHistory
from raftlog.storage.transactions.transactions import AbortedEntry

KEYS_MAX: Final = 250_000
"""Most keys of one pass. More keys take another pass. Measured at 125 bytes each, about 30 MB."""
KEY_BYTES_MAX: Final = 32
"""Length from which keys are kept as a hash of this length. A collision of BLAKE2b-256 does not
happen, by chance or by intent, and the lengths cannot be mixed."""
DECOMPRESSED_BYTES_MAX: Final = 64 << 20
"""Decompressed size beyond which a batch is not compacted but passed through."""
NO_TIMESTAMP: Final = -1


class Stop(StrEnum):
    """Reason why a survey ended before the plan's end."""

    MAP_FULL = "map_full"
    """The map of keys is full. Run another pass at once."""
    UNREADABLE = "unreadable"
    """The next batch cannot be decoded. Another pass would end here again."""


@dataclass(slots=True)
class CompactionStats:
    """Statistics of a pass, for the report and metrics."""

    records_removed: int = 0
    batches_removed: int = 0
    batches_emptied: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    tombstones_waiting: int = 0
    """Tombstones and markers that a later pass may remove."""


class CompactionPass:
    """The state of one pass over one log. Used up by `finish`."""

    def __init__(
        self,
        history: CompactionHistory,
        *,
        now_ms: int,
        delete_retention_ms: int,
        deletable_before: Offset,
        last_offsets: Mapping[ProducerId, Offset],
        epoch_starts: Set[Offset],
        aborted: Iterable[AbortedEntry],
        keys_max: int = KEYS_MAX,
        decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    ) -> None:
        self.stats = CompactionStats()
        self.stopped: Stop | None = None
        self.unreadable: LogError | None = None
        """The error of the batch that stopped the survey."""
        self._history = history
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        self._deletable_before = deletable_before
        self._last_offsets = last_offsets
        self._epoch_starts = epoch_starts
        self._keys_max = keys_max
        self._decompressed_bytes_max = decompressed_bytes_max
        self._newest: dict[bytes, int] = {}
        self._stopped_at: Offset | None = None
        self._end_offset: Offset | None = None
        self._transactions_with_records: set[ProducerId] = set()
        self._aborted: dict[ProducerId, list[tuple[Offset, Offset]]] = {}
        for transaction in sorted(aborted):
            self._aborted.setdefault(transaction.producer_id, []).append(
                (transaction.first_offset, transaction.last_offset)
            )

    def survey(self, batch: RecordBatch) -> bool:
        """Map the keys of the next dirty batch. After False, this and later batches wait."""
        assert self._end_offset is None, "survey after finish_survey"
        assert self.stopped is None, "survey continued after its end"
        header = batch.header
        if header.record_count == 0 or header.is_control or self._is_aborted(batch):
            return True
        # The first batch is accepted whatever its size, since a pass must make progress.
        if self._newest and len(self._newest) + header.record_count > self._keys_max:
            return self._stop(Stop.MAP_FULL, header.base_offset)
        try:
            records = self._decode(batch)
        except LogError as error:
            self.unreadable = error
            return self._stop(Stop.UNREADABLE, header.base_offset)
        newest = self._newest
        for record in records:
            key = record.key
            if key is not None:
                newest[key if len(key) < KEY_BYTES_MAX else _digest(key)] = record.offset
        return True

    def finish_survey(self, end_offset: Offset) -> Offset:
        """End of this pass, the plan's `end_offset` or the point where the survey stopped."""
        assert self._end_offset is None, "finish_survey called twice"
        self._end_offset = end_offset if self._stopped_at is None else self._stopped_at
        return self._end_offset

    def rewrite(self, batch: RecordBatch, *, is_last: bool) -> Buffer | None:
        """The bytes to write for the log's next batch (unchanged, smaller, or None).

        Call this with every batch from the start of the log to the end of the last group, in order.
        `is_last` marks the last batch of its new segment. Raises LogError if a batch of the clean
        part cannot be decoded. Then the old segments must stay.
        """
        assert self._end_offset is not None, "rewrite before finish_survey"
        self.stats.bytes_read += batch.header.size_bytes
        if batch.header.base_offset >= self._end_offset:
            data: Buffer | None = batch.data
        elif batch.header.is_control:
            data = self._rewrite_marker(batch, is_last=is_last)
        else:
            data = self._rewrite_records(batch, is_last=is_last)
        if data is None:
            self.stats.batches_removed += 1
        else:
            self.stats.bytes_written += len(data)
        return data

    def finish(self) -> CompactionHistory:
        """The history to store, once rewritten segments have durably replaced all old segments."""
        assert self._end_offset is not None, "finish before finish_survey"
        return self._history.after(
            self._end_offset,
            now_ms=self._now_ms,
            delete_retention_ms=self._delete_retention_ms,
            deleted_before=self._deletable_before,
            awaits_deletion=self.stats.tombstones_waiting > 0,
        )

    def _stop(self, reason: Stop, offset: Offset) -> bool:
        self.stopped = reason
        self._stopped_at = offset
        return False

    def _decode(self, batch: RecordBatch) -> Sequence[Record]:
        return decode(batch, decompressed_bytes_max=self._decompressed_bytes_max)

    def _is_aborted(self, batch: RecordBatch) -> bool:
        header = batch.header
        if not self._aborted or not header.is_transactional:
            return False
        transactions = self._aborted.get(header.producer_id, ())
        # Only the last transaction starting at or before the batch can contain the batch.
        index = bisect_right(transactions, header.base_offset, key=lambda pair: pair[0]) - 1
        return index >= 0 and header.base_offset <= transactions[index][1]

    def _rewrite_marker(self, batch: RecordBatch, *, is_last: bool) -> Buffer | None:
        header = batch.header
        if header.record_count == 0:
            return self._emptied(batch, is_last=is_last)
        if header.producer_id in self._transactions_with_records:
            self._transactions_with_records.discard(header.producer_id)
            # The marker goes with its last record, perhaps in the next pass.
            self.stats.tombstones_waiting += 1
            return batch.data
        if header.base_offset < self._deletable_before:
            self.stats.records_removed += header.record_count
            return self._emptied(batch, is_last=is_last)
        self.stats.tombstones_waiting += 1
        return batch.data

    def _rewrite_records(self, batch: RecordBatch, *, is_last: bool) -> Buffer | None:
        header = batch.header
        if header.record_count == 0 or self._is_aborted(batch):
            self.stats.records_removed += header.record_count
            return self._emptied(batch, is_last=is_last)
        records = self._decode(batch)
        retained = self._retained(records)
        retained_count = sum(retained)
        self.stats.records_removed += len(records) - retained_count
        if retained_count == 0:
            return self._emptied(batch, is_last=is_last)
        if header.is_transactional:
            self._transactions_with_records.add(header.producer_id)
        if retained_count == len(records):
            return batch.data
        return self._without(batch, records, retained)

    def _retained(self, records: Sequence[Record]) -> list[bool]:
        """Whether each record stays."""
        newest = self._newest
        deletable_before = self._deletable_before
        retained: list[bool] = []
        for record in records:
            key = record.key
            if key is None:
                retained.append(True)
                continue
            offset = record.offset
            if newest.get(key if len(key) < KEY_BYTES_MAX else _digest(key), -1) > offset:
                retained.append(False)
            elif record.value is None:
                is_waiting = offset >= deletable_before
                self.stats.tombstones_waiting += is_waiting
                retained.append(is_waiting)
            else:
                retained.append(True)
        return retained

    def _without(
        self, batch: RecordBatch, records: Sequence[Record], retained: Sequence[bool]
    ) -> Buffer:
        """Cut the batch down to some of its records."""
        header = batch.header
        plain = decompress(
            header.compression,
            memoryview(batch.data)[HEADER_SIZE:],
            decompressed_bytes_max=self._decompressed_bytes_max,
        )
        block = compress(header.compression, _cut(plain, retained))
        # With log append time, every record's timestamp is the old maximum, so the maximum stays.
        kept = (record.timestamp for record, stays in zip(records, retained, strict=True) if stays)
        max_timestamp_ms = max(NO_TIMESTAMP if time is None else time for time in kept)
        data = bytearray(HEADER_SIZE)
        data += block
        sealed(
            data,
            header._replace(
                batch_length=len(data) - LENGTH_END,
                max_timestamp_ms=max_timestamp_ms,
                record_count=sum(retained),
            ),
        )
        return data

    def _emptied(self, batch: RecordBatch, *, is_last: bool) -> Buffer | None:
        """The batch's header without records if still needed, else None."""
        header = batch.header
        if (
            not is_last
            and self._last_offsets.get(header.producer_id) != header.last_offset
            and header.base_offset not in self._epoch_starts
        ):
            return None
        if header.record_count == 0:
            return batch.data
        self.stats.batches_emptied += 1
        data = bytearray(HEADER_SIZE)
        sealed(
            data,
            header._replace(
                batch_length=HEADER_SIZE - LENGTH_END,
                attributes=header.attributes & ~COMPRESSION_MASK,
                base_timestamp_ms=NO_TIMESTAMP,
                max_timestamp_ms=NO_TIMESTAMP,
                record_count=0,
            ),
        )
        return data


def refuse_keyless(batch: RecordBatch, *, decompressed_bytes_max: int) -> None:
    """Raise LogError(INVALID_BODY) if a record has no key, as compaction needs keys.

    The header does not show keys, so this decodes the batch. Call it for compacted topics only, and
    for large batches in a thread. Raises the errors of `decode` as well.
    """
    records = iterate_records(batch, decompressed_bytes_max=decompressed_bytes_max)
    for position, record in enumerate(records):
        if record.key is None:
            raise LogError(
                INVALID_BODY,
                f"Record {position} of a batch has no key; a topic with cleanup.policy=compact "
                "takes only records with one.",
            )


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=KEY_BYTES_MAX).digest()


def _cut(plain: Buffer, retained: Sequence[bool]) -> bytes:
    """The retained records of a decompressed block. Each starts with its length as a varint."""
    view = memoryview(plain)
    parts: list[memoryview] = []
    position = part_start = 0
    try:
        for stays in retained:
            record_start = position
            length, position = _read_varint(view, position)
            position += length
            if length < 0 or position > view.nbytes:
                raise LogError(MALFORMED_BATCH, "A record is longer than its batch.")
            if not stays:
                parts.append(view[part_start:record_start])
                part_start = position
    except IndexError as error:
        raise LogError(MALFORMED_BATCH, "A record batch ends within a record.") from error
    parts.append(view[part_start:position])
    return b"".join(parts)


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """Read a zigzag varint (Protocol Buffers' sint32). Returns it and the position after it."""
    value = shift = 0
    while True:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 28:
            raise LogError(MALFORMED_BATCH, "A record's length is no varint.")
