"""Split, check, stamp and scan record batches as opaque bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from raftlog.record.compression import Compression
from raftlog.record.errors import (
    CORRUPT_BATCH,
    INVALID_BODY,
    MALFORMED_BATCH,
    RECORD_TOO_LARGE,
    LogError,
)
from raftlog.record.header import (
    BATCH_LENGTH_MIN,
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_POSITION,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    PREFIX,
    TRANSACTIONAL_BIT,
    BatchHeader,
    parse_header,
)
from raftlog.record.types import NO_PRODUCER_ID, Buffer, LeaderEpoch, Offset

RECORD_SIZE_MIN: Final = 7
"""Bytes of the smallest record. Its length, attributes, timestamp delta, offset delta, key length,
value length and header count take one byte each."""

BATCHES_MAX: Final = 2_000
"""Most batches of one append, which is one step of the event loop. A batch takes 10 to 20 us to
check, place and write. The Python client sends a tenth of the bound at most."""


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """One whole batch. `data` begins at the header and ends with the last record."""

    header: BatchHeader
    data: memoryview | bytes


def split_batches(
    buffer: Buffer, *, max_message_bytes: int, allow_transactional: bool = False
) -> list[RecordBatch]:
    """Split a producer's bytes into one or more valid batches, or reject all of them.

    The batches are views of `buffer`, which must not change during their life. The leader sets base
    offset and leader epoch, so the producer's values are ignored.

    Raises LogError: RECORD_TOO_LARGE for a batch over `max_message_bytes`, INVALID_BODY for more
    than BATCHES_MAX, CORRUPT_BATCH for a wrong CRC, else MALFORMED_BATCH. A producer may retry a
    batch with a wrong CRC unchanged. A malformed batch stays malformed.
    """
    view = memoryview(buffer)
    if not view.nbytes:
        raise LogError(MALFORMED_BATCH, "There is no record batch.")
    batches: list[RecordBatch] = []
    position = 0
    while position < view.nbytes:
        if len(batches) == BATCHES_MAX:
            raise too_many_batches()
        header = _parse_sent(view, position, len(batches))
        end = position + header.size_bytes
        if end > view.nbytes:
            raise LogError(
                MALFORMED_BATCH,
                f"Record batch {len(batches)} is cut off: it has {view.nbytes - position} of "
                f"{header.size_bytes} bytes.",
            )
        if header.size_bytes > max_message_bytes:
            raise LogError(
                RECORD_TOO_LARGE,
                f"Record batch {len(batches)} has {header.size_bytes} bytes; "
                f"max.message.bytes is {max_message_bytes}.",
            )
        data = view[position:end]
        # The CRC comes first. A field that the CRC covers means nothing if the CRC is wrong.
        if crc32c(data[CRC_START:]) != header.crc:
            raise _wrong_crc(len(batches))
        reason = _refusal(header, allow_transactional=allow_transactional)
        if reason is not None:
            raise LogError(MALFORMED_BATCH, f"Record batch {len(batches)} is refused: {reason}.")
        batches.append(RecordBatch(header, data))
        position = end
    return batches


def _parse_sent(view: memoryview, position: int, number: int) -> BatchHeader:
    """Parse the header of a producer's batch. Raises LogError (CORRUPT_BATCH, MALFORMED_BATCH).

    An impossible header is malformed, unless the CRC is wrong.
    """
    try:
        return parse_header(view, position)
    except LogError as error:
        if view.nbytes - position < HEADER_SIZE:
            raise
        header = BatchHeader._make(HEADER.unpack_from(view, position))
        is_whole = (
            header.magic == MAGIC
            and header.batch_length >= BATCH_LENGTH_MIN
            and position + header.size_bytes <= view.nbytes
        )
        if not is_whole or check_batch(view, position, header):
            raise
        raise _wrong_crc(number) from error


def _wrong_crc(number: int) -> LogError:
    return LogError(CORRUPT_BATCH, f"Record batch {number} is refused: its CRC does not match.")


def has_more_batches(buffer: Buffer, count: int) -> bool:
    """Whether a producer's bytes may hold more than `count` batches, by their lengths alone."""
    view = memoryview(buffer)
    position = 0
    for _ in range(count):
        if view.nbytes - position < HEADER_SIZE:
            return False
        _, batch_length, _ = PREFIX.unpack_from(view, position)
        if batch_length < 0:
            # Refused by `split_batches`.
            return False
        position += LENGTH_END + batch_length
    return position < view.nbytes


def too_many_batches() -> LogError:
    """The error for an append of more than BATCHES_MAX batches."""
    return LogError(
        INVALID_BODY,
        f"One append takes {BATCHES_MAX} record batches at most: send larger batches, or less at "
        "once.",
    )


def _refusal(header: BatchHeader, *, allow_transactional: bool) -> str | None:
    """Reason to reject this header from a producer, or None."""
    attributes = header.attributes
    reason: str | None = None
    if attributes & COMPRESSION_MASK > Compression.ZSTD:
        reason = f"there is no compression codec {attributes & COMPRESSION_MASK}"
    elif attributes & CONTROL_BIT:
        reason = "control batches are written by the node only"
    elif attributes & (LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT):
        reason = "log append time and delete horizon are set by the node only"
    elif attributes & TRANSACTIONAL_BIT and not allow_transactional:
        reason = "it is transactional, outside of a transaction"
    elif attributes & TRANSACTIONAL_BIT and header.producer_id == NO_PRODUCER_ID:
        reason = "it is transactional, without a producer id"
    elif header.record_count < 1:
        reason = "it has no records"
    elif header.record_count != header.last_offset_delta + 1:
        reason = (
            f"it claims {header.record_count} records, but its last offset delta is "
            f"{header.last_offset_delta}"
        )
    elif (
        not attributes & COMPRESSION_MASK
        and header.record_count * RECORD_SIZE_MIN > header.size_bytes - HEADER_SIZE
    ):
        reason = f"it is too short for the {header.record_count} records that it claims"
    elif header.base_timestamp_ms < -1:
        reason = f"its base timestamp is {header.base_timestamp_ms}"
    elif header.producer_id < NO_PRODUCER_ID:
        reason = f"{header.producer_id} is no producer id"
    elif header.producer_id != NO_PRODUCER_ID and (
        header.producer_epoch < 0 or header.base_sequence < 0
    ):
        # Without a producer id both are ignored, since some clients leave zeros there.
        reason = (
            f"producer epoch {header.producer_epoch} and sequence {header.base_sequence} "
            "do not go with a producer id"
        )
    return reason


def stamp(header: BatchHeader, base_offset: Offset, leader_epoch: LeaderEpoch) -> bytes:
    """Build the first PREFIX_SIZE bytes that a leader writes. The rest is unchanged."""
    return PREFIX.pack(base_offset, header.batch_length, leader_epoch)


def with_log_append_time(batch: RecordBatch, now_ms: int) -> RecordBatch:
    """Set every record's timestamp to `now_ms` (`message.timestamp.type`).

    Two header fields change, and with them the CRC, so the whole batch is copied and summed again.
    """
    data = bytearray(batch.data)
    header = batch.header._replace(
        attributes=batch.header.attributes | LOG_APPEND_TIME_BIT, max_timestamp_ms=now_ms
    )
    return RecordBatch(sealed(data, header), memoryview(data).toreadonly())


def sealed(data: bytearray, header: BatchHeader) -> BatchHeader:
    """Write `header` with its CRC over the start of `data`, and return the new header.

    `batch_length` must be true already.
    """
    assert len(data) == header.size_bytes
    HEADER.pack_into(data, 0, *header)
    crc = crc32c(memoryview(data)[CRC_START:])
    data[CRC_POSITION:CRC_START] = crc.to_bytes(4, "big")
    return header._replace(crc=crc)


def check_batch(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the batch of `header` (parsed at `position`) is complete and undamaged."""
    end = position + header.size_bytes
    if end > len(buffer):
        return False
    return bool(crc32c(memoryview(buffer)[position + CRC_START : end]) == header.crc)


def iterate_headers(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each batch from `position` on.

    The last batch may be cut off in its records. Checks no CRC. Raises LogError(MALFORMED_BATCH)
    where there is no header.
    """
    size = len(buffer)
    while position < size:
        header = parse_header(buffer, position)
        yield position, header
        position += header.size_bytes


def iterate_batches(buffer: Buffer, *, check_crc: bool = True) -> Iterator[RecordBatch]:
    """Yield each batch of `buffer` as a view.

    The bytes come from a log, so only the CRC is checked. Raises LogError after the batches before
    the fault: CORRUPT_BATCH for a wrong CRC, MALFORMED_BATCH for a truncated batch or an impossible
    header.
    """
    view = memoryview(buffer)
    for position, header in iterate_headers(view):
        end = position + header.size_bytes
        if end > view.nbytes:
            raise LogError(
                MALFORMED_BATCH,
                f"The record batch at offset {header.base_offset} is cut off: "
                f"{view.nbytes - position} of {header.size_bytes} bytes are there.",
            )
        if check_crc and not check_batch(view, position, header):
            raise LogError(
                CORRUPT_BATCH, f"The CRC of the batch at offset {header.base_offset} is wrong."
            )
        yield RecordBatch(header, view[position:end])
