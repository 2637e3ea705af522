"""Encode and decode the records of a batch with aiokafka's compiled codec.

Python runs no step per record here, except the one call that appends a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, Protocol, TypeAlias, cast

from aiokafka.record.default_records import (
    DefaultRecordBatch,
    DefaultRecordBatchBuilder,
)

from raftlog.record.batch import RECORD_SIZE_MIN, RecordBatch, check_batch, sealed
from raftlog.record.compression import Compression, compress, decompress
from raftlog.record.errors import (
    CORRUPT_BATCH,
    INVALID_BODY,
    MALFORMED_BATCH,
    RECORD_TOO_LARGE,
    LogError,
)
from raftlog.record.header import (
    BATCH_LENGTH_MAX,
    COMPRESSION_MASK,
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    parse_header,
)
from raftlog.record.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Buffer,
    ProducerEpoch,
    ProducerId,
)

BATCH_BYTES_MAX_DEFAULT: Final = 1_048_588
"""Kafka's default of max.message.bytes, 1 MiB and 12 bytes of base offset and length."""

Headers: TypeAlias = list[tuple[str, bytes | None]]
RecordTuple: TypeAlias = tuple[int | None, Buffer | None, Buffer | None, Headers | None]
"""Arguments of `BatchBuilder.append`: timestamp (ms, None means now), key, value, headers."""

_NO_HEADERS: Final[Headers] = []
RECORD_OBJECT_BYTES: Final = 128
"""Approximate memory of a decoded record besides its key and value."""
ITERATED_BYTES: Final = 64 << 10
"""Records decoded ahead by `iterate_records`."""
_PADDING: Final = bytes(64)
"""Bytes after the records that the decoder may read. The decoder checks the start of each field
against its buffer, but reads a varint of up to ten bytes from there. In a malformed batch that ends
in the middle of a varint, the decoder would read foreign or unmapped memory."""


class Record(Protocol):
    """A decoded record, of aiokafka's compiled class, which Python cannot name."""

    @property
    def offset(self) -> int:
        """Position in the partition."""
        ...

    @property
    def timestamp(self) -> int:
        """Milliseconds since the Unix epoch, or -1 if the producer gave none."""
        ...

    @property
    def timestamp_type(self) -> int:
        """0 for the producer's time, 1 for the leader's (log append time)."""
        ...

    @property
    def key(self) -> bytes | None:
        """The key, None for none."""
        ...

    @property
    def value(self) -> bytes | None:
        """The value, or None for a tombstone."""
        ...

    @property
    def headers(self) -> Headers:
        """Pairs in their order. A key may repeat."""
        ...


class BatchBuilder:
    """Builds one record batch, and is used up by `build`."""

    __slots__ = ("_append", "_builder", "_built", "_compression", "record_count")

    def __init__(
        self,
        compression: Compression = Compression.NONE,
        size_bytes_max: int = BATCH_BYTES_MAX_DEFAULT,
        *,
        producer_id: ProducerId = NO_PRODUCER_ID,
        producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
    ) -> None:
        self._compression = compression
        self._built: bytearray | None = None
        # The codec does not compress, because its levels are fixed and slow. The codec accepts
        # records while they stay *below* its limit, hence the 1.
        self._builder = DefaultRecordBatchBuilder(
            MAGIC,
            Compression.NONE,
            transactional,
            producer_id,
            producer_epoch,
            base_sequence,
            size_bytes_max + 1,
        )
        self._append = self._builder.append
        self.record_count = 0
        """Records appended so far."""

    def append(
        self,
        timestamp_ms: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Headers | None = None,
    ) -> bool:
        """Add a record. Returns False, with the batch unchanged, if it does not fit.

        The first record always fits, so that a builder is never stuck. A single record over the
        limit makes an oversized batch, which the node rejects (RECORD_TOO_LARGE). Timestamp None
        means now by the codec's clock, which is for clients. A node always passes the time.

        Raises LogError(INVALID_BODY) for a negative timestamp or a timestamp over 63 bits. Raises
        TypeError, ValueError or AttributeError for a key or value not bytes-like, or headers other
        than a list of (str, bytes | None) pairs. The batch is unchanged after any of these.
        """
        if timestamp_ms is not None and timestamp_ms < 0:
            # The codec takes -1 for "no record yet", and would shift the timestamps before it.
            raise _bad_timestamp(timestamp_ms)
        try:
            appended = self._append(
                self.record_count, timestamp_ms, key, value, headers or _NO_HEADERS
            )
        except OverflowError as error:
            raise _bad_timestamp(timestamp_ms) from error
        if appended is None:
            return False
        self.record_count += 1
        return True

    def append_many(self, records: Iterable[RecordTuple]) -> RecordTuple | None:
        """Add records until a record does not fit. Return this record, or None if all fit.

        For bulk work, pass an iterator and start the next batch with the returned record. Raises as
        `append` does. The records before the faulty record are then in the batch.
        """
        append = self._append
        count = self.record_count
        try:
            for record in records:
                timestamp_ms, key, value, headers = record
                if timestamp_ms is not None and timestamp_ms < 0:
                    raise _bad_timestamp(timestamp_ms)
                try:
                    appended = append(count, timestamp_ms, key, value, headers or _NO_HEADERS)
                except OverflowError as error:
                    raise _bad_timestamp(timestamp_ms) from error
                if appended is None:
                    return record
                count += 1
        finally:
            self.record_count = count
        return None

    @property
    def size_bytes(self) -> int:
        """Size of the batch so far, before compression."""
        return int(self._builder.size())

    def set_producer_state(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, base_sequence: int
    ) -> None:
        """Set the batch's producer id, epoch and base sequence, as known only when sending."""
        assert self._built is None, "the batch is built already"
        self._builder.set_producer_state(producer_id, producer_epoch, base_sequence)

    def build(self) -> bytearray:
        """The batch, with base offset 0 and leader epoch -1. Building again returns the same.

        Compressed only if smaller, as Kafka's readers allow per batch.
        """
        assert self.record_count, "a record batch has at least one record"
        if self._built is None:
            self._built = _compressed(self._builder.build(), self._compression)
            self._append = _append_to_built
        return self._built


def _append_to_built(*_: object) -> None:
    """Stands in for the codec's `append` after `build`, which hands its buffer away."""
    raise AssertionError("the batch is built already")


def _bad_timestamp(timestamp_ms: int | None) -> LogError:
    return LogError(INVALID_BODY, f"Timestamp {timestamp_ms} is not between 0 and 2^63 - 1.")


def _compressed(plain: bytearray, compression: Compression) -> bytearray:
    """The plain batch with its records compressed, or unchanged if not smaller."""
    if len(plain) - LENGTH_END > BATCH_LENGTH_MAX:
        raise LogError(RECORD_TOO_LARGE, f"A record batch cannot have {len(plain)} bytes.")
    if compression is Compression.NONE:
        return plain
    records = compress(compression, memoryview(plain)[HEADER_SIZE:])
    if HEADER_SIZE + len(records) >= len(plain):
        return plain
    header = parse_header(plain)
    data = bytearray(HEADER_SIZE)
    data += records
    sealed(
        data,
        header._replace(
            attributes=header.attributes | compression, batch_length=len(data) - LENGTH_END
        ),
    )
    return data


def decode(
    batch: RecordBatch,
    *,
    decompressed_bytes_max: int,
    check_crc: bool = False,
    include_control: bool = False,
) -> Sequence[Record]:
    """Decode the records of one batch, in offset order.

    Control batches (transaction markers) give none, unless `include_control`. Offsets and
    timestamps follow `batch.header`, so a header stamped since then counts. Takes memory of up to
    about forty times `decompressed_bytes_max` if all records are tiny, see
    docs/decisions/record-codec.md.

    Raises LogError: RECORD_TOO_LARGE over the bound, MALFORMED_BATCH for anything but a sound
    batch, CORRUPT_BATCH for a wrong CRC if `check_crc`.
    """
    header = batch.header
    if check_crc and not check_batch(batch.data, 0, header):
        raise LogError(CORRUPT_BATCH, f"The CRC of the batch at {header.base_offset} is wrong.")
    if header.is_control and not include_control:
        return []
    plain = decompress_batch(batch, decompressed_bytes_max=decompressed_bytes_max)
    try:
        records = cast("list[Record]", list(DefaultRecordBatch(plain)))
    except Exception as error:
        # Any error is this batch's fault. Besides its own error the codec lets through
        # UnicodeDecodeError (header keys), OverflowError and MemoryError (absurd lengths).
        raise _malformed(batch, str(error) or type(error).__name__) from error
    if records:
        _check_offsets(batch, records[0].offset, records[-1].offset, len(records))
    return records


def decode_joined(batches: Sequence[RecordBatch]) -> list[Record]:
    """Decode several uncompressed batches at once.

    This takes a tenth of the time for small batches. Offsets and timestamps count from the header
    of the first batch, so only the differences within a batch hold. Raises LogError
    MALFORMED_BATCH.
    """
    first, count = batches[0].header, sum(batch.header.record_count for batch in batches)
    pieces: list[Buffer] = [HEADER.pack(*first._replace(record_count=count))]
    pieces += [memoryview(batch.data)[HEADER_SIZE:] for batch in batches]
    padded = b"".join((*pieces, _PADDING))
    plain = memoryview(padded)[: -len(_PADDING)]
    try:
        records = cast("list[Record]", list(DefaultRecordBatch(plain)))
    except Exception as error:
        raise _malformed(batches[0], f"it, or one soon after it: {error}") from error
    if len(records) != count:
        raise _malformed(batches[0], f"{len(records)} of {count} records are there")
    return records


def iterate_records(batch: RecordBatch, *, decompressed_bytes_max: int) -> Iterator[Record]:
    """Decode record by record with little memory, for a loop in a thread.

    `decode` does not let other threads run before its last record. Raises LogError as `decode`
    does, after the records before the damage.
    """
    if not batch.header.is_control:
        plain = decompress_batch(batch, decompressed_bytes_max=decompressed_bytes_max)
        for group, _ in decode_groups(batch, plain, group_bytes=ITERATED_BYTES):
            yield from group


def with_max_timestamp(batch: RecordBatch, *, decompressed_bytes_max: int) -> RecordBatch:
    """Set a max timestamp that the producer left out to its records' largest, as Kafka does.

    Raises LogError as `iterate_records`.
    """
    header = batch.header
    if not header.lacks_max_timestamp:
        return batch
    records = iterate_records(batch, decompressed_bytes_max=decompressed_bytes_max)
    newest_ms = max((record.timestamp for record in records), default=header.base_timestamp_ms)
    data = bytearray(batch.data)
    header = sealed(data, header._replace(max_timestamp_ms=newest_ms))
    return RecordBatch(header, memoryview(data).toreadonly())


def decode_groups(
    batch: RecordBatch, plain: memoryview, *, group_bytes: int
) -> Iterator[tuple[list[Record], int]]:
    """Decode the records of a batch group by group, from `decompress_batch`'s result.

    Yields each group with its size, about `group_bytes` of records of average size, so that neither
    time nor memory grows with the batch. Control batches give none. Raises LogError MALFORMED_BATCH
    as `decode` does, after the groups before the damage.
    """
    header = batch.header
    if header.is_control:
        return
    count = max(header.record_count, 1)
    record_bytes = max((len(plain) - HEADER_SIZE) // count, 1)
    group_records = max(group_bytes // (record_bytes + RECORD_OBJECT_BYTES), 1)
    # The codec's iterator can be taken only once. `islice` takes an iterator each time.
    iterator = chain(DefaultRecordBatch(plain))
    expected: int = header.base_offset
    decoded = 0
    while True:
        try:
            group = cast("list[Record]", list(islice(iterator, group_records)))
        except Exception as error:
            raise _malformed(batch, str(error) or type(error).__name__) from error
        if not group:
            break
        decoded += len(group)
        if group[0].offset < expected or group[-1].offset > header.last_offset:
            raise _malformed(batch, f"its records go to offset {group[-1].offset}")
        expected = group[-1].offset + 1
        yield group, len(group) * record_bytes
    if decoded == header.last_offset_delta + 1 and expected != header.next_offset:
        raise _malformed(batch, f"its records end at offset {expected}")


def decompress_batch(batch: RecordBatch, *, decompressed_bytes_max: int) -> memoryview:
    """The batch without compression, followed by padding (see _PADDING).

    Raises LogError RECORD_TOO_LARGE over the bound, MALFORMED_BATCH.
    """
    header = batch.header
    body = decompress(
        header.compression,
        memoryview(batch.data)[HEADER_SIZE:],
        decompressed_bytes_max=decompressed_bytes_max,
    )
    if header.record_count * RECORD_SIZE_MIN > len(body):
        raise _malformed(batch, f"{len(body)} bytes cannot hold {header.record_count} records")
    plain = header._replace(attributes=header.attributes & ~COMPRESSION_MASK)
    padded = b"".join((HEADER.pack(*plain), body, _PADDING))
    return memoryview(padded)[: HEADER_SIZE + len(body)]


def _check_offsets(batch: RecordBatch, first: int, last: int, count: int) -> None:
    """Check the first and last record against the header's offsets. The codec sets those between.

    Compaction removes records but keeps the header's offsets, so records may be missing at either
    end. Only a batch with all its records must match exactly.
    """
    header = batch.header
    if count == header.last_offset_delta + 1:
        fits = first == header.base_offset and last == header.last_offset
    else:
        fits = header.base_offset <= first <= last <= header.last_offset
    if not fits:
        raise _malformed(
            batch,
            f"its records have offsets {first} to {last}, its header "
            f"{header.base_offset} to {header.last_offset}",
        )


def _malformed(batch: RecordBatch, reason: str) -> LogError:
    return LogError(
        MALFORMED_BATCH, f"The record batch at offset {batch.header.base_offset} is bad: {reason}."
    )
